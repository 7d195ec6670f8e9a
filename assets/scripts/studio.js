// What the page does by itself: theme, the address, tags into the prompt, hover previews, Ctrl+Enter.
(() => {
  let awaitShown = false;
  let lastShown = '';

  const applyTheme = () => {
    const chosen = localStorage.getItem('h3-theme');
    if (chosen && document.body) document.body.classList.toggle('dark', chosen === 'dark');
  };

  // Gradio sets the system's theme once while it starts; ours has to win after that, too.
  const settle = () => {
    applyTheme();
    const watching = new MutationObserver(() => {
      const chosen = localStorage.getItem('h3-theme');
      if (chosen && document.body.classList.contains('dark') !== (chosen === 'dark')) applyTheme();
    });
    watching.observe(document.body, { attributes: true, attributeFilter: ['class'] });
  };

  const insertTag = (tag) => {
    const field = window.h3Prompt?.tagField() ?? document.querySelector('#prompt textarea');
    if (!field) return;
    const at = field.selectionStart ?? field.value.length;
    const before = field.value.slice(0, at);
    const space = before && !/\s$/.test(before) ? ' ' : '';
    field.setRangeText(space + tag, at, field.selectionEnd ?? at, 'end');
    field.dispatchEvent(new Event('input', { bubbles: true }));
    field.focus();
  };

  const copy = (button) => {
    const source = document.querySelector(button.dataset.copy);
    if (!source) return;
    navigator.clipboard.writeText(source.innerText).then(() => {
      button.classList.add('copied');
      setTimeout(() => button.classList.remove('copied'), 1200);
    });
  };

  document.addEventListener('click', (event) => {
    const at = (selector) => event.target.closest && event.target.closest(selector);
    if (at('[data-theme-toggle]')) {
      localStorage.setItem('h3-theme', document.body.classList.contains('dark') ? 'light' : 'dark');
      applyTheme();
    }
    // On a phone the result stands below the form: bring it into view once a job was accepted.
    if (at('#generate')) awaitShown = true;
    const tag = at('[data-tag]');
    if (tag) insertTag(tag.dataset.tag);
    const source = at('[data-copy]');
    if (source) copy(source);
  });

  document.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
      const button = document.querySelector('#generate');
      if (button) button.click();
    }
  });

  for (const [name, play] of [['mouseover', true], ['mouseout', false], ['focusin', true], ['focusout', false]]) {
    document.addEventListener(name, (event) => {
      const video = event.target.closest && event.target.closest('.shot')?.querySelector('[data-hover-play]');
      if (!video) return;
      if (play) video.play().catch(() => {});
      else video.pause();
    });
  }

  // The job in the light is in the address, so that a reload or another device finds it.
  const follow = () => {
    const shown = document.querySelector('#live [data-shown]');
    if (!shown) return;
    const address = new URL(window.location.href);
    const job = shown.dataset.shown;
    if (job && awaitShown && job !== lastShown) {
      awaitShown = false;
      if (window.innerWidth <= 900) document.querySelector('#live').scrollIntoView({ behavior: 'smooth', block: 'start' });
    }
    lastShown = job;
    if ((address.searchParams.get('job') || '') === job) return;
    if (job) address.searchParams.set('job', job);
    else address.searchParams.delete('job');
    window.history.replaceState(null, '', address);
  };

  const begin = () => {
    settle();
    new MutationObserver(follow).observe(document.body, {
      subtree: true,
      childList: true,
      attributes: true,
      attributeFilter: ['data-shown'],
    });
  };
  // Gradio adds this script to a page that may be loaded already.
  if (document.readyState === 'loading') window.addEventListener('DOMContentLoaded', begin);
  else begin();
})();

// What happens around the prompt's editor: the choice of view, files, places in the text, undo, and its start.
(() => {
  const { state, all, field, text, say, view, showUndo, undo, ask, make, grow, select, told, choose } = window.h3Prompt;

  const LANGUAGES = ['English', 'Chinese', 'Spanish', 'French', 'German', 'Japanese', 'Korean', 'Portuguese', 'Russian',
    'Italian', 'Arabic', 'Hindi', 'Cantonese'];

  const openFile = async (files) => {
    const file = files?.[0];
    if (!file) return;
    if (file.size > 1000000) {
      say('The file is too large for a request.');
      return;
    }
    state.undo = [...state.undo.slice(-19), text()];
    showUndo();
    state.bridge?.open(await file.text());
  };

  // An offset of the server counts characters, one here counts UTF-16 units.
  const unitsOf = (value, at) => Array.from(value).slice(0, at).join('').length;

  const goTo = (at) => {
    const value = text(), from = unitsOf(value, at);
    if (view() === 'parts' && state.outline && state.parts.join('') === value) {
      let end = 0;
      const index = state.parts.findIndex((part) => { end += part.length; return from < end; });
      if (reveal(index)) return;
      show('text');
    }
    const area = field(), end = value.indexOf('\n', from);
    area.focus();
    area.setSelectionRange(from, end < 0 ? Math.min(value.length, from + 80) : Math.min(end, from + 80));
    area.scrollTop = Math.max(area.scrollHeight * (from / Math.max(value.length, 1)) - area.clientHeight / 2, 0);
  };
  const reveal = (index) => {
    const { shots: items, sections, lead, instruction } = state.outline;
    const within = (at) => at && index >= at.from - 1 && index <= at.to;
    const found = items.findIndex(within);
    if (found >= 0) {
      choose('shots');
      select(found, `shot-${found}`);
      return true;
    }
    if (index === 0 && (instruction.have || instruction.want)) {
      choose('first');
      state.root.querySelector('#ir-panel-first button:not([hidden])')?.focus();
      return true;
    }
    if (within(lead) && state.root.querySelector('[data-key="lead"]')) {
      choose('shots');
      state.root.querySelector('[data-key="lead"]').focus();
      return true;
    }
    const part = sections.find(within);
    if (!part) return false;
    choose(part.name === 'overall_soundscape' || part.name === 'non_diegetic_music' ? 'sound' : part.name);
    state.root.querySelector(`[data-key="${part.name}"]`)?.focus();
    return true;
  };

  const show = (name) => {
    document.body.dataset.promptView = name;
    all('.ir-views input').forEach((radio) => { radio.checked = radio.value === name; });
    try {
      localStorage.setItem('h3-prompt-view', name);
    } catch { /* a browser that keeps nothing shows free text next time */ }
    if (name === 'parts') state.root?.querySelectorAll('textarea').forEach(grow);
  };

  // Where a tag goes that is pressed in the tray: the field of the structured view that was typed in last.
  let typedIn = null;
  const tagField = () => (view() === 'parts' && typedIn?.isConnected && typedIn.offsetParent ? typedIn
    : view() === 'parts' ? state.root?.querySelector('.ir-shot:not([hidden]) textarea') : null) ?? field();

  document.addEventListener('focusin', (event) => {
    if (event.target.matches?.('.ir textarea, .ir-lines input:not(.ir-language)')) typedIn = event.target;
  });
  document.addEventListener('click', (event) => {
    const at = (selector) => event.target.closest?.(selector);
    if (at('[data-ir-undo]')) undo();
    const mend = at('[data-ir-mend]');
    if (mend) ask('mend', { key: mend.dataset.irMend }, 'Fixed.');
    const line = at('[data-ir-line]');
    if (line) goTo(Number(line.dataset.irLine));
    if (!at('[data-ir-menu]')) all('[data-ir-menu][open]').forEach((menu) => { menu.open = false; });
  });
  document.addEventListener('keydown', (event) => {
    const menu = event.key === 'Escape' && event.target.closest?.('[data-ir-menu][open]');
    if (menu) {
      menu.open = false;
      menu.querySelector('summary').focus();
    }
  });
  document.addEventListener('change', (event) => {
    const target = event.target;
    if (target.name === 'prompt-view') show(target.value);
    if (target.matches?.('[data-ir-file]')) {
      openFile(target.files);
      target.value = '';
    }
  });

  const mount = (element, bridge) => {
    state.bridge = bridge;
    state.root = element.querySelector('[data-ir]') ?? element;
    state.root.addEventListener('compositionstart', () => { state.composing = true; });
    state.root.addEventListener('compositionend', () => {
      state.composing = false;
      const waiting = state.waiting;
      state.waiting = null;
      if (waiting) told(waiting);
    });
    if (!document.querySelector('#ir-languages'))
      document.body.append(make('datalist', { id: 'ir-languages' }, ...LANGUAGES.map((name) => make('option', { value: name }))));
    let kept = 'text';
    try {
      kept = localStorage.getItem('h3-prompt-view') || 'text';
    } catch { /* see above */ }
    show(kept === 'parts' ? 'parts' : 'text');
    told(bridge.value());
  };

  Object.assign(window.h3Prompt, { mount, tagField });
})();

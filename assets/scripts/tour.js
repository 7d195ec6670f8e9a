// A short way around the page for a first visit: five places, one sentence or two each, by keyboard or by hand.
// It is shown once in a browser, and again by the button that asks for it. It covers nothing that can be pressed.
(() => {
  const KEY = 'h3-tour';
  const STEPS = [
    ['#prompt', 'Say what to see and hear', 'One sentence is enough to begin; sound belongs in it. “Structured” shows the same text as shots, speakers and music.'],
    ['#mode', 'Begin with more than words', 'A first or last frame fixes how the video starts or ends. References lend it people, places, movements or voices.'],
    ['#plan', 'See the cost before you press', 'Choose shape, size and length. This line tells what will be made and how long it should take.'],
    ['#generate', 'Press Generate, or Ctrl+Enter', 'Jobs wait their turn and go on when this tab is closed. “Draft first” tries the prompt on a small canvas.'],
    ['#sections button[role=tab]:nth-of-type(2)', 'Find everything again', 'The gallery keeps each video with its settings: use them again, continue from the last frame, or compare two.'],
  ];
  const GAP = 14; // px between a place and what is said about it
  let at = -1;
  let box = null;
  let ring = null;
  let before = null; // what had the focus

  const make = (name, attributes, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const button = (label, kind, press) => {
    const node = make('button', { type: 'button', class: `btn ${kind}` }, label);
    node.addEventListener('click', press);
    return node;
  };

  const typing = () => document.activeElement?.matches('textarea, input:not([type=radio], [type=checkbox]), select');
  // A tab that does not fit stands in a menu and is not seen: the row of tabs stands for it.
  const seen = (node) => node?.checkVisibility({ visibilityProperty: true }) && node.getBoundingClientRect().width > 0;
  const place = () => {
    const found = [...document.querySelectorAll(STEPS[at][0])].find(seen);
    return found || document.querySelector('#sections');
  };

  const settle = () => {
    if (!box) return;
    const target = place().getBoundingClientRect();
    const top = Math.max(target.top, 4);
    const bottom = Math.min(target.bottom, innerHeight - 4);
    Object.assign(ring.style, {
      left: `${target.left - 6}px`, top: `${top - 6}px`, width: `${target.width + 12}px`, height: `${Math.max(bottom - top, 0) + 12}px`,
    });
    const { width, height } = box.getBoundingClientRect();
    const below = bottom + GAP;
    const fits = below + height <= innerHeight - 8;
    const left = Math.min(Math.max(target.left, 12), innerWidth - width - 12);
    box.style.left = `${left}px`;
    box.style.top = `${fits ? below : Math.max(top - GAP - height, 8)}px`;
  };

  const show = (step, focus) => {
    at = step;
    const [, title, words] = STEPS[step];
    const last = step === STEPS.length - 1;
    const next = button(last ? 'Done' : 'Next', 'primary', () => (last ? end() : show(at + 1, true)));
    const back = button('Back', '', () => show(at - 1, true));
    back.disabled = step === 0;
    const dots = make('span', { class: 'tour-dots', 'aria-hidden': 'true' }, ...STEPS.map((_, index) => make('i', index === step ? { class: 'here' } : {})));
    box.replaceChildren(
      make('p', { class: 'sr-only' }, `Step ${step + 1} of ${STEPS.length}`),
      make('h2', { id: 'tour-title' }, title),
      make('p', { id: 'tour-words' }, words),
      make('div', { class: 'tour-row' }, button('Skip the tour', 'quiet', end), dots, back, next)
    );
    place().scrollIntoView({ block: 'center', behavior: 'instant' });
    settle();
    if (focus) next.focus({ preventScroll: true });
  };

  const end = () => {
    localStorage.setItem(KEY, 'seen');
    if (!box) return;
    const held = box.contains(document.activeElement);
    box.remove();
    ring.remove();
    box = ring = null;
    removeEventListener('resize', settle);
    document.removeEventListener('scroll', settle, true);
    if (held && before?.isConnected) before.focus({ preventScroll: true });
  };

  const begin = () => {
    if (box || !document.querySelector('#prompt')) return;
    document.querySelector('#sections button[role=tab]')?.click(); // all places but the last are on the first tab
    before = document.activeElement;
    ring = make('div', { class: 'tour-ring', 'aria-hidden': 'true' });
    box = make('div', { class: 'tour', role: 'dialog', 'aria-labelledby': 'tour-title', 'aria-describedby': 'tour-words' });
    box.addEventListener('keydown', (event) => {
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1 }[event.key];
      if (event.key === 'Escape') end();
      else if (to >= 0 && to < STEPS.length) show(to, true);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    (document.querySelector('.gradio-container .contain') || document.body).append(ring, box);
    addEventListener('resize', settle);
    document.addEventListener('scroll', settle, true);
    requestAnimationFrame(() => box && show(0, !typing()));
  };

  document.addEventListener('click', (event) => {
    if (event.target.closest?.('[data-tour]')) begin();
  });

  // Whoever comes by a link to a job, or logs in first, is not led around before that.
  const first = () => {
    if (localStorage.getItem(KEY) || new URL(location.href).searchParams.has('job')) return;
    const waiting = new MutationObserver(() => {
      if (!document.querySelector('#plan .plan')) return;
      waiting.disconnect();
      begin();
    });
    waiting.observe(document.body, { subtree: true, childList: true });
  };
  if (document.readyState === 'loading') document.addEventListener('DOMContentLoaded', first);
  else first();
})();

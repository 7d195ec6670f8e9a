// The prompt's editor: a form over the parts of one text. It knows no format: the server tells which part a field is,
// and joined parts are the text. What is typed changes its part at once; everything else is asked of the server.
window.h3Prompt = (() => {
  const LANGUAGES = ['English', 'Chinese', 'Spanish', 'French', 'German', 'Japanese', 'Korean', 'Portuguese', 'Russian',
    'Italian', 'Arabic', 'Hindi', 'Cantonese'];
  const TITLES = {
    subject_definitions: ['Subjects', 'What each reference is: one line a subject, picture, clip or sound.'],
    summary: ['Summary', 'One paragraph, beginning with the kind of task in square brackets.'],
    retention_analysis: ['What is kept', 'One line for each reference: what of it stays, and how exactly.'],
    overall_soundscape: ['Sounds', 'Ambience and noises over the whole video, in one paragraph. No speech, no music.'],
    non_diegetic_music: ['Music', 'What only the audience hears: instruments, speed, dynamics. N/A for none.'],
  };
  const state = { bridge: null, root: null, outline: null, parts: [], tab: 'shots', shot: 0, signature: '', refresh: [], fields: [],
    undo: [], composing: false, waiting: null, wants: null };

  const all = (selector) => Array.from(document.querySelectorAll(selector));
  const field = () => document.querySelector('#prompt textarea');
  const text = () => field()?.value ?? '';
  const say = (words) => all('[data-ir-status]').forEach((node) => { node.textContent = words; });
  const seconds = (value) => `${Math.round(value * 100) / 100} s`;
  const view = () => document.body.dataset.promptView || 'text';

  const write = (value) => {
    const area = field();
    if (!area || area.value === value) return;
    area.value = value;
    area.dispatchEvent(new Event('input', { bubbles: true }));
  };

  // Replacing the whole text can be taken back; what is typed has the browser's own undo.
  const replace = (value, words) => {
    if (value === text()) return;
    state.undo = [...state.undo.slice(-19), text()];
    write(value);
    showUndo();
    if (words) say(words);
  };
  const showUndo = () => all('[data-ir-undo]').forEach((button) => { button.hidden = !state.undo.length; });
  const undo = () => {
    if (!state.undo.length) return;
    write(state.undo.pop());
    showUndo();
    say('Taken back.');
  };

  const ask = async (name, more = {}, words = '') => {
    const before = text();
    if (!state.bridge || !state.outline) return;
    let reply = null;
    try {
      reply = await state.bridge.edit({ name, text: before, target: state.outline.target, ...more });
    } catch {
      say('The server did not answer.');
      return;
    }
    if (!reply || typeof reply.text !== 'string') return;
    if (text() !== before) {
      say('The text changed meanwhile; try again.');
      return;
    }
    replace(reply.text, words);
    if (reply.outline) told(reply.outline);
  };

  // Building

  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === 'on') for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
      else if (value === true) node.setAttribute(name, '');
      else if (value !== false && value != null) node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child != null));
    return node;
  };
  const live = (node, tell) => {
    state.refresh.push((outline) => tell(node, outline));
    return node;
  };
  const button = (label, act, more = {}) =>
    make('button', { type: 'button', class: 'btn quiet', ...more, on: { click: act } }, make('span', {}, label));
  const iconButton = (label, sign, act, more = {}) =>
    make('button', { type: 'button', class: 'btn icon', 'aria-label': label, title: label, ...more, on: { click: act } },
      make('span', { 'aria-hidden': 'true' }, sign));

  const valueOf = (parts, at) => parts.slice(at.from, at.to).join('');
  const setParts = (at, value) => {
    state.parts[at.from] = value;
    for (let index = at.from + 1; index < at.to; index += 1) state.parts[index] = '';
    // A line inside a shot waits until the server has found it again; a shot around a line follows at once.
    for (const other of state.fields) {
      const its = other.find(state.outline);
      if (!its || other.node === document.activeElement || its.to <= at.from || its.from >= at.to) continue;
      if (its.to - its.from < at.to - at.from) other.node.disabled = true;
      else other.node.value = valueOf(state.parts, its);
    }
    write(state.parts.join(''));
  };

  // A field over some parts. `find` gives them in an outline; a field that holds several says so by `stale`.
  const input = (key, label, find, more = {}) => {
    const { rows, hint, onto, ...attributes } = more;
    const id = `ir-field-${key}`;
    const node = make(rows ? 'textarea' : 'input', {
      id, rows, 'data-key': key, translate: 'no', spellcheck: rows ? 'true' : 'false', autocomplete: 'off',
      'aria-describedby': hint ? `${id}-hint` : null, ...attributes,
    });
    state.fields.push({ node, find });
    node.addEventListener('input', () => {
      const at = find(state.outline);
      if (!at) return;
      if (at.head_text !== undefined && !state.outline.parts[at.head]) state.parts[at.head] = node.value ? at.head_text : '';
      setParts(at, node.value);
      if (rows) grow(node);
      onto?.();
    });
    live(node, (_, outline) => {
      const at = find(outline);
      node.disabled = !at;
      if (!at) return;
      const value = valueOf(outline.parts, at);
      if (document.activeElement === node && node.value.trim() === value.trim()) widen(at, node.value);
      else if (node.value !== value) node.value = value;
      if (rows) grow(node);
    });
    return make('div', { class: 'ir-field' }, make('label', { for: id }, label), node,
      hint ? make('p', { class: 'ir-help', id: `${id}-hint` }, hint) : null);
  };
  const grow = (node) => {
    node.style.height = 'auto';
    if (node.scrollHeight) node.style.height = `${Math.min(node.scrollHeight + 2, 420)}px`;
  };

  // The server gives space at a field's end to the part after it; while one types there, it is the field's.
  const widen = (at, value) => {
    const parts = [...state.parts];
    const have = valueOf(parts, at);
    const start = value.indexOf(have);
    if (have === value || start < 0) return;
    let before = value.slice(0, start), after = value.slice(start + have.length);
    parts[at.from] = before + parts[at.from];
    parts[at.to - 1] += after;
    for (let left = at.from - 1; before && left >= 0; left -= 1) {
      const taken = parts[left].slice(-before.length);
      if (!before.endsWith(taken)) return;
      parts[left] = parts[left].slice(0, parts[left].length - taken.length);
      before = before.slice(0, before.length - taken.length);
    }
    for (let right = at.to; after && right < parts.length; right += 1) {
      const taken = parts[right].slice(0, after.length);
      if (!after.startsWith(taken)) return;
      parts[right] = parts[right].slice(taken.length);
      after = after.slice(taken.length);
    }
    if (!before && !after) state.parts = parts;
  };

  // Rendering: fields stay the same elements while the text has the same parts, so that typing is never interrupted.

  const told = (outline) => {
    if (!outline || !state.root) return;
    if (state.composing) {
      state.waiting = outline;
      return;
    }
    templates(outline);
    if (outline.form !== 'long' && outline.parts.join('') !== text()) {
      if (state.outline) state.outline.target = outline.target;
      return; // the text is ahead: its own outline is on the way
    }
    state.outline = outline;
    state.parts = [...outline.parts];
    const signature = JSON.stringify([outline.form, outline.wanted, Boolean(outline.lead), outline.shots.map((shot) =>
      shot.rows.map((row) => [row.speakers, row.language === null])), outline.sections.map((part) => part.name),
      outline.speakers.map((who) => who.id), outline.form === 'free' && outline.templates, Boolean(outline.instruction.want || outline.instruction.have)]);
    if (signature !== state.signature) rebuild(signature);
    state.refresh.forEach((tell) => tell(outline));
    if (state.wants) {
      state.root.querySelector(`[data-key="${state.wants}"]`)?.focus();
      state.wants = null;
    }
  };

  const rebuild = (signature) => {
    const at = document.activeElement;
    const kept = state.root.contains(at) && at.dataset.key
      ? [at.dataset.key, at.selectionStart ?? null, at.selectionEnd ?? null, at.value] : null;
    state.signature = signature;
    state.refresh = [];
    state.fields = [];
    state.root.replaceChildren(...content());
    if (!kept) return;
    const again = state.root.querySelector(`[data-key="${kept[0]}"]`);
    if (!again) return;
    if (again.tagName !== 'BUTTON') again.value = kept[3];
    again.focus();
    if (kept[1] !== null && again.setSelectionRange && again.type !== 'number') again.setSelectionRange(kept[1], kept[2]);
  };

  const content = () => {
    const outline = state.outline;
    if (outline.form === 'free' || outline.form === 'long') return [empty(outline)];
    const tabs = [];
    const named = (name) => outline.sections.some((section) => section.name === name);
    if (outline.instruction.want || outline.instruction.have) tabs.push(['first', 'First line', firstLine]);
    for (const name of ['subject_definitions', 'summary', 'retention_analysis'])
      if (named(name)) tabs.push([name, TITLES[name][0], () => [section(name, 5)]]);
    tabs.push(['shots', 'Shots', shots]);
    tabs.push(['speakers', 'Speakers', speakers]);
    tabs.push(['sound', 'Sound and music', () => ['overall_soundscape', 'non_diegetic_music'].filter(named)
      .map((name) => section(name, 3))]);
    if (!tabs.some(([key]) => key === state.tab)) state.tab = 'shots';
    const panels = tabs.map(([key, , build]) =>
      make('div', { role: 'tabpanel', id: `ir-panel-${key}`, 'aria-labelledby': `ir-tab-${key}`, class: 'ir-panel',
        hidden: key !== state.tab }, ...build()));
    const bar = make('div', { class: 'ir-tabs', role: 'tablist', 'aria-label': 'Parts of the prompt' },
      ...tabs.map(([key, label]) => tab(key, label)));
    return [bar, ...panels];
  };

  const tab = (key, label) => {
    const count = key === 'speakers' ? live(make('span', { class: 'ir-count' }), (node, outline) => {
      node.textContent = outline.speakers.length || '';
    }) : null;
    return make('button', {
      type: 'button', role: 'tab', id: `ir-tab-${key}`, 'data-key': `tab-${key}`, 'aria-controls': `ir-panel-${key}`,
      'aria-selected': String(key === state.tab), tabindex: key === state.tab ? '0' : '-1', class: 'ir-tab',
      on: { click: () => choose(key), keydown: (event) => arrows(event, '.ir-tab') },
    }, make('span', {}, label), count);
  };
  const choose = (key) => {
    state.tab = key;
    for (const node of state.root.querySelectorAll('.ir-tab')) {
      const mine = node.id === `ir-tab-${key}`;
      node.setAttribute('aria-selected', String(mine));
      node.tabIndex = mine ? 0 : -1;
    }
    for (const node of state.root.querySelectorAll('.ir-panel')) node.hidden = node.id !== `ir-panel-${key}`;
    state.root.querySelectorAll(`#ir-panel-${key} textarea`).forEach(grow);
  };
  const arrows = (event, selector) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const nodes = Array.from(state.root.querySelectorAll(selector));
    const next = nodes[(nodes.indexOf(event.currentTarget) + by + nodes.length) % nodes.length];
    next.click();
    next.focus();
  };

  const empty = (outline) => {
    const nothing = !outline.parts.join('').trim() && outline.form !== 'long';
    const words = outline.form === 'long' ? 'This text is too long to be taken apart.'
      : nothing ? 'The model was trained on prompts with shots, sounds and music in sections of their own.'
        : 'This is free text. The model was trained on prompts with shots, sounds and music in sections of their own.';
    const buttons = outline.form === 'long' ? []
      : [button(nothing ? 'Start with one shot' : 'Put it into shots', () => ask('structure', {}, 'Put into shots.'),
        { class: 'btn primary', 'data-key': 'structure' })];
    const list = nothing ? outline.templates.map((item) => templateButton(item)) : [];
    return make('div', { class: 'ir-empty' }, make('p', {}, words), make('div', { class: 'ir-row' }, ...buttons),
      list.length ? make('div', { class: 'ir-cards' }, ...list) : null);
  };

  const section = (name, rows) => input(name, TITLES[name]?.[0] ?? name, (outline) =>
    outline.sections.find((known) => known.name === name), { rows, hint: TITLES[name]?.[1] });

  const firstLine = () => [
    make('p', { class: 'ir-help' }, 'The model reads from the first line which picture is which moment. It is written for you.'),
    live(make('blockquote', { class: 'ir-quote', translate: 'no' }), (node, outline) => {
      node.textContent = outline.instruction.have || outline.instruction.want;
      node.classList.toggle('missing', !outline.instruction.have);
    }),
    live(button('Write the first line', () => ask('instruction', {}, 'First line written.'), { 'data-key': 'first' }),
      (node, { instruction }) => {
        node.hidden = instruction.have === instruction.want;
        node.firstChild.textContent = !instruction.want ? 'Delete the first line'
          : instruction.have ? 'Correct the first line' : 'Add the first line';
      }),
    live(make('p', { class: 'ir-ok' }, 'The first line is right.'), (node, { instruction }) => {
      node.hidden = instruction.have !== instruction.want;
    }),
  ];

  // Shots

  const shots = () => {
    const outline = state.outline;
    state.shot = Math.min(Math.max(state.shot, 0), Math.max(outline.shots.length - 1, 0));
    const lead = outline.wanted === 'reference' || outline.form === 'reference' || !outline.shots.length
      || valueOf(outline.parts, outline.lead ?? { from: 0, to: 0 });
    return [
      outline.lead && lead ? input('lead', 'Style', (now) => now.lead, { rows: 1, hint: 'One or two sentences before the first shot.' }) : null,
      outline.shots.length ? timeline() : null,
      sum(),
      ...outline.shots.map((_, index) => shot(index)),
      outline.shots.length ? null : button('Add the first shot', () => ask('add', { shot: -1 }), { 'data-key': 'add-first' }),
    ].filter(Boolean);
  };

  const span = (outline) => Math.max(outline.duration, ...outline.shots.map((item) => item.start + 0.4));

  const timeline = () => {
    const count = state.outline.shots.length;
    const blocks = state.outline.shots.map((_, index) => live(make('button', {
      type: 'button', role: 'tab', class: 'ir-block', 'data-key': `block-${index}`, id: `ir-block-${index}`,
      'aria-controls': `ir-shot-${index}`,
      on: { click: () => select(index), keydown: (event) => arrows(event, '.ir-block') },
    }, make('b', {}), make('span', { translate: 'no' })), (node, outline) => {
      const item = outline.shots[index], whole = span(outline);
      node.style.left = `${100 * item.start / whole}%`;
      node.style.width = `${100 * Math.max(item.end - item.start, 0.15) / whole}%`;
      node.classList.toggle('wrong', item.start >= outline.duration || (index > 0 && item.start <= outline.shots[index - 1].start));
      node.firstChild.textContent = item.number;
      node.lastChild.textContent = `${seconds(item.start).replace(' s', '')}–${seconds(item.end)}`;
      node.title = `Shot ${item.number}: ${seconds(item.start)} to ${seconds(item.end)}`;
      node.setAttribute('aria-label', node.title);
      node.setAttribute('aria-selected', String(index === state.shot));
      node.tabIndex = index === state.shot ? 0 : -1;
    }));
    const handles = Array.from({ length: count - 1 }, (_, index) => handle(index + 1));
    const end = live(make('i', { class: 'ir-end', 'aria-hidden': 'true' }), (node, outline) => {
      node.style.left = `${100 * outline.duration / span(outline)}%`;
      node.hidden = outline.duration >= span(outline);
    });
    return make('div', { class: 'ir-timeline' },
      make('div', { class: 'ir-track', role: 'tablist', 'aria-label': 'Shots on the timeline' }, ...blocks),
      ...handles, end);
  };

  // A cut between two shots: dragged, or moved by arrow keys.
  const handle = (index) => {
    const place = (node, outline, at) => {
      node.style.left = `${100 * at / span(outline)}%`;
      node.setAttribute('aria-valuenow', at.toFixed(2));
      node.setAttribute('aria-valuetext', seconds(at));
    };
    const node = make('div', { class: 'ir-cut', role: 'slider', tabindex: '0', 'data-key': `cut-${index}`,
      'aria-orientation': 'horizontal', 'aria-label': `Cut to shot ${index + 1}`, 'aria-valuemin': '0' });
    live(node, (_, outline) => {
      node.setAttribute('aria-valuemax', outline.duration);
      place(node, outline, outline.shots[index].start);
    });
    node.addEventListener('keydown', (event) => {
      const by = { ArrowRight: 0.1, ArrowUp: 0.1, ArrowLeft: -0.1, ArrowDown: -0.1, PageUp: 0.5, PageDown: -0.5 }[event.key];
      if (!by) return;
      event.preventDefault();
      cut(index, state.outline.shots[index].start + by);
    });
    node.addEventListener('pointerdown', (event) => {
      event.preventDefault();
      node.setPointerCapture(event.pointerId);
      node.focus();
      const track = node.parentElement.getBoundingClientRect(), whole = span(state.outline);
      let at = state.outline.shots[index].start;
      const move = (moved) => {
        at = Math.round(Math.min(Math.max((moved.clientX - track.left) / track.width, 0), 1) * whole * 20) / 20;
        place(node, state.outline, at);
        node.dataset.at = seconds(at);
      };
      const stop = () => {
        node.removeEventListener('pointermove', move);
        delete node.dataset.at;
        if (at !== state.outline.shots[index].start) cut(index, at);
      };
      node.addEventListener('pointermove', move);
      node.addEventListener('pointerup', stop, { once: true });
      node.addEventListener('pointercancel', stop, { once: true });
    });
    return node;
  };
  const cut = (index, at) => ask('start', { shot: index, value: Math.max(Math.round(at * 1000) / 1000, 0) });

  const sum = () => {
    const words = live(make('span', {}), (node, outline) => {
      const last = outline.shots[outline.shots.length - 1];
      const { over, past, mixed } = outline.fits;
      node.parentElement.classList.toggle('wrong', past || mixed);
      node.parentElement.hidden = !last;
      if (mixed) node.textContent = 'The cuts are not in order.';
      else if (past) node.textContent = `The last cut is ${over ? `${seconds(over)} past` : 'at'} the end of the video, ${seconds(outline.duration)}.`;
      else node.textContent = `The shots add up to ${seconds(outline.duration)}, ${outline.frames} frames.`;
    });
    const fit = live(button('Fit the cuts', () => ask('fit', {}, 'Cuts fitted.'), { 'data-key': 'fit', class: 'btn chip' }),
      (node, outline) => { node.hidden = !(outline.fits.past || outline.fits.mixed); });
    return make('p', { class: 'ir-sum' }, words, fit);
  };

  const select = (index, then) => {
    state.shot = index;
    for (const node of state.root.querySelectorAll('.ir-shot')) node.hidden = node.id !== `ir-shot-${index}`;
    for (const node of state.root.querySelectorAll('.ir-block')) {
      node.setAttribute('aria-selected', String(node.id === `ir-block-${index}`));
      node.tabIndex = node.id === `ir-block-${index}` ? 0 : -1;
    }
    state.root.querySelectorAll(`#ir-shot-${index} textarea`).forEach(grow);
    if (then) state.root.querySelector(`[data-key="${then}"]`)?.focus();
  };

  const time = (key, label, index, read, name) => {
    const node = make('input', { type: 'number', min: '0', max: '60', step: '0.1', id: `ir-field-${key}`, 'data-key': key, inputmode: 'decimal' });
    node.addEventListener('change', () => ask(name, { shot: index, value: Math.max(Number(node.value) || 0, 0) }));
    live(node, (_, outline) => {
      const value = String(Math.round(read(outline) * 100) / 100);
      if (document.activeElement !== node || Number(node.value) !== Number(value)) node.value = value;
    });
    return make('label', { class: 'ir-time' }, make('span', {}, label), node, make('span', {}, 's'));
  };

  const shot = (index) => {
    const outline = state.outline, count = outline.shots.length, last = index === count - 1;
    const key = `shot-${index}`;
    const length = (now) => now.shots[index].end - now.shots[index].start;
    const act = (name, more, to) => async () => {
      state.shot = to;
      state.wants = name === 'add' ? `shot-${to}` : `block-${to}`;
      await ask(name, { shot: index, ...more });
    };
    return make('div', { class: 'ir-shot', id: `ir-shot-${index}`, role: 'tabpanel', 'aria-labelledby': `ir-block-${index}`, hidden: index !== state.shot },
      make('div', { class: 'ir-shot-head' },
        live(make('b', {}), (node, now) => { node.textContent = `Shot ${now.shots[index].number}`; }),
        index ? time(`start-${index}`, 'from', index, (now) => now.shots[index].start, 'start') : null,
        last ? live(make('span', { class: 'ir-time' }), (node, now) => { node.textContent = `lasts ${seconds(Math.max(length(now), 0))}`; })
          : time(`length-${index}`, 'lasts', index, length, 'length'),
        make('span', { class: 'ir-row' },
          iconButton(`Move shot ${index + 1} earlier`, '←', act('move', { to: index - 1 }, index - 1), { disabled: !index, 'data-key': `earlier-${index}` }),
          iconButton(`Move shot ${index + 1} later`, '→', act('move', { to: index + 1 }, index + 1), { disabled: last, 'data-key': `later-${index}` }),
          iconButton('Add a shot after this one', '+', act('add', {}, index + 1), { 'data-key': `add-${index}` }),
          iconButton(`Remove shot ${index + 1}`, '×', act('remove', {}, Math.max(index - 1, 0)), { disabled: count === 1, 'data-key': `remove-${index}` }))),
      input(key, 'What is seen and heard', (now) => now.shots[index], { rows: 4 }),
      lines(index),
      button('Add a spoken line', async () => {
        const speaker = state.outline.speakers.length === 1 ? state.outline.speakers[0].id : '';
        state.wants = `words-${index}-${state.outline.shots[index].rows.length}`;
        await ask('line', { shot: index, word: speaker });
      }, { 'data-key': `line-${index}` }));
  };

  const lines = (index) => {
    const rows = state.outline.shots[index].rows.map((row, at) => {
      const part = (name) => (outline) => {
        const found = outline.shots[index]?.rows[at]?.[name];
        return found === null || found === undefined ? null : { from: found, to: found + 1 };
      };
      const label = `Line ${at + 1} of shot ${index + 1}`;
      return make('li', {}, make('span', { class: 'ir-who', title: 'Speaker', translate: 'no' }, row.speakers.join(', ') || '?'),
        input(`language-${index}-${at}`, `${label}: language`, part('language'), { list: 'ir-languages', class: 'ir-language' }),
        input(`words-${index}-${at}`, `${label}: words`, part('words')));
    });
    return rows.length ? make('ul', { class: 'ir-lines' }, ...rows) : null;
  };

  const speakers = () => {
    const rows = state.outline.speakers.map((who, at) => {
      const node = make('input', { id: `ir-speaks-${who.id}`, list: 'ir-languages', class: 'ir-language', 'data-key': `speaks-${who.id}`, translate: 'no' });
      node.addEventListener('change', () => ask('language', { speaker: who.id, word: node.value }, 'Language changed.'));
      live(node, (_, outline) => {
        if (document.activeElement !== node) node.value = outline.speakers[at].languages.join(', ');
      });
      const facts = live(make('span', { class: 'ir-help' }), (told_, outline) => {
        const now = outline.speakers[at];
        told_.textContent = `${now.lines === 1 ? '1 line' : `${now.lines} lines`}, ${now.shots.length === 1 ? 'shot' : 'shots'} ${now.shots.join(', ')}`;
      });
      const who_ = live(make('b', { translate: 'no' }), (node_, outline) => { node_.textContent = outline.speakers[at].who || '…'; });
      return make('li', {}, make('span', { class: 'ir-who', translate: 'no' }, who.id), make('div', { class: 'ir-person' }, who_, facts),
        make('div', { class: 'ir-field' }, make('label', { for: node.id }, 'speaks'), node));
    });
    return [make('p', { class: 'ir-help' }, rows.length
      ? 'Everybody who speaks has a number, the same in every shot. A new language is put before each of their lines; the words stay.'
      : 'Nobody speaks yet. Add a spoken line in a shot.'),
    rows.length ? make('ul', { class: 'ir-speakers' }, ...rows) : null].filter(Boolean);
  };

  // Templates, files, places

  const templateButton = (item) => make('button', { type: 'button', class: 'ir-card', 'data-key': `template-${item.key}`, on: { click: async () => {
    all('[data-ir-menu]').forEach((menu) => { menu.open = false; });
    await ask('template', { word: item.key }, 'Template put in. Undo brings the text back.');
  } } }, make('b', {}, item.title), make('span', {}, item.about));

  let listed = '';
  const templates = (outline) => {
    const now = JSON.stringify(outline.templates);
    if (now === listed) return;
    listed = now;
    all('[data-ir-templates]').forEach((list) => list.replaceChildren(...outline.templates.map(templateButton)));
  };

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

  return { mount, told, replace, tagField };
})();

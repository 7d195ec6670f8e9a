// The shots of a prompt: the timeline with its cuts, one panel a shot with its spoken lines, and everybody who speaks.
(() => {
  const { state, ask, seconds, make, live, button, iconButton, valueOf, input, grow, arrows } = window.h3Prompt;

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
      cut(index, () => state.outline.shots[index].start + by);
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
        if (at !== state.outline.shots[index].start) cut(index, () => at);
      };
      node.addEventListener('pointermove', move);
      node.addEventListener('pointerup', stop, { once: true });
      node.addEventListener('pointercancel', stop, { once: true });
    });
    return node;
  };
  const cut = (index, at) =>
    ask('start', () => state.outline.shots[index] && { shot: index, value: Math.max(Math.round(at() * 1000) / 1000, 0) });

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
    // The shot in hand moves by one place, wherever the presses before have brought it.
    const shift = (by) => () => ask('move', () => {
      const from = state.shot, to = from + by;
      if (!state.outline.shots[to]) return null;
      state.shot = to;
      state.wants = `block-${to}`;
      return { shot: from, to };
    });
    return make('div', { class: 'ir-shot', id: `ir-shot-${index}`, role: 'tabpanel', 'aria-labelledby': `ir-block-${index}`, hidden: index !== state.shot },
      make('div', { class: 'ir-shot-head' },
        live(make('b', {}), (node, now) => { node.textContent = `Shot ${now.shots[index].number}`; }),
        index ? time(`start-${index}`, 'from', index, (now) => now.shots[index].start, 'start') : null,
        last ? live(make('span', { class: 'ir-time' }), (node, now) => { node.textContent = `lasts ${seconds(Math.max(length(now), 0))}`; })
          : time(`length-${index}`, 'lasts', index, length, 'length'),
        make('span', { class: 'ir-row' },
          iconButton(`Move shot ${index + 1} earlier`, '←', shift(-1), { disabled: !index, 'data-key': `earlier-${index}` }),
          iconButton(`Move shot ${index + 1} later`, '→', shift(1), { disabled: last, 'data-key': `later-${index}` }),
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

  Object.assign(window.h3Prompt, { shots, select, speakers });
})();

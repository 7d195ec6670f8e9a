// The form over a prompt: one tab a section. Fields stay the same elements while the text has the same parts, so that
// typing is never interrupted.
(() => {
  const { state, all, text, ask, make, live, button, input, grow, arrows, shots, speakers } = window.h3Prompt;

  const TITLES = {
    subject_definitions: ['Subjects', 'What each reference is: one line a subject, picture, clip or sound.'],
    summary: ['Summary', 'One paragraph, beginning with the kind of task in square brackets.'],
    retention_analysis: ['What is kept', 'One line for each reference: what of it stays, and how exactly.'],
    overall_soundscape: ['Sounds', 'Ambience and noises over the whole video, in one paragraph. No speech, no music.'],
    non_diegetic_music: ['Music', 'What only the audience hears: instruments, speed, dynamics. N/A for none.'],
  };

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

  Object.assign(window.h3Prompt, { told, choose });
})();

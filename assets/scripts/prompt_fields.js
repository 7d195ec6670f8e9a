// What the prompt's editor is built of: elements, buttons, and fields over some parts of the text.
(() => {
  const { state, write } = window.h3Prompt;

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

  // Arrow keys go round the siblings of a list of tabs.
  const arrows = (event, selector) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const nodes = Array.from(state.root.querySelectorAll(selector));
    const next = nodes[(nodes.indexOf(event.currentTarget) + by + nodes.length) % nodes.length];
    next.click();
    next.focus();
  };

  Object.assign(window.h3Prompt, { make, live, button, iconButton, valueOf, input, grow, arrows });
})();

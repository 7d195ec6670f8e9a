// Draws `props.value` into the element by key: what did not change is left alone, so that a field keeps its text and
// focus, a video goes on playing and a list keeps its place while events come in.
// Elements with data-key are matched by it among their siblings. Attributes data-now-* belong to scripts of the page,
// `open` of a details element to whoever opened it, `src` of an element with data-src to whoever loads it.
const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute('data-key') : null);
const alike = (one, other) => one.nodeName === other.nodeName && keyOf(one) === null && keyOf(other) === null;
const kept = (node, name) =>
  name.startsWith('data-now-') || (name === 'open' && node.nodeName === 'DETAILS') || (name === 'src' && node.dataset.src);

const morph = (from, to) => {
  if (from.isEqualNode(to)) return;
  if (from.nodeType !== Node.ELEMENT_NODE) {
    from.nodeValue = to.nodeValue;
    return;
  }
  for (const { name } of [...from.attributes]) if (!to.hasAttribute(name) && !kept(from, name)) from.removeAttribute(name);
  for (const { name, value } of [...to.attributes]) {
    if (kept(from, name) || from.getAttribute(name) === value) continue;
    from.setAttribute(name, value);
    if (name === 'value' && from !== document.activeElement) from.value = value;
  }
  fill(from, to);
};

const fill = (parent, wanted) => {
  const next = [...wanted.childNodes];
  const keys = new Set(next.map(keyOf));
  const known = new Map();
  for (const node of [...parent.childNodes]) {
    const key = keyOf(node);
    if (key === null) continue;
    if (keys.has(key)) known.set(key, node);
    else node.remove();
  }
  let at = parent.firstChild;
  for (const node of next) {
    const key = keyOf(node);
    const old = key === null ? (at && alike(at, node) ? at : null) : known.get(key);
    if (!old) {
      parent.insertBefore(node, at);
      continue;
    }
    if (old === at) at = at.nextSibling;
    else parent.insertBefore(old, at);
    morph(old, node);
  }
  while (at) {
    const rest = at.nextSibling;
    at.remove();
    at = rest;
  }
};

const place = element.querySelector('[data-keyed]');
const draw = () => {
  const fresh = document.createElement('template');
  fresh.innerHTML = props.value || '';
  window.h3Words?.turn(fresh.content); // compared with what is shown, which is in the page's language
  const held = document.activeElement;
  fill(place, fresh.content);
  if (held && held !== document.activeElement && place.contains(held)) held.focus({ preventScroll: true });
  place.dispatchEvent(new CustomEvent('h3:drawn', { bubbles: true }));
};
watch('value', draw);
document.addEventListener('h3:language', draw);
draw();

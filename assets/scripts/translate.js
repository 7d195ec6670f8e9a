// The page in another language: English text of labels and sentences is replaced in the browser, by assets/locales/<language>.json.
//
// A locale maps English to its translation; `{}` in a key stands for anything and comes back, in order, as `{1}`, `{2}`, ...
// What people wrote themselves (translate="no", fields, code) is left alone. Without an entry a text stays English.
(() => {
  const LANGUAGES = ['en', 'zh'];
  const ATTRIBUTES = ['placeholder', 'title', 'aria-label', 'alt', 'data-confirm'];
  const LEFT_ALONE = '[translate="no"], script, style, textarea, input, pre, code, svg';
  const KEY = 'h3-language';

  const english = new WeakMap(); // text node, or element and attribute, to what it said before
  const known = new Map(); // English text to its translation or null, so that a text is looked up once
  let texts = null; // of the locale; null while the page is English
  let patterns = [];

  const chosen = () => {
    const kept = localStorage.getItem(KEY);
    if (LANGUAGES.includes(kept)) return kept;
    return LANGUAGES.find((language) => navigator.language.toLowerCase().startsWith(language)) || 'en';
  };

  const compiled = (entries) => {
    const escaped = (part) => part.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
    return Object.entries(entries)
      .filter(([key]) => key.includes('{}'))
      .sort(([a], [b]) => b.length - a.length) // the more a key says itself, the better it fits
      .map(([key, to]) => [new RegExp(`^${key.split('{}').map(escaped).join('(.+?)')}$`, 's'), to]);
  };

  const translated = (text) => {
    const core = text.trim().replace(/\s+/g, ' ');
    if (!core || !/[A-Za-z]/.test(core)) return null;
    if (!known.has(core)) known.set(core, find(core));
    const found = known.get(core);
    if (found === null) return null;
    const at = text.search(/\S/);
    return text.slice(0, at) + found + text.slice(text.trimEnd().length);
  };

  const find = (core) => {
    if (Object.hasOwn(texts, core)) return texts[core];
    for (const [pattern, to] of patterns) {
      const match = core.match(pattern);
      // What stood for {} may be a text of the page as well, as a stage's name in a sentence.
      if (match) return to.replace(/\{(\d+)\}/g, (_, index) => find(match[Number(index)]) ?? match[Number(index)]);
    }
    return null;
  };

  // `read` and `write` are of one place: the data of a text node, or one attribute.
  const turn = (owner, place, read, write) => {
    const now = read();
    if (!now) return;
    const places = english.get(owner) || {};
    const before = places[place];
    const source = before && before.shown === now ? before.source : now;
    const shown = (texts && translated(source)) ?? source;
    if (shown !== source) english.set(owner, { ...places, [place]: { source, shown } });
    if (shown !== now) write(shown);
  };

  const turnText = (node) => turn(node, 'data', () => node.data, (text) => (node.data = text));
  const turnAttributes = (element) => {
    for (const name of ATTRIBUTES) {
      if (element.hasAttribute(name)) {
        turn(element, name, () => element.getAttribute(name), (text) => element.setAttribute(name, text));
      }
    }
  };

  const walk = (root) => {
    if (root.nodeType === Node.TEXT_NODE) {
      if (!root.parentElement?.closest(LEFT_ALONE)) turnText(root);
      return;
    }
    if (root.nodeType !== Node.ELEMENT_NODE || root.closest('[translate="no"]')) return;
    turnAttributes(root);
    root.querySelectorAll('select[data-language]').forEach((select) => (select.value = document.documentElement.lang));
    for (const element of root.querySelectorAll(ATTRIBUTES.map((name) => `[${name}]`).join(','))) {
      if (!element.closest('[translate="no"]')) turnAttributes(element);
    }
    const nodes = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (nodes.nextNode()) {
      if (!nodes.currentNode.parentElement.closest(LEFT_ALONE)) turnText(nodes.currentNode);
    }
  };

  const observer = new MutationObserver((changes) => {
    for (const change of changes) {
      if (change.type === 'childList') change.addedNodes.forEach(walk);
      else if (change.type === 'characterData') walk(change.target);
      else if (!change.target.closest('[translate="no"]')) turnAttributes(change.target);
    }
  });

  const speak = async (language) => {
    observer.disconnect();
    if (language === 'en') {
      texts = null;
    } else {
      const answer = await fetch(`studio/locales/${language}.json`);
      if (!answer.ok) throw new Error(`the page's ${language} texts could not be read: ${answer.status}`);
      texts = await answer.json();
      patterns = compiled(texts);
    }
    known.clear();
    document.documentElement.lang = language;
    walk(document.body);
    if (texts) {
      observer.observe(document.body, {
        subtree: true, childList: true, characterData: true, attributes: true, attributeFilter: ATTRIBUTES,
      });
    }
  };

  document.addEventListener('change', (event) => {
    const select = event.target.closest && event.target.closest('select[data-language]');
    if (!select) return;
    localStorage.setItem(KEY, select.value);
    speak(select.value);
  });

  const start = () => {
    if (chosen() !== 'en') speak(chosen());
  };
  if (document.readyState === 'loading') document.addEventListener('DOMContentLoaded', start);
  else start();
})();

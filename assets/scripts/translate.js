// The page in another language: English text of labels and sentences is replaced in the browser, by assets/locales/<language>.json.
//
// A locale maps English to its translation; in a key `{#}` stands for a number, with its unit or not, and `{}` for anything.
// They come back, in order, as `{1}`, `{2}`, ... as they are, or as `{~1}` after they were looked up themselves. A length of
// time is always looked up: `2 min 03 s` is words, too.
// Facts joined by ` · ` or `; ` are looked up one by one.
// What people wrote themselves (translate="no", fields, code) is left alone. Without an entry a text stays English.
// Gradio's few own texts are in the browser's language from the start: en.json turns them back where English is chosen.
(() => {
  const LANGUAGES = ['en', 'zh'];
  const ATTRIBUTES = ['placeholder', 'title', 'aria-label', 'aria-valuetext', 'alt', 'data-confirm'];
  const MARKED = ATTRIBUTES.map((name) => `[${name}]`).join(',');
  const LEFT_ALONE = '[translate="no"], script, style, textarea, input, pre, code';
  const KEY = 'h3-language';
  const JOINTS = [' · ', '; '];
  const ANYTHING = '(.+?)';
  const NUMBER = '([+−-]?\\d[\\d.,:]*(?: (?:s|min|h|[KMGT]i?B|B|px|dB|%)(?: \\d+ (?:s|min))?)?)';
  const TIME = /^\d[\d.,]* (?:s|min|h)(?: \d+ (?:s|min))?$/;
  const LONGEST = 900; // characters that are compared with patterns; nothing the page itself says is longer
  const REMEMBERED = 4000; // texts; figures that change with every step would fill it for ever

  const english = new WeakMap(); // text node or element -> place (data or an attribute) -> {source, shown}
  const known = new Map(); // English text to its translation or null, so that a text is looked up once
  let texts = null; // of the locale; null while the page is English
  let patterns = [];
  let worth = /[A-Za-z]/; // looking up

  const spoken = navigator.language.toLowerCase();
  const chosen = () => {
    const asked = [new URL(location.href).searchParams.get('lang'), localStorage.getItem(KEY)];
    return (
      asked.find((language) => LANGUAGES.includes(language)) ||
      LANGUAGES.find((language) => spoken.startsWith(language)) ||
      'en'
    );
  };

  const escaped = (part) => part.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
  const HOLE = /\{#?\}/;
  const said = (key) => key.split(HOLE).join('').length;
  const compiled = (entries) =>
    Object.entries(entries)
      .filter(([key]) => HOLE.test(key))
      .sort(([a], [b]) => said(b) - said(a)) // the more a key says itself, the better it fits
      .map(([key, to]) => {
        const longest = key.split(HOLE).reduce((a, b) => (b.length > a.length ? b : a));
        const parts = key.split(/(\{#?\})/).map((part) => ({ '{}': ANYTHING, '{#}': NUMBER })[part] ?? escaped(part));
        return { longest, form: new RegExp(`^${parts.join('')}$`, 's'), to };
      });

  const matched = (core) => {
    if (core.length > LONGEST) return null;
    for (const { longest, form, to } of patterns) {
      const match = core.includes(longest) && core.match(form);
      if (!match) continue;
      return to.replace(/\{(~?)(\d+)\}/g, (_, also, index) => {
        const held = match[Number(index)];
        return also || TIME.test(held) ? (look(held) ?? held) : held;
      });
    }
    return null;
  };

  const inParts = (core, joint) => {
    const parts = core.split(joint).map((part) => [part, look(part)]);
    return parts.some(([, to]) => to !== null) ? parts.map(([part, to]) => to ?? part).join(joint) : null;
  };

  const look = (core) => {
    if (!worth.test(core)) return null;
    if (known.has(core)) return known.get(core);
    let found = Object.hasOwn(texts, core) ? texts[core] : null;
    if (found === null) found = matched(core);
    for (const joint of JOINTS) if (found === null && core.includes(joint)) found = inParts(core, joint);
    if (known.size > REMEMBERED) known.clear();
    known.set(core, found);
    return found;
  };

  const translated = (text) => {
    const core = text.trim().replace(/\s+/g, ' ');
    const found = core && look(core);
    if (!found) return null;
    return text.slice(0, text.search(/\S/)) + found + text.slice(text.trimEnd().length);
  };

  // `read` and `write` are of one place: the data of a text node, or one attribute.
  const turn = (owner, place, now, write) => {
    if (!now) return;
    const places = english.get(owner);
    const before = places?.[place];
    const source = before && before.shown === now ? before.source : now;
    const shown = (texts && translated(source)) ?? source;
    if (shown !== source) english.set(owner, { ...places, [place]: { source, shown } });
    if (shown !== now) write(shown);
  };

  const turnText = (node) => turn(node, 'data', node.data, (text) => (node.data = text));
  const turnAttribute = (element, name) =>
    turn(element, name, element.getAttribute(name), (text) => element.setAttribute(name, text));
  const turnAttributes = (element) => {
    for (const name of ATTRIBUTES) if (element.hasAttribute(name)) turnAttribute(element, name);
  };

  const walk = (root) => {
    if (root.nodeType === Node.TEXT_NODE) {
      if (!root.parentElement?.closest(LEFT_ALONE)) turnText(root);
      return;
    }
    if (root.nodeType === Node.ELEMENT_NODE) {
      if (root.closest('[translate="no"]')) return;
      turnAttributes(root);
    } else if (root.nodeType !== Node.DOCUMENT_FRAGMENT_NODE) return;
    for (const select of root.querySelectorAll('select[data-language]')) select.value = document.documentElement.lang.slice(0, 2);
    for (const element of root.querySelectorAll(MARKED)) if (!element.closest('[translate="no"]')) turnAttributes(element);
    const nodes = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (nodes.nextNode()) {
      if (!nodes.currentNode.parentElement?.closest(LEFT_ALONE)) turnText(nodes.currentNode);
    }
  };

  // A list to choose from that cannot be typed in shows its choice in a field, which changes with no mutation of its own.
  const turnChoices = () => {
    for (const field of document.querySelectorAll('input[readonly][role=combobox]'))
      turn(field, 'value', field.value, (text) => (field.value = text));
  };

  const observer = new MutationObserver((changes) => {
    for (const change of changes) {
      if (change.type === 'childList') change.addedNodes.forEach(walk);
      else if (change.type === 'characterData') walk(change.target);
      else if (!change.target.closest('[translate="no"]')) turnAttribute(change.target, change.attributeName);
    }
    turnChoices();
    observer.takeRecords(); // what was written just now
  });

  const speak = async (language) => {
    let entries = null;
    if (language !== 'en' || spoken.startsWith('zh')) {
      const answer = await fetch(`studio/locales/${language}.json`);
      if (!answer.ok) throw new Error(`the page's ${language} texts could not be read: ${answer.status}`);
      entries = await answer.json();
    }
    texts = entries;
    patterns = compiled(entries || {});
    known.clear();
    worth = language === 'en' ? /\p{L}/u : /[A-Za-z]/;
    document.documentElement.lang = language === 'zh' ? 'zh-CN' : language;
    walk(document.body);
    turnChoices();
    observer.disconnect();
    if (texts) {
      const all = { subtree: true, childList: true, characterData: true, attributes: true };
      observer.observe(document.body, { ...all, attributeFilter: ATTRIBUTES });
    }
    document.dispatchEvent(new Event('h3:language'));
  };

  // For panels that draw by comparison: they compare with what is shown, so the new text is turned first.
  window.h3Words = { turn: (root) => texts && walk(root) };

  document.addEventListener('change', (event) => {
    const select = event.target.closest?.('select[data-language]');
    if (!select) return;
    localStorage.setItem(KEY, select.value);
    const address = new URL(location.href);
    address.searchParams.delete('lang');
    history.replaceState(null, '', address);
    speak(select.value);
  });

  const start = () => speak(chosen());
  if (document.readyState === 'loading') document.addEventListener('DOMContentLoaded', start);
  else start();
})();

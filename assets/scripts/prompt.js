// The prompt's editor: a form over the parts of one text. It knows no format: the server tells which part a field is,
// and joined parts are the text. What is typed changes its part at once; everything else is asked of the server.
// This file has the text and the asking; then come prompt_fields, prompt_shots, prompt_tabs and prompt_wiring, each adding
// to `window.h3Prompt` what the next ones use. For the page are mount, told, replace and tagField.
(() => {
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

  // One after another, so that quick presses add up: each starts from the text and outline that the one before left.
  // `more` may be a function that says then what is asked, or null where that is nothing any more.
  let turn = Promise.resolve();
  const ask = (name, more = {}, words = '') => {
    const next = () => askNow(name, typeof more === 'function' ? more() : more, words);
    turn = turn.then(next, next);
    return turn;
  };
  const askNow = async (name, more, words) => {
    const before = text();
    if (!more || !state.bridge || !state.outline) return;
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
    if (reply.outline) window.h3Prompt.told(reply.outline);
  };

  window.h3Prompt = { state, all, field, text, say, seconds, view, write, replace, showUndo, undo, ask };
})();

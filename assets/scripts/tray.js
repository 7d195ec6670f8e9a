// The reference tray: drawn item by item, reordered by dragging, clips trimmed by handles and played in place.
(() => {
  const MIN_S = 2;
  const MAX_S = 15;
  const KEYS_S = { ArrowLeft: -0.1, ArrowDown: -0.1, ArrowRight: 0.1, ArrowUp: 0.1, PageDown: -1, PageUp: 1, Home: -1e9, End: 1e9 };
  const HELD = ['class', 'style', 'data-start', 'data-end', 'aria-valuenow', 'aria-valuetext']; // of a clip in the hand
  let lifted = null; // the item that is being dragged
  let grabbed = null; // the clip whose handles are being dragged

  // ---- Drawing. Items keep their nodes by key, so that focus, typing and playing survive every redraw. ----

  const keyOf = (node) => (node.nodeType === 1 ? node.dataset.key : undefined);

  const attributes = (now, wanted) => {
    const clip = now.closest('[data-clip]');
    const keeps = (name) => (clip === grabbed && grabbed && HELD.includes(name)) || (clip === now && name === 'class');
    for (const { name } of [...now.attributes]) if (!wanted.hasAttribute(name) && !keeps(name)) now.removeAttribute(name);
    for (const { name, value } of wanted.attributes) {
      if (now.getAttribute(name) !== value && !keeps(name)) now.setAttribute(name, value);
    }
  };

  const morph = (now, wanted) => {
    if (now.nodeType !== 1) {
      if (now.nodeValue !== wanted.nodeValue) now.nodeValue = wanted.nodeValue;
      return;
    }
    if (now.hasAttribute('data-own')) {
      const source = wanted.getAttribute('src');
      if (source && now.getAttribute('src') !== source) now.setAttribute('src', source);
      return;
    }
    attributes(now, wanted);
    if (now.tagName === 'INPUT' && now !== document.activeElement) now.value = wanted.getAttribute('value') ?? '';
    children(now, wanted);
  };

  const children = (now, wanted) => {
    const goal = [...wanted.childNodes];
    if (goal.some(keyOf) || [...now.childNodes].some(keyOf)) {
      items(now, goal);
      return;
    }
    goal.forEach((node, place) => {
      const old = now.childNodes[place];
      if (!old) now.append(node);
      else if (old.nodeName !== node.nodeName) old.replaceWith(node);
      else morph(old, node);
    });
    while (now.childNodes.length > goal.length) now.lastChild.remove();
  };

  const items = (list, goal) => {
    const have = new Map([...list.children].map((row) => [keyOf(row), row]));
    const order = goal.map((row) => {
      const old = have.get(keyOf(row));
      if (!old) return row;
      have.delete(keyOf(row));
      morph(old, row);
      return old;
    });
    for (const gone of have.values()) {
      const place = [...list.children].indexOf(gone);
      const focused = gone.contains(document.activeElement);
      gone.remove();
      if (focused) (order[Math.min(place, order.length - 1)]?.querySelector('.grip') ?? null)?.focus();
    }
    if (order.every((row, place) => list.children[place] === row)) return;
    // A node that moves loses its focus: the one that has it stays, and the others go around it.
    const fixed = order.find((row) => row.contains(document.activeElement));
    const after = fixed ? order.indexOf(fixed) + 1 : 0;
    for (const row of order.slice(0, Math.max(after - 1, 0))) list.insertBefore(row, fixed);
    for (const row of order.slice(after)) list.append(row);
  };

  // ---- Clips: the part that is used ----

  const range = (clip) => ({ whole: +clip.dataset.whole, start: +clip.dataset.start, end: +clip.dataset.end });
  const media = (clip) => clip.querySelector('video, audio');
  const written = (seconds) => String(+seconds.toFixed(2));

  const paint = (clip, start, end) => {
    const { whole } = range(clip);
    clip.dataset.start = start;
    clip.dataset.end = end;
    clip.style.setProperty('--from', `${(start / whole) * 100}%`);
    clip.style.setProperty('--to', `${(end / whole) * 100}%`);
    for (const [side, at] of [['start', start], ['end', end]]) {
      const handle = clip.querySelector(`[data-handle=${side}]`);
      handle.setAttribute('aria-valuenow', at.toFixed(2));
      handle.setAttribute('aria-valuetext', `${at.toFixed(1)} s`);
    }
    clip.querySelector('[data-trim=start]').value = written(start);
    clip.querySelector('[data-trim=length]').value = end >= whole - 0.005 ? '' : written(end - start);
    clip.querySelector('[data-trim=length]').placeholder = (whole - start).toFixed(1);
  };

  // Where `side` may go when it is asked to go to `at`: the part stays 2 to 15 s long and inside the clip.
  const shifted = (clip, side, at) => {
    const { whole, start, end } = range(clip);
    const least = Math.min(MIN_S, whole);
    const round = (value) => Math.round(value * 10) / 10;
    const between = (low, value, high) => Math.min(Math.max(value, low), high);
    if (side === 'start') return [between(Math.max(0, end - MAX_S), round(at), Math.max(0, end - least)), end];
    if (side === 'end') {
      const to = at >= whole - 0.05 ? whole : round(at);
      return [start, between(Math.min(whole, start + least), to, Math.min(whole, start + MAX_S))];
    }
    const from = between(0, round(at), whole - (end - start));
    return [from, from + (end - start)];
  };

  const report = (clip, trigger) => {
    const { whole, start, end } = range(clip);
    const length = end >= whole - 0.005 ? '' : written(end - start);
    trigger('click', { action: 'trim', item: clip.dataset.clip, start: written(start), length });
  };

  const say = (clip, words) => {
    clip.querySelector('.clip-note').textContent = words;
  };

  const seek = (player, at) =>
    new Promise((done, failed) => {
      const go = () => {
        player.addEventListener('seeked', done, { once: true });
        player.currentTime = at;
      };
      player.addEventListener('error', () => failed(new Error('unplayable')), { once: true });
      if (player.readyState >= 1) return go();
      player.addEventListener('loadedmetadata', go, { once: true });
      player.preload = 'auto';
      player.load();
    });

  // The player comes above the track; what is under the pointer stays there, also where it would go below the window.
  const reveal = (clip) => {
    const track = clip.querySelector('.track');
    const before = track.getBoundingClientRect().top;
    media(clip).hidden = false;
    window.scrollBy({ top: track.getBoundingClientRect().top - before, behavior: 'instant' });
  };

  // What the handle is at, as a picture.
  const peek = (clip, at) => {
    const player = media(clip);
    if (player.tagName !== 'VIDEO') return;
    reveal(clip);
    seek(player, at).catch(() => say(clip, 'This browser cannot show this clip; the model reads it all the same.'));
  };

  const stop = (clip) => {
    clip.classList.remove('playing');
    media(clip).pause();
  };

  const play = async (clip) => {
    for (const other of document.querySelectorAll('.clip.playing')) stop(other);
    const player = media(clip);
    reveal(clip);
    say(clip, '');
    try {
      await seek(player, range(clip).start);
      await player.play();
    } catch (error) {
      if (error.name !== 'AbortError') say(clip, 'This browser cannot play this file; the model reads it all the same.');
      return;
    }
    clip.classList.add('playing');
    const follow = () => {
      if (!clip.isConnected || !clip.classList.contains('playing')) return;
      const { whole, end } = range(clip);
      clip.querySelector('.playhead').style.left = `${(Math.min(player.currentTime, end) / whole) * 100}%`;
      if (player.currentTime >= end - 0.01 || player.ended || player.paused) {
        player.removeEventListener('timeupdate', follow);
        stop(clip);
      } else requestAnimationFrame(follow);
    };
    player.addEventListener('timeupdate', follow, { once: true }); // goes on where a hidden tab gets no frames
    follow();
  };

  const grab = (event, clip, side, trigger) => {
    const track = clip.querySelector('.track');
    const box = track.getBoundingClientRect();
    const { whole, start, end } = range(clip);
    const at = (x) => ((x - box.left) / box.width) * whole;
    const offset = at(event.clientX) - (side === 'end' ? end : start);
    let moved = false;
    stop(clip);
    grabbed = clip;
    track.setPointerCapture(event.pointerId);
    const move = (next) => {
      moved = true;
      const [from, to] = shifted(clip, side, at(next.clientX) - offset);
      paint(clip, from, to);
      peek(clip, side === 'end' ? Math.max(to - 0.04, 0) : from);
    };
    const drop = () => {
      track.removeEventListener('pointermove', move);
      grabbed = null;
      if (moved) report(clip, trigger);
    };
    track.addEventListener('pointermove', move);
    track.addEventListener('lostpointercapture', drop, { once: true });
  };

  // ---- Order ----

  const lift = (event, row, trigger, redraw) => {
    const list = row.parentElement;
    const rows = [...list.children];
    const boxes = rows.map((each) => each.getBoundingClientRect());
    const from = rows.indexOf(row);
    const gap = rows.length > 1 ? boxes[1].top - boxes[0].bottom : 0;
    const began = event.clientY + window.scrollY;
    let target = from;
    lifted = row;
    row.classList.add('lifted');
    list.classList.add('sorting');
    const move = (next) => {
      if (next.clientY < 70) window.scrollBy(0, -14);
      if (next.clientY > window.innerHeight - 70) window.scrollBy(0, 14);
      const by = next.clientY + window.scrollY - began;
      row.style.transform = `translateY(${by}px)`;
      const [top, bottom] = [boxes[from].top + by, boxes[from].bottom + by];
      target = from;
      for (let place = from + 1; place < rows.length; place++) if (bottom > boxes[place].top + boxes[place].height / 2) target = place;
      for (let place = from - 1; place >= 0; place--) if (top < boxes[place].top + boxes[place].height / 2) target = place;
      rows.forEach((each, place) => {
        if (each === row) return;
        const way = from < place && place <= target ? -1 : target <= place && place < from ? 1 : 0;
        each.style.transform = way ? `translateY(${way * (boxes[from].height + gap)}px)` : '';
      });
    };
    const drop = (end) => {
      for (const name of ['pointermove', 'pointerup', 'pointercancel']) window.removeEventListener(name, name === 'pointermove' ? move : drop);
      for (const each of rows) each.style.transform = '';
      row.classList.remove('lifted');
      list.classList.remove('sorting');
      lifted = null;
      if (end.type === 'pointerup' && target !== from && row.isConnected) {
        list.insertBefore(row, target > from ? rows[target].nextSibling : rows[target]); // at once; the answer confirms it
        row.querySelector('[data-grip]').focus();
        trigger('click', { action: 'move', item: row.dataset.key, to: String(target) });
      }
      redraw();
    };
    window.addEventListener('pointermove', move);
    window.addEventListener('pointerup', drop);
    window.addEventListener('pointercancel', drop);
  };

  // ---- One tray ----

  const mount = (element, trigger, props, watch) => {
    const root = element.querySelector('.tray-root');
    let late = false;
    const draw = () => {
      late = Boolean(lifted);
      if (late) return;
      const made = document.createElement('template');
      made.innerHTML = props.value || '';
      children(root, made.content);
    };
    const redraw = () => late && draw();
    draw();
    watch('value', draw);

    element.addEventListener('click', (event) => {
      const player = event.target.closest('[data-play]');
      if (player) {
        const clip = player.closest('[data-clip]');
        if (clip.classList.contains('playing')) stop(clip);
        else play(clip);
        return;
      }
      const button = event.target.closest('[data-action]');
      if (!button || button.dataset.action === 'insert') return;
      // Also at an end of the list as it is drawn: moves that are on their way may have changed it.
      trigger('click', { ...button.dataset });
    });
    element.addEventListener('change', (event) => {
      const field = event.target.closest('[data-trim]');
      const clip = field?.closest('[data-clip]');
      if (clip) trigger('click', { action: 'trim', item: clip.dataset.clip, [field.dataset.trim]: field.value });
    });
    element.addEventListener('pointerdown', (event) => {
      if (event.button !== 0) return;
      const side = event.target.closest('[data-handle]')?.dataset.handle ?? (event.target.closest('[data-part]') ? 'part' : '');
      const clip = event.target.closest('[data-clip]');
      if (side && clip) {
        event.preventDefault();
        event.target.closest('[data-handle]')?.focus();
        grab(event, clip, side, trigger);
        return;
      }
      const grip = event.target.closest('[data-grip], .thumb');
      if (!grip) return;
      event.preventDefault();
      grip.closest('[data-key]').querySelector('[data-grip]').focus();
      lift(event, grip.closest('[data-key]'), trigger, redraw);
    });
    element.addEventListener('keydown', (event) => {
      const row = event.target.closest('[data-grip]')?.closest('[data-key]');
      if (row && (event.key === 'ArrowUp' || event.key === 'ArrowDown')) {
        event.preventDefault();
        // By one place, not to one: several quick presses come before the first answer is drawn, and have to add up.
        trigger('click', { action: event.key === 'ArrowUp' ? 'up' : 'down', item: row.dataset.key });
      }
      const side = event.target.closest('[data-handle]')?.dataset.handle;
      if (side && event.key in KEYS_S) {
        event.preventDefault();
        const clip = event.target.closest('[data-clip]');
        const [from, to] = shifted(clip, side, range(clip)[side] + KEYS_S[event.key]);
        paint(clip, from, to);
        peek(clip, side === 'end' ? Math.max(to - 0.04, 0) : from);
        clearTimeout(clip.waiting);
        clip.waiting = setTimeout(() => report(clip, trigger), 350);
      }
    });
  };

  window.h3Tray = { mount };
  document.dispatchEvent(new Event('h3-tray'));
})();

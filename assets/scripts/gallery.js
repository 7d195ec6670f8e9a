// The gallery by itself: ticks, renaming in place, videos that load while they are near, more cards at the end.
// And two results side by side, in step.
(() => {
  const FRAMES_A_SECOND = 24;
  const ticks = () => [...document.querySelectorAll('#gallery [data-tick]')];

  // What is ticked, and the buttons that know of it.
  const count = () => {
    const bar = document.querySelector('#bulk .bulk');
    if (!bar) return;
    const ticked = ticks().filter((box) => box.checked);
    const videos = ticked.filter((box) => 'video' in box.dataset);
    bar.dataset.nowShown = ticked.length ? 'yes' : '';
    bar.querySelector('[data-ticked]').textContent = ticked.length === 1 ? '1 ticked' : `${ticked.length} ticked`;
    const jobs = ticked.map((box) => box.dataset.tick).join(',');
    for (const button of bar.querySelectorAll('[data-action]')) button.dataset.jobs = jobs;
    bar.querySelector('[data-action=compare]').disabled = videos.length !== 2 || ticked.length !== 2;
    bar.querySelector('[data-compare-hint]').hidden = ticked.length === 2;
  };
  const tickAll = (on) => {
    for (const box of ticks()) box.checked = on;
    count();
  };

  // A video has its source while it is near the window.
  const near = new IntersectionObserver(
    (seen) => {
      for (const { target, isIntersecting } of seen) {
        if (isIntersecting && !target.getAttribute('src')) target.src = target.dataset.src;
        else if (!isIntersecting && target.getAttribute('src')) {
          target.removeAttribute('src');
          target.load();
        }
      }
    },
    { rootMargin: '400px' },
  );
  const end = new IntersectionObserver(
    (seen) => {
      for (const { target, isIntersecting } of seen) if (isIntersecting) target.querySelector('button')?.click();
    },
    { rootMargin: '600px' },
  );
  const drawn = (event) => {
    const place = event.target;
    if (place.closest('#gallery')) {
      for (const video of place.querySelectorAll('video[data-src]')) near.observe(video);
      end.disconnect();
      for (const more of place.querySelectorAll('[data-more]')) end.observe(more);
      count();
    }
    const view = place.closest('#compare') && place.querySelector('[data-compare]');
    if (view && 'nowReady' in view.dataset) show(view);
    else if (view) prepare(view);
  };

  // Renaming: the title becomes a field; Enter or leaving it keeps the text, Escape does not.
  const rename = (card) => {
    const field = card.querySelector('.title-field');
    field.value = field.getAttribute('value');
    card.dataset.nowRenaming = 'yes';
    field.focus();
    field.select();
  };
  const leave = (field) => delete field.closest('.video-card')?.dataset.nowRenaming;

  document.addEventListener('keydown', (event) => {
    const field = event.target.closest?.('.title-field');
    if (!field) return;
    if (event.key === 'Escape') field.value = field.getAttribute('value');
    if (event.key === 'Escape' || event.key === 'Enter') field.blur();
  });
  document.addEventListener('focusout', (event) => {
    if (event.target.matches?.('.title-field')) leave(event.target);
  });

  // Two videos in step: the first one that plays leads, the other follows it.
  const sides = (part) => [...part.closest('[data-compare]').querySelectorAll('[data-side]')];
  const length = (video) => (Number.isFinite(video.duration) ? video.duration : 0);
  const leader = (videos) => videos.reduce((one, other) => (length(other) > length(one) ? other : one));
  const show = (view) => {
    const videos = sides(view);
    const lead = leader(videos);
    const scrub = view.querySelector('[data-scrub]');
    const frame = Math.min(Math.floor(lead.currentTime * FRAMES_A_SECOND + 0.01), Number(scrub.max)); // at its end, the last
    scrub.value = frame;
    view.querySelector('[data-frame]').textContent = frame;
    view.querySelector('[data-play-word]').textContent = lead.paused ? 'Play' : 'Pause';
    for (const video of videos) {
      if (video === lead || lead.paused) continue;
      const wanted = Math.min(lead.currentTime, length(video));
      if (Math.abs(video.currentTime - wanted) > 1.5 / FRAMES_A_SECOND) video.currentTime = wanted;
      if (video.paused && wanted < length(video)) video.play().catch(() => {});
    }
  };
  const watch = (view) => {
    if (!view.isConnected) return;
    show(view);
    if (!leader(sides(view)).paused) requestAnimationFrame(() => watch(view));
  };
  const seek = (view, frame) => {
    const videos = sides(view);
    const last = Math.round(length(leader(videos)) * FRAMES_A_SECOND) - 1;
    const at = (Math.max(0, Math.min(frame, last)) + 0.5) / FRAMES_A_SECOND; // the middle of a frame, away from its edges
    for (const video of videos) {
      video.pause();
      video.currentTime = Math.min(at, Math.max(0, length(video) - 0.5 / FRAMES_A_SECOND));
    }
    view.querySelector('[data-scrub]').value = Math.floor(at * FRAMES_A_SECOND);
    view.querySelector('[data-frame]').textContent = Math.floor(at * FRAMES_A_SECOND);
    view.querySelector('[data-play-word]').textContent = 'Play';
  };
  const play = (view) => {
    const videos = sides(view);
    const lead = leader(videos);
    if (!lead.paused) {
      seek(view, Math.floor(lead.currentTime * FRAMES_A_SECOND));
      return;
    }
    if (lead.ended || lead.currentTime >= length(lead) - 0.05) for (const video of videos) video.currentTime = 0;
    Promise.all(videos.map((video) => video.play().catch(() => {}))).then(() => watch(view));
  };
  const prepare = (view) => {
    if (!view || 'nowReady' in view.dataset) return;
    view.dataset.nowReady = 'yes';
    for (const video of sides(view)) {
      video.addEventListener('ended', () => show(view));
      video.addEventListener('loadedmetadata', () => {
        const last = Math.round(length(leader(sides(view))) * FRAMES_A_SECOND) - 1;
        if (last > 0) view.querySelector('[data-scrub]').max = last;
      });
    }
    tickAll(false); // their bar would lie over what they were ticked for
    view.scrollIntoView({ behavior: 'smooth', block: 'start' });
  };

  document.addEventListener('click', (event) => {
    const at = (selector) => event.target.closest?.(selector);
    if (at('[data-tick-all]')) tickAll(true);
    if (at('[data-tick-none]')) tickAll(false);
    if (at('[data-rename]')) rename(at('.video-card'));
    const view = at('[data-compare]');
    if (!view) return;
    if (at('[data-play]')) play(view);
    if (at('[data-step]')) seek(view, Number(view.querySelector('[data-scrub]').value) + Number(at('[data-step]').dataset.step));
  });
  document.addEventListener('input', (event) => {
    const scrub = event.target.closest?.('[data-scrub]');
    if (scrub) seek(scrub.closest('[data-compare]'), Number(scrub.value));
  });
  document.addEventListener('change', (event) => {
    if (event.target.matches?.('[data-tick]')) count();
    const hear = event.target.closest?.('[data-hear]');
    if (hear) sides(hear).forEach((video, index) => (video.muted = index !== Number(hear.value)));
  });
  document.addEventListener('h3:drawn', drawn);

  // A file that falls anywhere on the gallery goes where its button would put it.
  const over = (event) => event.dataTransfer?.types.includes('Files') && event.target.closest?.('.gallery-place');
  document.addEventListener('dragover', (event) => {
    document.body.toggleAttribute('data-now-dropping', Boolean(over(event)));
    if (over(event)) event.preventDefault();
  });
  document.addEventListener('dragleave', (event) => {
    if (!event.relatedTarget) document.body.removeAttribute('data-now-dropping');
  });
  document.addEventListener('drop', (event) => {
    document.body.removeAttribute('data-now-dropping');
    const field = over(event) && document.querySelector('.gallery-place .toolbar input[type=file]');
    if (!field) return;
    event.preventDefault();
    const held = new DataTransfer();
    held.items.add(event.dataTransfer.files[0]);
    field.files = held.files;
    field.dispatchEvent(new Event('change', { bubbles: true }));
  });
})();

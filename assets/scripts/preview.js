// The stage above the progress of a running job: its newest small picture, then the video that grows while it is
// decoded, then, where the viewer was, the finished one. What there is to see stands in `#live .seen`.
(() => {
  const SWAP_MS = 4000; // a finished video that does not load by then is shown as it is
  let job = '';
  let picture = '';
  let stream = '';
  let swapping = false;

  const screen = () => document.querySelector('#stage .screen');
  const video = () => document.querySelector('#stage video');

  const clear = () => {
    job = picture = stream = '';
    swapping = false;
    delete document.body.dataset.swapping;
    const shown = screen();
    if (!shown || !shown.firstChild) return;
    const playing = video();
    if (playing) {
      playing.removeAttribute('src');
      playing.load(); // lets go of the connection
    }
    shown.replaceChildren();
    caption('');
  };

  const caption = (words) => {
    const line = document.querySelector('#stage .caption');
    if (line && line.textContent !== words) line.textContent = words;
  };

  const showPicture = (address, words) => {
    picture = address;
    const image = new Image();
    image.onload = () => {
      if (picture !== address || video() || !screen()) return; // a newer one, or the video, was faster
      image.alt = words;
      screen().replaceChildren(image);
      caption(words);
    };
    image.src = address; // where the job has ended meanwhile nothing comes, and nothing changes
  };

  const playStream = (address, words) => {
    stream = address;
    const playing = document.createElement('video');
    playing.controls = true;
    playing.playsInline = true;
    playing.preload = 'auto';
    playing.id = 'stream-video';
    playing.setAttribute('aria-label', words);
    playing.addEventListener('loadeddata', () => {
      if (stream !== address || !screen()) return;
      screen().replaceChildren(playing);
      caption(words);
      playing.play().catch(() => {}); // a page that was never touched may not make sound: the viewer presses play
    });
    playing.addEventListener('error', () => {
      if (playing.isConnected && !playing.currentTime) playing.remove(); // a browser that cannot: the picture was enough
    });
    playing.src = address;
  };

  // The finished video takes the place of the growing one, at the same moment, playing or not as that was.
  const swap = (finished) => {
    if (swapping) return;
    swapping = true;
    const before = video();
    if (before && !before.ended && before.currentTime > 0) {
      finished.currentTime = before.currentTime;
      finished.muted = before.muted;
      finished.volume = before.volume;
    }
    document.body.dataset.swapping = '';
    const done = () => {
      if (!swapping) return;
      const now = video();
      if (now && !now.ended && now.currentTime > 0) {
        if (Math.abs(finished.currentTime - now.currentTime) > 0.3) finished.currentTime = now.currentTime;
        if (!now.paused) finished.play().catch(() => {});
      }
      clear();
    };
    if (finished.readyState >= 2) done();
    else finished.addEventListener('loadeddata', done, { once: true });
    setTimeout(done, SWAP_MS);
  };

  const look = () => {
    const live = document.querySelector('#live [data-shown]');
    if (!live || (job && live.dataset.shown !== job)) clear();
    if (!live) return;
    const seen = live.querySelector('.seen');
    if (seen) {
      job = live.dataset.shown;
      const shown = screen();
      if (shown) shown.style.aspectRatio = seen.dataset.shape;
      const words = seen.textContent;
      if (seen.dataset.stream && seen.dataset.stream !== stream) playStream(seen.dataset.stream, words);
      if (seen.dataset.picture && seen.dataset.picture !== picture && !video())
        showPicture(seen.dataset.picture, words);
    } else if (job && live.dataset.state === 'succeeded') {
      const finished = document.querySelector('#result-video');
      if (finished) swap(finished);
    } else if (job && live.dataset.state !== 'running') clear();
  };

  const begin = () => new MutationObserver(look).observe(document.body, { subtree: true, childList: true });
  if (document.readyState === 'loading') window.addEventListener('DOMContentLoaded', begin);
  else begin();
})();

// Files from outside: a picture that is pasted, and files dropped beside the zones, land where the page makes a video from.
(() => {
  const FRAMES = ['#first-frame', '#last-frame'];
  const AGAIN_MS = 2000; // until the page is asked once more to turn to references
  const TAKEN_MS = 3000; // until a zone has taken what it was given
  let pasted = 0;
  let leaving = 0;
  let turn = Promise.resolve(); // files go in one after another: a zone that is busy with some loses the next

  const seen = (selector) => document.querySelector(selector)?.checkVisibility() ?? false;
  const open = () => seen('.compose');
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));

  // Where files go now, asked anew for each: what came before may have filled the first frame meanwhile.
  const place = () => FRAMES.find(seen) ?? '#add-references';

  // The field of a zone that is there and done with the files before these.
  const field = (selector) => {
    const zone = document.querySelector(selector);
    const busy = !seen(selector) || zone.querySelector('.file-preview-holder');
    return busy ? null : zone.querySelector('input[type=file]');
  };

  const hand = async (files) => {
    let turned = -AGAIN_MS;
    for (let input = field(place()); ; input = field(place())) {
      if (input && open()) {
        const carried = new DataTransfer();
        for (const file of files) carried.items.add(file);
        input.files = carried.files;
        input.dispatchEvent(new Event('change', { bubbles: true }));
        for (let left = TAKEN_MS; left > 0 && input.isConnected; left -= 50) await pause(50);
        return;
      }
      if (open() && !seen(place()) && performance.now() - turned > AGAIN_MS) {
        turned = performance.now();
        document.querySelector('#mode label:nth-of-type(3) input')?.click();
      }
      await pause(100);
    }
  };

  const accept = (files) => {
    const slots = FRAMES.filter(seen).length;
    for (const part of slots ? files.slice(0, slots).map((file) => [file]) : [files]) turn = turn.then(() => hand(part));
  };

  const carriesFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes('Files');

  document.addEventListener('paste', (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    const typing = event.target.closest?.('textarea, input');
    if (!files.length || !open() || (typing && event.clipboardData.getData('text/plain'))) return;
    event.preventDefault();
    accept(
      files.map((file) => {
        if (file.name && !/^image\.\w+$/.test(file.name)) return file;
        const kind = file.type.split('/')[1] || 'png';
        return new File([file], `pasted-${++pasted}.${kind}`, { type: file.type });
      })
    );
  });

  document.addEventListener('dragover', (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    document.body.classList.add('files-over');
    clearTimeout(leaving);
    leaving = setTimeout(() => document.body.classList.remove('files-over'), 400);
  });

  document.addEventListener('drop', (event) => {
    document.body.classList.remove('files-over');
    if (!carriesFiles(event) || event.defaultPrevented) return;
    event.preventDefault(); // a file that misses its place must not replace the page
    if (event.target.closest?.('.compose') && open()) accept([...event.dataTransfer.files]);
  });
})();

// Files from outside: a picture that is pasted, and files dropped beside the zones, land where the page makes a video from.
(() => {
  const PATIENCE_MS = 20000; // the zone is busy while files before these are looked at
  let pasted = 0;
  let leaving = 0;

  const zone = async (selector) => {
    const until = Date.now() + PATIENCE_MS;
    while (Date.now() < until) {
      const found = document.querySelector(`${selector} input[type=file]`);
      if (found) return found;
      await new Promise((done) => setTimeout(done, 100));
    }
    return null;
  };

  const put = async (selector, files) => {
    const input = await zone(selector);
    if (!input) return;
    const carried = new DataTransfer();
    for (const file of files) carried.items.add(file);
    input.files = carried.files;
    input.dispatchEvent(new Event('change', { bubbles: true }));
  };

  const seen = (selector) => document.querySelector(selector)?.checkVisibility() ?? false;

  const accept = async (files) => {
    if (seen('#first-frame') || seen('#last-frame')) {
      await put(seen('#first-frame') ? '#first-frame' : '#last-frame', files.slice(0, 1));
      return;
    }
    if (!seen('#add-references')) document.querySelector('#mode label:nth-of-type(3) input')?.click();
    await put('#add-references', files);
  };

  const open = () => seen('.compose');
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

// The queue by itself: waiting jobs dragged to another place, a saved queue taken to the disk, the way to what is changed.
(() => {
  let dragged = null;
  const row = (event) => event.target.closest?.('[data-sortable] > li[data-position]');
  const clear = () => {
    for (const marked of document.querySelectorAll('[data-now-over]')) delete marked.dataset.nowOver;
    if (dragged) delete dragged.dataset.nowDragged;
    dragged = null;
  };

  document.addEventListener('dragstart', (event) => {
    const at = row(event);
    if (!at) return;
    dragged = at;
    at.dataset.nowDragged = 'yes';
    event.dataTransfer.effectAllowed = 'move';
    event.dataTransfer.setData('text/plain', '');
  });
  document.addEventListener('dragover', (event) => {
    const at = dragged && row(event);
    if (!at || at.parentElement !== dragged.parentElement) return;
    event.preventDefault();
    for (const marked of document.querySelectorAll('[data-now-over]')) delete marked.dataset.nowOver;
    if (at !== dragged) at.dataset.nowOver = Number(at.dataset.position) < Number(dragged.dataset.position) ? 'before' : 'after';
  });
  document.addEventListener('drop', (event) => {
    const at = dragged && row(event);
    if (at && at !== dragged) {
      event.preventDefault();
      const button = dragged.querySelector('[data-moved]');
      button.dataset.position = at.dataset.position;
      button.click();
    }
    clear();
  });
  document.addEventListener('dragend', clear);

  // A saved queue is taken to the disk once, without another press.
  const taken = new Set();
  new MutationObserver(() => {
    const saved = document.querySelector('[data-save-now]');
    if (!saved || taken.has(saved.dataset.saveNow)) return;
    taken.add(saved.dataset.saveNow);
    const link = document.createElement('a');
    link.href = saved.dataset.saveNow;
    link.download = saved.dataset.name;
    link.click();
  }).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ['data-save-now'] });

  // Whoever changes a waiting job is led to the fields that hold it.
  document.addEventListener('click', (event) => {
    if (event.target.closest?.('#queue [data-action=edit]'))
      document.querySelector('#prompt')?.scrollIntoView({ behavior: 'smooth', block: 'center' });
  });
})();

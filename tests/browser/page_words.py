"""Reads what a page says to people: visible texts and names, and which of them are still English words."""

from __future__ import annotations

# Names that are the same in every language, units, and what files and settings are called.
NAMES = "|".join(
    (
        r"H3 Studio|H3-nano|MiniMax-H3|MiniMaxAI/MiniMax-H3|MiniMax|OpenAI|LM Studio|Ollama|vLLM|Ctrl\+Enter|FFmpeg",
        r"Hugging Face|GitHub|Gradio|Python|curl|LoRA|PSNR|SSIM|GPU|CPU|RAM|VAE|FSDP|Ulysses|Transformer|bfloat16",
        r"MP4|PNG|JPEG|WebP|HEIC|GIF|MOV|WAV|MP3|M4A|FLAC|OGG|AAC|JSON|H\.26[45]|h264|aac|pcm_s16le|EXIF|sRGB|UTF-8",
        r"<(?:Picture|Video|Audio|Subject) \d+>|\[Shot \d+\]|</?d>|N/A|[a-z]+_[a-z_]+|(?:t2va|fl2va|ref2va)",
        r"[KMG]iB|GB|kHz|Hz|fps|min|px|dB|token|sigma|[Rr]ank|tiny-cpu|(?:clip|tone|portrait|fake)\.\w+|/\w\S*",
        r"NVML Shared Library Not Found",
    )
)

ENGLISH = """(names) => {
  const leftAlone = '[translate="no"], script, style, pre, code, textarea', said = new Set();
  const look = (text) => {
    const rest = text.replace(new RegExp(names, 'g'), ' ').match(/[A-Za-z]{2,}/g) || [];
    if (rest.length >= 2 || /\\d (?:s|min|h)\\b/.test(text)) said.add(text.trim().replace(/\\s+/g, ' '));
  };
  const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) {
    const at = nodes.currentNode.parentElement;
    if (!at.closest(leftAlone) && at.checkVisibility()) look(nodes.currentNode.data);
  }
  for (const name of ['placeholder', 'title', 'aria-label', 'alt'])
    for (const at of document.querySelectorAll(`[${name}]`))
      if (!at.closest('[translate="no"]') && at.checkVisibility()) look(at.getAttribute(name));
  const chosen = document.querySelectorAll('input[readonly][role=combobox]');
  for (const at of chosen) if (at.checkVisibility()) look(at.value);
  return [...said];
}"""


def english(page: object) -> list[str]:
    """Visible texts, placeholders and names with two or more English words that nobody translated."""
    return page.evaluate(ENGLISH, NAMES)


def sections(page: object) -> list[str]:
    """The ids of the page's sections, in order."""
    return page.evaluate("[...document.querySelectorAll('#sections [data-tab-id]')].map((tab) => tab.dataset.tabId)")


def go(page: object, section: str) -> None:
    """Open a section, also one whose tab does not fit and stands in the menu behind them."""
    tab = page.locator(f"#sections [data-tab-id={section}]")
    if tab.count() and tab.is_visible():
        tab.click()
    else:
        page.click("#sections .overflow-menu > button")
        page.click(f"#sections .overflow-dropdown button:nth-of-type({1 + _hidden(page).index(section)})")
    page.wait_for_timeout(400)


def _hidden(page: object) -> list[str]:
    return [name for name in sections(page) if not page.locator(f"#sections [data-tab-id={name}]").is_visible()]

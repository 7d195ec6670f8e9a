"""The README's tree says of every file what the file says of itself; run with --write, it is brought up to date."""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- tree: [^>]*-->\n).*?(<!-- /tree -->)", re.DOTALL)
ROOMS = ("h3ui", "backend", "bench")
REST = {
    "presets/hardware, presets/quality": "TOML: how the model runs on a machine, how a clip is sampled and encoded.",
    "assets": "Styles, scripts and icons of the page.",
    "docs": "Architecture, presets, API, adding an engine, troubleshooting.",
    "tests": "Mirrors the tree; browser tests in tests/browser.",
}


def first_sentence(path: Path) -> str:
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(doc.split("\n\n")[0].split())
    return paragraph if len(paragraph) <= 130 else re.split(r"(?<=\.)\s", paragraph)[0]


def tree() -> str:
    lines = [f"app.py{'':<34}{first_sentence(ROOT / 'app.py')}"]
    for room in ROOMS:
        for folder in sorted({path.parent for path in (ROOT / room).rglob("*.py")}):
            lines.append(f"{folder.relative_to(ROOT)}/")
            files = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
            lines += [f"  {path.name:<38}{first_sentence(path)}" for path in files]
    lines += [f"{name:<40}{what}" for name, what in REST.items()]
    return "```\n" + "\n".join(lines) + "\n```\n"


def test_the_tree_in_the_readme_is_current():
    found = BLOCK.search(README.read_text(encoding="utf-8"))
    assert found is not None
    assert found.group(0) == found.group(1) + tree() + found.group(2), "run `make docs`"


def test_links_in_the_docs_lead_somewhere():
    for page in (README, *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


if __name__ == "__main__" and "--write" in sys.argv:
    text = README.read_text(encoding="utf-8")
    README.write_text(BLOCK.sub(lambda m: m.group(1) + tree() + m.group(2), text), encoding="utf-8")

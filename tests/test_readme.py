"""What README and docs say of files is what the files say; run with --write, it is brought up to date."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
FILES = ROOT / "docs" / "files.md"
FOLDERS = re.compile(r"(<!-- folders: [^>]*-->\n).*?(<!-- /folders -->)", re.DOTALL)
TREE = re.compile(r"(<!-- tree: [^>]*-->\n).*?(<!-- /tree -->)", re.DOTALL)
ROOMS = ("h3ui", "backend", "bench")
REST = {
    "presets/": "TOML: how the model runs on a machine, how a clip is sampled and encoded.",
    "assets/": "Styles, scripts and icons of the page.",
    "docs/": "Architecture, presets, API, adding an engine, troubleshooting.",
    "tests/": "Mirrors the tree; browser tests in tests/browser.",
}


def first_sentence(path: Path) -> str:
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(doc.split("\n\n")[0].split())
    return paragraph if len(paragraph) <= 130 else re.split(r"(?<=\.)\s", paragraph)[0]


def folders_of(room: str) -> list[Path]:
    return sorted({path.parent for path in (ROOT / room).rglob("*.py")})


def folders() -> str:
    """A line a folder, without the list of its files that its docstring may go on with."""
    lines = [f"{'app.py':<28}{first_sentence(ROOT / 'app.py')}"]
    for folder in (folder for room in ROOMS for folder in folders_of(room)):
        doc = " ".join(
            (ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or "").split()
        )
        what = re.split(r"(?<=\.)\s|, in reading order:|: `", doc)[0].rstrip(".")
        lines.append(f"{folder.relative_to(ROOT).as_posix() + '/':<28}{what}.")
    lines += [f"{name:<28}{what}" for name, what in REST.items()]
    return "```\n" + "\n".join(lines) + "\n```\n"


def tree() -> str:
    """A line a file."""
    lines = []
    for room in ROOMS:
        for folder in folders_of(room):
            lines.append(f"{folder.relative_to(ROOT)}/")
            files = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
            lines += [f"  {path.name:<38}{first_sentence(path)}" for path in files]
    return "```\n" + "\n".join(lines) + "\n```\n"


GENERATED = ((README, FOLDERS, folders), (FILES, TREE, tree))


@pytest.mark.parametrize(("page", "block", "made"), GENERATED, ids=("folders", "files"))
def test_what_is_generated_in_the_docs_is_current(page, block, made):
    found = block.search(page.read_text(encoding="utf-8"))
    assert found is not None
    assert found.group(0) == found.group(1) + made() + found.group(2), "run `make docs`"


def test_links_in_the_docs_lead_somewhere():
    for page in (README, *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


if __name__ == "__main__" and "--write" in sys.argv:
    for page, block, made in GENERATED:
        text, fresh = page.read_text(encoding="utf-8"), made()
        page.write_text(block.sub(lambda m, fresh=fresh: m.group(1) + fresh + m.group(2), text), encoding="utf-8")

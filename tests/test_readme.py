"""What README and docs say of files and measurements is what those hold; run with --write, it is brought up to date."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PRESETS = ROOT / "docs" / "presets.md"
TREE = re.compile(r"(<!-- tree: [^>]*-->\n).*?(<!-- /tree -->)", re.DOTALL)
QUALITIES = re.compile(r"(<!-- qualities: [^>]*-->\n).*?(<!-- /qualities -->)", re.DOTALL)
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


def folder_sentence(folder: Path) -> str:
    """What a folder is, without the list of its files that its docstring may go on with."""
    doc = " ".join((ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or "").split())
    return re.split(r"(?<=\.)\s|, in reading order:|: `", doc)[0].rstrip(".") + "."


def tree() -> str:
    """A line a file, under its folder's own line."""
    lines = [f"{'app.py':<30}{first_sentence(ROOT / 'app.py')}"]
    for folder in sorted({path.parent for room in ROOMS for path in (ROOT / room).rglob("*.py")}):
        lines.append(f"{folder.relative_to(ROOT).as_posix() + '/':<30}{folder_sentence(folder)}")
        files = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
        lines += [f"  {path.name:<28}{first_sentence(path)}" for path in files]
    lines += [f"{name:<30}{what}" for name, what in REST.items()]
    return "```\n" + "\n".join(lines) + "\n```\n"


def qualities() -> str:
    """The table of quality presets: what each asks for, and its row of `bench/results/quality.json`."""
    measured = json.loads((ROOT / "bench" / "results" / "quality.json").read_text(encoding="utf-8"))
    rows = {row["what"] or row["quality"]: row for row in measured["rows"]}
    best = rows[measured["finest"]]
    lines = ["| quality | sigma points | canvas | pictures: PSNR, SSIM | sound: SNR, spectral distance | time |"]
    lines.append("|" + "---|" * 6)
    for name in [*sorted(path.stem for path in (ROOT / "presets" / "quality").glob("*.toml")), "another seed"]:
        row = rows.get(name)
        if row is None:
            lines.append(f"| `{name}` | | | not measured | not measured | |")
            continue
        told = ["what the others are compared with", ""]
        if row is not best:
            near = "identical" if row["psnr_db"] is None else f"{row['psnr_db']:.1f} dB"
            heard = "identical" if row["sound_db"] is None else f"{row['sound_db']:.1f} dB"
            told = [f"{near}, {row['ssim']:.3f}", f"{heard}, {row['spectral_db']:.1f} dB"]
        label = f"`{name}`" if name == row["quality"] else f"`{row['quality']}`, {name}"
        share = f"{row['median_s'] / best['median_s']:.2f}"
        lines.append(f"| {label} | {row['points']} | {row['canvas']} | {' | '.join(told)} | {share} |")
    made = measured["environment"]
    processor = f"{made['machine']} {made['device']} of {made['cores']} cores, threads: {made['threads']}"
    lines.append(
        f"\n{best['clips']} held-out prompts, {measured['frames']} frames, {measured['model_title']}, "
        f"{made['date'][:10]}, torch {made['versions']['torch']}, {processor}. "
        f"Time is relative to `{best['quality']}` in this run."
    )
    return "\n".join(lines) + "\n"


GENERATED = ((README, TREE, tree), (PRESETS, QUALITIES, qualities))


@pytest.mark.parametrize(("page", "block", "made"), GENERATED, ids=("tree", "qualities"))
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

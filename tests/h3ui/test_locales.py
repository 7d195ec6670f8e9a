"""The files of other languages: one entry a text, the same holes on both sides, and no entry that nothing says."""

from __future__ import annotations

import ast
import html
import json
import re
from pathlib import Path

import pytest

from backend.api import ModelView, Shelf
from backend.checkpoints.catalog import list_checkpoints
from backend.settings import Settings
from h3ui import render
from h3ui.panels import models

ROOT = Path(__file__).resolve().parents[2]
LOCALES = sorted((ROOT / "assets" / "locales").glob("*.json"))
HOLE = re.compile(r"\{#?\}")
BACK = re.compile(r"\{~?(\d+)\}")
# What Gradio's front end says by itself on this page; its source is not ours to search.
GRADIO = {
    *("Drop File Here", "Drop Image Here", "- or -", "Click to Upload", "Click to upload or drop files"),
    *("More tabs", "Connection lost", "Reconnected", "Connection re-established."),
    "Connection to the server was lost. Attempting reconnection...",
}


def pairs_of(path: Path) -> list[tuple[str, str]]:
    return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=list)


@pytest.fixture(scope="module")
def said() -> str:
    """Every text that the sources could show, a line each; what is put into it at run time is a NUL."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "assets" / "scripts").glob("*.js")]
    texts += [path.read_text(encoding="utf-8") for path in (ROOT / "presets").rglob("*.toml")]
    for folder in ("h3ui", "backend"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(node.value)
                elif isinstance(node, ast.JoinedStr):
                    texts.append("".join(getattr(part, "value", "\0") if isinstance(part, ast.Constant) else "\0"
                                         for part in node.values))  # fmt: skip
    return re.sub(r"[ \t]+", " ", html.unescape("\n".join(texts)))


def pieces(text: str, said: str) -> int:
    """Into how few runs of words `text` falls so that the sources say each; one that they do not say counts for ten."""
    words, count, at = re.findall(r"\s*[\w'’]+|\s*[^\w\s]+|\s+", text), 0, 0
    while at < len(words):
        end = len(words)
        while end > at and "".join(words[at:end]) not in said:
            end -= 1
        count, at = (count + 10, at + 1) if end == at else (count + 1, end)
    return count


def is_said(key: str, said: str) -> bool:
    """Whether the sources say `key`: whole, or put together from long parts."""
    return all(pieces(part, said) <= 1 + len(part) // 6 for part in HOLE.split(key) if part.strip())


@pytest.mark.parametrize("path", LOCALES, ids=lambda path: path.stem)
def test_each_text_has_one_entry_and_both_sides_the_same_holes(path):
    pairs = pairs_of(path)
    keys = [key for key, _ in pairs]
    assert sorted({key for key in keys if keys.count(key) > 1}) == []
    for key, to in pairs:
        assert key == " ".join(key.split()) and key, f"{key!r}: the page compares texts with single spaces"
        assert to.strip(), f"{key}: has no translation"
        wanted = {str(index + 1) for index in range(len(HOLE.findall(key)))}
        assert set(BACK.findall(to)) == wanted, f"{key} => {to}"
        assert "{}" not in to and "{#}" not in to, f"{key} => {to}: holes come back by their number"


def test_chinese_has_no_entry_that_nothing_says(said):
    dead = [
        key
        for key, _ in pairs_of(ROOT / "assets" / "locales" / "zh.json")
        if key not in GRADIO and not is_said(key, said)
    ]
    assert dead == []


def test_a_dead_entry_would_be_found(said):
    assert not is_said("Please feed the hamster before the render", said)
    assert not is_said("{} hamsters were rendered", said)
    assert is_said("Your video appears here", said)


def test_chinese_covers_the_rules_that_a_request_is_judged_by():
    """Every rule and way out of `backend.limits`, as its source writes them."""
    known = {re.sub(HOLE, "\0", key) for key, _ in pairs_of(ROOT / "assets" / "locales" / "zh.json")}
    tree = ast.parse((ROOT / "backend" / "limits.py").read_text(encoding="utf-8"))
    rules = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Problem":
            rules += [part.value for part in node.keywords if part.arg in ("rule", "way_out")]
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("rule", "way_out"):
            rules.append(node.value)
    texts = [text.replace("\0 \0 reference", "a \0 reference") for rule in rules for text in _texts(rule)]
    assert len(texts) >= 30
    assert [text for text in texts if text not in known and re.search("[A-Za-z]{3}", text)] == []


@pytest.mark.parametrize("seconds", [0.8, 42, 123, 4800])
def test_chinese_has_every_form_of_a_length_of_time(seconds):
    """A length of time is words on the page, also within a sentence: no translation keeps the letters of its units."""
    pairs = dict(pairs_of(ROOT / "assets" / "locales" / "zh.json"))
    form = re.sub(r"[\d.]+", "{#}", render.duration(seconds))
    assert not re.search("[A-Za-z]", pairs[form])
    assert [to for to in pairs.values() if re.search(r"\{~?\d+\} (?:s|min|h)(?![A-Za-z])", to)] == []


def test_chinese_names_the_models_that_come_with_the_program(tmp_path):
    listed = [item for item in list_checkpoints(Settings(data_dir=tmp_path)) if item.source == "built in"]
    known = dict(pairs_of(ROOT / "assets" / "locales" / "zh.json"))
    assert len(listed) == 2
    for item in listed:
        assert re.search("[\u4e00-\u9fff]", known[item.title])
        model = ModelView(checkpoint=item, repo="", place=None, parts=(), bundles=(), here=0, kept="kept", licence=None)
        shelf = Shelf(models=(model,), token=False, folder=tmp_path, free=0, activity=None, may_change=False)
        assert f"<b>{item.title}</b>" in models.shelf_html(shelf)  # nothing forbids to translate it


def _texts(node: ast.expr) -> list[str]:
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body), *_texts(node.orelse)]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)]
    return []

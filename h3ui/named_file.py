"""A drop zone whose files keep the names people gave them.

It knows names and Gradio's uploads; what is in a file, and whether it may be used, is found out elsewhere.
"""

from __future__ import annotations

import functools
import os
import shutil
import unicodedata
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import gradio as gr
from gradio.data_classes import FileData, ListFiles

MAX_NAME_BYTES = 200  # Linux takes 255; what is made of a file may add to its name
# They show a name in another order than it has (`gnp.exe` as `exe.png`), so none of them is kept.
_TURNING = {*"\u061c\u200e\u200f", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}


def build(**options: Any) -> gr.File:
    """A `gr.File` in the current layout block; its paths end in the name a file has at its owner's.

    It is no class of its own: for each one Gradio writes a file of stubs beside the source.
    """
    zone = gr.File(**options)
    zone.preprocess = functools.partial(_paths, zone.file_count == "single")  # type: ignore[method-assign]
    return zone


def _paths(single: bool, payload: ListFiles | FileData | None) -> str | list[str] | None:
    if payload is None:
        return None
    files = payload.root if isinstance(payload, ListFiles) else [payload]
    paths = [str(renamed(Path(file.path), file.orig_name)) for file in files]
    return paths[0] if single else paths


def renamed(path: Path, given: str | None) -> Path:
    """The uploaded file at `path` under the name that was `given` with it, beside itself.

    Gradio takes quotes and other letters out of the names of uploads. The page sends the whole name along; a client
    that does not has its name as browsers write it into a form, with %22 for a quote, and that is undone.
    """
    name = clean(given or unquote(path.name))
    target = path.with_name(name) if name else path
    if target == path:
        return path
    try:
        os.link(path, target)
    except FileExistsError:
        pass  # sent before: the folder is named by the content, so it is the same
    except OSError:  # a disk without links
        shutil.copyfile(path, target)
    return target


def clean(name: str) -> str:
    """The last part of `name` as a file may be called, without letters that nobody sees; "" where nothing is left."""
    last = name.replace("\\", "/").rpartition("/")[2]
    kept = "".join(
        letter
        for letter in last
        if letter not in _TURNING and unicodedata.category(letter) not in ("Cc", "Cs", "Zl", "Zp")
    ).strip()
    stem, dot, suffix = kept.rpartition(".")
    while len(kept.encode()) > MAX_NAME_BYTES:
        stem, suffix = (stem[:-1], suffix) if stem else ("", suffix[:-1])
        kept = f"{stem}{dot}{suffix}"
    return "" if not kept.strip(".") else kept

"""What the editor of the page is told of a prompt, and the edits it asks for: outline, templates, fixes of the lint.

Pure, so that any tab may ask at any time: nothing is kept, and what cannot be done changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from h3ui import lint
from h3ui.context_ir import outline, templates
from h3ui.context_ir.model import Target


def in_field(text: str) -> str:
    """`text` as a browser's field holds it: every line ends with one line feed. Offsets and parts count in this."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def told(text: str, target: Target) -> dict[str, Any]:
    """The outline of `text` and the templates that fit; a text far over every limit has none."""
    text = in_field(text)
    fitting = [{"key": item.key, "title": item.title, "about": item.about} for item in templates.fitting(target)]
    if len(text) > lint.MAX_CHARS:
        return {**outline.outline("", target), "parts": [], "form": "long", "templates": fitting}
    return {**outline.outline(text, target), "templates": fitting}


def edit(payload: Any) -> dict[str, Any]:
    """One edit by name, asked for by the page: the new text and its outline. What it cannot do changes nothing."""
    asked: Mapping[str, Any] = payload if isinstance(payload, dict) else {}
    text = asked.get("text")
    target = outline.read_target(asked.get("target"))
    if not isinstance(text, str) or len(text) > lint.MAX_CHARS:
        return {"text": None}
    name = asked.get("name")
    changed = lint.mend(text, target, str(asked.get("key"))) if name == "mend" else outline.apply(text, asked, target)
    return {"text": changed, "outline": told(changed, target)}

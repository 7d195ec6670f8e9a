"""Tags in a prompt, such as `<Picture 2>`: where they stand, how they are meant to be written, and renumbering them.

It knows the spelling of tags; which of them name something is the caller's knowledge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# What people write for a tag, and the name it has in the format (prompt-guides/ref-en, section 2).
_NAMES = {
    "picture": "Picture",
    "image": "Picture",
    "photo": "Picture",
    "video": "Video",
    "clip": "Video",
    "audio": "Audio",
    "sound": "Audio",
    "subject": "Subject",
}
_TAG = re.compile(rf"<[ ]*({'|'.join(_NAMES)})[ ]*#?[ ]*([0-9]{{1,4}})[ ]*>", re.IGNORECASE)
_REMOVED = re.compile(r"<(Picture|Video|Audio) ([0-9]{1,4}) \(removed\)>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One tag in a text: `text[start:end]` is `written`; `tag` is its proper spelling, `kind` its first word."""

    start: int
    end: int
    written: str
    tag: str
    kind: str


def find(text: str) -> tuple[Found, ...]:
    """Every tag of `text` in order, the miswritten ones (`<image 1>`, `<Picture #2>`) as well."""
    return tuple(
        Found(start=match.start(), end=match.end(), written=match[0], tag=_proper(match), kind=_NAMES[match[1].lower()])
        for match in _TAG.finditer(text)
    )


def find_removed(text: str) -> tuple[Found, ...]:
    """The tags that `renumber` marked because the file they named was taken away and another has its number now."""
    return tuple(
        Found(start=match.start(), end=match.end(), written=match[0], tag=_proper(match), kind=match[1])
        for match in _REMOVED.finditer(text)
    )


def renumber(text: str, mapping: Mapping[str, str | None]) -> str:
    """`text` after references were reordered or removed: `mapping` is old tag to new tag, None for a removed one.

    All tags change at once, so swaps are safe. A removed tag stays as it is while its number names nothing, which the
    lint says; where another file takes the number over it becomes `<Picture 1 (removed)>`, so that it never silently
    means that other file. Tags that `mapping` does not name, or maps to themselves, are left as written.
    """
    taken = {new for new in mapping.values() if new is not None}

    def changed(match: re.Match[str]) -> str:
        tag = _proper(match)
        new = mapping.get(tag, tag)
        if new == tag:
            return match[0]
        if new is not None:
            return new
        return f"{tag[:-1]} (removed)>" if tag in taken else match[0]

    return _TAG.sub(changed, text)


def _proper(match: re.Match[str]) -> str:
    return f"<{_NAMES[match[1].lower()]} {int(match[2])}>"

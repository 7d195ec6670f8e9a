"""What a prompt's tags get wrong: unknown ones, unused references, names the model does not know.

Pure; advice only, since the model runs with any text. The full format is `h3-official/prompt-guides`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_TAG = re.compile(r"<(Picture|Video|Audio|Image|Sound|Photo) (\d+)>", re.IGNORECASE)
_WRITTEN = {
    "picture": "Picture",
    "video": "Video",
    "audio": "Audio",
    "image": "Picture",
    "photo": "Picture",
    "sound": "Audio",
}
MAX_NOTES = 4


def notes(prompt: str, tags: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Advice about the tags of `prompt`, given the `tags` each reference answers to; () when there is none."""
    known = {tag for group in tags for tag in group}
    used, told = set(), []
    for found in _TAG.finditer(prompt):
        tag = f"<{_WRITTEN[found[1].lower()]} {int(found[2])}>"
        used.add(tag)
        if tag not in known:
            there = ", ".join(sorted(known)) if known else "no references"
            told.append(f"{found[0]} names nothing here: there is {there}.")
        elif found[0] != tag:
            told.append(f"{found[0]} is written {tag}.")
    if prompt.strip():
        for group in tags:
            if not used & set(group):
                told.append(f"{' or '.join(group)} is not mentioned in the prompt.")
    unique = tuple(dict.fromkeys(told))
    more = len(unique) - MAX_NOTES
    return unique if more <= 0 else (*unique[:MAX_NOTES], f"… and {more} more.")

"""What is wrong with a prompt, in the order of its lines, each with the change that mends it where that is mechanical.

Pure; advice only, since the model runs with any text. The rules are `h3ui.context_ir.check_*`.
"""

from __future__ import annotations

from h3ui.context_ir import check_form, check_shots, check_speech, check_tags
from h3ui.context_ir.findings import Finding
from h3ui.context_ir.model import Target
from h3ui.context_ir.parse import parse

MAX_CHARS = 40_000  # a longer text is only told its length: nothing that long can be sent

NEAR = 200  # characters that the longest mechanical change puts before what it leaves alone, with room


def check(prompt: str, target: Target) -> tuple[Finding, ...]:
    """Advice about `prompt` for the video `target`: by line, then what concerns it as a whole. () when all is well."""
    document = parse(prompt)
    if len(prompt) > MAX_CHARS:
        return tuple(found for found in check_form.check(document, target) if found.code == "too-long")
    if not prompt.strip():
        return ()
    found = [
        *check_form.check(document, target),
        *check_tags.check(document, target),
        *check_shots.check(document, target),
        *check_speech.check(document),
    ]
    return tuple(sorted(found, key=lambda item: (item.at is None, item.at or 0)))


def mend(prompt: str, target: Target, key: str) -> str:
    """`prompt` after the change of the finding that `key` names; unchanged where there is none any more.

    The page may show advice about the text of a moment ago: the nearest finding of that kind is meant.
    """
    code, _, wanted = key.partition(":")
    same = [found for found in check(prompt, target) if found.code == code and found.change is not None]
    if not wanted.isdecimal():
        same = [found for found in same if found.at is None]
    else:
        same = [found for found in same if found.at is not None and abs(found.at - int(wanted[:9])) <= NEAR]
        same.sort(key=lambda found: abs((found.at or 0) - int(wanted[:9])))
    return same[0].change.applied(prompt) if same and same[0].change is not None else prompt

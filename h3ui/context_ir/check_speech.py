"""Whether spoken words stand where the model looks for them: inside `<d>`, with a language, from somebody.

It knows markup of speech; the meaning of the words is nobody's business here.
"""

from __future__ import annotations

import re

from h3ui.context_ir.findings import Change, Finding
from h3ui.context_ir.model import DESCRIPTIONS, Document, Form, Line
from h3ui.context_ir.parse import pieces

_VERBS = (
    "says?|said|saying|asks?|asking|replies|reply|answers?|shouts?|shouting|whispers?|whispering|yells?|calls out|"
    "cries|mutters?|murmurs?|exclaims?|sings?|singing|announces?|adds|continues|speaks?|narrates?|screams?"
)
_QUOTED = re.compile(
    rf"\b(?:{_VERBS})\b[^\"“”„«「<>.!?\n]{{0,60}}([\"“„«「][^\"”“»」\n]{{1,400}}[\"”“»」])", re.IGNORECASE
)
# What is written in the picture stays in quotation marks (base-en 4.5): "a sign that says ...".
_WRITTEN = re.compile(
    r"\b(?:sign|banner|label|text|neon|poster|title|subtitle|caption|card|board|screen|note|letter|page|logo|shirt)\b",
    re.IGNORECASE,
)
_OPEN = re.compile(r"</?d>")
_SCRIPTS = (
    ("Korean", re.compile(r"[\uac00-\ud7af]")),
    ("Japanese", re.compile(r"[\u3040-\u30ff]")),
    ("Chinese", re.compile(r"[\u4e00-\u9fff]")),
    ("Russian", re.compile(r"[\u0400-\u04ff]")),
    ("Arabic", re.compile(r"[\u0600-\u06ff]")),
    ("Hindi", re.compile(r"[\u0900-\u097f]")),
    ("Thai", re.compile(r"[\u0e00-\u0e7f]")),
    ("Greek", re.compile(r"[\u0370-\u03ff]")),
)


def check(document: Document) -> list[Finding]:
    """Words outside `<d>`, marks that do not close, lines without language or speaker."""
    text = document.text
    parts = pieces(text)
    languages = {part.language.strip() for part in parts if isinstance(part, Line) and part.language.strip()}
    usual = languages.pop() if len(languages) == 1 else "English"
    told, offset = [], 0
    for part in parts:
        told += _prose(part, offset, usual) if isinstance(part, str) else _line(part, offset, usual)
        offset += len(part if isinstance(part, str) else part.text)
    return told + _misplaced(document)


def guess_language(words: str, usual: str = "English") -> str:
    """The language of `words` by its letters, `usual` where they do not tell."""
    return next((name for name, script in _SCRIPTS if script.search(words)), usual)


def _prose(prose: str, offset: int, usual: str) -> list[Finding]:
    told = []
    for match in _QUOTED.finditer(prose):
        if _WRITTEN.search(prose[max(match.start() - 50, 0) : match.start(1)]):
            continue
        words = match[1][1:-1].strip()
        spoken = f"<d>[{guess_language(words, usual)}] {words}</d>"
        change = Change(start=offset + match.start(1), end=offset + match.end(1), text=spoken)
        message = f"Spoken words belong inside <d>: {match[1] if len(match[1]) < 40 else match[1][:38] + '…'}"
        told.append(Finding(code="speech-outside", at=offset + match.start(1), message=message, change=change))
    for match in _OPEN.finditer(prose):
        message = "<d> is not closed by </d>." if match[0] == "<d>" else "</d> closes no <d>."
        told.append(Finding(code="speech-open", at=offset + match.start(), message=message))
    return told


def _line(line: Line, offset: int, usual: str) -> list[Finding]:
    if not line.words.strip():
        return [Finding(code="speech-empty", at=offset, message="<d> holds no words.")]
    if not line.language:
        change = Change(
            start=offset + len(line.before),
            end=offset + len(line.before),
            text=f"[{guess_language(line.words, usual)}] ",
        )
        return [Finding(code="speech-language", at=offset, message="<d> begins with its language.", change=change)]
    return []


def _misplaced(document: Document) -> list[Finding]:
    """Words in a section about sound, and lines nobody speaks; free text is not asked for either."""
    if document.form is Form.FREE:
        return []
    told, offset = [], len(document.opening)
    for section in document.sections:
        if section.name in ("overall_soundscape", "non_diegetic_music") and "<d>" in section.body:
            at = offset + section.text.index("<d>")
            message = f"Spoken words belong into the shots, not into {section.name}."
            told.append(Finding(code="speech-section", at=at, message=message))
        if section.name in DESCRIPTIONS:
            told += _nobody(section.text, offset)
        offset += len(section.text)
    return told


def _nobody(text: str, offset: int) -> list[Finding]:
    told, before = [], ""
    for part in pieces(text):
        if isinstance(part, Line):
            if part.words.strip() and not part.speakers and "<Audio " not in before:
                message = "Nobody speaks this: name the speaker before it, as (S1)."
                told.append(Finding(code="speech-nobody", at=offset, message=message))
            offset += len(part.text)
        else:
            before = part
            offset += len(part)
    return told

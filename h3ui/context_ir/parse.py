"""A text to a Document: any text, without loss; what is not in the format stays in the field it stands in.

It reads and never judges; what is wrong with a prompt is `h3ui.lint`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from h3ui.context_ir import timecode
from h3ui.context_ir.model import DESCRIPTIONS, SECTIONS, Document, Line, Piece, Section, Shot

_HEAD = re.compile(rf"^[ \t]*({'|'.join(dict.fromkeys(SECTIONS))})[ \t]*:", re.MULTILINE | re.IGNORECASE | re.ASCII)
_NUMBER = r"\[[ ]*shot[ ]*([0-9]{1,3})[ ]*\]"
_AT = rf"[ \t]*At[ ]+({timecode.PATTERN})"
# A shot begins a section, line or sentence, or has a time; "(from [Shot 1])" and "as in [Shot 2]" only speak of one.
_SHOT = re.compile(
    rf"(?:(?:(?<=\n)|(?<=[.!?>\"”’)] )|\A)[ \t]*|(?={_NUMBER.replace('(', '(?:')}{_AT.replace('(', '(?:', 1)}))"
    rf"{_NUMBER}(?:{_AT}[ \t]*,?)?[ \t]*",
    re.IGNORECASE,
)
_LINE = re.compile(r"(<d>\s*+)(?:\[([^\]\[\n<>]{1,40})\](\s*+))?((?:(?!<d>|</d>).)*+)(</d>)", re.DOTALL)
_ARTICLES = re.compile(r"\b(?:the|an?)\b", re.IGNORECASE)
_SPEAKERS = re.compile(r"\(\s*(S[0-9]{1,2}(?:\s*,\s*S[0-9]{1,2})*)\s*\)")


def parse(text: str) -> Document:
    """The parts of `text`; `parse(text).text == text` for every text."""
    heads = list(_HEAD.finditer(text))
    if not heads:
        return Document(opening=text)
    ends = [head.start() for head in heads[1:]] + [len(text)]
    sections = tuple(_section(head, text[head.end() : end]) for head, end in zip(heads, ends, strict=True))
    return Document(opening=text[: heads[0].start()], sections=sections)


def parse_shots(text: str) -> tuple[str, tuple[Shot, ...]]:
    """What stands before the first `[Shot N]` of a description, and the shots."""
    heads = list(_SHOT.finditer(text))
    if not heads:
        return text, ()
    ends = [head.start() for head in heads[1:]] + [len(text)]
    shots = []
    for head, end in zip(heads, ends, strict=True):
        body, gap = _ended(text[head.end() : end])
        start_s = timecode.read(head[2]) if head[2] else None
        shots.append(Shot(number=int(head[1]), start_s=start_s, head=head[0], body=body, gap=gap))
    return text[: heads[0].start()], tuple(shots)


def pieces(body: str) -> tuple[Piece, ...]:
    """The prose and the spoken lines of a shot, in order; joined they are `body`."""
    found: list[Piece] = []
    at = 0
    for match in _LINE.finditer(body):
        prose = body[at : match.start()]
        if prose:
            found.append(prose)
        found.append(_line(match, prose))
        at = match.end()
    if body[at:] or not found:
        found.append(body[at:])
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """Somebody who speaks: id, the words that introduce them, languages and number of lines, numbers of their shots."""

    id: str
    who: str
    languages: tuple[str, ...]
    lines: int
    shots: tuple[int, ...]


def speakers(document: Document) -> tuple[Speaker, ...]:
    """Everybody with an id such as (S1), in the order of their first appearance."""
    found: dict[str, Speaker] = {}
    for shot in document.shots:
        spoken = [piece for piece in pieces(shot.body) if isinstance(piece, Line)]
        for match in _SPEAKERS.finditer(shot.body):
            for name in _ids(match[1]):
                old = found.get(name) or Speaker(id=name, who=_who(shot.body, match), languages=(), lines=0, shots=())
                if shot.number in old.shots:
                    continue
                mine = [line for line in spoken if name in line.speakers]
                told = [line.language.strip() for line in mine if line.language.strip()]
                found[name] = Speaker(
                    id=name,
                    who=old.who,
                    languages=tuple(dict.fromkeys([*old.languages, *told])),
                    lines=old.lines + len(mine),
                    shots=(*old.shots, shot.number),
                )
    return tuple(found.values())


def _section(head: re.Match[str], rest: str) -> Section:
    name = head[1].lower()
    stripped = rest.lstrip()
    if not stripped:
        space = rest[: len(rest) - len(rest.lstrip(" \t"))]
        return Section(name=name, head=head[0] + space, body="", gap=rest[len(space) :])
    lead = rest[: len(rest) - len(stripped)]
    content, gap = _ended(stripped)
    if name not in DESCRIPTIONS:
        return Section(name=name, head=head[0] + lead, body=content, gap=gap)
    body, shots = parse_shots(content)
    return Section(name=name, head=head[0] + lead, body=body, shots=shots, gap=gap)


def _ended(text: str) -> tuple[str, str]:
    """`text` without the space at its end, and that space."""
    body = text.rstrip()
    return body, text[len(body) :]


def _line(match: re.Match[str], prose: str) -> Line:
    said = list(_SPEAKERS.finditer(prose))
    named = match[2] is not None
    return Line(
        before=match[1] + ("[" if named else ""),
        language=match[2] or "",
        between=("]" + match[3]) if named else "",
        words=match[4],
        after=match[5],
        speakers=_ids(said[-1][1]) if said else (),
    )


def _ids(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _who(body: str, match: re.Match[str]) -> str:
    """The words before an id that say who it is: a tag, or the phrase from its article on; at most 12 words."""
    clause = re.split(r"[.!?]\s|</d>", body[: match.start()])[-1].strip()
    if clause.endswith(">"):
        return clause[clause.rfind("<") :]
    articles = [*_ARTICLES.finditer(clause)]
    definite = [found for found in articles if found[0].lower() == "the"]
    start = (definite or articles)[-1].start() if articles else 0
    return " ".join(clause[start:].split()[:12])

"""Edits of a prompt that a person makes by its parts: shots, cut times, lines, sections. All else stays as written.

Every function takes a Document and gives a new one; a shot that does not exist leaves the document as it is.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence

from h3ui.context_ir import instruction, timecode
from h3ui.context_ir.model import DESCRIPTIONS, Document, Form, Line, Section, Shot, Target, starts
from h3ui.context_ir.parse import parse, pieces

SHORTEST_SHOT_S = 0.5  # a cut is put no nearer to another; shorter shots are read, and the lint speaks of them
NEW_SHOT = "the camera cuts to …"
_MENTION = re.compile(r"(\[[ ]*shot[ ]*|\bshot[ ])([0-9]{1,3})\b", re.IGNORECASE)
_SOUND = re.compile(r"(?:^|(?<=[.!?])\s+)Sound:\s*(.+)\Z", re.DOTALL)


def structure(text: str, target: Target) -> Document:
    """Free text in the form for `target`: all of it as the first shot, its "Sound: ..." as the soundscape."""
    found = instruction.find(text)
    rest = text[found.rest :].strip() if found is not None else text.strip()
    sound = _SOUND.search(rest)
    seen, heard = (rest[: sound.start()].strip(), sound[1].strip()) if sound else (rest, "")
    bodies = {name: "" for name in target.form.sections}
    bodies[target.form.description] = seen if parse_has_shots(seen) else f"[Shot 1] {seen}"
    bodies["overall_soundscape"] = heard
    line = instruction.expected(target, 1)
    opening = f"{found.line}\n\n" if found is not None else f"{line}\n\n" if line else ""
    return parse(opening + "\n\n".join(_written(name, body, target.form) for name, body in bodies.items()))


def parse_has_shots(text: str) -> bool:
    """Whether `text` has a shot of its own already."""
    return bool(parse(f"{DESCRIPTIONS[0]}: {text}").shots)


def section_head(document: Document, name: str) -> str:
    """What has to stand before the body of a section that `document` lacks, put after everything else."""
    written = _written(name, "", document.form)
    text = document.text
    missing = 2 - (len(text) - len(text.rstrip("\n")))
    return ("\n" * max(missing, 0) if text.strip() else "") + written


def with_shots(document: Document, shots: Sequence[Shot]) -> Document:
    """`document` with other shots in its description."""
    sections = tuple(
        dataclasses.replace(section, shots=tuple(shots)) if section is document.description else section
        for section in document.sections
    )
    return dataclasses.replace(document, sections=sections)


def set_starts(document: Document, times: Sequence[float]) -> Document:
    """The cuts at `times` (seconds, one a shot), the first shot without one; only heads that change are rewritten."""
    shots = [_timed(shot, None if index == 0 else times[index]) for index, shot in enumerate(document.shots)]
    return with_shots(document, shots)


def set_start(document: Document, index: int, start_s: float, target: Target) -> Document:
    """Move one cut, kept between its neighbours."""
    times = list(starts(document.shots))
    if not 1 <= index < len(times):
        return document
    after = times[index + 1] if index + 1 < len(times) else target.duration_s
    low, high = times[index - 1] + SHORTEST_SHOT_S, after - SHORTEST_SHOT_S
    if low <= high:
        start_s = min(max(start_s, low), high)
    return _one_start(document, index, start_s)


def set_length(document: Document, index: int, length_s: float) -> Document:
    """Make one shot so long; the later cuts keep their distances. The last shot ends with the video and stays."""
    times = list(starts(document.shots))
    if not 0 <= index < len(times) - 1:
        return document
    by = max(length_s, SHORTEST_SHOT_S) - (times[index + 1] - times[index])
    return set_starts(document, [time if at <= index else max(time + by, 0.0) for at, time in enumerate(times)])


def fit(document: Document, target: Target) -> Document:
    """All cuts inside the video and in order: the proportions of the shots stay, the last one gets a usual share."""
    times = starts(document.shots)
    if len(times) < 2:
        return document
    lengths = [max(end - start, 0.0) for start, end in itertools.pairwise(times)]
    lengths = [length or SHORTEST_SHOT_S for length in lengths]
    lengths.append(sorted(lengths)[len(lengths) // 2])
    scale = target.duration_s / sum(lengths)
    return set_starts(document, [round(sum(lengths[:index]) * scale, 2) for index in range(len(lengths))])


def add_shot(document: Document, after: int, target: Target) -> Document:
    """A new shot in the second half of shot `after` (-1 with no shot: the first)."""
    shots = document.shots
    if not shots:
        return _first_shot(document)
    after = min(max(after, 0), len(shots) - 1)
    times = list(starts(shots))
    end = times[after + 1] if after + 1 < len(times) else max(target.duration_s, times[after] + 1.0)
    times.insert(after + 1, round((times[after] + end) / 2, 2))
    added = Shot(number=0, start_s=None, head="[Shot 0] ", body=NEW_SHOT, gap=shots[after].gap or _between(document))
    spaced = dataclasses.replace(shots[after], gap=shots[after].gap or _between(document))
    if after == len(shots) - 1:
        added = dataclasses.replace(added, gap="")
    order = [*range(after + 1), None, *range(after + 1, len(shots))]
    made = [*shots[:after], spaced, added, *shots[after + 1 :]]
    return _renumbered(document, made, times, order)


def remove_shot(document: Document, index: int) -> Document:
    """Without one shot: the one before it lasts longer; the second becomes the first."""
    shots = document.shots
    if not 0 <= index < len(shots) or len(shots) == 1:
        return document
    kept = [shot for at, shot in enumerate(shots) if at != index]
    if index == len(shots) - 1:
        kept[-1] = dataclasses.replace(kept[-1], gap=shots[-1].gap)
    times = [time for at, time in enumerate(starts(shots)) if at != index]
    return _renumbered(document, kept, times, [at for at in range(len(shots)) if at != index])


def move_shot(document: Document, index: int, to: int, target: Target) -> Document:
    """One shot to another place. It keeps its length, and the cuts follow."""
    shots = document.shots
    if not (0 <= index < len(shots) and 0 <= to < len(shots)) or index == to:
        return document
    times = starts(shots)
    ends = (*times[1:], max(target.duration_s, times[-1] + SHORTEST_SHOT_S))
    order = [at for at in range(len(shots)) if at != index]
    order.insert(to, index)
    lengths = [max(ends[at] - times[at], 0.0) for at in order]
    gaps = [shot.gap for shot in shots]
    moved = [dataclasses.replace(shots[at], gap=gap) for at, gap in zip(order, gaps, strict=True)]
    return _renumbered(document, moved, [round(sum(lengths[:at]), 3) for at in range(len(lengths))], list(order))


def add_line(document: Document, index: int, speaker: str, language: str) -> Document:
    """Room for words of `speaker` at the end of one shot."""
    spoken = f"({speaker}) says: <d>[{language}] …</d>"

    def longer(body: str) -> str:
        stripped = body.rstrip()
        return f"{stripped} The speaker {spoken}" if stripped else f"The speaker {spoken}"

    return _with_body(document, index, longer)


def set_language(document: Document, speaker: str, language: str) -> Document:
    """Every line of `speaker` alone in another language; the words stay."""

    def tagged(body: str) -> str:
        told = []
        for piece in pieces(body):
            if isinstance(piece, Line) and piece.speakers == (speaker,):
                start = piece.before if piece.before.endswith("[") else piece.before + "["
                between = piece.between or "] "
                piece = dataclasses.replace(piece, before=start, language=language, between=between)
            told.append(piece if isinstance(piece, str) else piece.text)
        return "".join(told)

    for index in range(len(document.shots)):
        document = _with_body(document, index, tagged)
    return document


def _with_body(document: Document, index: int, change: Callable[[str], str]) -> Document:
    shots = list(document.shots)
    if not 0 <= index < len(shots):
        return document
    shots[index] = dataclasses.replace(shots[index], body=change(shots[index].body))
    return with_shots(document, shots)


def _one_start(document: Document, index: int, start_s: float) -> Document:
    shots = list(document.shots)
    shots[index] = _timed(shots[index], start_s)
    return with_shots(document, shots)


def _timed(shot: Shot, start_s: float | None) -> Shot:
    """`shot` with its cut at `start_s`; the head is left alone where it says so already."""
    same = shot.start_s is None if start_s is None else shot.start_s is not None and abs(shot.start_s - start_s) < 5e-4
    return shot if same else dataclasses.replace(shot, start_s=start_s, head=_head(shot.number, start_s))


def _head(number: int, start_s: float | None) -> str:
    return f"[Shot {number}] " if start_s is None else f"[Shot {number}] At {timecode.write(start_s)}, "


def _renumbered(
    document: Document, shots: Sequence[Shot], times: Sequence[float], order: Sequence[int | None]
) -> Document:
    """`shots` numbered from 1 with their cuts at `times`; mentions of shots elsewhere follow, by `order`, the old
    index of each. A mention of a shot that is gone stays: only its writer knows what to say instead."""
    old = document.shots
    numbers = {str(old[was].number): str(now + 1) for now, was in enumerate(order) if was is not None}
    made = []
    for index, shot in enumerate(shots):
        start_s = None if index == 0 else times[index]
        body = _renamed(shot.body, numbers)
        made.append(
            dataclasses.replace(shot, number=index + 1, start_s=start_s, head=_head(index + 1, start_s), body=body)
        )
    changed = with_shots(document, made)
    sections = tuple(_with_mentions(section, numbers) for section in changed.sections)
    return dataclasses.replace(changed, sections=sections)


def _with_mentions(section: Section, numbers: Mapping[str, str]) -> Section:
    return dataclasses.replace(section, body=_renamed(section.body, numbers))


def _renamed(text: str, numbers: Mapping[str, str]) -> str:
    return _MENTION.sub(lambda found: found[1] + numbers.get(str(int(found[2])), found[2]), text)


def _first_shot(document: Document) -> Document:
    section = document.description
    if section is None:
        return document
    shot = Shot(number=1, start_s=None, head="[Shot 1] ", body=section.body)
    sections = tuple(
        dataclasses.replace(item, body="", shots=(shot,)) if item is section else item for item in document.sections
    )
    return dataclasses.replace(document, sections=sections)


def _between(document: Document) -> str:
    """What separates shots here: a new line where the form, or the text so far, has one each."""
    gaps = [shot.gap for shot in document.shots[:-1]]
    return gaps[-1] if gaps else "\n" if document.form is Form.REFERENCE else " "


def _written(name: str, body: str, form: Form) -> str:
    return f"{name}:\n{body}" if form is Form.REFERENCE else f"{name}: {body}"

"""Whether the shots of a prompt add up to the video: numbers, cut times, order, end.

It knows shots and seconds; what is said in a shot is `check_speech`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from h3ui.context_ir import edit, timecode
from h3ui.context_ir.findings import Change, Finding, seconds
from h3ui.context_ir.model import Document, Form, Shot, Target, starts

_TIME = re.compile(rf"At[ ]+({timecode.PATTERN})", re.IGNORECASE)
_MENTION = re.compile(r"\[[ ]*shot[ ]*([0-9]{1,3})[ ]*\]", re.IGNORECASE)


def check(document: Document, target: Target) -> list[Finding]:
    """What does not add up; nothing for free text."""
    if document.form is Form.FREE or document.description is None:
        return []
    placed = list(_placed(document))
    if not placed:
        at = document.text.index(document.description.text) + len(document.description.head)
        change = Change(start=at, end=at, text="[Shot 1] ")
        return [Finding(code="no-shot", at=at, message="The description begins with [Shot 1].", change=change)]
    return [*_numbers(document, placed), *_times(document, target, placed), *_mentions(document, placed)]


def _placed(document: Document) -> Iterator[tuple[int, Shot]]:
    """Every shot and the offset of its `[`."""
    offset = len(document.opening)
    for section in document.sections:
        if section is document.description:
            offset += len(section.head) + len(section.body)
            for shot in section.shots:
                yield offset + shot.head.index("["), shot
                offset += len(shot.text)
            return
        offset += len(section.text)


def _numbers(document: Document, placed: list[tuple[int, Shot]]) -> list[Finding]:
    wrong = next(((at, shot, index) for index, (at, shot) in enumerate(placed, 1) if shot.number != index), None)
    if wrong is None:
        return []
    at, shot, index = wrong
    numbered = [
        dataclasses.replace(shot, head=re.sub(r"[0-9]+", str(number), shot.head, count=1))
        for number, (_, shot) in enumerate(placed, 1)
    ]
    change = _whole(document, edit.with_shots(document, numbered), "Number them")
    message = f"[Shot {shot.number}] is shot {index} in this order."
    return [Finding(code="shot-number", at=at, message=message, change=change)]


def _times(document: Document, target: Target, placed: list[tuple[int, Shot]]) -> list[Finding]:
    told, end, times = [], target.duration_s, starts(document.shots)
    following = _following(document.shots, end)
    fitting = _whole(document, edit.fit(document, target), f"Fit into {seconds(end)}")
    for index, (at, shot) in enumerate(placed):
        name, start_s = f"Shot {shot.number}", shot.start_s
        if index == 0:
            if start_s is not None:
                change = _head(at, shot, f"[Shot {shot.number}] ")
                message = "The first shot begins with the video and has no time."
                told.append(Finding(code="first-time", at=at, message=message, change=change))
            continue
        before = times[index - 1]
        if start_s is None:
            middle = round((before + following[index]) / 2, 2)
            change = _head(at, shot, f"[Shot {shot.number}] At {timecode.write(middle)}, ", "Add one")
            told.append(Finding(code="no-time", at=at, message=f"{name} has no cut time.", change=change))
            continue
        written = _TIME.search(shot.head)
        if written and not timecode.is_exact(written[1]):
            exact = timecode.write(start_s)
            change = _head(at, shot, f"[Shot {shot.number}] At {exact}, ")
            message = f"{written[1]} is written {exact}."
            told.append(Finding(code="time-format", at=at, message=message, change=change))
        if start_s <= before:
            message = f"{name} cuts at {seconds(start_s)}, not after shot {index} at {seconds(before)}."
            told.append(Finding(code="cut-order", at=at, message=message, change=fitting))
        elif start_s >= end:
            message = f"{name} cuts at {seconds(start_s)}, after the end of the video at {seconds(end)}."
            told.append(Finding(code="cut-past-end", at=at, message=message, change=fitting))
        elif index == len(placed) - 1 and end - start_s < edit.SHORTEST_SHOT_S:
            message = f"{name} lasts {seconds(end - start_s)} only, until the video ends at {seconds(end)}."
            told.append(Finding(code="short-shot", at=at, message=message, change=fitting))
    return told


def _following(shots: tuple[Shot, ...], end: float) -> list[float]:
    """For each shot the next cut time that is written after it, or the end of the video."""
    found: list[float] = []
    for shot in reversed(shots):
        found.append(end)
        end = shot.start_s if shot.start_s is not None else end
    return found[::-1]


def _mentions(document: Document, placed: list[tuple[int, Shot]]) -> list[Finding]:
    numbers, told = {shot.number for _, shot in placed}, []
    for match in _MENTION.finditer(document.text, len(document.opening)):
        if int(match[1]) not in numbers:
            numbers.add(int(match[1]))
            told.append(Finding(code="no-such-shot", at=match.start(), message=f"There is no shot {int(match[1])}."))
    return told


def _head(at: int, shot: Shot, text: str, label: str = "Fix") -> Change:
    """The shot's head in other words, from its `[` on."""
    return Change(start=at, end=at + len(shot.head) - shot.head.index("["), text=text, label=label)


def _whole(document: Document, changed: Document, label: str) -> Change:
    return Change(start=0, end=len(document.text), text=changed.text, label=label)

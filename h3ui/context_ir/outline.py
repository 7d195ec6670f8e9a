"""What a structured editor shows of a prompt, as plain lists and texts, and the edits it asks for by name.

A prompt is told as `parts`, texts that joined are the prompt; every field names the parts it stands for, so an editor
changes a field by changing its part and needs no knowledge of the format.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from h3ui.context_ir import edit, instruction, parse, templates
from h3ui.context_ir.model import DESCRIPTIONS, Document, Form, Line, Section, Shot, Target, starts

Payload = dict[str, Any]


def outline(text: str, target: Target) -> Payload:
    """Everything an editor needs of `text` for `target`; JSON holds it. `parts` joined are `text`."""
    document = parse.parse(text)
    parts = _Parts()
    told: Payload = {
        "form": document.form.value,
        "wanted": target.form.value,
        "duration": round(target.duration_s, 3),
        "frames": target.num_frames,
        "target": target_payload(target),
        "instruction": _instruction(document, target),
        "lead": None,
        "shots": [],
        "sections": [],
        "speakers": [
            {
                "id": who.id,
                "who": who.who,
                "languages": list(who.languages),
                "lines": who.lines,
                "shots": list(who.shots),
            }
            for who in parse.speakers(document)
        ],
    }
    parts.add(document.opening)
    for section in document.sections:
        head = parts.add(section.head)
        if section is document.description:
            told["lead"] = _split_field(parts, section.body)
            told["shots"] = _shots(parts, section, target)
        else:
            at = parts.add(section.body)
            if not any(known["name"] == section.name for known in told["sections"]):
                told["sections"].append({"name": section.name, "from": at, "to": at + 1, "head": head, "head_text": ""})
        parts.add(section.gap)
    for name in document.form.sections:
        if name not in DESCRIPTIONS and document.section(name) is None:
            head = parts.add("")
            at = parts.add("")
            head_text = edit.section_head(document, name)
            told["sections"].append({"name": name, "from": at, "to": at + 1, "head": head, "head_text": head_text})
    told["parts"] = parts.texts
    told["fits"] = _fits(document, target)
    return told


def apply(text: str, operation: Mapping[str, Any], target: Target) -> str:
    """`text` after one named edit. What it does not understand, or what is not there, leaves the text as it is."""
    document = parse.parse(text)
    shots = len(document.shots)
    changed = _edited(document, operation, target)
    if changed is None:
        return text
    found = instruction.find(changed.opening)
    if found is not None and found.line == instruction.expected(target, shots):
        changed = instruction.put(changed, instruction.expected(target, len(changed.shots)))
    return changed.text


def _edited(document: Document, operation: Mapping[str, Any], target: Target) -> Document | None:
    index, value = _whole(operation.get("shot")), _number(operation.get("value"))
    word = str(operation.get("word", ""))[:40].strip()
    match operation.get("name"):
        case "structure":
            return edit.structure(document.text, target) if document.form is Form.FREE else None
        case "instruction":
            return instruction.put(document, instruction.expected(target, len(document.shots)))
        case "template":
            return parse.parse(templates.written(word, target))
        case "start":
            return edit.set_start(document, index, value, target)
        case "length":
            return edit.set_length(document, index, value)
        case "fit":
            return edit.fit(document, target)
        case "add":
            return edit.add_shot(document, index, target)
        case "remove":
            return edit.remove_shot(document, index)
        case "move":
            return edit.move_shot(document, index, _whole(operation.get("to")), target)
        case "line":
            return edit.add_line(document, index, _next_speaker(document, word), "English")
        case "language":
            speaker = str(operation.get("speaker", ""))[:4]
            return edit.set_language(document, speaker, word) if word and not set("[]<>\n") & set(word) else None
    return None


def target_payload(target: Target) -> Payload:
    """A Target as an editor keeps it and sends it back."""
    return {
        "frames": target.num_frames,
        "first": target.first_frame,
        "last": target.last_frame,
        "references": target.references,
        "tags": [list(group) for group in target.tags],
    }


def read_target(payload: object) -> Target:
    """The Target an editor sent back; whatever is not as `target_payload` wrote it counts as absent."""
    told: Mapping[str, Any] = payload if isinstance(payload, dict) else {}
    frames, groups = told.get("frames"), told.get("tags")
    known = frames if isinstance(frames, int) and 1 <= frames <= 10_000 else Target().num_frames
    tags = (
        [[str(tag)[:40] for tag in group[:4]] for group in groups[:40] if isinstance(group, list)]
        if isinstance(groups, list)
        else []
    )
    return Target(
        num_frames=known,
        first_frame=told.get("first") is True,
        last_frame=told.get("last") is True,
        references=told.get("references") is True,
        tags=tuple(tuple(group) for group in tags),
    )


@dataclass(slots=True)
class _Parts:
    """Texts in order; the number of each is where a field finds it."""

    texts: list[str] = field(default_factory=list)

    def add(self, text: str) -> int:
        self.texts.append(text)
        return len(self.texts) - 1


def _instruction(document: Document, target: Target) -> Payload:
    found = instruction.find(document.opening)
    have, want = found.line if found else "", instruction.expected(target, len(document.shots)) or ""
    return {"have": have, "want": want}


def _split_field(parts: _Parts, body: str) -> Payload:
    """A field for `body` without the space at its end, which gets a part of its own."""
    kept = body.rstrip()
    at = parts.add(kept)
    parts.add(body[len(kept) :])
    return {"from": at, "to": at + 1}


def _shots(parts: _Parts, section: Section, target: Target) -> list[Payload]:
    begin = starts(section.shots)
    end = (*begin[1:], target.duration_s)
    return [_shot(parts, shot, begin[index], end[index]) for index, shot in enumerate(section.shots)]


def _shot(parts: _Parts, shot: Shot, start_s: float, end_s: float) -> Payload:
    parts.add(shot.head)
    first, rows = len(parts.texts), []
    for piece in parse.pieces(shot.body):
        if isinstance(piece, Line):
            parts.add(piece.before)
            language = parts.add(piece.language)
            parts.add(piece.between)
            words = parts.add(piece.words)
            parts.add(piece.after)
            told = {"language": language if piece.language else None, "words": words, "speakers": list(piece.speakers)}
            rows.append(told)
        else:
            parts.add(piece)
    last = len(parts.texts)
    parts.add(shot.gap)
    return {
        "number": shot.number,
        "start": round(start_s, 3),
        "end": round(end_s, 3),
        "timed": shot.start_s is not None,
        "from": first,
        "to": last,
        "rows": rows,
    }


def _fits(document: Document, target: Target) -> Payload:
    """Whether the shots add up: `over` seconds past the end, or `mixed` where a cut is not after the one before."""
    times = starts(document.shots)
    mixed = any(later <= before for before, later in itertools.pairwise(times))
    over = max((time - target.duration_s for time in times), default=0.0)
    return {"mixed": mixed, "over": round(max(over, 0.0), 3), "past": any(t >= target.duration_s for t in times)}


def _next_speaker(document: Document, word: str) -> str:
    """`word` where it is an id, else the next free one."""
    if word[:1] == "S" and word[1:].isdigit():
        return word[:3]
    taken: Sequence[str] = [who.id for who in parse.speakers(document)]
    return next(f"S{number}" for number in range(1, 100) if f"S{number}" not in taken)


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and -1 <= value < 1000 else -1


def _number(value: object) -> float:
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 3600
    return float(value) if known else 0.0  # type: ignore[arg-type]

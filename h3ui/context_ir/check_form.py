"""Whether a prompt has the form its video asks for: length, first line of keyframes, sections and their order.

It knows the outline; shots are `check_shots`, spoken words `check_speech`.
"""

from __future__ import annotations

import re
from collections import Counter

from backend import limits
from h3ui.context_ir import edit, instruction
from h3ui.context_ir.findings import Change, Finding, seconds
from h3ui.context_ir.model import DESCRIPTIONS, Document, Form, Target

_FIGURES = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def check(document: Document, target: Target) -> list[Finding]:
    """What is wrong with the outline of `document`; free text is judged by its length and first line only."""
    return [*_length(document), *_first_line(document, target), *_sections(document, target)]


def _length(document: Document) -> list[Finding]:
    text = document.text
    over = len(text) - limits.MAX_PROMPT_CHARS
    if over <= 0:
        return []
    message = f"The prompt is {over:,} characters over the limit of {limits.MAX_PROMPT_CHARS:,}."
    return [Finding(code="too-long", at=limits.MAX_PROMPT_CHARS, message=message)]


def _first_line(document: Document, target: Target) -> list[Finding]:
    text = document.text
    found = instruction.find(text)
    wanted = instruction.expected(target, len(document.shots))
    if found is None:
        if wanted is None or not text.strip():
            return []
        frames = "both frames" if target.first_frame and target.last_frame else "the frame"
        end = f", at 0 and {seconds(target.duration_s)}" if target.first_frame and target.last_frame else ""
        end = f", at {seconds(target.duration_s)}" if not target.first_frame else end
        change = Change(start=0, end=len(text) - len(text.lstrip()), text=f"{wanted}\n\n", label="Add it")
        message = f"The first line should say where {frames} belong{'' if frames[0] == 'b' else 's'}{end}."
        return [Finding(code="no-first-line", at=0, message=message, change=change)]
    if wanted is None:
        change = Change(start=found.start, end=found.rest, text="", label="Delete it")
        message = "The first line speaks of a keyframe, and there is none."
        return [Finding(code="first-line-alone", at=found.start, message=message, change=change)]
    told = []
    if found.line != wanted:
        change = Change(start=found.start, end=found.end, text=wanted)
        message = _difference(found, wanted, target, len(document.shots))
        told.append(Finding(code="first-line", at=found.start, message=message, change=change))
    elif not re.match(r"\r?\n[ \t]*\r?\n", text[found.end :]) and text[found.rest :]:
        change = Change(start=found.end, end=found.rest, text="\n\n")
        told.append(
            Finding(code="first-line-gap", at=found.end, message="An empty line follows the first line.", change=change)
        )
    return told


def _difference(found: instruction.Instruction, wanted: str, target: Target, shots: int) -> str:
    """What exactly a first line says otherwise: its seconds, its last shot, or it is another line altogether."""
    if _FIGURES.sub("0", found.line) == _FIGURES.sub("0", wanted):
        if found.seconds and abs(found.seconds[-1] - round(target.duration_s, 2)) > 0.001:
            return f"The first line says {seconds(found.seconds[-1])}; the video ends at {seconds(target.duration_s)}."
        shot = re.search(r"Shot ([0-9]+)(?!.*Shot [0-9])", found.line)
        if shot and int(shot[1]) != max(shots, 1):
            return f"The first line ends in shot {shot[1]}; the last shot is {max(shots, 1)}."
    return "The first line is not the one for these frames."


def _sections(document: Document, target: Target) -> list[Finding]:
    if document.form is Form.FREE:
        return []
    text = document.text
    told: list[Finding] = []
    at: dict[str, int] = {}
    offset = len(document.opening)
    for section in document.sections:
        if section.name in at:
            told.append(Finding(code="section-twice", at=offset, message=f"{section.name} is there twice."))
        at.setdefault(section.name, offset)
        offset += len(section.text)
    if document.form is not target.form:
        told.append(_other_form(document, target))
    wanted = document.form.sections
    missing = [name for name in wanted if name not in at and not (name in DESCRIPTIONS and set(at) & set(DESCRIPTIONS))]
    for name in missing:
        change = None
        if name == "non_diegetic_music":
            added = edit.section_head(document, name) + "N/A"
            change = Change(start=len(text), end=len(text), text=added, label="Add as N/A")
        told.append(Finding(code="no-section", message=f"{name} is missing.", change=change))
    empty = [section for section in document.sections if not section.body.strip() and not section.shots]
    for section in empty:
        hint = " Write N/A for none." if section.name == "non_diegetic_music" else ""
        told.append(Finding(code="empty-section", at=at[section.name], message=f"{section.name} is empty.{hint}"))
    order = [name for name in wanted if name in at]
    stand = [section.name for section in document.sections if section.name in wanted]
    if stand != order and Counter(stand) == Counter(order):
        told.append(_order(document, order))
    return told


def _other_form(document: Document, target: Target) -> Finding:
    if target.references:
        message = "This is the form with three sections; references have one with six."
    else:
        message = "This is the form for references, and the video is made without any."
    return Finding(code="other-form", at=len(document.opening), message=message)


def _order(document: Document, order: list[str]) -> Finding:
    named = {section.name: section for section in document.sections}
    bare = [named[name].text[: len(named[name].text) - len(named[name].gap)] for name in order]
    text = document.opening + "\n\n".join(bare) + document.sections[-1].gap
    change = Change(start=0, end=len(document.text), text=text, label="Sort them")
    message = f"The sections stand in another order than {', '.join(order)}."
    return Finding(code="section-order", at=len(document.opening), message=message, change=change)

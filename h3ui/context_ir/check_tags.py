"""Whether the tags of a prompt name what is there: references, subjects, and files that were taken away.

It knows tags, not where in the format they stand; that is `check_form`.
"""

from __future__ import annotations

import re

from h3ui.context_ir import tags
from h3ui.context_ir.findings import Change, Finding
from h3ui.context_ir.model import Document, Form, Target

_DEFINED = re.compile(r"^[ \t]*(?:[-*][ \t]*)?(<Subject [0-9]{1,4}>)", re.MULTILINE)


def check(document: Document, target: Target) -> list[Finding]:
    """Unknown, miswritten, removed and unused tags."""
    text = document.text
    found = tags.find(text)
    known = [tag for group in target.tags for tag in group]
    told, seen = [], set()
    for tag in found:
        if tag.kind != "Subject" and tag.tag not in known:
            if tag.tag not in seen:
                told.append(Finding(code="unknown-tag", at=tag.start, message=_unknown(tag.written, known)))
        elif tag.written != tag.tag:
            change = Change(start=tag.start, end=tag.end, text=tag.tag)
            message = f"{tag.written} is written {tag.tag}."
            told.append(Finding(code="tag-spelling", at=tag.start, message=message, change=change))
        seen.add(tag.tag)
    for tag in tags.find_removed(text):
        change = Change(start=tag.start, end=tag.end, text="", label="Delete it")
        message = f"{tag.written} named a file that was taken away: name another one, or delete it."
        told.append(Finding(code="removed-tag", at=tag.start, message=message, change=change))
    told += _unused(target, seen) if text.strip() else []
    return told + _subjects(document, target, found)


def _unknown(written: str, known: list[str]) -> str:
    return f"{written} names nothing here: there is {', '.join(known) if known else 'no reference'}."


def _unused(target: Target, used: set[str]) -> list[Finding]:
    """References nobody mentions; keyframes are mentioned by the first line, which `check_form` looks at."""
    if not target.references:
        return []
    silent = [group for group in target.tags if not used & set(group)]
    return [Finding(code="unused-tag", message=f"{' or '.join(group)} is not mentioned.") for group in silent]


def _subjects(document: Document, target: Target, found: tuple[tags.Found, ...]) -> list[Finding]:
    subjects = [tag for tag in found if tag.kind == "Subject"]
    section = document.section("subject_definitions")
    if section is None:
        if subjects and not target.references:
            message = f"{subjects[0].tag} means nothing here: subjects are defined from references."
            return [Finding(code="unknown-subject", at=subjects[0].start, message=message)]
        if subjects and document.form is Form.REFERENCE:
            message = f"{subjects[0].tag} is not defined: subject_definitions is missing."
            return [Finding(code="unknown-subject", at=subjects[0].start, message=message)]
        return []
    start = document.text.index(section.text)
    where = {start + len(section.head) + match.start(1): match[1] for match in _DEFINED.finditer(section.body)}
    told: list[Finding] = []
    first: dict[str, int] = {}
    defined = set(where.values())
    for tag in subjects:
        if tag.start in where:
            if tag.tag in first:
                told.append(Finding(code="subject-twice", at=tag.start, message=f"{tag.tag} is defined twice."))
            first.setdefault(tag.tag, tag.start)
    used: set[str] = set()
    for tag in subjects:
        if tag.start in where:
            continue
        if tag.tag not in defined and tag.tag not in used:
            message = f"{tag.tag} is not defined in subject_definitions."
            told.append(Finding(code="unknown-subject", at=tag.start, message=message))
        used.add(tag.tag)
    for name, at in first.items():
        if name not in used:
            told.append(Finding(code="unused-subject", at=at, message=f"{name} is defined and never used."))
    return told

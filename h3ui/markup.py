"""Small pieces of HTML that several panels share: escaped text, icons, buttons, problems.

It knows markup, not meaning; whatever a person or a file supplied goes through `text`.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Iterable
from pathlib import Path

from backend.errors import Problem

ASSETS_DIR = Path(__file__).resolve().parent.parent / "assets"

# One listener an HTML panel: a click on anything with data-action tells Python which action, of which job or row.
CLICKS = """
element.addEventListener('click', (event) => {
  const target = event.target.closest('[data-action]');
  if (!target || !element.contains(target)) return;
  event.preventDefault();
  if (target.dataset.confirm && !window.confirm(target.dataset.confirm)) return;
  trigger('click', {...target.dataset});
});
element.addEventListener('change', (event) => {
  const target = event.target.closest('[data-edit]');
  if (target) trigger('click', {...target.dataset, action: target.dataset.edit, value: target.value});
});
"""


def text(value: object) -> str:
    """`value` as text that cannot become markup, in content or in a quoted attribute."""
    return html.escape(str(value), quote=True)


@functools.cache
def icon(name: str) -> str:
    """The inline SVG `assets/icons/<name>.svg`; decorative, so hidden from screen readers."""
    return (ASSETS_DIR / "icons" / f"{name}.svg").read_text(encoding="utf-8").strip()


def button(label: str, action: str, *, symbol: str = "", kind: str = "", **data: object) -> str:
    """A real <button> that reports `action`. Without visible text give `kind="icon"`: the label becomes its name."""
    attributes = "".join(f' data-{name}="{text(value)}"' for name, value in data.items() if value not in (None, ""))
    bare = "icon" in kind.split()
    shown = icon(symbol) if symbol else ""
    named = f' aria-label="{text(label)}" title="{text(label)}"' if bare else ""
    content = shown if bare else f"{shown}<span>{text(label)}</span>"
    return (
        f'<button type="button" class="btn {kind}" data-action="{text(action)}"{attributes}{named}>{content}</button>'
    )


def link(label: str, href: str, *, symbol: str = "", download: str = "") -> str:
    """A link that looks like a button; `download` names the saved file."""
    saved = f' download="{text(download)}"' if download else ""
    return f'<a class="btn" href="{text(href)}"{saved}>{icon(symbol) if symbol else ""}<span>{text(label)}</span></a>'


# What people call the fields of a request whose own names are for programs.
FIELDS = {
    "first_frame": "first frame",
    "last_frame": "last frame",
    "num_frames": "frames",
    "num_inference_steps": "steps",
    "flow_shift": "flow shift",
    "audio_flow_shift": "audio flow shift",
}


def problems(found: Iterable[Problem | str], title: str = "Please change this first") -> str:
    """What is wrong, one line each: field, rule, way out. Empty when nothing is."""
    rows = []
    for problem in found:
        if isinstance(problem, str):
            rows.append(f"<li>{text(problem)}</li>")
            continue
        shown = f" <code>{text(problem.value)}</code>" if problem.value else ""
        field = FIELDS.get(problem.field, problem.field)
        named = "" if problem.value.startswith(problem.field) else f"<b>{text(field)}</b>"
        way_out = f'<span class="way-out">{text(problem.way_out)}</span>' if problem.way_out else ""
        rows.append(f"<li>{named}{shown} {text(problem.rule)}{way_out}</li>")
    if not rows:
        return ""
    listed = f"<ul>{''.join(rows)}</ul>"
    return f'<div class="problems" role="alert">{icon("alert")}<div><b>{text(title)}</b>{listed}</div></div>'


def owner(name: str, viewer: str) -> str:
    """Whose job it is, for an administrator who looks at somebody else's; nothing at one's own."""
    if not viewer or name == viewer:
        return ""
    kind, _, person = name.partition(":")
    return f'<span class="muted">{text(person if kind == "user" else "a visitor")}</span>'


def empty(title: str, hint: str, symbol: str = "film") -> str:
    """An empty state: what is missing and what to do about it."""
    return f'<div class="empty">{icon(symbol)}<b>{text(title)}</b><p>{text(hint)}</p></div>'


def note(message: str, kind: str = "info") -> str:
    """One line of information; `kind` is info or warn."""
    return f'<div class="note {kind}">{icon("alert" if kind == "warn" else "info")}<span>{text(message)}</span></div>'

"""What is on the page as a program: Python, `curl` and the command line, each to copy.

It knows texts and where they stand; making them is `h3ui.command`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import gradio as gr

from backend.errors import Problem
from h3ui import markup

OPEN_S = 1.2  # between two looks at the fields while the panel is open; none is taken while it is closed


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptsPanel:
    """Components of the panel. `timer` looks at the fields while `accordion` is open, `known` is what it saw last."""

    accordion: gr.Accordion
    timer: gr.Timer
    known: gr.State
    about: gr.HTML
    python: gr.HTML
    curl: gr.HTML
    shell: gr.HTML


def build() -> ScriptsPanel:
    """Create the components in the current layout block."""
    timer, known = gr.Timer(OPEN_S, active=False), gr.State(None)
    with gr.Accordion("For scripts", open=False, elem_classes="card", elem_id="scripts-card") as accordion:
        about = gr.HTML("", apply_default_css=False, elem_id="scripts-about")
        with gr.Tabs(elem_id="scripts", elem_classes="scripts"):
            with gr.Tab("Python", id="python"):
                python = gr.HTML("", apply_default_css=False)
            with gr.Tab("curl", id="curl"):
                curl = gr.HTML("", apply_default_css=False)
            with gr.Tab("Command line", id="shell"):
                shell = gr.HTML("", apply_default_css=False)
    return ScriptsPanel(
        accordion=accordion, timer=timer, known=known, about=about, python=python, curl=curl, shell=shell
    )


def about_html(files: Sequence[str]) -> str:
    """What the scripts do, and which files they expect where they are started."""
    line = "<p class='muted'>The request on this page as a program: the same model, settings and queue.</p>"
    if not files:
        return line
    names = "".join(f'<li translate="no">{markup.text(name)}</li>' for name in files)
    return f"{line}<p class='muted'>Put these files where you start it:</p><ul class='script-files'>{names}</ul>"


def wrong_html(problems: Sequence[Problem]) -> str:
    """Why there is nothing to copy yet."""
    return markup.problems(problems, title="The page does not hold a whole request yet")


def python_html(script: str) -> str:
    """The Python client."""
    needs = "<p class='muted'>Needs <code translate='no'>pip install gradio_client</code>. It waits for the video.</p>"
    return _block("script-python", "The request in Python", script) + needs


def curl_html(create: str, poll: str, fetch: str) -> str:
    """The three calls, one below the other."""
    return (
        _block("script-create", "Start the job", create)
        + _block("script-poll", "Ask how it is, with its id for JOB", poll)
        + _block("script-fetch", "Fetch the video", fetch)
    )


def no_curl_html() -> str:
    """Where strangers may use the page, it is all there is."""
    return markup.note("This page is open to everybody, so there is no /v1/videos here. Use Python.", "")


def shell_html(command: str) -> str:
    """The command line, for the machine the model runs on."""
    where = "<p class='muted'>Runs on the machine with the model, in the folder of this program, without a page.</p>"
    return _block("script-shell", "One command", command) + where


def _block(name: str, title: str, text: str) -> str:
    copy = (
        f'<button type="button" class="btn" data-copy="#{name}" aria-label="Copy: {markup.text(title)}">'
        f"{markup.icon('copy')}<span>Copy</span></button>"
    )
    return (
        f'<div class="script"><div class="script-head"><b>{markup.text(title)}</b>{copy}</div>'
        f'<pre class="log" id="{name}" tabindex="0" translate="no">{markup.text(text)}</pre></div>'
    )

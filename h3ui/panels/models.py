"""The models of this machine: what each can do, what of it is on the disk, its download as it goes, and adapters.

It knows how a shelf looks; what may be done, and whether it worked, is the backend's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gradio as gr

from h3ui import keyed, markup, render

if TYPE_CHECKING:
    from backend.api import Activity, BundleView, ListedAdapter, ModelView, Shelf

PARTS = {
    "text_encoder": "Text encoder (Qwen3-VL)",
    "transformer": "Transformer for text and keyframes",
    "transformer_ref": "Transformer for references",
    "vae": "Video decoder",
    "audio_vae": "Sound decoder",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsPanel:
    """Components of the models panel; `timer` runs while the tab is open, `told` says what became of a click."""

    activity: gr.HTML
    rows: gr.HTML
    adapters: gr.HTML
    upload: gr.UploadButton
    told: gr.HTML
    timer: gr.Timer
    seen: gr.State


def build() -> ModelsPanel:
    """Create the components in the current layout block."""
    told = gr.HTML("", apply_default_css=False, elem_id="models-told")
    activity = keyed.html("", elem_id="model-activity")
    rows = keyed.html("", elem_id="models", elem_classes="card")
    with gr.Column(elem_classes="card"):
        adapters = keyed.html("", elem_id="adapters")
        upload = gr.UploadButton(
            "Add a LoRA file", file_types=[".safetensors"], size="sm", elem_id="add-adapter", visible=False
        )
    return ModelsPanel(
        activity=activity,
        rows=rows,
        adapters=adapters,
        upload=upload,
        told=told,
        timer=gr.Timer(1.0, active=False),
        seen=gr.State(""),
    )


def shelf_html(shelf: Shelf) -> str:
    """Every model with what it is good for; places on the disk are for whoever may change something."""
    rows = "".join(_model(model, shelf) for model in shelf.models)
    return (
        f'<div class="card-head"><h3>Models</h3></div>{_facts(shelf) if shelf.may_change else ""}'
        f'<ul class="models">{rows}</ul>'
    )


def activity_html(activity: Activity | None, may_change: bool) -> str:
    """The download or check that goes on or ended last; empty before the first, and for visitors."""
    if activity is None or not may_change:
        return ""
    action, name = str(activity.action), f'<span translate="no">{markup.text(activity.model)}</span>'
    if not activity.running:
        return _ended(activity, name)
    doing = {"download": "Downloading", "verify": "Checking"}[action]
    share = activity.done / activity.total if activity.total else 0.0
    facts = [f"<b>{render.size(activity.done)}</b> of {render.size(activity.total)}" if activity.total else "Asking"]
    if activity.bytes_s:
        facts.append(f"{render.size(round(activity.bytes_s))}/s")
    if activity.left_s is not None and activity.total:
        facts.append(f"about {render.duration(activity.left_s)} left")
    told = "".join(f'<span class="num">{fact}</span>' for fact in facts)
    file = f'<span class="muted file" translate="no">{markup.text(activity.file)}</span>' if activity.file else ""
    unsure = "" if activity.total else " unsure"
    return (
        f'<section class="card errand" aria-label="{doing}"><div class="live-head"><div><h2>{doing} {name}</h2></div>'
        f"{markup.button('Stop', 'stop', symbol='close')}</div>"
        f'<div class="bar{unsure}" role="progressbar" aria-label="{doing}" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{share * 100:.0f}"><span style="width:{share * 100:.2f}%"></span></div>'
        f'<p class="errand-facts">{told}{file}</p></section>'
    )


def _ended(activity: Activity, name: str) -> str:
    words = f"<b>{name}</b> {markup.text(activity.message)}"
    if activity.state == "done":
        return f'<div class="note good" role="status">{markup.icon("check")}<span>{words}</span></div>'
    kind, role = ("warn", "status") if activity.state == "stopped" else ("bad", "alert")
    more = ""
    if str(activity.action) == "download":
        tasks = ",".join(str(task) for task in activity.tasks)
        more = markup.button("Go on", "download", symbol="download", model=activity.model, tasks=tasks)
    return f'<div class="note {kind}" role="{role}">{markup.icon("alert")}<span>{words}</span>{more}</div>'


def _facts(shelf: Shelf) -> str:
    token = (
        '<span class="pill ok">token found</span>' if shelf.token else '<span class="pill">no token</span>'
    ) + '<span class="muted"> Hugging Face</span>'
    return (
        f'<p class="shelf-facts"><span>{token}</span><span><b>{render.size(shelf.free)}</b> '
        f'<span class="muted">free in</span> <code translate="no">{markup.text(shelf.folder)}</code></span></p>'
    )


def _model(model: ModelView, shelf: Shelf) -> str:
    checkpoint, running = model.checkpoint, shelf.activity is not None and shelf.activity.running
    told = [f"makes {', '.join(_ways(checkpoint.tasks))}"] if checkpoint.ready else []
    if model.here:
        told.append(f"{render.size(model.here)} on this disk")
    about = f'<p class="muted">{markup.text(checkpoint.notice)}</p>' if checkpoint.notice else ""
    place = ""
    if shelf.may_change and model.place is not None:
        place = f'<p class="muted place" translate="no">{markup.text(model.place)}</p>'
    bundles = "".join(_bundle(item, model, shelf, running) for item in model.bundles)
    listed = f'<ul class="bundles">{bundles}</ul>' if bundles else ""
    state = checkpoint.state if checkpoint.ready or not model.here else "partly here"
    if checkpoint.state.startswith("incomplete"):
        state, about = "incomplete", about + markup.note(checkpoint.state, "warn")
    ours = "" if checkpoint.source == "built in" else ' translate="no"'  # a folder's or a repository's own name
    return (
        f'<li data-key="{markup.text(checkpoint.name)}"><div class="model-head"><div>'
        f"<b{ours}>{markup.text(checkpoint.title)}</b> "
        f'<code translate="no">{markup.text(checkpoint.name)}</code>'
        f'<p class="muted">{" · ".join(map(markup.text, told))}</p>{about}{place}</div>'
        f'<span class="pill {"ok" if checkpoint.ready else ""}">{markup.text(_short(state))}</span></div>'
        f"{_licence(model, shelf)}{listed}{_parts(model)}"
        f"{_buttons(model, shelf, running)}</li>"
    )


def _licence(model: ModelView, shelf: Shelf) -> str:
    licence = model.licence
    if licence is None:
        return ""
    name = f'<a href="{markup.text(licence.url)}" target="_blank" rel="noopener">{markup.text(licence.name)}</a>'
    if licence.accepted:
        return f'<p class="muted licence-line">{markup.icon("check")} <span>{name} accepted</span></p>'
    button = markup.button("I accept the licence", "accept-licence", kind="primary") if shelf.may_change else ""
    return (
        f'<div class="note warn">{markup.icon("alert")}<span>It comes under the {name}. '
        f"{markup.text(licence.summary)} Read it before you download.</span>{button}</div>"
    )


def _bundle(item: BundleView, model: ModelView, shelf: Shelf, running: bool) -> str:
    here = item.bytes - item.missing
    if item.ready:
        pill = '<span class="pill ok">ready</span>'
    elif here:
        pill = f'<span class="pill">{render.size(here)} of {render.size(item.bytes)} here</span>'
    else:
        pill = f'<span class="pill">{render.size(item.bytes)}</span>'
    button = ""
    if shelf.may_change and not item.ready:
        label = "Download the rest" if here else "Download"
        button = markup.button(
            label, "download", symbol="download", model=model.checkpoint.name, tasks=",".join(item.bundle.tasks)
        )
        refused = _no_download(model, running, item.lacks)
        if refused:
            button = button.replace("<button ", f'<button disabled title="{markup.text(refused)}" ', 1)
            button += f'<span class="muted why">{markup.text(refused)}</span>'
    share = 100 * here / item.bytes if item.bytes else 0.0
    bar = f'<div class="bar thin"><span style="width:{share:.1f}%"></span></div>' if here and not item.ready else ""
    return (
        f'<li data-key="{item.bundle.key}"><div><b>{item.bundle.title}</b>'
        f'<p class="muted">{item.bundle.about}</p>{bar}</div><div class="bundle-side">{pill}{button}</div></li>'
    )


def _no_download(model: ModelView, running: bool, lacks: int) -> str:
    """Why no download can start, "" where one can."""
    if model.licence is not None and not model.licence.accepted:
        return "Accept the licence first"
    if running:
        return "One download at a time"
    return f"The disk lacks {render.size(lacks)}" if lacks else ""


def _parts(model: ModelView) -> str:
    large = [part for part in model.parts if part.bytes >= 2**20 or part.name in PARTS]
    if not large:
        return ""
    rows = "".join(
        f'<tr><td>{PARTS.get(part.name, part.name)} <code translate="no">{part.name}/</code></td>'
        f'<td class="num">{render.size(part.bytes)}</td><td class="num">{_share(part.here, part.bytes)}</td></tr>'
        for part in large
    )
    exact = (
        "" if all(part.listed for part in large) else '<p class="muted">Sizes as published; what a download asks.</p>'
    )
    return (
        f"<details><summary>What it consists of</summary><table><thead><tr><th>Part</th><th>Size</th><th>Here</th></tr>"
        f"</thead><tbody>{rows}</tbody></table>{exact}</details>"
    )


def _share(here: int, whole: int) -> str:
    if not here:
        return "no"
    return "all" if here >= whole else f"{100 * here / whole:.0f} %"


def _buttons(model: ModelView, shelf: Shelf, running: bool) -> str:
    if not shelf.may_change or running:
        return ""
    name, buttons = model.checkpoint.name, []
    if model.checkpoint.folder is not None:
        buttons.append(markup.button("Check the files", "verify", symbol="check", model=name))
    if model.kept is None:
        sure = f"Delete {model.checkpoint.title} from this disk? {render.size(model.here)} would have to come again."
        buttons.append(markup.button("Remove", "remove", symbol="trash", model=name, confirm=sure))
    elif model.repo and model.place is not None:
        buttons.append(f'<span class="muted why">Not removed now: {markup.text(model.kept)}.</span>')
    return f'<div class="actions-row">{"".join(buttons)}</div>' if buttons else ""


def adapters_html(adapters: Sequence[ListedAdapter], folder: str) -> str:
    """The adapters that can be chosen, each with the schedule it was made for; `folder` is empty for visitors."""
    head = '<div class="card-head"><h3>Adapters</h3></div>'
    if not adapters:
        hint = f"Put LoRA files (safetensors) into {folder}, or add one here." if folder else "None is installed here."
        return head + markup.empty("No adapters yet", hint, "plus")
    return f'{head}<ul class="models">{"".join(_adapter(item, bool(folder)) for item in adapters)}</ul>'


def _adapter(item: ListedAdapter, may_change: bool) -> str:
    card = item.card
    remove = markup.button(
        f"Remove {item.name}",
        "remove-adapter",
        symbol="trash",
        kind="icon",
        name=item.name,
        confirm=f"Delete the adapter {item.name} from this disk?",
    )
    if card is None:
        about, title = markup.note(item.problem, "warn"), item.name
        pill = '<span class="pill bad">cannot be used</span>'
    else:
        about = f'<p class="muted">{schedule(item)} · {card.matrices} matrices, {render.size(card.bytes)}</p>'
        title, pill = card.title, ""
    return (
        f'<li data-key="{markup.text(item.name)}"><div><b translate="no">{markup.text(title)}</b> '
        f'<code translate="no">{markup.text(item.name)}</code>{about}</div>'
        f'<div class="bundle-side">{pill}{remove if may_change else ""}</div></li>'
    )


def schedule(item: ListedAdapter) -> str:
    """The steps and shifts an adapter was made for, in words."""
    card = item.card
    if card is None:
        return ""
    told = [f"{card.num_inference_steps} steps"] if card.num_inference_steps is not None else []
    told += [f"video shift {card.flow_shift:g}"] if card.flow_shift is not None else []
    told += [f"sound shift {card.audio_flow_shift:g}"] if card.audio_flow_shift is not None else []
    return "Made for " + ", ".join(told) if told else "Made for the usual steps and shifts"


def _ways(tasks: Sequence[object]) -> list[str]:
    words = {"t2va": "text to video", "fl2va": "keyframes to video", "ref2va": "references to video"}
    return [words[str(task)] for task in tasks]


def _short(state: str) -> str:
    return state.partition(":")[0]

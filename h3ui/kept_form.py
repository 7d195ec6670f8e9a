"""What somebody typed and chose but did not send: kept by the browser at each change, and put back after a reload.

It knows the fields and what each may hold; a browser's storage is text from outside, so what fits no field is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import gradio as gr

from backend import limits
from h3ui import form
from h3ui.board import Panels
from h3ui.form import Mode, Size
from h3ui.panels import hardware, sampling
from h3ui.uploads import Updates

if TYPE_CHECKING:
    from backend.api import Backend

MAX_PROMPT_CHARS = 20 * limits.MAX_PROMPT_CHARS  # more than fits is kept, too: it is there to be shortened
MAX_SEED_CHARS = 100
ADDRESS = "new URL(location.href).searchParams.get('job') || last"  # the job in the light
# Until the page was told what its fields hold, they have nothing that is worth keeping.
READY = "() => { document.body.dataset.formKept = 'yes'; }"


def parts(p: Panels) -> dict[str, Any]:
    """The fields by name. Media are not among them: a browser cannot keep them."""
    return {
        "prompt": p.prompt.text,
        "mode": p.mode,
        "ratio": p.canvas.ratio,
        "size": p.canvas.size,
        "width": p.canvas.width,
        "height": p.canvas.height,
        "duration": p.canvas.duration,
        "quality": p.sampling.quality,
        "steps": p.sampling.steps,
        "seed": p.sampling.seed,
        "adapter": p.sampling.adapter,
        "strength": p.sampling.strength,
        "preset": p.hardware.override,
    }


def keep(p: Panels, job: str) -> str:
    """JavaScript from (what is kept, the last job, every field) to what is kept from now on; `job` is an expression.

    It runs in the browser alone, so that nothing typed waits for a server and no field is drawn again.
    """
    names = json.dumps(list(parts(p)))
    return (
        "(kept, last, ...values) => !document.body.dataset.formKept ? kept : "
        f"({{...kept, job: {job}, fields: Object.fromEntries({names}.map((name, at) => [name, values[at]]))}})"
    )


def restore(p: Panels, backend: Backend, kept: object, owner: str, job: str | None) -> Updates:
    """The fields as `owner` left them beside `job`, over what that job fills in; and for whom is kept from now on."""
    known = kept if isinstance(kept, dict) and kept.get("owner") == owner else {}
    updates: Updates = {p.kept: {**known, "owner": owner}}
    fields = known.get("fields")
    if not isinstance(fields, dict) or (known.get("job") or None) != (job or None):
        return updates
    fits = _fits(backend)
    found = {name: fields[name] for name in parts(p) if name in fields and fits[name](fields[name])}
    updates |= {part: found[name] for name, part in parts(p).items() if name in found}
    if "quality" in found:
        turbo = backend.quality_presets()[found["quality"]].turbo
        updates[p.sampling.lent] = found.get("adapter", "") if turbo else ""
    if "mode" in found:
        updates[p.keyframes.group] = gr.update(visible=found["mode"] == Mode.FRAMES)
        updates[p.references.group] = gr.update(visible=found["mode"] == Mode.REFERENCES)
    if "size" in found:
        updates[p.canvas.custom] = gr.update(visible=found["size"] == Size.CUSTOM)
    return updates


def _fits(backend: Backend) -> Mapping[str, Callable[[Any], bool]]:
    """Whether a value may stand in a field, by name."""
    usable = [status.preset.name for status in backend.presets() if status.unavailable is None]
    adapters = [item.name for item in backend.adapters() if item.card is not None]
    numbers = dict.fromkeys(("width", "height", "duration", "steps", "strength"), _number)
    return {
        **numbers,
        "prompt": _text(MAX_PROMPT_CHARS),
        "seed": _text(MAX_SEED_CHARS),
        "mode": _one_of(list(Mode)),
        "ratio": _one_of(form.RATIO_CHOICES),
        "size": _one_of(list(Size)),
        "quality": _one_of([name for _, name in sampling.offered(backend.qualities())]),
        "adapter": _one_of(["", *adapters]),
        "preset": _one_of([hardware.AUTO, *usable]),
    }


def _text(most: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and len(value) <= most


def _one_of(choices: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in choices


def _number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return value is None or (isinstance(value, int | float) and abs(value) < 1e9)

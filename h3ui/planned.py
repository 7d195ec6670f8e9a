"""What the panels would make: canvas, frames, tokens and time, other sizes, and the keyframes as the model sees them.

It asks the backend and submits nothing; the handlers hand it panel values.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

import gradio as gr

from backend import limits
from backend.errors import H3Error, InvalidRequest, MediaRefused
from backend.types import GenerationRequest, MediaReport, PreparedMedia
from h3ui import form, markup
from h3ui.board import Panels
from h3ui.form import Mode, PanelValues, Size
from h3ui.panels import canvas, keyframes
from h3ui.panels.canvas import SizeOption
from h3ui.panels.sampling import DRAFT
from h3ui.uploads import Updates

if TYPE_CHECKING:
    from backend.api import Backend, Forecast, QualityView

PLANNING_PROMPT = "a prompt"  # stands in while the field is empty: shape and length do not depend on it
KEPT_FRAMES = 64  # canvases of keyframes that are remembered, over all tabs
SCALES = (("Full", 1.0), ("Three quarters", 0.75), ("Half", 0.5))
Seen = tuple[Path | None, Path | None, int, int]


class Planned:
    """Answers from any thread; remembers only frames that were prepared already."""

    def __init__(self, backend: Backend, panels: Panels) -> None:
        self.backend = backend
        self.panels = panels
        self._prepared: OrderedDict[Seen, PreparedMedia] = OrderedDict()
        self._door = threading.Lock()

    def html(self, values: PanelValues, preset: str | None) -> str:
        """What exactly these values make and cost, or what is wrong with the fields of the canvas."""
        planned = with_prompt(values)
        try:
            asked, probed = form.to_request(planned), form.reports(planned)
            made = self.backend.plan(asked, preset=preset, probed=probed, quality=planned.quality)
            cost = self.backend.forecast(asked, preset=preset, probed=probed, quality=planned.quality)
        except H3Error as error:
            return problems_html(error)
        sizes = self._sizes(planned, preset, (made.width, made.height))
        return canvas.sizes_html(sizes) + canvas.plan_html(made, values.duration_s, cost)

    def at_first(self) -> str:
        """What a page makes on which nobody has chosen anything yet: with the steps of the model's own recipe."""
        try:
            return self.html(PanelValues(steps=self.backend.checkpoint().default_steps), None)
        except H3Error as error:
            return problems_html(error)

    def _sizes(self, planned: PanelValues, preset: str | None, current: tuple[int, int]) -> list[SizeOption]:
        """The full canvas of the chosen shape and smaller ones, each with its cost; what cannot be made is left out."""
        shape = dataclasses.replace(planned, size=Size.AUTO, quality=_not_draft(planned.quality))
        probed = form.reports(planned)
        try:
            asked = form.to_request(shape)
            full = self.backend.plan(asked, preset=preset, probed=probed, quality=shape.quality)
        except H3Error:  # the fields that are shown say what is wrong; here are only shortcuts
            return []
        options: dict[tuple[int, int], SizeOption] = {}
        for name, scale in SCALES:
            width, height = _scaled(full.width, scale), _scaled(full.height, scale)
            cost = self._cost(asked, (width, height), preset, probed)
            if cost is not None and (width, height) not in options:
                options[width, height] = SizeOption(
                    name=name, width=width, height=height, cost=cost, chosen=(width, height) == current
                )
        return list(options.values())

    def _cost(
        self, asked: GenerationRequest, size: tuple[int, int], preset: str | None, probed: dict[Path, MediaReport]
    ) -> Forecast | None:
        sampling = dataclasses.replace(asked.sampling, width=size[0], height=size[1], ratio=None)
        try:
            return self.backend.forecast(dataclasses.replace(asked, sampling=sampling), preset, probed=probed)
        except InvalidRequest:  # a very wide shape at half size
            return None

    def quality(self, name: str, preset: str | None) -> QualityView:
        """What a quality is on the model that `preset` runs, with steps that may be asked for. Raises H3Error."""
        view = self.backend.qualities(preset)[name]
        return dataclasses.replace(view, steps=min(max(view.steps, limits.MIN_STEPS), limits.MAX_STEPS))

    def frames(self, values: PanelValues, preset: str | None) -> Updates:
        """Both keyframe cards with the pictures that the job would hand to the model."""
        if values.mode is not Mode.FRAMES or not (values.first_frame or values.last_frame):
            return gr.skip()
        planned = with_prompt(values)
        try:
            asked, probed = form.to_request(planned), form.reports(planned)
            made = self.backend.plan(asked, preset=preset, probed=probed, quality=planned.quality)
        except H3Error:
            return gr.skip()  # the line under the canvas says what is wrong, and the frames stay as they were
        seen = (asked.first_frame, asked.last_frame, made.width, made.height)
        try:
            prepared = self._known(seen) or self.backend.prepared_frames(asked, preset, planned.quality, probed)
        except MediaRefused as error:
            return {self.panels.problems: markup.problems([error.problem], title="A frame cannot be used")}
        self._remember(seen, prepared)
        updates: Updates = {}
        reports = list(prepared.reports)
        shown = (("first", values.first_frame, prepared.first_frame), ("last", values.last_frame, prepared.last_frame))
        for name, item, picture in shown:
            if item is not None and picture is not None:
                follows = name == "last" and values.first_frame is not None
                on_canvas = keyframes.OnCanvas(picture=picture, report=reports.pop(0), cropped=follows)
                updates[self.panels.keyframes.slots[name].card] = keyframes.card_html(name, item, on_canvas=on_canvas)
        return updates or gr.skip()

    def _known(self, seen: Seen) -> PreparedMedia | None:
        with self._door:
            prepared = self._prepared.get(seen)
        pictures = (prepared.first_frame, prepared.last_frame) if prepared else ()
        return prepared if pictures and all(path is None or path.is_file() for path in pictures) else None

    def _remember(self, seen: Seen, prepared: PreparedMedia) -> None:
        with self._door:
            self._prepared[seen] = prepared
            self._prepared.move_to_end(seen)
            while len(self._prepared) > KEPT_FRAMES:
                self._prepared.popitem(last=False)


def problems_html(error: H3Error) -> str:
    """What is wrong, in the words of the error."""
    if isinstance(error, InvalidRequest):
        return markup.problems(error.problems)
    if isinstance(error, MediaRefused):
        return markup.problems([error.problem])
    return markup.problems([str(error)], title="This cannot be done now")


def with_prompt(values: PanelValues) -> PanelValues:
    """`values` with some prompt: shape and cost can be said before one is written."""
    return dataclasses.replace(values, prompt=values.prompt.strip() or PLANNING_PROMPT)


def _not_draft(quality: str) -> str:
    return "standard" if quality == DRAFT else quality


def _scaled(side: int, scale: float) -> int:
    return max(32, round(side * scale / 32) * 32)

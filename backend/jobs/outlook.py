"""Looks ahead and around for people: what a planned request will cost here, and which rank does what right now.

Gathers what `backend.hardware` computes from: sizes, shapes, finished jobs, running engines. It changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend import codec, limits
from backend.errors import H3Error, Problem
from backend.events import StageFinished
from backend.hardware.choose import Choice
from backend.hardware.forecast import FinishedJob, Forecast, Question, forecast
from backend.hardware.machine_view import Judge, MachineView, machine_view
from backend.hardware.model_size import ModelSize, size_of
from backend.hardware.placement import Part, place
from backend.hardware.probe import Hardware
from backend.hardware.request_shape import RequestShape, shape_of
from backend.hardware.topology import RankView, Seen, view
from backend.jobs.planning import Plan
from backend.jobs.records import JobRecord, JobState
from backend.jobs.services import Services
from backend.jobs.slot import EngineSlot
from backend.jobs.store import JobStore
from backend.presets import Dtype, EngineName, HardwarePreset
from backend.settings import Settings
from backend.types import GenerationRequest, Geometry, JobId, MediaReport, Sampling, Stage, Task

LOOKED_AT = 40  # newest finished jobs that are searched for ones on the same preset
RECENT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What an outlook may look at. `runs` says why a preset cannot run here, or None."""

    store: JobStore
    slots: tuple[EngineSlot, ...]
    services: Services
    settings: Settings
    hardware: Callable[[], Hardware]
    presets: Mapping[str, HardwarePreset]
    runs: Callable[[HardwarePreset], str | None]


class Outlook:
    """Answers from any thread."""

    def __init__(self, sight: Sight) -> None:
        self._sight = sight

    def forecast(self, plan: Plan, preset: HardwarePreset) -> Forecast:
        """What a planned request will cost on `preset`. Raises CheckpointError where its checkpoint is not known."""
        return forecast(self._sight.hardware(), self._question(plan, preset, asked=True))

    def refusal(self, plan: Plan, preset: HardwarePreset) -> Problem | None:
        """Why a planned request cannot run on `preset`, with the nearest change that can, or None."""
        question = self._question(plan, preset, asked=False)
        if place(self._sight.hardware(), preset, question.shape, question.size).lacks is None:
            return None
        return forecast(self._sight.hardware(), self._question(plan, preset, asked=True)).refusal

    def topology(self, running: Sequence[JobId | None]) -> tuple[RankView, ...]:
        """Every rank of every fleet; `running` names the job of each slot, or None."""
        hardware = self._sight.hardware()
        views = []
        for number, (slot, job) in enumerate(zip(self._sight.slots, running, strict=True)):
            memory = self._memory(slot, job)
            for rank in slot.ranks():
                seen = Seen(
                    rank=rank.rank,
                    pid=rank.pid,
                    state=rank.state,
                    stage=rank.stage,
                    rss_bytes=rank.rss_bytes,
                    gpu=rank.gpu,
                )
                stages = memory.get(rank.rank, {})
                peak = max(stages.values(), key=lambda parts: sum(part.gib for part in parts), default=())
                views.append(view(number, seen, hardware, stages.get(rank.stage, peak)))
        return tuple(views)

    def machine(self, choice: Choice, running: Sequence[JobId | None]) -> MachineView:
        """Hardware, every preset with its plan for a usual clip, and the ranks that run now."""
        offered = [item for item in self._sight.presets.values() if item.engine is not EngineName.STUB]
        judge = Judge(unavailable=self._sight.runs, case=self._usual)
        return machine_view(self._sight.hardware(), offered, choice, self.topology(running), judge)

    def _usual(self, preset: HardwarePreset) -> tuple[RequestShape, ModelSize]:
        """Five seconds of text to video on the default canvas, at the checkpoint's own number of steps."""
        steps = GenerationRequest(prompt="a usual clip").sampling.num_inference_steps
        try:
            size, geometry = self._model(preset, Task.T2VA)
            steps = self._sight.services.find_checkpoint(preset, self._sight.settings).default_steps
        except H3Error:  # no such checkpoint here: the released model's figures
            size, geometry = size_of(None, 4 if preset.dtype is Dtype.FLOAT32 else 2), Geometry()
        width, height = limits.canvas_for_ratio(16, 9, geometry)
        sampling = Sampling(width=width, height=height, num_inference_steps=steps)
        return shape_of(GenerationRequest(prompt="a usual clip", sampling=sampling), geometry, {}), size

    def _memory(self, slot: EngineSlot, job: JobId | None) -> dict[int, dict[Stage | None, tuple[Part, ...]]]:
        """Planned memory by rank and stage of the job that runs in `slot`."""
        preset = slot.preset
        if job is None or preset is None:
            return {}
        try:
            request = self._sight.store.get(job).request
            size, geometry = self._model(preset, request.task)
        except H3Error:  # deleted since, or its checkpoint is gone: the ranks are shown without a plan
            return {}
        placement = place(self._sight.hardware(), preset, shape_of(request, geometry, {}), size)
        return {place.rank: {stage.stage: stage.parts for stage in place.stages} for place in placement.ranks}

    def _question(self, plan: Plan, preset: HardwarePreset, *, asked: bool) -> Question:
        """`asked` also looks at files, earlier jobs and other presets, which a mere check needs not."""
        request, media = plan.request, dict(zip(plan.media, plan.reports, strict=False))
        size, geometry = self._model(preset, request.task)

        def shape_at(width: int, height: int, frames: int) -> RequestShape:
            sampling = dataclasses.replace(request.sampling, width=width, height=height, num_frames=frames)
            return shape_of(dataclasses.replace(request, sampling=sampling), geometry, media)

        shape = shape_of(request, geometry, media)
        if not asked:
            return Question(preset=preset, shape=shape, size=size, shape_at=shape_at)
        others = [item for item in self._sight.presets.values() if item.engine is not EngineName.STUB]
        return Question(
            preset=preset,
            shape=shape,
            size=size,
            shape_at=shape_at,
            input_bytes=sum(path.stat().st_size for path in plan.media if path.is_file()),
            history=self._history(preset, geometry),
            warm=any(slot.holds(preset.name) for slot in self._sight.slots),
            others=[item for item in others if item.name != preset.name and self._sight.runs(item) is None],
        )

    def _model(self, preset: HardwarePreset, task: Task) -> tuple[ModelSize, Geometry]:
        checkpoint = self._sight.services.find_checkpoint(preset, self._sight.settings)
        if preset.elsewhere:
            return TINY, checkpoint.geometry  # only compares its jobs with one another: nothing is held here
        itemsize = 4 if preset.dtype is Dtype.FLOAT32 else 2
        folder = checkpoint.folder
        both = ("transformer", "transformer_ref")
        wanted = both[::-1] if task is Task.REF2VA else both
        # Both are of one size; that the right one is missing is the engine's to say.
        name = next((item for item in wanted if folder is not None and (folder / item).is_dir()), wanted[0])
        tiny = folder is None and checkpoint.name == "tiny"
        return (TINY if tiny else size_of(folder, itemsize, name)), checkpoint.geometry

    def _history(self, preset: HardwarePreset, geometry: Geometry) -> tuple[FinishedJob, ...]:
        """The newest jobs that ended well on `preset`, newest first."""
        records = self._sight.store.select(owner=None, states=(JobState.SUCCEEDED,), limit=LOOKED_AT)
        same = [record for record in records if record.preset == preset.name][:RECENT]
        return tuple(self._finished(record, geometry) for record in same)

    def _finished(self, record: JobRecord, geometry: Geometry) -> FinishedJob:
        seconds: dict[Stage, float] = {}
        details: dict[str, Any] = {}
        for event in self._sight.store.events(record.id):
            if isinstance(event, StageFinished):
                seconds[event.stage] = seconds.get(event.stage, 0.0) + event.seconds
            details = getattr(event, "details", details)
        media = _media(record.request, details)
        return FinishedJob(shape=shape_of(record.request, geometry, media), seconds=seconds)


# The built-in model before it is built: backend.checkpoints.nano's configuration in float32.
TINY = ModelSize(
    dtype_bytes=4,
    text_encoder=22_237_952,
    trunk=1_480_576,
    outside_blocks=560_512,
    adaln=625_152,
    vae=1_583_264,
    audio_vae=2_055_916,
    stored=25_617_996,
    hidden=64,
    inner=128,
    ffn=128,
    layers=4,
    text_hidden=32,
    vae_width=64,
    source="the built-in tiny model",
)


def _media(request: GenerationRequest, details: Mapping[str, Any]) -> dict[Path, MediaReport]:
    """Reports of a finished job's references, as its sidecar keeps them."""
    paths = [path for path in (request.first_frame, request.last_frame) if path is not None]
    paths += [reference.path for reference in request.references]
    try:
        reports = [codec.decode(MediaReport, item) for item in details.get("media", ())]
    except ValueError:  # of another version: the shape is then that of unknown files
        return {}
    return dict(zip(paths, reports, strict=False))

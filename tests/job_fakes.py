"""An engine without processes and media services without decoders, for tests of jobs. Every knob is an attribute."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from backend.api import ADMIN, Backend
from backend.engines.base import RankState
from backend.errors import EngineFailure, MediaRefused, Problem
from backend.events import (
    Cancelled,
    Event,
    Failed,
    FramesDone,
    Heartbeat,
    PreviewReady,
    StageFinished,
    StageStarted,
    StepDone,
    Succeeded,
)
from backend.jobs.services import Services
from backend.settings import Settings
from backend.types import (
    LIVE_NAMES,
    GenerationRequest,
    Geometry,
    Glimpse,
    JobId,
    MediaReport,
    PreparedMedia,
    ReferenceKind,
    Render,
    Sampling,
    Stage,
)

GEOMETRY = Geometry(canvas_short_edge=128, canvas_max_pixels=224 * 128, reference_image_short_edge=128)
KINDS = {".png": ReferenceKind.IMAGE, ".mp4": ReferenceKind.VIDEO, ".wav": ReferenceKind.AUDIO}


@dataclass
class World:
    """What all fake engines of a test share: how they behave, and what they were asked."""

    steps: int = 3
    step_s: float = 0.01
    load_s: float = 0.0
    fail_at_step: int | None = None  # once: the next job after the failure is fine
    fail_rank: int | None = 0
    fail_to_start: str | None = None
    no_video: bool = False
    rendered: list[str] = field(default_factory=list)
    seeds: list[int | None] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    closed: int = 0
    prepare_s: float = 0.0
    during_step: Callable[[Render, int], None] | None = None


class FakeEngine:
    def __init__(self, world: World, preset: str) -> None:
        self.world = world
        self.failure: EngineFailure | None = None
        self._cancelled = threading.Event()
        self._up = self._started = False
        self._preset = preset

    def ranks(self) -> tuple[RankState, ...]:
        return (RankState(rank=0, pid=1, state="ready"),) if self._up else ()

    def unavailable(self) -> str | None:
        return None

    def rejects(self, request: GenerationRequest) -> str | None:
        return "adapters: not applied" if request.sampling.adapters else None

    def start(self) -> Iterator[Event]:
        if self._up:
            return
        self._started = True
        self.world.opened.append(self._preset)
        yield StageStarted(stage=Stage.LOAD, detail="loading")
        deadline = time.monotonic() + self.world.load_s
        while time.monotonic() < deadline:
            time.sleep(0.02)
            yield Heartbeat(rank=0, stage=Stage.LOAD)
        if self.world.fail_to_start:
            raise EngineFailure(self.world.fail_to_start, rank=0, log_tail="Traceback: no weights")
        self._up = True
        yield StageFinished(stage=Stage.LOAD, seconds=self.world.load_s)

    def generate(self, render: Render) -> Iterator[Event]:
        world = self.world
        self._cancelled.clear()
        world.rendered.append(render.job)
        world.seeds.append(render.request.sampling.seed)
        yield StageStarted(stage=Stage.DENOISE)
        for step in range(1, world.steps + 1):
            if self._cancelled.wait(world.step_s):
                yield Cancelled(stage=Stage.DENOISE, step=step - 1, steps=world.steps)
                return
            if world.during_step:
                world.during_step(render, step)
            for name in LIVE_NAMES:
                if (render.folder / name).is_file():
                    yield PreviewReady(path=render.folder / name, step=step)
            if world.fail_at_step == step:
                world.fail_at_step = None
                yield Failed(reason="rank 0 was killed by SIGKILL", stage=Stage.DENOISE, rank=world.fail_rank)
                return
            yield StepDone(step=step, steps=world.steps, seconds=world.step_s)
        yield FramesDone(done=5, total=5)
        if not world.no_video:
            (render.folder / "video.mp4").write_bytes(b"video" * 1000)
            details = {"seed": render.request.sampling.seed, "job": render.job}
            (render.folder / "video.json").write_text(json.dumps(details))
        yield Succeeded(video=render.folder / "video.mp4", sidecar=render.folder / "video.json")

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        self._up = False
        self._cancelled.set()
        self.world.closed += self._started
        self._started = False


def fake_probe(path: Path, field: str, keyframe: bool) -> MediaReport:
    """Believes suffixes, unless the content says text."""
    if path.read_bytes()[:4] == b"text" or path.suffix not in KINDS:
        raise MediaRefused(Problem(field=path.name, value="text", rule="is no picture, video or sound"))
    kind = KINDS[path.suffix]
    seconds = None if kind is ReferenceKind.IMAGE else 4.0
    return MediaReport(
        name=path.name, kind=kind, container=path.suffix[1:].upper(), width=640, height=360, duration_s=seconds
    )


@dataclass(frozen=True)
class FakeCheckpoint:
    name: str = "tiny"
    source: str = "built in"
    folder: Path | None = None
    geometry: Geometry = GEOMETRY
    ready: bool = True
    state: str = "ready"
    default_steps: int = 6


def fake_services(world: World) -> Services:
    def prepare(request: GenerationRequest, geometry: Geometry, folder: Path) -> PreparedMedia:
        time.sleep(world.prepare_s)
        return PreparedMedia(first_frame=request.first_frame)

    return Services(
        engine=lambda preset, checkpoint, settings: FakeEngine(world, preset.name),
        probe_file=fake_probe,
        prepare=prepare,
        find_checkpoint=lambda preset, settings: FakeCheckpoint(),
        ensure_checkpoint=lambda preset, settings, tell: Path("tiny"),
        glimpse_file=lambda path, keyframe, folder: (fake_probe(path, path.name, keyframe), Glimpse()),
    )


def request(prompt: str = "a red boat", **sampling: object) -> GenerationRequest:
    return GenerationRequest(prompt=prompt, sampling=Sampling(num_frames=107, **sampling))


def open_backend(folder: Path, world: World, preset: str = "tiny-cpu") -> Backend:
    return Backend(Settings(data_dir=folder), preset=preset, services=fake_services(world))


def end_of(backend: Backend, job: JobId) -> Event:
    return list(backend.events(job, owner=ADMIN))[-1]


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("what was waited for did not happen")
        time.sleep(0.01)

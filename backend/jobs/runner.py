"""One job from Started to its end: media prepared, engine up, rendered, result checked.

Yields events, the last of which, and no other, is an end. It stores nothing and knows no queue.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from backend.engines.base import Engine
from backend.errors import EngineFailure, H3Error
from backend.events import (
    TERMINAL,
    Cancelled,
    Event,
    Failed,
    Heartbeat,
    Notice,
    StageFinished,
    StageStarted,
    StepDone,
    Succeeded,
    TerminalEvent,
)
from backend.jobs.artifacts import Artifacts, words
from backend.jobs.records import JobRecord
from backend.jobs.services import Services, Tell
from backend.jobs.slot import EngineSlot
from backend.presets import HardwarePreset, QualityPreset
from backend.settings import Settings
from backend.types import GenerationRequest, Geometry, PreparedMedia, Render, Stage, Task

HEARTBEAT_S = 1.0
ASK_AGAIN_S = 0.5  # a cancel that met the engine between two states is repeated
T = TypeVar("T")


class _Stopped(Exception):
    """A cancel was asked for before the engine rendered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is run and how."""

    record: JobRecord
    preset: HardwarePreset
    quality: QualityPreset
    geometry: Geometry
    settings: Settings


class Run:
    """`events` is iterated by one thread, once; `cancel` may come from any, at any time."""

    def __init__(self, order: Order, slot: EngineSlot, artifacts: Artifacts, services: Services) -> None:
        self.job = order.record.id
        self._order = order
        self._slot = slot
        self._artifacts = artifacts
        self._services = services
        self._lock = threading.Lock()
        self._rendering: Engine | None = None
        self._cancelled = False
        self._asked_at = 0.0
        self._signals: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._stage: Stage | None = None
        self._step, self._steps = 0, order.record.request.sampling.num_inference_steps - 1

    def cancel(self) -> None:
        """Stop this job as soon as its stage allows; no effect once it has ended."""
        with self._lock:
            self._cancelled = True
            self._signals.put("")
            if self._rendering is not None:
                self._asked_at = time.monotonic()
                self._rendering.cancel()

    def events(self) -> Generator[Event, None, None]:
        """Everything that happens, with exactly one end, last, whatever breaks."""
        end: TerminalEvent
        try:
            end = yield from self._steps_of_the_job()
        except _Stopped:
            end = Cancelled(stage=self._stage, step=self._step, steps=self._steps)
        except EngineFailure as error:
            if self._slot.up:
                self._slot.discard(error.reason)
            end = Failed(
                reason=error.reason, stage=error.stage or self._stage, rank=error.rank, log_tail=error.log_tail
            )
        except H3Error as error:
            end = Failed(reason=str(error), stage=self._stage)
        except OSError as error:
            end = Failed(reason=f"Could not go on: {words(error)}", stage=self._stage)
        yield end

    def _steps_of_the_job(self) -> Generator[Event, None, TerminalEvent]:
        preset, settings = self._order.preset, self._order.settings
        folder = self._artifacts.open_output(self.job)
        media = yield from self._prepared()
        self._stage = Stage.LOAD
        checkpoint = yield from self._aside(lambda tell: self._services.ensure_checkpoint(preset, settings, tell))
        engine = self._slot.take(preset, checkpoint)
        if reason := engine.rejects(self._order.record.request):
            raise H3Error(reason)
        yield from self._started(engine)
        render = Render(
            job=self.job,
            request=self._order.record.request,
            media=media,
            folder=folder,
            encoder=self._order.quality.encoder,
            tensors=self._order.record.tensors,
            quality=self._order.record.quality,
            names=self._order.record.labels,
        )
        end = yield from self._rendered(engine, render)
        if isinstance(end, Succeeded):
            video, sidecar, details = self._artifacts.result(self.job)
            return Succeeded(video=video, sidecar=sidecar, details=details)
        if isinstance(end, Failed) and end.rank is not None:
            self._slot.discard(end.reason)
        return end

    def _prepared(self) -> Generator[Event, None, PreparedMedia]:
        self._stage = Stage.PREPARE
        request, began = self._order.record.request, time.monotonic()
        yield StageStarted(stage=Stage.PREPARE, detail="preparing media" if _has_media(request) else "no media")
        folder, geometry = self._artifacts.prepared(self.job), self._order.geometry
        media = yield from self._aside(lambda _: self._services.prepare(request, geometry, folder))
        for report in media.reports:
            for warning in report.warnings:
                yield Notice(message=f"{self._order.record.labels.get(report.name, report.name)}: {warning}")
        yield StageFinished(stage=Stage.PREPARE, seconds=time.monotonic() - began)
        return media

    def _aside(self, work: Callable[[Tell], T]) -> Generator[Event, None, T]:
        """Do blocking `work` in a thread of its own, so that a cancel does not wait for it; beats meanwhile."""
        results: list[T] = []
        errors: list[BaseException] = []

        def do() -> None:
            try:
                results.append(work(lambda text: self._signals.put(text)))
            except BaseException as error:  # handed to the dispatcher's thread, which raises it
                errors.append(error)
            self._signals.put("")

        threading.Thread(target=do, name=f"aside-{self.job}", daemon=True).start()
        while not results and not errors:
            try:
                told = self._signals.get(timeout=HEARTBEAT_S)
            except queue.Empty:
                yield Heartbeat(rank=0, stage=self._stage)
                continue
            self._stop_if_cancelled()
            if told:
                yield StageStarted(stage=self._stage or Stage.PREPARE, detail=told)
        self._stop_if_cancelled()
        if errors:
            raise errors[0]
        return results[0]

    def _started(self, engine: Engine) -> Generator[Event, None, None]:
        starting = self._slot.start(engine)
        try:
            for event in starting:
                yield event
                if self._cancelled:
                    starting.close()
                    self._slot.close()  # half loaded: the next job starts afresh
                    raise _Stopped
        finally:
            starting.close()

    def _rendered(self, engine: Engine, render: Render) -> Generator[Event, None, TerminalEvent]:
        end: TerminalEvent | None = None
        with self._lock:
            if self._cancelled:
                raise _Stopped
            self._rendering = engine
        try:
            for event in engine.generate(render):
                if end is None and isinstance(event, TERMINAL):
                    end = event
                if end is None:
                    self._note(event)
                    yield event
                self._ask_again(engine)
        finally:
            with self._lock:
                self._rendering = None
        if end is None:
            raise EngineFailure("The engine stopped without saying how the job ended; run it again.")
        return end

    def _note(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self._stage = event.stage
        elif isinstance(event, StepDone):
            self._step, self._steps = event.step, event.steps

    def _ask_again(self, engine: Engine) -> None:
        with self._lock:
            if self._cancelled and time.monotonic() - self._asked_at > ASK_AGAIN_S:
                self._asked_at = time.monotonic()
                engine.cancel()

    def _stop_if_cancelled(self) -> None:
        if self._cancelled:
            raise _Stopped


def _has_media(request: GenerationRequest) -> bool:
    return request.task is not Task.T2VA

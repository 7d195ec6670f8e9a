"""Videos made by a server elsewhere: the request is sent, its progress followed, the MP4 fetched, checked and kept.

Knows `/v1/videos` through its client and jobs' folders; it loads no model and needs no GPU.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from backend import codec
from backend.engines.base import RankState
from backend.engines.videos_client import Answer, Dialect, OutOfReach, VideosClient, unfit
from backend.errors import EngineFailure, MediaRefused
from backend.events import (
    Cancelled,
    Event,
    Failed,
    FramesDone,
    Heartbeat,
    LoadProgress,
    Notice,
    PreviewReady,
    Queued,
    StageFinished,
    StageStarted,
    StepDone,
    Succeeded,
    TerminalEvent,
)
from backend.media import kept, received
from backend.presets import HardwarePreset
from backend.settings import Settings, lack_of_address
from backend.types import (
    AUDIO_SAMPLE_RATE,
    FPS,
    LIVE_NAMES,
    PREVIEW_NAME,
    SIDECAR_NAME,
    STREAM_NAME,
    VIDEO_NAME,
    GenerationRequest,
    Render,
    Stage,
)

POLL_S = 1.0
CANCEL_S = 20.0  # a server stops at its next step; after that long it is left to itself
SECONDS_KEPT = (Stage.ENCODE, Stage.DENOISE, Stage.DECODE)  # stages that are the server's alone


@dataclass
class _Run:
    """One render: its job at the server once it is there, and where it stands."""

    render: Render
    job: str | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    asked_at: float = 0.0
    stage: Stage = Stage.LOAD
    began: float = field(default_factory=time.monotonic)
    seen: int = 0  # the last event that was told
    step: int = 0
    steps: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)
    streaming: threading.Thread | None = None


class RemoteEngine:
    """The Engine protocol over one server. `transport` is for tests."""

    failure: EngineFailure | None = None  # nothing of ours can break while it is idle

    def __init__(
        self,
        preset: HardwarePreset,
        checkpoint: Path,
        settings: Settings,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._preset = preset
        self._remote = settings.remote
        self._transport = transport
        self._lock = threading.Lock()
        self._client: VideosClient | None = None
        self._dialect: Dialect | None = None
        self._run: _Run | None = None
        self._closed = False

    def ranks(self) -> tuple[RankState, ...]:
        """None: the processes are the server's."""
        return ()

    def unavailable(self) -> str | None:
        """Why no server can be asked, or None."""
        return lack_of_address(self._remote)

    def rejects(self, request: GenerationRequest) -> str | None:
        """Why the server would not make this, as far as is known before it is asked, or None."""
        if request.sampling.adapters:
            return "adapters: LoRA files are not sent to a server elsewhere; remove them"
        return None if self._dialect is None else unfit(self._dialect, request)

    def start(self) -> Iterator[Event]:
        """Find out what kind of server answers; raises EngineFailure where none does."""
        if self._dialect is None:
            client = self._open()
            yield StageStarted(stage=Stage.LOAD, detail=f"asking {client.host}")
            self._dialect = client.dialect()

    def generate(self, render: Render) -> Iterator[Event]:
        """Have it made; ends with exactly one terminal event and never raises for what the server does."""
        run = _Run(render=render)
        with self._lock:
            self._run = run
        return self._generate(run)

    def cancel(self) -> None:
        """Tell the server to stop the render in progress; from any thread, returns at once."""
        with self._lock:
            run = self._run
            if run is None or (run.cancelled.is_set() and time.monotonic() - run.asked_at < POLL_S):
                return
            run.asked_at = time.monotonic()
            run.cancelled.set()
        threading.Thread(target=self._delete, args=(run,), daemon=True).start()

    def close(self) -> None:
        """Close every connection; the server is told to stop what it makes for us. Idempotent."""
        with self._lock:
            run, client, self._client, self._dialect, self._closed = self._run, self._client, None, None, True
        if run is not None:
            run.cancelled.set()
        if client is not None:
            if run is not None and run.job is not None:
                with contextlib.suppress(EngineFailure):
                    client.delete(run.job)
            client.close()

    def _open(self) -> VideosClient:
        with self._lock:
            if self._closed or self._remote is None:
                raise EngineFailure("the engine is closed" if self._closed else str(self.unavailable()))
            if self._client is None:
                self._client = VideosClient(self._remote.url, self._remote.token, self._transport)
            return self._client

    def _delete(self, run: _Run) -> None:
        client = self._client
        if client is not None and run.job is not None:
            with contextlib.suppress(EngineFailure):  # unreachable: the follower finds that out, too
                client.delete(run.job)

    def _generate(self, run: _Run) -> Iterator[Event]:
        ended = False
        try:
            end = yield from self._made(run)
            ended = True
            yield end
        finally:
            if not ended:
                run.cancelled.set()
            with self._lock:
                if self._run is run:
                    self._run = None
            if run.streaming is not None:
                run.streaming.join(5)
            for path in (*(run.render.folder / name for name in LIVE_NAMES), *run.render.folder.glob(".*.part")):
                path.unlink(missing_ok=True)

    def _made(self, run: _Run) -> Generator[Event, None, TerminalEvent]:
        end: TerminalEvent
        try:
            yield from self.start()
            client, dialect = self._open(), self._dialect
            assert dialect is not None
            if reason := unfit(dialect, run.render.request):
                return Failed(reason=reason, stage=Stage.LOAD)
            yield StageStarted(stage=Stage.LOAD, detail=f"sending the request to {client.host}")
            answer = client.create(dialect, run.render.request, run.render.quality)
            run.job = answer.id
            answer = yield from self._followed(client, dialect, run, answer)
            if answer.status == "completed" and not run.cancelled.is_set():
                return (yield from self._fetched(client, run, answer))
            self._delete(run)
            if run.cancelled.is_set():
                return Cancelled(stage=run.stage, step=run.step, steps=run.steps)
            end = Failed(reason=f"{client.host}: {answer.reason or 'the job failed there'}", stage=run.stage)
        except EngineFailure as error:
            end = Failed(reason=error.reason, stage=run.stage)
        except MediaRefused as error:
            end = Failed(reason=str(error), stage=run.stage)
        except OSError as error:
            end = Failed(reason=f"The video could not be kept: {error.strerror or error}", stage=run.stage)
        return Cancelled(stage=run.stage, step=run.step, steps=run.steps) if run.cancelled.is_set() else end

    # ---- following ------------------------------------------------------------------------------------------------

    def _followed(
        self, client: VideosClient, dialect: Dialect, run: _Run, answer: Answer
    ) -> Generator[Event, None, Answer]:
        """Progress until the job has ended there; returns the last answer. Raises EngineFailure."""
        heard, lost = time.monotonic(), False
        while answer.status not in ("completed", "failed"):
            if run.cancelled.is_set() and time.monotonic() - run.asked_at > CANCEL_S:
                return answer
            try:
                if dialect is Dialect.STUDIO:
                    for told in client.events(answer.id, run.seen):
                        yield from self._passed_on(client, run, told)
                else:
                    run.cancelled.wait(POLL_S)
                answer = client.poll(answer.id)
                if dialect is not Dialect.STUDIO and answer.status == "in_progress" and run.stage is Stage.LOAD:
                    yield from self._entered(run, Stage.DENOISE, f"{dialect} does not tell its steps")
                heard, lost = time.monotonic(), False
            except OutOfReach as error:
                if run.cancelled.is_set() or time.monotonic() - heard > self._preset.deadlines.silence_s:
                    raise
                if not lost:
                    yield Notice(message=f"{error.reason}. Trying again.")
                lost = True
                run.cancelled.wait(POLL_S)
            yield Heartbeat(rank=0, stage=run.stage)
        if dialect is Dialect.STUDIO and answer.status == "completed":
            for told in client.events(answer.id, run.seen):  # what was told between the last look and the end
                yield from self._passed_on(client, run, told)
        return answer

    def _passed_on(self, client: VideosClient, run: _Run, told: dict[str, Any]) -> Iterator[Event]:
        """An event of the other studio as one of ours; what is its own business, or unknown here, is left out."""
        seq = told.get("seq")
        run.seen = seq if isinstance(seq, int) else run.seen + 1
        try:
            event = codec.decode_tagged(_UNION, {**told, "seq": 0, "at": 0.0})
        except ValueError:  # of another version
            return
        match event:
            case Queued(position=position):
                yield StageStarted(stage=Stage.LOAD, detail=f"waiting at {client.host}, place {position}")
            case StageStarted(stage=Stage.PREPARE | Stage.LOAD):
                yield StageStarted(stage=Stage.LOAD, detail=event.detail)
            case StageStarted():
                yield from self._entered(run, event.stage, event.detail)
            case StageFinished() if event.stage in SECONDS_KEPT:
                yield event
            case PreviewReady():
                yield from self._seen(client, run, event)
            case Succeeded():
                run.details = event.details
            case StepDone():
                run.step, run.steps = event.step, event.steps
                yield event
            case LoadProgress() | FramesDone() | Notice():
                yield event

    def _entered(self, run: _Run, stage: Stage, detail: str) -> Iterator[Event]:
        if run.stage is Stage.LOAD:
            yield StageFinished(stage=Stage.LOAD, seconds=time.monotonic() - run.began)
        run.stage, run.began = stage, time.monotonic()
        yield StageStarted(stage=stage, detail=detail)

    def _seen(self, client: VideosClient, run: _Run, event: PreviewReady) -> Iterator[Event]:
        """What can be watched there, brought here; a picture that cannot be had is no reason to stop."""
        name = event.path.name
        told = client.poll(str(run.job)).told.get("stream_url" if name == STREAM_NAME else "preview_url")
        if name not in LIVE_NAMES or not isinstance(told, str) or not told.startswith("/files/"):
            return  # only from the server itself: our token goes with every request
        target = run.render.folder / name
        if name == STREAM_NAME:
            if run.streaming is None:
                run.streaming = threading.Thread(target=self._stream, args=(client, run, told, target), daemon=True)
                run.streaming.start()
                yield PreviewReady(path=target, step=event.step)
            return
        part = target.with_name(f".{uuid.uuid4().hex}.part")
        with contextlib.suppress(EngineFailure):
            if client.fetch(told, part, run.cancelled.is_set):
                part.replace(target)
                yield PreviewReady(path=run.render.folder / PREVIEW_NAME, step=event.step)

    def _stream(self, client: VideosClient, run: _Run, path: str, target: Path) -> None:
        with contextlib.suppress(EngineFailure, OSError):
            client.fetch(path, target, run.cancelled.is_set)

    # ---- fetching -------------------------------------------------------------------------------------------------

    def _fetched(self, client: VideosClient, run: _Run, answer: Answer) -> Generator[Event, None, TerminalEvent]:
        """The MP4 brought here, looked at, and kept with its sidecar; returns the end."""
        if run.stage is not Stage.MUX:
            yield from self._entered(run, Stage.MUX, f"fetching the video from {client.host}")
        render = run.render
        part = render.folder / f".{uuid.uuid4().hex}.part"
        if not client.fetch(f"/v1/videos/{answer.id}/content", part, run.cancelled.is_set):
            return Cancelled(stage=run.stage, step=run.step, steps=run.steps)
        yield Heartbeat(rank=0, stage=run.stage)
        arrived = received.look_at(part)
        if arrived.unusable:
            return Failed(reason=f"{client.host}: {arrived.unusable}", stage=run.stage)
        differences = tuple(_differences(render.request, arrived))
        for warning in (*arrived.warnings, *differences):
            yield Notice(message=warning)
        details = _details(run, answer, str(self._dialect), arrived, differences)
        video, sidecar = render.folder / VIDEO_NAME, render.folder / SIDECAR_NAME
        received.keep(part, video, json.dumps(kept.portable(details), ensure_ascii=False))
        written = sidecar.with_name(f".{uuid.uuid4().hex}.part")
        written.write_text(json.dumps(details, indent=2, ensure_ascii=False), encoding="utf-8")
        written.replace(sidecar)
        self._delete(run)  # it is here now; a server keeps what nobody deletes
        yield StageFinished(stage=Stage.MUX, seconds=time.monotonic() - run.began)
        return Succeeded(video=video, sidecar=sidecar, details=details)


_UNION = (
    StageStarted | StageFinished | LoadProgress | StepDone | FramesDone | PreviewReady | Notice | Queued | Succeeded
)


def _differences(request: GenerationRequest, arrived: received.Arrived) -> Iterator[str]:
    sampling = request.sampling
    wanted = f"{sampling.width}x{sampling.height}, {sampling.num_frames} frames"
    made = f"{arrived.width}x{arrived.height}, {arrived.num_frames} frames"
    if wanted != made:
        yield f"asked for {wanted}; the server made {made}"
    if arrived.sample_rate not in (0, AUDIO_SAMPLE_RATE):
        yield f"the sound has {arrived.sample_rate} Hz instead of {AUDIO_SAMPLE_RATE}"


def _details(
    run: _Run, answer: Answer, server: str, arrived: received.Arrived, differences: tuple[str, ...]
) -> dict[str, object]:
    """The sidecar: what the server says of its run, under what we know of ours."""
    render, request = run.render, run.render.request
    steps = request.sampling.num_inference_steps
    return {
        **run.details,
        "format": 1,
        "job": render.job,
        "request": codec.encode(request),
        "inputs": codec.encode(kept.inputs_of(request, render.names)),
        "quality": render.quality,
        "task": request.task.value,
        "seed": request.sampling.seed,
        "num_frames": arrived.num_frames,
        "fps": FPS,
        "width": arrived.width,
        "height": arrived.height,
        "steps": {"sigma_points": steps, "forwards": steps - 1},
        "model": "remote",
        "server": server,
        "checkpoint": str(run.details.get("checkpoint") or answer.told.get("model") or "unknown"),
        "checks": arrived.figures,
        "warnings": [*arrived.warnings, *differences],
        "media": codec.encode(render.media.reports),
    }

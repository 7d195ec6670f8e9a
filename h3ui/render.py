"""Events of a job to what is shown of it: stages, steps, seconds a step, time left, words.

Pure, and without HTML: panels turn these figures and plain sentences into markup, escaping every text.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from backend import events as ev
from backend.types import STREAM_NAME, Stage

STAGE_LABELS = {
    Stage.PREPARE: "Prepare media",
    Stage.LOAD: "Load model",
    Stage.ENCODE: "Read prompt",
    Stage.DENOISE: "Sample",
    Stage.DECODE: "Decode",
    Stage.MUX: "Write MP4",
}
RECENT_STEPS = 5  # the first step warms up kernels; the median of the last few tells the pace
DECODE_SHARE = 0.25  # of sampling time, until a finished job of the same preset tells better
SILENT_S = 10.0  # workers beat every second; a busy machine may hold one up
TERMINAL_STATES = ("succeeded", "failed", "cancelled", "interrupted")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as far as its events tell; times are unix seconds, durations seconds."""

    state: str = "queued"
    position: int | None = None
    preset: str = ""
    stage: Stage | None = None
    stage_at: float = 0.0
    detail: str = ""
    finished_stages: tuple[tuple[Stage, float], ...] = ()
    component: str = ""
    loaded_bytes: int = 0
    total_bytes: int = 0
    step: int = 0
    steps: int = 0
    step_at: float = 0.0
    step_seconds: tuple[float, ...] = ()
    frames_done: int = 0
    frames_total: int = 0
    preview_step: int = 0  # the forward whose picture is there; 0: none is
    streaming: bool = False  # what is decoded so far can be played
    notices: tuple[str, ...] = ()
    reason: str = ""
    log_tail: str = ""
    started_at: float | None = None
    finished_at: float | None = None
    beat_at: float | None = None  # the last sign of life
    seq: int = 0

    @property
    def terminal(self) -> bool:
        """True after the last event."""
        return self.state in TERMINAL_STATES

    @property
    def seconds_a_step(self) -> float | None:
        """Median of the last steps, None before the first."""
        return statistics.median(self.step_seconds[-RECENT_STEPS:]) if self.step_seconds else None

    def stage_seconds(self, stage: Stage) -> float | None:
        """Seconds a finished stage took in all; None when it has not finished."""
        found = [seconds for name, seconds in self.finished_stages if name is stage]
        return sum(found) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One stage of the timeline: `state` is waiting, active, done or stopped."""

    stage: Stage
    label: str
    state: str
    seconds: float | None


def follow(events: Iterable[ev.Event], view: JobView | None = None) -> JobView:
    """`view` (a new one when None) after `events`."""
    view = view or JobView()
    for event in events:
        view = advance(view, event)
    return view


def advance(view: JobView, event: ev.Event) -> JobView:
    """`view` after one event."""
    if event.seq:
        view = dataclasses.replace(view, seq=event.seq)
    match event:
        case ev.Queued():
            return dataclasses.replace(view, state="queued", position=event.position)
        case ev.Started():
            return dataclasses.replace(
                view, state="running", position=None, preset=event.preset, started_at=event.at or None
            )
        case ev.StageStarted():
            return dataclasses.replace(
                view, state="running", stage=event.stage, detail=event.detail, stage_at=event.at, step_at=event.at
            )
        case ev.StageFinished():
            done = (*view.finished_stages, (event.stage, event.seconds))
            still = None if view.stage is event.stage else view.stage
            return dataclasses.replace(view, finished_stages=done, stage=still)
        case ev.LoadProgress():
            return dataclasses.replace(
                view, component=event.component, loaded_bytes=event.done_bytes, total_bytes=event.total_bytes
            )
        case ev.StepDone():
            return dataclasses.replace(
                view,
                step=event.step,
                steps=event.steps,
                step_at=event.at,
                step_seconds=(*view.step_seconds, event.seconds),
            )
        case ev.FramesDone():
            return dataclasses.replace(view, frames_done=event.done, frames_total=event.total)
        case ev.Notice():
            return dataclasses.replace(view, notices=(*view.notices, event.message))
        case ev.Succeeded():
            return dataclasses.replace(view, state="succeeded", stage=None, finished_at=event.at or None)
        case ev.Failed():
            return dataclasses.replace(
                view,
                state="failed",
                stage=event.stage or view.stage,
                reason=event.reason,
                log_tail=event.log_tail,
                finished_at=event.at or None,
            )
        case ev.Cancelled():
            return dataclasses.replace(
                view,
                state="cancelled",
                stage=event.stage or view.stage,
                reason=_where_cancelled(event),
                finished_at=event.at or None,
            )
        case ev.Interrupted():
            return dataclasses.replace(view, state="interrupted", reason=event.reason, finished_at=event.at or None)
        case ev.PreviewReady():
            if event.path.name == STREAM_NAME:
                return dataclasses.replace(view, streaming=True)
            return dataclasses.replace(view, preview_step=event.step)
        case _:  # heartbeats change no figure
            return view


def timeline(view: JobView) -> tuple[StageRow, ...]:
    """All stages in order. A stage that later ones overtook counts as done even if it never reported."""
    order = list(Stage)
    reached = max((order.index(stage) for stage, _ in view.finished_stages), default=-1)
    if view.stage is not None:
        reached = max(reached, order.index(view.stage) - 1)
    rows = []
    for index, stage in enumerate(order):
        state = "done" if index <= reached or view.state == "succeeded" else "waiting"
        if stage is view.stage:
            state = "stopped" if view.terminal else "active"
        rows.append(StageRow(stage=stage, label=STAGE_LABELS[stage], state=state, seconds=view.stage_seconds(stage)))
    return tuple(rows)


def time_left_s(view: JobView, now: float, decode_s: float | None = None) -> float | None:
    """Seconds until the MP4 is there, decode and writing included; None while nothing tells.

    `decode_s` is what decoding and writing should take, from an earlier job; without it a share of sampling is assumed.
    """
    if view.terminal or view.state != "running":
        return None
    if view.stage is Stage.MUX:
        return 1.0
    if view.stage is Stage.DECODE and view.frames_done:
        return max(now - view.stage_at, 0.0) * (view.frames_total - view.frames_done) / view.frames_done
    pace = view.seconds_a_step
    if pace is None or not view.steps:
        return None
    sampling = view.steps * pace
    decode = decode_s if decode_s is not None else sampling * DECODE_SHARE
    if view.step >= view.steps:
        return max(decode - max(now - view.step_at, 0.0), 1.0)
    in_step = min(max(now - view.step_at, 0.0), pace) if view.step_at else 0.0
    return max((view.steps - view.step) * pace - in_step, 0.0) + decode


def fraction(view: JobView, decode_s: float | None = None) -> float:
    """Share of the whole job that is done, 0 to 1: sampling and decode weighed by the time they take."""
    if view.state == "succeeded":
        return 1.0
    pace = view.seconds_a_step
    if pace is None or not view.steps:
        return 0.0
    sampling = view.steps * pace
    decode = decode_s if decode_s is not None else sampling * DECODE_SHARE
    share = view.frames_done / view.frames_total if view.frames_total else 0.0
    whole = sampling + decode
    return min((view.step * pace + share * decode) / whole, 0.99) if whole else 0.0


def headline(view: JobView) -> str:
    """What is going on, in a few words."""
    if view.state == "queued":
        return "Waiting in the queue" if view.position is None else f"Waiting, number {view.position} in the queue"
    if view.state == "running":
        return {
            None: "Starting",
            Stage.PREPARE: "Preparing your media",
            Stage.LOAD: "Loading the model",
            Stage.ENCODE: "Reading your prompt",
            Stage.DENOISE: "Making your video",
            Stage.DECODE: "Turning latents into pictures and sound",
            Stage.MUX: "Writing the MP4",
        }[view.stage]
    return {
        "succeeded": "Your video is ready",
        "failed": "This job failed",
        "cancelled": "Cancelled",
        "interrupted": "Interrupted",
    }[view.state]


def facts(view: JobView, now: float, decode_s: float | None = None) -> tuple[str, ...]:
    """Short phrases about progress: step n of N, seconds a step, frames, time left."""
    if view.terminal:
        return ()
    told: list[str] = []
    if view.stage is Stage.LOAD and view.total_bytes:
        told.append(f"{view.component}: {size(view.loaded_bytes)} of {size(view.total_bytes)}")
    elif view.stage is not Stage.DENOISE and view.detail:
        told.append(view.detail)
    if view.steps and view.stage in (None, Stage.DENOISE):
        told.append(f"step {view.step} of {view.steps}")
        if view.seconds_a_step is not None:
            told.append(f"{view.seconds_a_step:.2f} s a step")
    if view.stage is Stage.DECODE and view.frames_total:
        told.append(f"frame {view.frames_done} of {view.frames_total}")
    left = time_left_s(view, now, decode_s)
    if left is not None:
        told.append(f"about {duration(left)} left, decode and MP4 included")
    return tuple(told)


def sign_of_life(view: JobView, now: float) -> str:
    """How long ago the workers last said anything; nothing for a job that does not run."""
    if view.state != "running" or view.beat_at is None:
        return ""
    silent = max(now - view.beat_at, 0.0)
    if silent < SILENT_S:
        return f"alive {duration(silent)} ago"
    return f"no sign of life for {duration(silent)}"


def duration(seconds: float) -> str:
    """Seconds for people: "0.8 s", "42 s", "3 min 05 s", "1 h 20 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(num_bytes: float) -> str:
    """Bytes for people, in binary units: "12.0 MiB"."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"


def _where_cancelled(event: ev.Cancelled) -> str:
    if event.step and event.steps:
        return f"Stopped after step {event.step} of {event.steps}."
    if event.stage is not None:
        return f"Stopped while at “{STAGE_LABELS[event.stage]}”."
    return "Taken out of the queue before it started."

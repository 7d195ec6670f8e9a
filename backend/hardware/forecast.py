"""What a request will cost on a preset: memory by part, disk, seconds of each stage, each number with its basis.

Formulas and measured rates first, corrected by the user's own finished jobs on the same preset. It starts nothing.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from backend import limits
from backend.errors import Problem
from backend.hardware import rates
from backend.hardware.choose import lacking
from backend.hardware.model_size import GIB, ModelSize
from backend.hardware.placement import FORMULA, Part, Placement, place
from backend.hardware.probe import Hardware
from backend.hardware.request_shape import RequestShape
from backend.presets import HardwarePreset
from backend.types import AUDIO_SAMPLE_RATE, Stage, Task

RECENT = 5  # finished jobs that correct a forecast; older ones may be of another version
RESULT_BITS_PX = 0.3  # of an H.264 picture at crf 17 to 20, natural content; noise takes ten times as much
AUDIO_BYTES_S = 24_000  # 192 kbit/s
CANVAS_SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)  # of width and height, tried for the nearest canvas that fits


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Seconds a stage will take, and where the number comes from."""

    stage: Stage
    seconds: float
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedJob:
    """A job of the past on the same preset and checkpoint: its shape and the seconds each stage really took."""

    shape: RequestShape
    seconds: Mapping[Stage, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a request will cost. `refusal` says why it cannot run and the nearest change that can, or is None.

    Seconds are not known (`times` empty, the others None) of a server elsewhere that has finished no job yet.
    """

    preset: str
    shape: RequestShape
    placement: Placement
    times: tuple[StageTime, ...]
    step_s: float | None
    disk: tuple[Part, ...]
    refusal: Problem | None = None

    @property
    def total_s(self) -> float | None:
        """Seconds from start to a finished file."""
        return sum(time.seconds for time in self.times) if self.times else None

    @property
    def gpu_gib(self) -> float:
        """Memory of the fullest GPU at its peak; on a CPU, of the fullest process without its libraries."""
        return max((rank.peak.gib for rank in self.placement.ranks), default=0.0)

    @property
    def host_gib(self) -> float:
        """Host memory of all processes."""
        return self.placement.host_gib

    @property
    def disk_gib(self) -> float:
        """What the job adds to the disk at its largest."""
        return sum(part.gib for part in self.disk)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Everything a forecast is made from. `shape_at` gives the shape at another (width, height, frames)."""

    preset: HardwarePreset
    shape: RequestShape
    size: ModelSize
    shape_at: Callable[[int, int, int], RequestShape]
    input_bytes: int = 0
    history: Sequence[FinishedJob] = ()
    warm: bool = False  # the engine is up already
    tabulated: bool = False  # AdaLN tables of its schedule are kept; else finished jobs of the same schedule tell
    others: Sequence[HardwarePreset] = ()  # presets that run on this machine as well


def forecast(hardware: Hardware, question: Question) -> Forecast:
    """The forecast of one request on one preset of one machine."""
    placement = place(hardware, question.preset, question.shape, question.size)
    times, step_s = _seconds(question, placement)
    disk = _disk(question, placement)
    return Forecast(
        preset=question.preset.name,
        shape=question.shape,
        placement=placement,
        times=times,
        step_s=step_s,
        disk=disk,
        refusal=_refusal(hardware, question, placement, disk),
    )


def _seconds(question: Question, placement: Placement) -> tuple[tuple[StageTime, ...], float | None]:
    """(seconds by stage, seconds of a forward); of a server elsewhere only what its finished jobs tell."""
    preset, shape, size = question.preset, question.shape, question.size
    known = question.tabulated or any(_same_schedule(job.shape, shape) for job in question.history)
    expected = _expected(preset, shape, size, placement, tabulated=known)
    past = []
    for number, job in enumerate(question.history[:RECENT]):  # newest first: an older one may have made its tables
        older = any(_same_schedule(other.shape, job.shape) for other in question.history[number + 1 :])
        past.append((job, _expected(preset, job.shape, size, placement, tabulated=older)))
    told = [_corrected(stage, value, past, question) for stage, value in expected.items()]
    times = tuple(time for time in told if time is not None)
    denoise = next((time.seconds for time in times if time.stage is Stage.DENOISE), None)
    if denoise is None:
        return times, None
    forward = rates.step(preset, shape, size, placement.gpu).seconds
    # A forward as it is corrected: its share of the stage, of which moves and tables are the rest.
    return times, forward * denoise / expected[Stage.DENOISE].seconds


def _same_schedule(one: RequestShape, other: RequestShape) -> bool:
    """Whether two requests share AdaLN tables: as many forwards, of the same task."""
    return (one.forwards, one.task, one.timesteps) == (other.forwards, other.task, other.timesteps)


def _expected(
    preset: HardwarePreset, shape: RequestShape, size: ModelSize, placement: Placement, *, tabulated: bool
) -> dict[Stage, rates.Seconds]:
    """Formula and measured rates alone."""
    gpu = placement.gpu
    step = rates.step(preset, shape, size, gpu)
    denoise = rates.Seconds(seconds=shape.forwards * step.seconds, basis=step.basis)
    if not tabulated and (tables := rates.tabulate(preset, size, gpu)) is not None:
        denoise += tables
    moved = rates.denoise_move(preset, size, placement)
    return {
        Stage.PREPARE: rates.prepare(shape),
        Stage.LOAD: rates.load(size, gpu),
        Stage.ENCODE: rates.encode(preset, shape, size, placement),
        Stage.DENOISE: rates.Seconds(seconds=denoise.seconds + moved, basis=denoise.basis),
        Stage.DECODE: rates.decode(preset, shape, gpu),
        Stage.MUX: rates.mux(),
    }


def _corrected(
    stage: Stage,
    expected: rates.Seconds,
    past: Sequence[tuple[FinishedJob, Mapping[Stage, rates.Seconds]]],
    question: Question,
) -> StageTime | None:
    """`expected` scaled by how earlier jobs compared with what was expected of them; None where only they tell."""
    elsewhere = question.preset.elsewhere
    if stage is Stage.LOAD and question.warm and not elsewhere:
        return StageTime(stage=stage, seconds=0.0, basis="the model is loaded already")
    took = [(job.seconds[stage], was[stage].seconds) for job, was in past if job.seconds.get(stage)]
    if stage is Stage.LOAD and took:  # a warm job loads nothing, or one transformer: those say little about a cold one
        whole = max(real for real, _ in took)
        took = [(real, was) for real, was in took if real > whole / 2]
    if not took:
        return None if elsewhere else StageTime(stage=stage, seconds=expected.seconds, basis=expected.basis)
    ratio = statistics.median(real / was for real, was in took)
    jobs = f"{len(took)} of your finished jobs" if len(took) > 1 else "one of your finished jobs"
    return StageTime(stage=stage, seconds=expected.seconds * ratio, basis=f"from {jobs} on this preset")


def _disk(question: Question, placement: Placement) -> tuple[Part, ...]:
    shape = question.shape
    px = shape.num_frames * shape.width * shape.height
    result = px * RESULT_BITS_PX / 8 + shape.duration_s * AUDIO_BYTES_S
    parts = [Part(name="result", gib=result / GIB, basis="estimate: 0.3 bit a pixel, noise takes more")]
    if shape.task is not Task.T2VA:
        sound = limits.MAX_CLIP_S * AUDIO_SAMPLE_RATE * 2 * 4 if shape.task is Task.REF2VA else 0
        parts.append(Part(name="inputs", gib=question.input_bytes / GIB, basis="size of your files"))
        parts.append(Part(name="prepared media", gib=(3 * shape.encoded_px + sound) / GIB, basis=FORMULA))
    if question.preset.runtime.adaln_tables and placement.ranks:
        tables = question.size.tables(shape.forwards, shape.timesteps)
        parts.append(Part(name="AdaLN tables, kept", gib=tables / GIB, basis=FORMULA))
    return tuple(parts)


def _refusal(hardware: Hardware, question: Question, placement: Placement, disk: Sequence[Part]) -> Problem | None:
    needed = sum(part.gib for part in disk)
    if needed > hardware.disk_free_gib:
        rule = f"{hardware.disk_free_gib:.1f} GiB are free on the disk"
        return Problem(field="disk", value=f"{needed:.1f} GiB", rule=rule, way_out="free some space")
    if placement.lacks is None:
        return None
    shape = question.shape
    value = f"{shape.width}x{shape.height}, {shape.num_frames} frames on {question.preset.name}"
    changes = list(_changes(hardware, question))
    way_out = f"what fits: {', or '.join(changes)}" if changes else "no preset of this machine holds it (see doctor)"
    return Problem(field="memory", value=value, rule=placement.lacks, way_out=way_out)


def _changes(hardware: Hardware, question: Question) -> Iterator[str]:
    """The nearest changes that make the request fit: a shorter clip, a smaller canvas, another preset."""
    shape, preset = question.shape, question.preset

    def fits(other: RequestShape, on: HardwarePreset = preset) -> bool:
        return place(hardware, on, other, question.size).lacks is None

    for frames in range(shape.num_frames - limits.FRAMES_PER_CHUNK, limits.MIN_FRAMES - 1, -limits.FRAMES_PER_CHUNK):
        if fits(question.shape_at(shape.width, shape.height, frames)):
            yield f"{frames} frames ({frames / 24:.1f} s)"
            break
    for share in CANVAS_SHARES:
        width, height = (max(32, round(side * share / 32) * 32) for side in (shape.width, shape.height))
        if fits(question.shape_at(width, height, shape.num_frames)):
            yield f"a canvas of {width}x{height}"
            break
    for other in question.others:
        if other.name != preset.name and lacking(other, hardware) is None and fits(shape, other):
            yield f"preset {other.name}"
            break


def scaled_shape(shape: RequestShape, width: int, height: int, frames: int, multiple: int = 32) -> RequestShape:
    """`shape` on another canvas and length, its conditions as they are; enough to compare target rows."""
    rows = (width // multiple) * (height // multiple)
    return dataclasses.replace(
        shape,
        width=width,
        height=height,
        num_frames=frames,
        video_rows=limits.num_latent_frames(frames) * rows,
        audio_rows=2 * limits.num_audio_latents(frames),
    )

"""Six requests through the program's own pipeline, beside what its forecast says of them on the preset it would choose.

Weights are random and made on the device, so loading is not measured; a few forwards of a schedule stand for all of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from backend import codec, presets
from backend.errors import UnusableResult
from backend.h3.pipeline import Pipeline
from backend.hardware.choose import choose
from backend.hardware.forecast import Forecast, Question, forecast, scaled_shape
from backend.hardware.model_size import GIB, size_of
from backend.hardware.probe import Hardware, probe
from backend.hardware.request_shape import RequestShape, shape_of
from backend.presets import HardwarePreset
from backend.process.messages import Setup
from backend.types import (
    GenerationRequest,
    JobId,
    MediaReport,
    PreparedMedia,
    PreparedReference,
    Reference,
    ReferenceKind,
    Render,
    Sampling,
    Stage,
)
from backend.worker.output import Output
from bench import blank_checkpoint, report

CRITERION = {"seconds": 0.15, "gib": 0.10}
STAGES = (Stage.ENCODE, Stage.DENOISE, Stage.DECODE, Stage.MUX)
COLUMNS = ["request", "stage", "forecast_s", "measured_s", "ratio_s", "forecast_gib", "measured_gib", "ratio_gib"]
# Words that both the released tokenizer and the tiny one's know: about 300 rows, as a detailed prompt has.
WORDS = "the camera moves slowly over a quiet city street at night while soft rain and wind sound from the left and "


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request of the table: a canvas in px, frames, and which references it has."""

    width: int
    height: int
    num_frames: int
    references: tuple[str, ...] = ()  # of "picture", "clip", "sound"


FULL = (
    Case(width=960, height=544, num_frames=107),
    Case(width=1344, height=768, num_frames=124),
    Case(width=1344, height=768, num_frames=209),
    Case(width=960, height=544, num_frames=124, references=("picture",)),
    Case(width=1344, height=768, num_frames=107, references=("picture", "sound")),
    Case(width=960, height=544, num_frames=209, references=("clip",)),
)
TINY = tuple(
    dataclasses.replace(case, width=224 if case.width > 1000 else 128, height=128, num_frames=frames)
    for case, frames in zip(FULL, (107, 124, 141, 124, 107, 141), strict=True)
)


def main() -> None:
    """Measure request after request, keeping what is there after each; print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.forecast", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="the tiny model and small canvases, for a CPU")
    parser.add_argument("--forwards", type=int, default=3, help="of each request")
    parser.add_argument("--only", default="", help="numbers of the requests to run, comma-separated, from 0")
    parser.add_argument("--preset", default=None, help="this one instead of the one the program would choose")
    parser.add_argument("--card-gib", type=float, default=0.0, help="use so much of the GPU, as if it had no more")
    parser.add_argument("--host-ram-gib", type=float, default=0.0, help="where the machine shows less than it has")
    parser.add_argument("--out", type=Path, default=None, help="folder for the JSON; default bench/results")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() and not options.tiny else "cpu")
    if options.card_gib:
        whole = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(options.card_gib * GIB / whole)
    name = f"forecast-{options.preset or 'tiny'}" if options.preset or options.tiny else "forecast"
    with tempfile.TemporaryDirectory() as folder:
        bench = _Bench(device, Path(folder), options)
        for content in bench.measure():
            path = report.write(name, content, options.out)
    print(report.table(content["rows"], COLUMNS))
    print("within:", content["within"], "written:", path)


class _Bench:
    """One model, one preset, and the requests in their order."""

    def __init__(self, device: torch.device, folder: Path, options: argparse.Namespace) -> None:
        self.device, self.folder, self.options = device, folder, options
        self.geometry = blank_checkpoint.GEOMETRY[options.tiny]
        checkpoint = blank_checkpoint.write(folder / "checkpoint", options.tiny)
        self.hardware = _hardware(options)
        self.preset, self.reason = _chosen(self.hardware, "tiny-cpu" if options.tiny else options.preset)
        self.size = functools.partial(size_of, checkpoint, 2 if self.preset.dtype.value == "bfloat16" else 4)
        setup = Setup(
            run="bench",
            rank=0,
            world_size=1,
            model="native",
            checkpoint=str(checkpoint),
            device=self.preset.device,
            dtype=self.preset.dtype,
            rendezvous=folder / "rendezvous",
            cache_dir=folder / "cache",
            runtime=dataclasses.replace(self.preset.runtime, fast_load=True),  # there is nothing a library could read
            parallel=self.preset.parallel,
        )
        started = time.perf_counter()
        self.runtime = blank_checkpoint.BlankRuntime(setup, device)
        hooks = self.runtime.hooks()
        self.counted = _Counted(hooks.prepare_transformer)
        hooks = dataclasses.replace(hooks, prepare_transformer=self.counted.prepare)
        self.pipeline = Pipeline(checkpoint, device, self.preset.dtype.value, lambda *_: None, hooks)
        print(f"shared components made in {time.perf_counter() - started:.1f} s", flush=True)

    def measure(self) -> Iterator[dict[str, Any]]:
        """Everything known after each request."""
        cases = TINY if self.options.tiny else FULL
        chosen = [int(each) for each in self.options.only.split(",") if each] or range(len(cases))
        small = dataclasses.replace(cases[0], width=256, height=256, num_frames=107)
        self.run(-1, small, forwards=1)  # kernels compile, libraries load: not measured
        rows: list[dict[str, Any]] = []
        for number in chosen:
            rows += self.run(number, cases[number], self.options.forwards)
            yield self.content(rows)

    def content(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """What is written."""
        return {
            "what": "requests through the whole pipeline with random weights, beside the program's own forecast",
            "environment": report.environment(self.device),
            "preset": self.preset.name,
            "reason": self.reason,
            "hardware": codec.encode(self.hardware),
            "forwards": self.options.forwards,
            "plan": self.runtime.plan.as_dict(),
            "runtime": self.runtime.info(),
            "notices": self.runtime.said,
            "criterion": CRITERION,
            "within": within(rows),
            "rows": rows,
        }

    def run(self, number: int, case: Case, forwards: int) -> list[dict[str, Any]]:
        """One request: the rows of its stages, and of the whole."""
        prepared, media, references = _media(self.folder / f"media{number}", case, self.options.tiny)
        sampling = Sampling(
            width=case.width, height=case.height, num_frames=case.num_frames, num_inference_steps=forwards + 1, seed=7
        )
        prompt = f"request {number} " + WORDS * (1 if self.options.tiny else 12)
        request = GenerationRequest(prompt=prompt, references=references, sampling=sampling)
        told = self.forecast(shape_of(request, self.geometry, media))
        self.pipeline.use(request.task)
        folder = self.folder / f"job{number}"
        folder.mkdir()
        watch = _Watch(self.device)
        started = time.perf_counter()
        try:
            with Output(Render(job=JobId(f"bench-{number}"), request=request, media=prepared, folder=folder)) as output:
                self.pipeline.generate(request, prepared, output, watch)
                watch.stage(Stage.MUX)
                output.seal({}, self.runtime.said.append)
        except UnusableResult as error:  # of random weights: it was decoded and encoded all the same
            self.runtime.said.append(f"request {number}: {error}")
        watch.close()
        if number < 0:
            return []
        rows = list(self.rows(f"{number} {request.task.value}", told, watch, time.perf_counter() - started))
        for row in rows:
            print({name: row[name] for name in COLUMNS}, flush=True)
        return rows

    def rows(self, name: str, told: Forecast, watch: _Watch, whole_s: float) -> Iterator[dict[str, Any]]:
        """Forecast beside measurement, a stage at a time."""
        shape = told.shape
        name += f" {shape.width}x{shape.height}x{shape.num_frames}"
        memory = {each.stage: each for each in told.placement.ranks[0].stages}
        foreseen = {each.stage: each.seconds for each in told.times}
        for stage in STAGES:
            planned = memory.get(stage)
            yield {
                "request": name,
                "stage": stage.value,
                **pair("s", foreseen[stage], watch.seconds.get(stage)),
                **pair("gib", planned.gib if planned else None, watch.gib.get(stage)),
                "parts_gib": {part.name: round(part.gib, 3) for part in planned.parts} if planned else {},
                "reserved_gib": watch.reserved.get(stage),
            }
        counted = sum(foreseen[stage] for stage in STAGES)
        peak = max((each for each in watch.gib.values() if each is not None), default=None)
        yield {
            "request": name,
            "stage": "whole",
            **pair("s", counted, whole_s),
            **pair("gib", told.gpu_gib, peak),
            "steps_s": watch.steps,
            "forecast_step_s": round(told.step_s, 4),
            "shape": codec.encode(shape),
            "forecast_rows": shape.rows,
            "rows": self.counted.rows,
            "text_rows": self.counted.text_rows,
            "forecast_text_rows": shape.text_rows,
            "condition_rows": shape.condition_rows,
            "encoded_px": shape.encoded_px,
        }

    def forecast(self, shape: RequestShape) -> Forecast:
        """The program's own, of a warm engine without finished jobs."""
        question = Question(
            preset=self.preset,
            shape=shape,
            size=self.size("transformer_ref" if shape.task.value == "ref2va" else "transformer"),
            shape_at=lambda *at: scaled_shape(shape, *at),
            warm=True,
            tabulated=True,  # tables are made from drawn projections, which takes no reading
        )
        return forecast(self.hardware, question)


class _Watch:
    """Seconds and peak memory of each stage; see `backend.h3.seams.Monitor`. Stages end when the device is done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._now: Stage | None = None
        self._since = 0.0
        self.seconds: dict[Stage, float] = {}
        self.gib: dict[Stage, float | None] = {}
        self.reserved: dict[Stage, float] = {}
        self.steps: list[float] = []

    def stage(self, stage: Stage, detail: str = "") -> None:
        """A stage begins and the last one ends."""
        if stage is self._now:
            return
        self.close()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._now, self._since = stage, time.perf_counter()

    def close(self) -> None:
        """The present stage ends."""
        if self._now is None:
            return
        cuda = self._device.type == "cuda"
        if cuda:
            torch.cuda.synchronize(self._device)
        self.seconds[self._now] = time.perf_counter() - self._since
        self.gib[self._now] = self._peak() if cuda else None
        if cuda:
            self.reserved[self._now] = round(torch.cuda.max_memory_reserved(self._device) / GIB, 2)
        self._now = None

    def _peak(self) -> float:
        """Tensors at their peak, and what the card holds beside torch's allocator."""
        free, total = torch.cuda.mem_get_info(self._device)
        beside = total - free - torch.cuda.memory_reserved(self._device)
        return (torch.cuda.max_memory_allocated(self._device) + max(0, beside)) / GIB

    def step(self, step: int, steps: int, seconds: float) -> None:
        """A forward took `seconds`."""
        self.steps.append(round(seconds, 4))

    def frames(self, done: int, total: int) -> None:
        """Frames are not counted here."""

    def should_stop(self) -> bool:
        """Never."""
        return False

    def notice(self, message: str) -> None:
        """Told on the spot."""
        print(message, flush=True)


class _Counted:
    """Wraps the transformer and keeps how many rows its last forward had."""

    def __init__(self, prepare: Callable[[Any], Callable[..., Any]]) -> None:
        self._prepare = prepare
        self.rows = self.text_rows = 0

    def prepare(self, transformer: Any) -> Callable[..., Any]:
        """A forward that counts."""
        forward = self._prepare(transformer)

        def counted(**inputs: Any) -> Any:
            self.rows, self.text_rows = len(inputs["position_ids"]), len(inputs["text_indices"])
            return forward(**inputs)

        return counted


def _hardware(options: argparse.Namespace) -> Hardware:
    found = probe(Path.cwd())
    if options.host_ram_gib:
        found = dataclasses.replace(found, ram_total_gib=options.host_ram_gib, ram_free_gib=options.host_ram_gib)
    if options.card_gib:
        gpus = (dataclasses.replace(each, memory_total_gib=options.card_gib) for each in found.gpus)
        found = dataclasses.replace(found, gpus=tuple(gpus))
    print(found, flush=True)
    return found


def _chosen(hardware: Hardware, name: str | None) -> tuple[HardwarePreset, str]:
    """The preset called `name`, or the one that the program would choose if the model lay on this disk."""
    shipped = presets.hardware_presets()
    if name is None:
        shipped = {key: each for key, each in shipped.items() if each.device is not presets.Device.CPU}
    choice = choose(shipped, hardware, lambda _: None, name)
    print(choice.reason, flush=True)
    return choice.preset, choice.reason


def _media(
    folder: Path, case: Case, tiny: bool
) -> tuple[PreparedMedia, dict[Path, MediaReport], tuple[Reference, ...]]:
    """Synthetic references as the sandboxed child would hand them on, and what it would report of them."""
    folder.mkdir()
    random = np.random.default_rng(3)
    edge, (width, height) = (256, (224, 128)) if tiny else (2048, (1344, 768))
    seconds = 2.0
    sound = folder / "sound.npy"
    np.save(sound, random.normal(0, 0.1, (2, round(32000 * seconds))).astype(np.float32))
    prepared, media, references = [], {}, []
    for index, name in enumerate(case.references):
        path = folder / f"{index}-{name}"
        if name == "picture":
            Image.fromarray(random.integers(0, 256, (edge, edge, 3), np.uint8)).save(picture := folder / "picture.png")
            made = PreparedReference(kind=ReferenceKind.IMAGE, image=picture)
            said = MediaReport(name=name, kind=ReferenceKind.IMAGE, container="PNG", width=edge, height=edge)
        elif name == "clip":
            frames = folder / "frames.npy"
            np.save(frames, random.integers(0, 256, (round(24 * seconds), height, width, 3), np.uint8))
            made = PreparedReference(kind=ReferenceKind.VIDEO, frames=frames, audio=sound)
            said = MediaReport(
                name=name,
                kind=ReferenceKind.VIDEO,
                container="MP4",
                width=width,
                height=height,
                duration_s=seconds,
                audio_codec="aac",
            )
        else:
            made = PreparedReference(kind=ReferenceKind.AUDIO, audio=sound)
            said = MediaReport(name=name, kind=ReferenceKind.AUDIO, container="WAV", duration_s=seconds)
        prepared.append(made)
        media[path] = said
        references.append(Reference(path=path, kind=made.kind))
    return PreparedMedia(references=tuple(prepared)), media, tuple(references)


def within(rows: list[dict[str, Any]]) -> dict[str, int]:
    """How many requests meet the criterion, of how many."""
    whole = [row for row in rows if row["stage"] == "whole"]
    found = {
        name: sum(abs((row[ratio] or 0) - 1) <= CRITERION[name] for row in whole)
        for name, ratio in (("seconds", "ratio_s"), ("gib", "ratio_gib"))
    }
    return found | {"of": len(whole)}


def pair(unit: str, told: float | None, real: float | None) -> dict[str, float | None]:
    """Forecast, measurement, and forecast as a share of it."""
    return {
        f"forecast_{unit}": None if told is None else round(told, 3),
        f"measured_{unit}": None if real is None else round(real, 3),
        f"ratio_{unit}": round(told / real, 3) if told and real else None,
    }


if __name__ == "__main__":
    main()

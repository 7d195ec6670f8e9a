"""What only a GPU can prove, each in a process of its own with a time limit: a line and a verdict a check.

`--tiny` walks through the same code on a CPU. Speed against stock diffusers is measured elsewhere: `step`, `decode`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench import gpu_adapters, gpu_kernels, models, report
from bench.gpu_bench import (
    GIB,
    STEPS,
    Bench,
    Failed,
    Figures,
    Watcher,
    open_pipeline,
    render,
    request_of,
    require,
    shallow_checkpoint,
)

ROOT = Path(__file__).resolve().parent.parent
CRAMPED = 5 * GIB // 4  # for 28 tiles that take 3.6 GiB together; decoded they are 0.3, and their canvas twice 0.16
SLOWER_CPU = 5  # times the limits: a dry run may share its few cores


def checkpoint(bench: Bench) -> Figures:
    """Write the checkpoint that the other checks load."""
    from backend.checkpoints import nano

    started = time.perf_counter()
    tiny = nano.build(bench.work / "tiny")
    shallow_checkpoint(tiny, bench.checkpoint, bench.device, bench.tiny)
    size = sum(file.stat().st_size for file in bench.checkpoint.rglob("*.safetensors"))
    seconds = time.perf_counter() - started
    return {"gib": round(size / GIB, 2), "write_gib_s": round(size / GIB / seconds, 2)}


def load(bench: Bench) -> Figures:
    """Shards straight to the device: GB/s from disk and from the page cache, growth of host memory, equal bits."""
    from diffusers import MiniMaxH3Transformer3DModel
    from safetensors.torch import load_file

    from backend.runtime import load as loader

    folder = bench.checkpoint / "transformer"
    files = sorted(folder.glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files)
    torch.zeros(1, device=bench.device)  # the context is no part of a load
    dropped = _drop_cache(files)
    figures: Figures = {"gb": round(size / 1e9, 2), "cache_dropped": dropped}
    before = _peak_host_bytes()
    for name in ("first_gb_s", "again_gb_s"):
        bench.empty()
        started = time.perf_counter()
        model = loader.build(MiniMaxH3Transformer3DModel, folder)
        loader.fill(model, loader.needed(model, folder), bench.device, bench.dtype, lambda *_: None)
        if bench.cuda:
            torch.cuda.synchronize()
        figures[name] = round(size / 1e9 / (time.perf_counter() - started), 2)
    grown = _peak_host_bytes() - before
    figures |= {"host_growth_gib": round(grown / GIB, 2), "gpu_peak_gib": bench.peak_gib()}
    parameters = dict(model.named_parameters())
    for file in files[:2]:
        for name, stored in load_file(file).items():
            require(torch.equal(parameters[name].cpu(), stored.to(parameters[name].dtype)), f"{name} is not as stored")
    del model, parameters
    bench.empty()
    started = time.perf_counter()
    MiniMaxH3Transformer3DModel.from_pretrained(folder, dtype=bench.dtype, device_map=str(bench.device))
    figures["diffusers_gb_s"] = round(size / 1e9 / (time.perf_counter() - started), 2)
    require(not bench.cuda or grown < 1.5 * GIB, f"host memory grew by {grown / GIB:.2f} GiB, allowed 1.5")
    return figures


def offload(bench: Bench) -> Figures:
    """A card on which the plan must park components gives the same result as one that holds all."""
    from backend.presets import Offload
    from backend.runtime.residency import Residency

    figures: Figures = {}
    runtime, pipeline = open_pipeline(bench, [])
    weights = runtime.plan.weights_bytes
    bench.empty()
    render(pipeline, bench.shape())  # so that compiling counts for neither
    started = time.perf_counter()
    expected, seen = render(pipeline, bench.shape())
    figures |= {"resident_s": round(time.perf_counter() - started, 2), "resident_gib": bench.peak_gib()}
    del runtime, pipeline
    bench.empty()
    cap = _forcing_cap(bench, sum(weights.values()))
    runtime, pipeline = open_pipeline(bench, [], offload=Offload.AUTO)
    if not bench.cuda:  # where both sides are host memory, only the order of moves can be tried
        runtime._residency = Residency(
            bench.device, ("text_encoder", "transformer"), lambda name: runtime._left(name), ("text_encoder",)
        )
        pipeline.hooks = runtime.hooks()
    else:
        require(bool(runtime.plan.parked), f"nothing is parked: {runtime.plan.reason}")
    started = time.perf_counter()
    made, again = render(pipeline, bench.shape())
    figures |= {"parked": "+".join(runtime.plan.parked), "parked_s": round(time.perf_counter() - started, 2)}
    started = time.perf_counter()
    render(pipeline, bench.shape(), seed=4)
    figures |= {"second_parked_s": round(time.perf_counter() - started, 2), "peak_gib": bench.peak_gib()}
    figures |= {"cap_gib": round(cap / GIB, 2), "moves": " ".join(runtime._residency.moves)}
    gap = max(int((a.int() - b.int()).abs().max()) for a, b in zip(seen.frames_made, again.frames_made, strict=True))
    figures["latents_equal"] = torch.equal(expected.latents, made.latents)
    figures |= {"latents_max": float((expected.latents - made.latents).abs().max()), "frames_max": gap}
    require(figures["latents_equal"] and gap <= 1, "the result differs from that of an all-resident run")
    return figures


def _forcing_cap(bench: Bench, weights: int) -> int:
    """Limit this process to so little of the GPU that a plan must park something; the bytes it may fill."""
    from backend.errors import Unavailable
    from backend.presets import Offload
    from backend.runtime.setup import Runtime

    for quarters in range(80 if bench.cuda else 1, 0, -1):
        cap = weights + quarters * GIB // 4
        bench.limit(cap)
        try:
            plan = Runtime.for_setup(bench.setup(offload=Offload.AUTO), bench.device, lambda _: None).plan
        except Unavailable as reason:
            raise Failed(f"no size of card makes the plan park anything: {reason}") from reason
        if plan.parked or not bench.cuda:
            return cap
    raise Failed("the plan parks nothing however small the card is")


def oom(bench: Bench) -> Figures:
    """A clip that is too large ends in words, the next one runs as before; too many tiles at once become fewer."""
    from backend.runtime import vae_tiles
    from backend.runtime.shortage import Exhausted
    from backend.types import PreparedMedia

    runtime, pipeline = open_pipeline(bench, [])
    expected, _ = render(pipeline, bench.shape())
    cap = int(bench.peak_gib() * GIB) + GIB
    bench.empty()
    before = bench.allocated()
    bench.limit(cap)
    large, seen = models.Shape(1344, 768, 362), Watcher()
    request = request_of(large)
    figures: Figures = {"cap_gib": round(cap / GIB, 2)}
    if bench.tiny:
        fault = pipeline.components.transformer.context_embedder.register_forward_pre_hook(_no_memory)
        request = request_of(bench.shape())
    try:
        with runtime.recovering(request, lambda: seen.stage_now):
            pipeline.generate(request, PreparedMedia(), seen, seen)
        raise Failed("a clip of 362 frames at 768p fitted: the cap was too high")
    except Exhausted as error:
        figures["said"] = str(error)
    if bench.tiny:
        fault.remove()
    grown = bench.allocated() - before
    figures["left_over_mib"] = round(grown / 2**20, 1)
    require(grown < 64 << 20, f"{grown >> 20} MiB stayed allocated after the failure")
    again, _ = render(pipeline, bench.shape())
    require(torch.equal(expected.latents, again.latents), "the job after the failure differs from the one before")
    vae, notices = pipeline.components.vae, []
    shape = bench.shape() if bench.tiny else models.FULL_SHAPES[1]
    clip = models.latents(shape, bench.device)[:, :, :7].to(vae.post_quant_conv.weight.dtype)
    bench.limit(_whole_gpu(bench))
    one_by_one = vae_tiles.TileDecoder(1, notices.append).decode_clip(vae, clip)
    bench.empty()
    bench.limit(bench.allocated() + CRAMPED)
    stacked = vae_tiles.TileDecoder(28, notices.append).decode_clip(vae, clip)
    figures |= {"notices": notices, "tiles": report.difference(one_by_one, stacked)}
    require(bool(notices) or not bench.cuda, f"28 tiles fitted into {CRAMPED / GIB:g} GiB: the cap was too high")
    require(figures["tiles"]["relative"] < 5e-3, "fewer tiles at once gave another picture")
    return figures


def _no_memory(*_: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def _whole_gpu(bench: Bench) -> int:
    return torch.cuda.get_device_properties(0).total_memory if bench.cuda else 0


def preview(bench: Bench) -> Figures:
    """What a picture after every step costs, against the step of a whole transformer of 50 blocks."""
    pictures: list[Any] = []
    spent: list[float] = []
    runtime, pipeline = open_pipeline(bench, [], preview_every=1)
    made = runtime.hooks(lambda _, picture: pictures.append(picture))
    show = made.preview
    require(show is not None, "the runtime offers no preview")

    def timed(step: int, predicted: Callable[[], Any]) -> None:
        before, started = len(pictures), time.perf_counter()
        show(step, predicted)
        if len(pictures) > before:  # not every step shows one: pictures are held to a share of the time
            spent.append(time.perf_counter() - started)

    pipeline.hooks = dataclasses.replace(made, preview=timed)
    shape = models.Shape(64, 64, 107) if bench.tiny else models.Shape(1344, 768, 107)
    render(pipeline, shape)  # the first job brings the VAE and fits the picture where it was not resident
    pictures.clear()
    spent.clear()
    _, seen = render(pipeline, shape)
    blocks = len(pipeline.components.transformer.transformer_blocks)
    step_s, picture_s = sorted(seen.step_s)[len(seen.step_s) // 2], sorted(spent)[len(spent) // 2]
    whole_s = step_s * 50 / blocks
    figures = {
        "pictures": len(pictures),
        "picture_ms": round(picture_s * 1e3, 2),
        "worst_ms": round(max(spent) * 1e3, 2),
        "step_s_of_50_blocks": round(whole_s, 2),
        "percent_of_step": round(100 * picture_s / whole_s, 3),
    }
    require(bool(pictures), "no picture came; steps that end before the last picture was shown go without, but not all")
    require(bench.tiny or figures["percent_of_step"] < 1, "a picture costs more than 1 % of a step")
    return figures


def tests(bench: Bench) -> Figures:
    """The tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "tests/runtime", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    print(done.stdout[-6000:], done.stderr[-2000:])
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "no output"
    require(done.returncode == 0, f"pytest: {last}")
    require(not bench.cuda or "skipped" not in last, f"tests were skipped: {last}")
    return {"pytest": last.strip("= ")}


def job(bench: Bench) -> Figures:
    """A whole job by the command line: fleet, real shards, MP4 and sidecar."""
    preset = "1x141gb" if bench.cuda else "tiny-cpu"
    shape = bench.shape()
    out = bench.work / "clip.mp4"
    command = [sys.executable, "app.py", "generate", "--prompt", "a red ball", "--frames", str(shape.num_frames)]
    command += ["--width", str(shape.width), "--height", str(shape.height), "--steps", str(STEPS), "--seed", "3"]
    command += ["--preset", preset, "--checkpoint", str(bench.checkpoint), "--out", str(out)]
    command += ["--data-dir", str(bench.work / "data")]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    seconds = time.perf_counter() - started
    print(done.stderr[-4000:], done.stdout[-2000:])
    require(done.returncode == 0, f"exit {done.returncode}: {done.stderr.strip()[-300:]}")
    details = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    figures = {name: details.get(name) for name in ("attention", "block", "vae_attention", "num_frames", "seconds")}
    stages = figures.pop("seconds")
    require(figures["num_frames"] == shape.num_frames, f"{figures['num_frames']} frames came of {shape.num_frames}")
    return {"wall_s": round(seconds, 1), **figures, "stages_s": stages}


CHECKS: dict[str, tuple[Callable[[Bench], Figures], float]] = {
    "checkpoint": (checkpoint, 60),
    "load": (load, 40),
    "offload": (offload, 60),
    "oom": (oom, 50),
    "preview": (preview, 50),
    "adapters": (gpu_adapters.adapters, 60),
    "decode": (gpu_kernels.decode, 50),
    "compiled": (gpu_kernels.compiled, 90),
    "job": (job, 100),
    "tests": (tests, 150),
}


def main() -> None:
    """Run the checks one after the other; exit 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_checks", description=__doc__)
    parser.add_argument("--out", type=Path, default=None, help="folder for the JSON and logs; default bench/results")
    parser.add_argument("--only", default="", help=f"comma-separated, of {', '.join(CHECKS)}")
    parser.add_argument("--tiny", action="store_true", help="tiny models, for a CPU")
    parser.add_argument("--budget", type=float, default=200, help="seconds after which no further check starts")
    parser.add_argument("--work", type=Path, default=None, help="folder for the checkpoint, kept; default a temporary")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _child(options)
        return
    chosen = [name for name in CHECKS if not options.only or name in options.only.split(",")]
    unknown = set(filter(None, options.only.split(","))) - CHECKS.keys()
    if unknown:
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}")
    work = Path(options.work or tempfile.mkdtemp(prefix="gpu-checks-")).absolute()
    work.mkdir(parents=True, exist_ok=True)
    try:
        rows = _run_all(chosen, work, options)
    finally:
        if options.work is None:
            shutil.rmtree(work, ignore_errors=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    content = {
        "what": "checks that need a GPU; random weights of the released widths, few layers unless a check says so",
        "environment": report.environment(device),
        "rows": rows,
    }
    print("written:", report.write("gpu_checks-tiny" if options.tiny else "gpu_checks", content, options.out))
    sys.exit(any(row["verdict"] != "pass" for row in rows))


def _run_all(chosen: list[str], work: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    began = time.perf_counter()
    rows = []
    for name in chosen:
        row: dict[str, Any] = {"check": name}
        if time.perf_counter() - began > options.budget:
            row |= {"verdict": "not run", "reason": f"the budget of {options.budget:.0f} s was used up"}
        else:
            row |= _run(name, work, options)
        rows.append(row)
        shown = " ".join(f"{key}={value}" for key, value in row.items() if key not in ("check", "verdict"))
        print(f"{row['verdict'].upper():8} {name:10} {shown}", flush=True)
    return rows


def _run(name: str, work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One check in a child; its output goes to a log that stays beside the JSON where it failed."""
    result = work / f"{name}.json"
    limit = CHECKS[name][1] * (SLOWER_CPU if options.tiny else 1)
    log = work / f"{name}.log"
    command = [sys.executable, "-m", "bench.gpu_checks", "--child", name, "--work", str(work)]
    command += ["--tiny"] * options.tiny
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "4")}
    started = time.perf_counter()
    with log.open("w", encoding="utf-8") as file:
        child = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            code: int | None = child.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
            child.wait()
            code = None
    seconds = {"seconds": round(time.perf_counter() - started, 1)}
    if code == 0 and result.is_file():
        return json.loads(result.read_text(encoding="utf-8")) | seconds
    reason = f"took longer than {limit:g} s" if code is None else f"exit {code}"
    tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-25:]
    print("\n".join(f"  {name}: {line}" for line in tail))
    return {"verdict": "fail", "reason": f"{reason}: {tail[-1] if tail else 'no output'}"} | seconds


def _child(options: argparse.Namespace) -> None:
    bench = Bench(options.work, options.tiny)
    check, _ = CHECKS[options.child]
    figures: Figures
    with torch.no_grad():
        try:
            figures = {"verdict": "pass"} | check(bench)
        except Failed as reason:
            figures = {"verdict": "fail", "reason": str(reason)}
    (options.work / f"{options.child}.json").write_text(json.dumps(figures, default=str), encoding="utf-8")


def _peak_host_bytes() -> int:
    """The most host memory this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _drop_cache(files: list[Path]) -> bool:
    """Ask the system to forget the files' pages, so that they are read from disk; whether it could be asked."""
    try:
        for file in files:
            handle = os.open(file, os.O_RDONLY)
            try:
                os.fsync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()

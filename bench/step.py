"""One forward of the transformer: stock diffusers and ours, same weights, same inputs, one run.

The stock model also runs with a second attention kernel: what that alone changes is the yardstick for our difference.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from typing import Any

import torch
from diffusers import MiniMaxH3Scheduler
from torch import Tensor, nn

from backend.presets import RuntimeOptions
from backend.runtime import adaln_tables
from backend.runtime.attention import choose
from backend.runtime.block import Kernels
from backend.runtime.kernels import choose_kernels
from backend.runtime.transformer import FastTransformer
from bench import models, report

STEPS, AT = 50, 20  # sigma points of the schedule, and the step that is measured
Expected = dict[models.Shape, tuple[Tensor, Tensor]]
COLUMNS = ["shape", "rows", "what", "kernel", "median_s", "tflops", "peak_gib", "max", "mean", "relative"]


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = report.parser("step", __doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--compiled", action="store_true", help="also measure the compiled block without Triton")
    parser.add_argument("--shapes", default="", help="only these, comma-separated, as 1344x768x209")
    parser.add_argument("--short", action="store_true", help="stock once a shape, side measurements on the first only")
    parser.add_argument("--no-stock", action="store_true", help="measure ours only")
    report.run("step", measure, COLUMNS, parser.parse_args())


def measure(device: torch.device, dtype: torch.dtype, options: argparse.Namespace) -> dict[str, Any]:
    """All rows: stock with two kernels, then ours, for each shape."""
    started = time.perf_counter()
    model = models.transformer(device, dtype, options.tiny)
    config = dict(model.config)
    shapes = models.TINY_SHAPES if options.tiny else tuple(reversed(models.FULL_SHAPES))
    if options.shapes:
        shapes = tuple(shape for shape in shapes if shape.name in options.shapes.split(","))
    plan = schedule()
    cases = {
        shape: models.sequence(shape, device, dtype, text_dim=config["text_dim"], times=tuple(plan[AT].tolist()))
        for shape in shapes
    }
    print(f"model made in {time.perf_counter() - started:.1f} s", flush=True)
    rows: list[dict[str, Any]] = []
    expected: Expected = {}
    if not options.no_stock:
        for shape in shapes:
            stock(model, shape, cases[shape], config, options, rows, expected)
    notices: list[str] = []
    kernels = choose_kernels(device, dtype, RuntimeOptions(), notices.append)
    fast = FastTransformer(model, kernels, notices.append)  # from here on the model's own forward uses our kernel too
    if not options.no_stock:
        for shape in shapes:
            forward(model, shape, cases[shape], config, ("stock diffusers", kernels.attention.name), rows, expected)
    memory = tables(model, fast, plan, device)
    fast.begin([case["timestep"] for case in cases.values()])
    plain = choose(device, dtype, "sdpa")
    variants = [("ours", kernels, options.repeats), ("ours, stock's attention", Kernels(plain, kernels.ops), 1)]
    if options.compiled:
        compiled = choose_kernels(device, dtype, RuntimeOptions(triton=False, compile=True), notices.append)
        variants.append(("ours, compiled block", compiled, options.repeats))
    for name, chosen, repeats in variants:
        fast.kernels = chosen
        for shape in shapes[: 1 if options.short and repeats == 1 else None]:
            label = (name, f"{chosen.attention.name}, {chosen.name}")
            forward(fast, shape, cases[shape], config, label, rows, expected, repeats)
    return {
        "what": "one forward of the transformer, random weights, one run",
        "environment": report.environment(device),
        "dtype": str(dtype),
        "adaln_tables": memory,
        "notices": notices,
        "rows": rows,
    }


def schedule() -> list[Tensor]:
    """The distinct timesteps of every forward of a t2va request of 50 steps (49 forwards)."""
    video, audio = MiniMaxH3Scheduler(shift=12.0), MiniMaxH3Scheduler(shift=3.0)
    video.set_timesteps(STEPS)
    audio.set_timesteps(STEPS)
    return [torch.unique(torch.stack(pair)) for pair in zip(video.timesteps, audio.timesteps, strict=True)]


def stock(  # noqa: PLR0913
    model: nn.Module,
    shape: models.Shape,
    case: dict[str, Tensor],
    config: dict[str, Any],
    options: argparse.Namespace,
    rows: list[dict[str, Any]],
    expected: Expected,
) -> None:
    """Stock diffusers as it comes, then with another kernel once."""
    other = "_native_flash" if case["timestep"].is_cuda else "_native_math"
    runs = [("native", "torch's default", 1 if options.short else 2, 1), (other, other, 1, 0)]
    for backend, name, repeats, warm in runs[: 1 if options.short and rows else 2]:
        model.set_attention_backend(backend)
        forward(model, shape, case, config, ("stock diffusers", name), rows, expected, repeats, warm)
    model.set_attention_backend("native")  # diffusers keeps the last choice for all models, `reset` does not undo that


def forward(  # noqa: PLR0913
    call: Callable[..., tuple[Tensor, Tensor]],
    shape: models.Shape,
    case: dict[str, Tensor],
    config: dict[str, Any],
    label: tuple[str, str],
    rows: list[dict[str, Any]],
    expected: Expected,
    repeats: int = 1,
    warm: int | None = None,
) -> None:
    """Time one forward and append a row; the first result of a shape is what the others are compared with."""
    device = case["timestep"].device
    row = report.timed(
        lambda: call(**case, return_dict=False),
        device,
        warm=int(repeats > 1) if warm is None else warm,
        repeats=repeats,
    )
    video, audio = (each.cpu() for each in row.pop("result"))
    count = case["token_tags"].shape[0]
    row |= {"shape": shape.name, "rows": count, "what": label[0], "kernel": label[1]}
    row["tflops"] = round(flops(count, config) / row["median_s"] / 1e12, 1)
    if shape in expected:
        row |= report.difference(expected[shape][0], video)
        row["audio"] = report.difference(expected[shape][1], audio)
    else:
        expected[shape] = (video, audio)
    rows.append(row)
    print(row, flush=True)


def tables(model: nn.Module, fast: FastTransformer, plan: list[Tensor], device: torch.device) -> dict[str, Any]:
    """Build the tables of the whole schedule from the model, install them and drop the projections."""
    started = time.perf_counter()
    steps = [each.to(device) for each in plan]
    key = adaln_tables.TableKey.of(steps, "random weights")
    before = sum(each.nbytes for each in model.parameters())
    made = adaln_tables.build(adaln_tables.ModelProjections(model), steps, key)
    installation = adaln_tables.Installation(model, made)
    installation.release()
    fast.install(installation)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    after = sum(each.nbytes for each in model.parameters())
    gib = 2**30
    return {
        "steps": len(plan),
        "built_in_s": round(time.perf_counter() - started, 2),
        "weights_gib": round((before - after) / gib, 2),
        "tables_gib": round(made.nbytes / gib, 2),
    }


def flops(rows: int, config: dict[str, Any]) -> float:
    """Floating-point operations of the trunk's products and attention, two a multiply-add."""
    inner = config["num_attention_heads"] * config["attention_head_dim"]
    linears = config["hidden_size"] * (4 * inner + 3 * config["ffn_dim"])
    return 2.0 * config["num_layers"] * (rows * linears + 2 * rows * rows * inner)


if __name__ == "__main__":
    main()

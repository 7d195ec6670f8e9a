"""The parts of a step alone: attention kernels, matrix products and element-wise passes at the trunk's own shapes.

Says what a whole step can be made of; the step itself is measured in `step`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from backend.runtime import attention, kernels
from backend.runtime.ops import BlockOps, Modulated, Norm, QkNorm, TorchOps
from bench import models, report

HIDDEN, HEADS, DIM, FFN, ROPE = 5376, 56, 128, 14336, 96
COLUMNS = ["part", "variant", "ms", "rate"]


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = report.parser("kernels", __doc__)
    parser.add_argument("--passes", action="store_true", help="the element-wise passes only")
    report.run("kernels", measure, COLUMNS, parser.parse_args())


def measure(device: torch.device, dtype: torch.dtype, options: argparse.Namespace) -> dict[str, Any]:
    """The passes, then attention and products, at the first shape's rows."""
    shape = models.FULL_SHAPES[0]
    rows = 64 if options.tiny else shape.video_rows + shape.audio_rows + models.TEXT_ROWS
    found = passes(rows, device, dtype)
    if not options.passes:
        found += [*attentions(rows, device, dtype, options.tiny), *products(rows, device, dtype)]
    return {"environment": report.environment(device), "rows_of_the_sequence": rows, "rows": found}


def attentions(rows: int, device: torch.device, dtype: torch.dtype, tiny: bool) -> list[dict[str, Any]]:
    """Every kernel that works: the trunk's shape (packed q, k, v), and the VAE decoder's stack of 28 tiles."""
    found: list[dict[str, Any]] = []
    cases = {"attention, trunk": (1, rows, HEADS, DIM), "attention, VAE": (1 if tiny else 28, 1797, 32, 64)}
    for part, (batch, length, heads, dim) in cases.items():
        packed = torch.randn((batch, length, 3 * heads * dim), device=device, dtype=dtype)
        query, key, value = (each.unflatten(-1, (heads, dim)) for each in packed.chunk(3, dim=-1))
        operations = 4.0 * batch * length * length * heads * dim
        for name, works in attention.survey(device, dtype, dim).items():
            if works != "works":
                found.append({"part": part, "variant": f"{name}: {works}", "ms": None, "rate": None})
                continue
            if name == "math":
                continue  # its score matrix would not fit
            kernel = attention.choose(device, dtype, name, dim)
            found.append(_row(part, name, lambda k=kernel, q=query, u=key, v=value: k(q, u, v), device, operations))
    return found


def products(rows: int, device: torch.device, dtype: torch.dtype) -> list[dict[str, Any]]:
    """The four products of a block, by library, by padding of the rows and by layout of the input."""
    found = []
    inner = HEADS * DIM
    for name, (inputs, outputs) in {
        "qkv": (HIDDEN, 3 * inner),
        "out": (inner, HIDDEN),
        "ff in": (HIDDEN, 2 * FFN),
        "ff out": (FFN, HIDDEN),
    }.items():
        weight = torch.randn((outputs, inputs), device=device, dtype=dtype) * inputs**-0.5
        x = torch.randn((-(-rows // 256) * 256, inputs), device=device, dtype=dtype)
        operations = 2.0 * rows * inputs * outputs
        part = f"product, {name}"
        found.append(_row(part, "as it is", lambda x=x[:rows], w=weight: functional.linear(x, w), device, operations))
        found.append(
            _row(part, "rows padded to 256", lambda x=x, w=weight: functional.linear(x, w), device, operations)
        )
        half = (rows // 2 // 256) * 256
        found.append(
            _row(
                part,
                "two halves",
                lambda x=x, w=weight, h=half: (functional.linear(x[:h], w), functional.linear(x[h:rows], w)),
                device,
                operations,
            )
        )
        if device.type == "cuda":
            for library in ("cublaslt", "cublas"):
                torch.backends.cuda.preferred_blas_library(library)
                run: Callable[[], Any] = lambda x=x[:rows], w=weight: functional.linear(x, w)  # noqa: E731
                found.append(_row(part, library, run, device, operations))
            torch.backends.cuda.preferred_blas_library("default")
        if name == "ff out":
            wide = torch.randn((rows, 2 * FFN), device=device, dtype=dtype)[:, :FFN]
            found.append(
                _row(part, "strided input", lambda x=wide, w=weight: functional.linear(x, w), device, operations)
            )
    return found


def passes(rows: int, device: torch.device, dtype: torch.dtype) -> list[dict[str, Any]]:
    """The element-wise steps of a block, plain and by hand; the rate is of the bytes that must move."""
    found = []
    item = torch.empty((), dtype=dtype).element_size()

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, dtype=dtype)

    x, y, table = draw(rows, HIDDEN), draw(rows, HIDDEN), draw(6, 6 * HIDDEN)
    shift, scale, gate, *_ = table.chunk(6, dim=-1)
    index = torch.randint(0, 6, (rows,), device=device)
    norm = Modulated(Norm(draw(HIDDEN), 1e-5), shift, scale)
    qkv, up = draw(rows, 3 * HEADS * DIM), draw(rows, 2 * FFN)
    angles = torch.randn((rows, ROPE // 2), device=device).repeat(1, 2)
    rope, qk = (angles.cos().to(dtype), angles.sin().to(dtype)), QkNorm(draw(DIM), draw(DIM), 1e-5)
    by_hand, _ = kernels.triton_or_reason(device, dtype)
    if by_hand is not None:
        found.append({"part": "passes by hand", "variant": "values that differ from plain torch", "ms": None})
        found[-1]["rate"] = str(kernels.differing(TorchOps(), by_hand, device, dtype))
    variants: list[BlockOps] = [TorchOps()] + ([by_hand] if by_hand is not None else [])
    for ops in variants:
        steps: dict[str, tuple[Callable[[], Any], float]] = {
            "norm": (lambda o=ops: o.norm_modulate(x, norm, index), 2 * HIDDEN),
            "gate, norm": (lambda o=ops: o.gate_norm_modulate(x, y, gate, norm, index), 4 * HIDDEN),
            "q, k norm and rotation": (lambda o=ops: o.qk_norm_rope(qkv, HEADS, qk, rope), 4 * HEADS * DIM),
            "swiglu": (lambda o=ops: o.swiglu(up), 3 * FFN),
        }
        for name, (run, channels) in steps.items():
            row = _row(f"pass, {name}", ops.name, run, device, 0.0)
            row["rate"] = f"{rows * channels * item / row['ms'] * 1e3 / 1e12:.2f} TB/s"
            found.append(row)
    return found


def _row(part: str, variant: str, run: Callable[[], Any], device: torch.device, operations: float) -> dict[str, Any]:
    seconds = report.timed(run, device, warm=2, repeats=5)["median_s"]
    row = {"part": part, "variant": variant, "ms": round(seconds * 1e3, 2)}
    row["rate"] = f"{operations / max(seconds, 1e-9) / 1e12:.0f} TFLOP/s"
    return row


if __name__ == "__main__":
    main()

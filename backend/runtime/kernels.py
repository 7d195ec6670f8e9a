"""Which kernels the trunk runs on here: attention and element-wise parts, each tried before it is used.

Knows devices and options; the block itself is in `block`, the kernels in `attention`, `ops` and `triton_ops`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from backend.presets import RuntimeOptions
from backend.runtime.attention import choose
from backend.runtime.block import Kernels, compile_block
from backend.runtime.ops import BlockOps, Modulated, Norm, QkNorm, TorchOps

TRIAL = {"rows": 67, "hidden": 5376, "heads": 4, "rope": 96, "ffn": 1000}  # the trunk's hidden size, few rows
TOLERANCE = {torch.bfloat16: 4e-3, torch.float32: 1e-5}  # relative Frobenius norm; a bf16 rounding is 2e-3 on average


def choose_kernels(
    device: torch.device,
    dtype: torch.dtype,
    options: RuntimeOptions,
    notify: Callable[[str], None],
    head_dim: int = 128,
) -> Kernels:
    """Attention and element-wise kernels for the trunk, the fastest of what `options` allow and this machine runs.

    Hand-written kernels win over a compiled block where both work: on an H200 they are faster, and need no warm-up for
    a new shape. Raises Unavailable for an attention kernel that was asked for by name and does not work.
    """
    attention = choose(device, dtype, options.attention, head_dim)
    ops, reason = triton_or_reason(device, dtype) if options.triton else (None, "switched off")
    if ops is not None:
        return Kernels(attention, ops)
    if device.type == "cuda" and options.triton:
        notify(f"Triton kernels are not used: {reason}. Steps are slower; results are the same up to rounding.")
    return Kernels(attention, TorchOps(), compile_block() if options.compile else None)


@functools.cache
def triton_or_reason(device: torch.device, dtype: torch.dtype) -> tuple[BlockOps | None, str]:
    """(the Triton kernels, "") where they compile and agree with plain torch on `device`, else (None, the reason)."""
    if device.type != "cuda":
        return None, f"they need a CUDA device, found {device.type}"
    if dtype not in TOLERANCE:
        return None, f"they compute bfloat16 or float32, not {dtype}"
    try:
        from backend.runtime.triton_ops import TritonOps

        ops = TritonOps()
        distance = worst_distance(TorchOps(), ops, device, dtype)
    except (ImportError, OSError) as error:
        return None, f"they cannot be imported ({error})"
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:  # what Triton's compiler raises
        return (
            None,
            f"they do not compile here ({str(error).strip().splitlines()[0] if str(error).strip() else error!r})",
        )
    if not distance <= TOLERANCE[dtype]:
        return None, f"they differ from plain torch by {distance:.1e}, allowed {TOLERANCE[dtype]:.0e}"
    return ops, ""


def worst_distance(expected: BlockOps, got: BlockOps, device: torch.device, dtype: torch.dtype) -> float:
    """Largest relative distance between two implementations over all four steps, on small random inputs."""
    pairs = _trials(expected, got, device, dtype).values()
    return max(float((a.float() - b.float()).norm() / a.float().norm()) for a, b in pairs)


def differing(expected: BlockOps, got: BlockOps, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Of each step's results, the share of values whose bits differ."""
    pairs = _trials(expected, got, device, dtype).items()
    return {name: round(float((a != b).float().mean()), 6) for name, (a, b) in pairs}


@torch.no_grad()
def _trials(
    expected: BlockOps, got: BlockOps, device: torch.device, dtype: torch.dtype
) -> dict[str, tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    rows, hidden, heads, rope = TRIAL["rows"], TRIAL["hidden"], TRIAL["heads"], TRIAL["rope"]
    x, y, qkv, up = draw(rows, hidden), draw(rows, hidden), draw(rows, 3 * heads * 128), draw(rows, 2 * TRIAL["ffn"])
    shift, scale, gate = draw(6, 3 * hidden).chunk(3, dim=-1)
    index = torch.randint(0, 6, (rows,), generator=generator).to(device)
    norm = Modulated(Norm(draw(hidden), 1e-5), shift, scale)
    angles = torch.randn((rows, rope // 2), generator=generator).repeat(1, 2).to(device)
    qk, turn = QkNorm(draw(128), draw(128), 1e-5), (angles.cos().to(dtype), angles.sin().to(dtype))

    def results(ops: BlockOps) -> list[Tensor]:
        stream = x.clone()
        first = ops.norm_modulate(stream, norm, index)
        second = ops.gate_norm_modulate(stream, y, gate, norm, index)
        ops.gate_add(stream, y, gate, index)
        return [first, second, stream, *ops.qk_norm_rope(qkv.clone(), heads, qk, turn), ops.swiglu(up.clone())]

    names = ("norm", "gate, norm", "residual", "query", "key", "value", "swiglu")
    return dict(zip(names, zip(results(expected), results(got), strict=True), strict=True))

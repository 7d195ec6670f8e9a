"""Working memory beside the weights, by rows and widths: the one formula of the forecast and of the plan on a rank.

Constants were fitted to one H200 (bench/results/step.json, decode.json). Knows no request and no machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from backend.presets import Exchange, Parallel, RuntimeOptions

GIB = 2**30
RESERVE = 2 * GIB  # CUDA context, cuBLAS and cuDNN workspaces, the allocator's rounding
BASE_WORK = 0.165 * GIB  # of a forward, whatever its rows
# 90.2 kB a row of hidden size 5376 beside the weights: three copies of the row, and 58 kB of packed q, k, v or
# feed-forward, which tensor parallelism divides. Stock diffusers' forward takes 180 kB a row.
ROW_COPIES, ROW_WIDE, ROW_STOCK = 3, 2.7, 16.8  # hidden sizes, (inner + ffn) sizes, hidden sizes
# A rank's rooms for exchanges, in widths of a row's queries, keys and values: bench/results/parallel-2.json, within 1 %
# at two lengths. Gathered rows come on top, those of all ranks; mapped rooms too: two turns of four widths of a head.
EXCHANGED = {Exchange.PACKED: 1.44, Exchange.OVERLAPPED: 1.75, Exchange.GATHERED: 0.19, Exchange.MAPPED: 0.19}
MAPPED_ROOMS = 8
NCCL = 1.0 * GIB  # buffers of its communicators, outside torch's allocator: an estimate
# What a rank keeps free before it knows a request: the longest clip of the largest canvas, 362 frames of 1344x768, is
# 107,856 rows of video, 1,206 of sound and those of a prompt. A request with more rows is judged by the forecast.
PLANNED_ROWS = 112_000
PLANNED_TABLES = (49, 3)  # forwards and distinct timesteps of the released recipe with a keyframe or picture
MODALITIES = 3  # diffusers MINIMAX_H3_MODALITY_NUM
ENCODE_WORK = 4 * GIB
DECODE_WORK = 5 * GIB  # 28 tiles take 3.6; a smaller stack is used where less is free


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Of a transformer: row, attention and feed-forward widths, blocks, bytes of a number. Defaults: the release's."""

    hidden: int = 5376
    inner: int = 7168
    ffn: int = 14336
    layers: int = 50
    dtype_bytes: int = 2


def activations(rows: int, widths: Widths, parallel: Parallel, *, fused: bool = True) -> float:
    """Bytes that one forward over `rows` rows takes on a rank beside weights and exchanges."""
    mine = -(-rows // parallel.ulysses_degree)
    if fused:
        wide = ROW_WIDE * (widths.inner + widths.ffn) / parallel.tensor_parallel_size / 2
        row = ROW_COPIES * widths.hidden + wide
    else:
        row = ROW_STOCK * widths.hidden / parallel.tensor_parallel_size
    return BASE_WORK + mine * row * widths.dtype_bytes


def exchange(rows: int, widths: Widths, parallel: Parallel) -> float:
    """Bytes that a rank needs to exchange rows in attention; none where rows are not shared."""
    degree, way = parallel.ulysses_degree, parallel.wanted_exchange
    if degree == 1:
        return 0.0
    inner = widths.inner / parallel.tensor_parallel_size
    row = EXCHANGED[way] * 3 * inner
    if way is Exchange.GATHERED:
        row += degree * widths.hidden
    if way is Exchange.MAPPED:
        row += MAPPED_ROOMS * inner
    return -(-rows // degree) * row * widths.dtype_bytes


def tables(forwards: int, timesteps: int, widths: Widths) -> int:
    """Bytes of exact AdaLN tables for a schedule of `forwards` steps with `timesteps` distinct timesteps each."""
    outputs = widths.layers * 6 * MODALITIES * widths.hidden + 2 * widths.hidden
    return outputs * forwards * timesteps * widths.dtype_bytes


def planned_work(widths: Widths, parallel: Parallel, runtime: RuntimeOptions) -> dict[str, int]:
    """Bytes by stage ("encode", "denoise", "decode") that a rank keeps free for a request it does not know yet."""
    denoise = activations(PLANNED_ROWS, widths, parallel, fused=runtime.fused_block)
    denoise += exchange(PLANNED_ROWS, widths, parallel)
    if runtime.adaln_tables:
        denoise += tables(*PLANNED_TABLES, widths)
    if parallel.ulysses_degree * parallel.tensor_parallel_size > 1:
        denoise += NCCL
    return {"encode": ENCODE_WORK, "denoise": int(denoise), "decode": DECODE_WORK}

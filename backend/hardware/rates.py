"""Seconds of each part of a job on a kind of device: fitted to measured points, else from nominal rates.

Reads `bench/results`; a user's own finished jobs correct these figures in `forecast`.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend import codec
from backend.hardware.model_size import ModelSize
from backend.hardware.placement import Placement
from backend.hardware.probe import Gpu
from backend.hardware.request_shape import RequestShape
from backend.presets import Exchange, HardwarePreset, Offload
from backend.types import Task

RESULTS_DIR = Path(__file__).resolve().parent.parent.parent / "bench" / "results"
# Dense bf16 TFLOP/s by vendors' data sheets, longest name first where one contains another.
NOMINAL_TFLOPS = {
    "B300": 2250.0,
    "B200": 2250.0,
    "GB200": 2250.0,
    "H200": 989.0,
    "GH200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H800": 989.0,
    "H20": 148.0,
    "A100": 312.0,
    "RTX PRO 6000": 503.0,
    "L40S": 362.0,
    "RTX 6000 Ada": 364.0,
    "A6000": 155.0,
    "A40": 150.0,
    "5090": 210.0,
    "4090": 165.0,
    "3090": 71.0,
    "A10": 125.0,
}
REACHED = 0.65  # of the nominal rate: one H200, 643 of 989 TFLOP/s at three sizes (bench/results/step.json)
# Where a card is known to reach another share: two RTX 5090s take 518 s for 49 forwards of 124 frames (vLLM-Omni).
REACHED_BY = {"5090": 0.9}
UNKNOWN_TFLOPS = 100.0  # of a GPU that is in no list; a job or two of the user's own put it right
# Bytes a second over NVLink that ranks wait for, exchanges and sums: two H200s at two lengths (bench/results/
# parallel-2.json) within 2 %; with it 4 and 8 GPUs come to the published 1.464 and 0.78 s of 124 frames within 5 %.
# PCIe 4 x16 moves about 20 GB/s, from page-locked host memory too.
NVLINK_BYTES_S, NVLINK_SUM_BYTES_S, PCIE_BYTES_S = 130e9, 220e9, 20e9
WAITED = {Exchange.OVERLAPPED: 0.9, Exchange.MAPPED: 0.57}  # of a packed exchange, the rest hides behind work
FSDP_WAITED, FSDP_WAITED_PCIE = 0.22, 0.5  # of gathering shards; the second is an assumption
# From page-locked memory over PCIe 5 x16: 48 GiB of conditioner in 1.1 s on an H200 (forecast-1x24gb.json).
PCIE_5_BYTES_S = 45e9
PCIE_5 = ("H100", "H200", "H800", "H20", "B200", "B300", "RTX PRO 6000", "5090")  # by their data sheets
UPLOAD_BYTES_S = 10e9  # parked weights from pageable host memory to the GPU
READ_BYTES_S = 2e9  # weights from a local disk
LIBRARIES_S = 20.0  # a rank imports torch, diffusers and transformers
PREPARE_S, CHILD_S, PREPARE_PX_S = 0.02, 0.8, 2e-8  # a folder; a child that decodes; each pixel of what it hands on


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Seconds of stages beside the forwards on the card they were measured on: `python -m bench.fit` writes them.

    `encode_s`: a prompt; `encode_row_s`: each row the conditioner reads, beyond its own products (pictures are prepared
    and seen); `encode_px_s`: a pixel the VAE encodes; `tile_s`: one VAE tile of one chunk;
    `rest_px_s`: what a pixel of the clip costs in sound, copies to the host and H.264 beyond that.
    """

    device: str
    nominal_tflops: float
    source: str
    encode_s: float
    encode_row_s: float
    encode_px_s: float
    tile_s: float
    rest_px_s: float
    mux_s: float


@functools.cache
def fitted(file: Path = RESULTS_DIR / "rates.json") -> Fitted:
    """The fit that is kept with the measurements."""
    return codec.decode(Fitted, json.loads(file.read_text(encoding="utf-8")), file.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """A time and where it comes from."""

    seconds: float
    basis: str

    def __add__(self, other: Seconds) -> Seconds:
        """The sum of two times; bases are joined."""
        basis = self.basis if self.basis == other.basis else f"{self.basis}; {other.basis}"
        return Seconds(seconds=self.seconds + other.seconds, basis=basis)


def host_bytes_s(gpu: Gpu) -> float:
    """Bytes a second from page-locked host memory to a card."""
    return PCIE_5_BYTES_S if any(part in gpu.name for part in PCIE_5) else PCIE_BYTES_S


def streamed_s(preset: HardwarePreset, size: ModelSize, gpu: Gpu) -> float:
    """Seconds that the trunk's blocks of one forward take to come from host memory; 0 where they are on the GPU."""
    if preset.runtime.offload is not Offload.BLOCKS:
        return 0.0
    coming = max(0, size.layers - preset.runtime.resident_layers)
    return coming * size.block / preset.parallel.tensor_parallel_size / host_bytes_s(gpu)


def step(preset: HardwarePreset, shape: RequestShape, size: ModelSize, gpu: Gpu | None) -> Seconds:
    """Seconds of one forward."""
    if gpu is None:
        return _on_cpu(preset, shape)
    alone, basis = _alone(shape, size, gpu)
    coming = streamed_s(preset, size, gpu)
    if coming:
        source = "measured on an H200" if "H200" in gpu.name else "an assumption"
        basis += f"; weights streamed meanwhile at {host_bytes_s(gpu) / 1e9:.0f} GB/s, {source}"
    ranks = preset.parallel.ulysses_degree * preset.parallel.tensor_parallel_size
    if ranks == 1:
        return Seconds(seconds=max(alone, coming), basis=basis)
    known = "measured on" if ranks == 2 and gpu.links else "extrapolated from"
    return Seconds(
        seconds=max(alone / ranks, coming) + _exchange_s(preset, shape, size, gpu),
        basis=f"{basis}, shared by {ranks} with exchanges over {gpu.link} ({known} two H200s, parallel-2.json)",
    )


def _alone(shape: RequestShape, size: ModelSize, gpu: Gpu) -> tuple[float, str]:
    """(seconds, basis) of a forward on one GPU."""
    points = measured_points().get(gpu.name)
    flops = size.linear_flops(shape.rows) + size.attention_flops(shape.rows)
    if points is not None and size.alike(ModelSize()):
        a, b, c = points.curve
        return a + b * shape.rows + c * shape.rows**2, f"measured on {gpu.name} ({points.file})"
    nominal = nominal_tflops(gpu.name)
    if nominal is None:
        return flops / (UNKNOWN_TFLOPS * REACHED * 1e12), f"a guess: no rate of {gpu.name} is known"
    reached = next((share for part, share in REACHED_BY.items() if part in gpu.name), REACHED)
    return flops / (nominal * reached * 1e12), f"formula: {reached:.0%} of {gpu.name}'s nominal {nominal:g} TFLOP/s"


def _exchange_s(preset: HardwarePreset, shape: RequestShape, size: ModelSize, gpu: Gpu) -> float:
    """Seconds that ranks wait for each other's data in one forward."""
    parallel = preset.parallel
    rate, sums = (NVLINK_BYTES_S, NVLINK_SUM_BYTES_S) if gpu.links else (PCIE_BYTES_S, PCIE_BYTES_S)
    waited = 0.0
    if (n := parallel.ulysses_degree) > 1:
        way, inner = parallel.wanted_exchange, size.inner / parallel.tensor_parallel_size
        # All but the own part: the result back, and before that q, k and v, or the rows they are projected from.
        before = size.hidden * n if way is Exchange.GATHERED else 3 * inner
        waited += shape.rows / n * (before + inner) * (n - 1) / n * WAITED.get(way, 1.0) / rate
        if parallel.fsdp:
            share = FSDP_WAITED if gpu.links else FSDP_WAITED_PCIE
            waited += size.trunk / size.layers / size.dtype_bytes * (n - 1) / n * share / rate
    if (n := parallel.tensor_parallel_size) > 1:  # two sums of hidden rows a block
        waited += 2 * 2 * (n - 1) / n * shape.rows / parallel.ulysses_degree * size.hidden / sums
    return waited * size.dtype_bytes * size.layers


def decode(preset: HardwarePreset, shape: RequestShape, gpu: Gpu | None) -> Seconds:
    """Seconds from latents to all frames in the encoder."""
    if gpu is None:
        frame_s = CPU_DECODE_FRAME_S + shape.width * shape.height * CPU_DECODE_PX_S
        return Seconds(seconds=shape.num_frames * frame_s, basis=CPU_BASIS)
    share = preset.world_size if preset.parallel.vae_tile_parallel else 1
    tiles = -(-shape.tiles // share) * shape.chunks
    fit = fitted()
    factor = fit.nominal_tflops / (nominal_tflops(gpu.name) or UNKNOWN_TFLOPS)
    px = shape.num_frames * shape.width * shape.height
    return Seconds(seconds=tiles * fit.tile_s * factor + px * fit.rest_px_s, basis=_measured_on(fit, gpu))


def mux() -> Seconds:
    """Seconds of closing an MP4."""
    return Seconds(seconds=fitted().mux_s, basis=f"measured: closing an MP4 (rates.json: {fitted().source})")


def _measured_on(fit: Fitted, gpu: Gpu) -> str:
    scaled = "" if gpu.name == fit.device else f", scaled to {gpu.name} by nominal rates"
    return f"measured on {fit.device} (rates.json){scaled}"


def encode(preset: HardwarePreset, shape: RequestShape, size: ModelSize, placement: Placement) -> Seconds:
    """Seconds of conditioning: prompt, pictures, and parked weights on their way to the GPU."""
    gpu = placement.gpu
    if gpu is None:
        return Seconds(seconds=CPU_ENCODE_S + shape.encoded_px * CPU_ENCODE_PX_S, basis=CPU_BASIS)
    fit, nominal = fitted(), nominal_tflops(gpu.name) or UNKNOWN_TFLOPS
    work = fit.encode_s + text_s(size, shape.text_rows, nominal)
    seen = shape.encoded_px * fit.encode_px_s + shape.text_rows * fit.encode_row_s
    work += seen * fit.nominal_tflops / nominal
    moved = size.text_encoder / preset.parallel.conditioner_tensor_parallel
    rate = host_bytes_s(gpu) if preset.runtime.offload is Offload.BLOCKS else UPLOAD_BYTES_S
    moved_s = moved / rate if "text_encoder" in placement.parked else 0.0
    basis = _measured_on(fit, gpu) + (", parked weights by formula" if moved_s else "")
    return Seconds(seconds=work + moved_s, basis=basis)


def text_s(size: ModelSize, rows: int, nominal: float) -> float:
    """Seconds of so many rows through the conditioner, at half of a card's nominal TFLOP/s."""
    return 2.0 * size.text_encoder / size.dtype_bytes * rows / (nominal * 0.5e12)


def denoise_move(preset: HardwarePreset, size: ModelSize, placement: Placement) -> float:
    """Seconds of bringing a parked transformer, or what of it is not streamed, to the GPU before the first forward."""
    if "transformer" not in placement.parked:
        return 0.0
    streamed = preset.runtime.offload is Offload.BLOCKS
    return (size.outside_blocks if streamed else size.trunk) / UPLOAD_BYTES_S


def tabulate(preset: HardwarePreset, size: ModelSize, gpu: Gpu | None) -> Seconds | None:
    """Seconds of making AdaLN tables for a schedule that is new here: every projection is read once."""
    if gpu is None or not preset.runtime.adaln_tables:
        return None
    seconds = size.adaln / READ_BYTES_S
    return Seconds(seconds=seconds, basis=f"{seconds:.0f} s once for the tables of a schedule that is new here")


def prepare(shape: RequestShape) -> Seconds:
    """Seconds of decoding media in limited children."""
    if shape.task is Task.T2VA:
        return Seconds(seconds=PREPARE_S, basis="nothing to decode")
    px = shape.encoded_px * PREPARE_PX_S
    return Seconds(seconds=PREPARE_S + CHILD_S + px, basis="formula, not measured")


def load(size: ModelSize, gpu: Gpu | None) -> Seconds:
    """Seconds from starting the processes to ready, weights read from a local disk."""
    if gpu is None:
        return Seconds(seconds=CPU_LOAD_S + size.stored / READ_BYTES_S, basis=CPU_BASIS)
    read = size.stored - size.adaln
    return Seconds(seconds=LIBRARIES_S + read / READ_BYTES_S, basis="formula: 2 GB/s from the disk, not measured")


def nominal_tflops(name: str) -> float | None:
    """Dense bf16 TFLOP/s of a GPU by its name, None for one that is in no list."""
    return next((rate for part, rate in NOMINAL_TFLOPS.items() if part in name), None)


@dataclass(frozen=True, slots=True)
class Points:
    """Measured forwards of one device: (rows, seconds) pairs, and the parabola through them."""

    file: str
    points: tuple[tuple[int, float], ...]

    @property
    def curve(self) -> tuple[float, float, float]:
        """(a, b, c) of a + b rows + c rows^2, least squares over relative errors."""
        return _fit(self.points)


@functools.cache
def measured_points(folder: Path = RESULTS_DIR) -> dict[str, Points]:
    """Forwards of the released size by device name, from `step*.json` of `python -m bench.step`."""
    found: dict[str, Points] = {}
    for path in sorted(folder.glob("step*.json")):
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content.get("dtype") != "torch.bfloat16":
            continue
        points = tuple((row["rows"], row["median_s"]) for row in content["rows"] if row["what"] == "ours")
        if len(points) >= 3:
            found[content["environment"]["device"]] = Points(path.name, points)
    return found


def _fit(points: tuple[tuple[int, float], ...]) -> tuple[float, float, float]:
    """Weighted normal equations of three unknowns, solved by elimination: numpy is not worth its import here."""
    scale = max(rows for rows, _ in points)
    table = [[0.0] * 4 for _ in range(3)]
    for rows, seconds in points:
        powers = [(rows / scale) ** power / seconds for power in range(3)]
        for i in range(3):
            for j in range(3):
                table[i][j] += powers[i] * powers[j]
            table[i][3] += powers[i]
    for i in range(3):
        pivot = max(range(i, 3), key=lambda row: abs(table[row][i]))
        table[i], table[pivot] = table[pivot], table[i]
        for row in range(3):
            if row != i:
                factor = table[row][i] / table[i][i]
                table[row] = [left - factor * right for left, right in zip(table[row], table[i], strict=True)]
    a, b, c = (table[i][3] / table[i][i] for i in range(3))
    return a, b / scale, c / scale**2


# The tiny model in float32, seconds of one thread of a server's CPU; a user's own jobs correct these at once.
CPU_BASIS = "measured on a CPU with the tiny model"
CPU_LOAD_S = 7.0
CPU_ENCODE_S = 0.05
CPU_ENCODE_PX_S = 4e-6
CPU_DECODE_FRAME_S, CPU_DECODE_PX_S = 1.9e-3, 1.5e-7  # each frame (its sound included), and each pixel of it
CPU_STEP = (0.0115, 1.0e-6, 4.5e-8)  # of 900 to 7,700 rows


def _on_cpu(preset: HardwarePreset, shape: RequestShape) -> Seconds:
    a, b, c = CPU_STEP
    rows = shape.rows
    return Seconds(seconds=a + b * rows + c * rows * rows / preset.world_size, basis=CPU_BASIS)

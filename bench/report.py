"""How a measurement is timed, compared, printed and kept.

Knows nothing of what is measured.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("torch", "diffusers", "transformers", "triton", "fa3-fwd", "av")


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Arguments every measurement has; it adds its own."""
    made = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=description)
    made.add_argument("--tiny", action="store_true", help="tiny model and shapes, for a CPU")
    made.add_argument("--out", type=Path, default=None, help="folder for the JSON; default bench/results")
    return made


def run(
    name: str,
    measure: Callable[[torch.device, torch.dtype, argparse.Namespace], dict[str, Any]],
    columns: list[str],
    options: argparse.Namespace,
) -> None:
    """Measure on the GPU in bfloat16, or on the CPU in float32; print a table, write the JSON."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.no_grad():
        content = measure(device, dtype, options)
    print(table(content["rows"], columns))
    print("written:", write(f"{name}-tiny" if options.tiny else name, content, options.out))


def environment(device: torch.device) -> dict[str, Any]:
    """Hardware, versions and date of this run."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "python": platform.python_version(),
        "versions": versions,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
    }
    if device.type == "cuda":
        found["cuda"] = torch.version.cuda
        found["cudnn"] = torch.backends.cudnn.version()
        found["gpu_memory_gib"] = round(torch.cuda.get_device_properties(device).total_memory / 2**30, 1)
    return found


def timed(run: Callable[[], Any], device: torch.device, *, warm: int = 1, repeats: int = 3) -> dict[str, Any]:
    """Median, all times (s) and peak memory (GiB) of `run`, after `warm` unmeasured runs; its last result too."""
    result = None
    for _ in range(warm):
        result = run()
    _wait(device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    times = []
    for _ in range(repeats):
        result = None  # so that the last result does not count as memory of the next run
        started = time.perf_counter()
        result = run()
        _wait(device)
        times.append(time.perf_counter() - started)
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    return {
        "median_s": round(statistics.median(times), 5),
        "times_s": [round(each, 5) for each in times],
        "peak_gib": None if peak is None else round(peak, 2),
        "result": result,
    }


def difference(expected: Tensor, got: Tensor) -> dict[str, float]:
    """Largest, mean and relative (Frobenius) difference, computed in float32."""
    expected, got = expected.float(), got.float()
    gap = (expected - got).abs()
    return {
        "max": float(gap.max()),
        "mean": float(gap.mean()),
        "relative": float((expected - got).norm() / expected.norm()),
    }


def table(rows: list[dict[str, Any]], columns: list[str]) -> str:
    """Rows as aligned text; a missing value is a dash."""

    def shown(value: Any) -> str:
        if value is None:
            return "-"
        return f"{value:.3g}" if isinstance(value, float) and abs(value) < 0.01 and value else str(value)

    cells = [columns, *[[shown(row.get(column)) for column in columns] for row in rows]]
    widths = [max(len(line[place]) for line in cells) for place in range(len(columns))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def write(name: str, content: dict[str, Any], folder: Path | None = None) -> Path:
    """Keep a result as `<folder>/<name>.json`."""
    folder = folder or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

"""A forecast in lines of text, for the command line: which rank on which GPU, memory by part, seconds by stage.

Knows words only; every number comes from the forecast.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata

from backend.hardware.forecast import Forecast
from backend.hardware.machine_view import MachineView
from backend.hardware.placement import RankPlace
from backend.hardware.topology import RankView
from backend.types import FPS


def forecast_lines(forecast: Forecast) -> list[str]:
    """A heading and one line a rank, stage and disk part; a refusal takes the place of the seconds."""
    shape, placement = forecast.shape, forecast.placement
    seconds = shape.num_frames / FPS
    lines = [f"A clip of {shape.width}x{shape.height}, {seconds:.1f} s, {shape.forwards} forwards on {forecast.preset}"]
    lines += [f"  {_rank(rank)}" for rank in placement.ranks]
    if placement.host:
        host = ", ".join(f"{part.name} {part.gib:.1f}" for part in placement.host)
        lines.append(f"  host RAM {placement.host_gib:.1f} GiB: {host}")
    lines.append(
        f"  disk {forecast.disk_gib:.2f} GiB: " + ", ".join(f"{part.name} {part.gib:.2f}" for part in forecast.disk)
    )
    if forecast.refusal is not None:
        return [*lines, f"  does not fit: {forecast.refusal}"]
    if forecast.total_s is None:
        return [*lines, "  seconds are not known yet: the first job that the server finishes will tell"]
    lines += [f"  {time.stage.value:<8} {time.seconds:8.1f} s  {time.basis}" for time in forecast.times]
    return [*lines, f"  in all   {forecast.total_s:8.1f} s"]


def preset_lines(machine: MachineView) -> list[str]:
    """One line a preset: whether it fits, what it takes for a usual clip, or why not and what would let it."""
    lines = []
    for preset in machine.presets:
        if preset.fits:
            words = f"{preset.title}: {preset.form}"
            words += f", {preset.peak_gib:.1f} GiB at most for {preset.clip}" if preset.ranks else ""
        else:
            words = f"{preset.reason}" + (f"; what is missing: {preset.change}" if preset.change else "")
        lines.append(f"{'fits' if preset.fits else 'no  '}  {preset.name:<12} {words}")
    return lines


def _rank(rank: RankPlace) -> str:
    peak = rank.peak
    parts = ", ".join(f"{part.name} {part.gib:.1f}" for part in peak.parts if part.gib >= 0.05)
    if rank.gpu is None:
        return f"rank {rank.rank} on the CPU: {peak.gib:.2f} GiB beside its libraries, most in {peak.stage.value}"
    where = f"GPU {rank.gpu.index} ({rank.gpu.name})"
    memory = f"{peak.gib:.1f} of {rank.gpu.memory_total_gib:.1f} GiB in {peak.stage.value}"
    return f"rank {rank.rank} on {where}: {memory}: {parts}"


def machine_report(machine: MachineView, models: Sequence[str]) -> str:
    """The whole machine in text: GPUs and their users, memory, presets with their reasons, models, ranks, versions."""
    lines = ["Machine"]
    for gpu in machine.gpus:
        users = f", {len(gpu.others)} other programs on it" if gpu.others else ""
        lines.append(
            f"  GPU {gpu.index}: {gpu.name}, {gpu.free_gib:.1f} of {gpu.total_gib:.1f} GiB free, {gpu.link}{users}"
        )
    lines.append(f"  Driver {machine.driver}" if machine.gpus else f"  No GPU: {machine.gpu_note}")
    lines.append(f"  RAM {machine.ram_free_gib:.1f} of {machine.ram_total_gib:.1f} GiB free")
    lines.append(f"  Disk {machine.disk_free_gib:.1f} GiB free, {machine.cpu_cores} CPU cores")
    lines += ["", f"Chosen: {machine.chosen}, {machine.fleets} at once. {machine.reason}", "", "Presets"]
    lines += [f"  {line}" for line in preset_lines(machine)]
    lines += ["", "Models", *(f"  {line}" for line in models)]
    lines += ["", "Processes", *(f"  {_live(rank)}" for rank in machine.ranks)] if machine.ranks else []
    lines += ["", "Versions", *(f"  {name:<18} {version}" for name, version in versions().items())]
    return "\n".join(lines)


def versions() -> dict[str, str]:
    """Python, the system and the packages that matter, by name; nothing is imported for it."""
    found = {"Python": platform.python_version(), "System": f"{platform.system()} {platform.release()}"}
    for name in ("torch", "diffusers", "transformers", "gradio", "av", "huggingface_hub", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _live(rank: RankView) -> str:
    where = f" on GPU {rank.gpu_index} ({rank.gpu_name})" if rank.gpu_index is not None else ""
    stage = f", {rank.stage.value}" if rank.stage is not None else ""
    return (
        f"fleet {rank.fleet} rank {rank.rank}{where}: {rank.state}{stage}, process {rank.pid}, {rank.rss_gib:.2f} GiB"
    )

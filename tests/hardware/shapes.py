"""Machines and requests of any size for tests of hardware, without any of it."""

from backend import limits
from backend.hardware.probe import Gpu, Hardware
from backend.hardware.request_shape import RequestShape
from backend.types import Task

TEXT_ROWS = 300  # bench.models.TEXT_ROWS: the rows its measurements were made with


def shape(width, height, frames, task=Task.T2VA, timesteps=2, steps=50, **more):
    rows = (width // 32) * (height // 32)
    return RequestShape(
        task=task,
        width=width,
        height=height,
        num_frames=frames,
        forwards=steps - 1,
        timesteps=timesteps,
        text_rows=TEXT_ROWS,
        condition_rows=more.pop("condition_rows", 0),
        audio_rows=2 * limits.num_audio_latents(frames),
        video_rows=limits.num_latent_frames(frames) * rows,
        **more,
    )


def machine(count=0, memory=80.0, ram=512.0, name="H100", links=0, disk=500.0):
    gpus = tuple(
        Gpu(index=i, uuid=f"GPU-{i}", name=name, memory_total_gib=memory, memory_free_gib=memory, links=links)
        for i in range(count)
    )
    return Hardware(gpus=gpus, ram_total_gib=ram, ram_free_gib=ram, disk_free_gib=disk, cpu_cores=8)

"""Fills a data folder with finished jobs and small real MP4s, without any model, for a page that shows many."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np

from backend import codec
from backend.api import Backend
from backend.jobs.services import find_checkpoint
from backend.media import kept
from backend.media.mp4 import Mp4Writer
from backend.settings import Settings
from backend.types import EncoderSettings, GenerationRequest, Sampling
from tests.job_fakes import World, fake_services, wait_until

WIDTH, HEIGHT, FRAMES = 224, 128, 107
SUBJECTS = ("A lighthouse at dusk", "A fox in the snow", "A kettle that sings", "Rain on a tin roof", "A paper boat")


def fill(data_dir: Path, owner: str, count: int, fail_every: int = 0) -> list[str]:
    """`count` ended jobs of `owner`, oldest first; every `fail_every`th has failed. Returns their ids."""
    world = World(steps=3, step_s=0.0)
    services = dataclasses.replace(fake_services(world), find_checkpoint=find_checkpoint)
    backend = Backend(Settings(data_dir=data_dir), preset="tiny-cpu", services=services)
    clips = [_clip(data_dir / f"clip-{index}.mp4", index) for index in range(len(SUBJECTS))]
    jobs = []
    try:
        for index in range(count):
            if fail_every and index % fail_every == fail_every - 1:
                world.fail_at_step = 2
            jobs.append(_job(backend, owner, index, clips[index % len(clips)]))
    finally:
        backend.close()
    for clip in clips:
        clip.unlink()
    return jobs


def _job(backend: Backend, owner: str, index: int, clip: Path) -> str:
    sampling = Sampling(num_frames=FRAMES, width=WIDTH, height=HEIGHT, num_inference_steps=4, seed=1000 + index)
    prompt = f"{SUBJECTS[index % len(SUBJECTS)]}, take {index}. Sound: wind."
    job = backend.submit(GenerationRequest(prompt=prompt, sampling=sampling), owner=owner)
    wait_until(lambda: backend.job(job, owner=owner).state.ended)
    record = backend.job(job, owner=owner)
    if record.video is not None:
        details = {
            "format": 1,
            "job": job,
            "request": codec.encode(record.request),
            "inputs": [],
            "quality": record.quality,
            "attention": "torch SDPA",
        }
        record.sidecar.write_text(json.dumps(details))
        shutil.copyfile(clip, record.video)
        if index < len(SUBJECTS):  # these carry their settings; writing them all would only take time
            _clip(record.video, index, json.dumps(kept.portable(details)))
    return job


def _clip(path: Path, variant: int, comment: str = "{}") -> Path:
    """A disc that moves over a gradient, with a tone; no two variants alike."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float32)
    ground = np.stack([x / WIDTH * 160 + 20 * variant, y / HEIGHT * 150 + 40, 190 - 20 * variant + 0 * x], axis=2)
    with Mp4Writer(path, WIDTH, HEIGHT, EncoderSettings(crf=26, x264_preset="ultrafast")) as writer:
        for index in range(FRAMES):
            at = (30 + index * 1.6, HEIGHT / 2 + 30 * np.sin(index / 9 + variant))
            disc = ((x - at[0]) ** 2 + (y - at[1]) ** 2 < 400)[..., None]
            writer.write_frames(np.where(disc, 245, ground).clip(0, 255).astype(np.uint8)[None])
        tone = 0.2 * np.sin(np.arange(FRAMES * 32_000 // 24) * 2 * np.pi * (220 + 55 * variant) / 32_000)
        writer.write_audio(np.stack([tone, tone]).astype(np.float32))
        writer.close({"comment": comment})
    return path

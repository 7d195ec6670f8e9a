"""The shipped CPU preset, through the real fleet and every exact option, against diffusers' own pipeline.

One warm engine renders all tasks in a row: what is kept between jobs (tables, prompts, the other transformer) must
never reach the wrong one.
"""

import numpy as np
import pytest
import torch
from diffusers.modular_pipelines.minimax_h3 import MiniMaxH3ImageReference
from PIL import Image
from safetensors.torch import load_file
from stock import load_stock, run_stock

from backend.engines.native import NativeEngine
from backend.events import PreviewReady, Succeeded
from backend.presets import hardware_presets
from backend.settings import Settings
from backend.types import (
    GenerationRequest,
    JobId,
    PreparedMedia,
    PreparedReference,
    Reference,
    ReferenceKind,
    Render,
    Sampling,
)

SIZE = (224, 128)


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("media") / "picture.png"
    pixels = np.random.default_rng(3).integers(0, 256, (SIZE[1], SIZE[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def cases(picture):
    image = Image.open(picture)
    reference = Reference(path=picture, kind=ReferenceKind.IMAGE)
    prepared = PreparedReference(kind=ReferenceKind.IMAGE, image=picture)
    return {
        "t2va": ({}, PreparedMedia(), {}),
        "fl2va": ({"first_frame": picture}, PreparedMedia(first_frame=picture), {"image": image}),
        "ref2va": (
            {"references": (reference,)},
            PreparedMedia(references=(prepared,)),
            {"references": [MiniMaxH3ImageReference(image=image)]},
        ),
    }


def test_every_task_in_a_row_equals_stock_bit_for_bit(tiny_checkpoint, picture, tmp_path):
    stock = load_stock(tiny_checkpoint)
    engine = NativeEngine(hardware_presets()["tiny-cpu"], tiny_checkpoint, Settings(data_dir=tmp_path / "data"))
    expected = {}
    sampling = Sampling(num_frames=124, width=SIZE[0], height=SIZE[1], num_inference_steps=3, seed=11)
    try:
        for round_number in range(2):  # the second time with everything warm and tables from the disk
            for name, (asked, media, given) in cases(picture).items():
                request = GenerationRequest(prompt="a red boat, gulls 雨", sampling=sampling, **asked)
                tensors = tmp_path / f"{name}-{round_number}.safetensors"
                folder = tmp_path / f"{name}-{round_number}"
                folder.mkdir()
                order = Render(job=JobId(name), request=request, media=media, folder=folder, tensors=tensors)
                *events, end = engine.generate(order)
                assert isinstance(end, Succeeded), end
                shown = [event.path.name for event in events if isinstance(event, PreviewReady)]
                assert "preview.png" in shown, name  # pictures change nothing of what is compared below
                if name not in expected:
                    expected[name] = run_stock(stock, request, **given)
                ours, theirs = load_file(tensors), expected[name]
                for kind in ("latents", "audio_latents"):
                    assert torch.equal(ours[kind], theirs[kind]), (name, kind, round_number)
                assert torch.allclose(ours["audio"], theirs["audio"], rtol=0, atol=1e-5), name
    finally:
        engine.close()

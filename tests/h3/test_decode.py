"""Streamed decoding: equal to decoding at once, in memory that does not grow with the clip."""

import itertools
import weakref
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLMiniMaxH3Audio
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from backend.h3 import decode
from backend.h3.pipeline import Pipeline
from backend.h3.seams import stock_decode_clip


class LiveBytes(TorchDispatchMode):
    """Bytes of tensors made inside that are still reachable, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.holders: Counter[int] = Counter()
        self.live = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._hold(tensor)
        return out

    def _hold(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage.data_ptr(), storage.nbytes()
        if not self.holders[key]:
            self.live += size
            self.peak = max(self.peak, self.live)
        self.holders[key] += 1
        weakref.finalize(tensor, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self.holders[key] -= 1
        if not self.holders[key]:
            self.live -= size


def latents_of(num_frames: int, pipeline: Pipeline) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    video = torch.randn(1, 24, (num_frames - 5) // 17 * 5 + 2, 4, 8, generator=generator)
    return video, torch.randn(2, 32, round(num_frames / 24 * 40), generator=generator)


def peak_of_decode(num_frames: int, pipeline: Pipeline) -> int:
    video, audio = latents_of(num_frames, pipeline)
    with LiveBytes() as memory:
        for _ in decode.audio_chunks(pipeline.components.audio_vae, audio):
            pass
        for _ in decode.video_chunks(pipeline.components.vae, video, stock_decode_clip):
            pass
    return memory.peak


def test_peak_memory_does_not_grow_with_length(pipeline: Pipeline) -> None:
    short, long = peak_of_decode(124, pipeline), peak_of_decode(362, pipeline)
    assert long < 1.15 * short
    # The measure is able to see growth: diffusers' own decode needs about three times as much for three times the clip.
    stock = []
    for num_frames in (124, 362):
        with LiveBytes() as memory, torch.no_grad():
            pipeline.components.vae.decode(latents_of(num_frames, pipeline)[0])
        stock.append(memory.peak)
    assert stock[1] > 2 * stock[0]


@pytest.mark.parametrize("num_latents", [7, 8, 9, 10, 11, 12, 13])
def test_any_latent_length_decodes_as_diffusers_does(pipeline: Pipeline, num_latents: int) -> None:
    vae = pipeline.components.vae
    latents = torch.randn(1, 24, num_latents, 4, 4, generator=torch.Generator().manual_seed(num_latents))
    mean = torch.tensor(vae.config.latents_mean).view(1, -1, 1, 1, 1)
    std = torch.tensor(vae.config.latents_std).view(1, -1, 1, 1, 1)
    with torch.no_grad():
        whole = vae.decode(latents * std + mean, return_dict=False)[0]
    pixel_std = torch.tensor((0.229, 0.224, 0.225)).view(1, -1, 1, 1, 1)
    pixel_mean = torch.tensor((0.485, 0.456, 0.406)).view(1, -1, 1, 1, 1)
    expected = ((whole * pixel_std + pixel_mean).clamp(0, 1) * 255).round()[0].permute(1, 2, 3, 0)
    chunks = torch.cat(list(decode.video_chunks(vae, latents, stock_decode_clip)))
    assert decode.count_frames(vae, num_latents) == whole.shape[2] == chunks.shape[0]
    assert (chunks - expected).abs().max() <= 1


def test_a_sample_depends_on_no_latent_beyond_the_context() -> None:
    torch.manual_seed(0)
    # Narrow, but with the released kernels, dilations and rates, which are the class's defaults.
    audio_vae = AutoencoderKLMiniMaxH3Audio(encoder_dim=4, latent_dim=64, decoder_dim=128, num_attention_heads=4)
    context = decode.audio_context(audio_vae)
    latents = torch.randn(1, 32, 4 * context)
    changed = latents.clone()
    changed[..., 2 * context] += 5.0
    with torch.no_grad():
        difference = (audio_vae.decode(latents).sample != audio_vae.decode(changed).sample)[0, 0].nonzero()
    first, last = difference[0].item() // 800, difference[-1].item() // 800
    assert context <= first < 2 * context < last <= 3 * context


def test_tiles_are_blended_as_released(pipeline: Pipeline) -> None:
    """A canvas above 256 px is decoded in tiles; a decode without tiles looks different, so tiling must stay on."""
    vae = pipeline.components.vae
    latents = torch.randn(1, 24, 7, 8, 20, generator=torch.Generator().manual_seed(1))
    tiled = torch.cat(list(decode.video_chunks(vae, latents, stock_decode_clip)))
    whole = torch.cat(list(decode.video_chunks(vae, latents, lambda vae, z: vae.decoder(vae.post_quant_conv(z)))))
    assert tiled.shape == whole.shape == (22, 128, 320, 3)
    assert not torch.equal(tiled, whole)


def test_the_sound_of_every_clip_is_decoded_before_it_and_no_more() -> None:
    vae = SimpleNamespace(tokens_chunk_size=5, temporal_compression_ratio=4, frame_pre_padding=3)  # 17 frames a clip
    audio_vae = SimpleNamespace(hop_length=800)
    counts = list(itertools.islice(decode.audio_ahead(vae, audio_vae, 348), 12))  # 209 frames
    # Clips end every 0.708 s, chunks of sound every 1.5 s.
    assert counts == [1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0]

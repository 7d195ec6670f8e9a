import pytest
import torch

from backend.runtime import vae_tiles
from backend.runtime.vae_tiles import DecodeOutOfMemory, TileDecoder
from bench import models

CPU = torch.device("cpu")


@pytest.fixture
def vae():
    return models.vae(CPU, torch.float32, tiny=True)


@pytest.mark.parametrize("stack", [0, 1, 3])
def test_stacked_tiles_are_bit_equal_to_one_at_a_time(vae, stack):
    latents = torch.randn(1, 24, 2, 18, 30)  # 288x480: two by three tiles
    expected = vae._decode_clip(latents)
    got = TileDecoder(stack, pytest.fail).decode_clip(vae, latents)
    assert torch.equal(got, expected)


def test_several_clips_stack_together(vae):
    clips = [torch.randn(1, 24, 2, 18, 16) for _ in range(2)]
    got = TileDecoder(0, pytest.fail).decode_clips(vae, clips)
    assert all(torch.equal(mine, vae._decode_clip(clip)) for mine, clip in zip(got, clips, strict=True))


def test_without_tiling_the_vae_decodes_as_it_would(vae):
    vae.use_tiling = False
    latents = torch.randn(1, 24, 3, 4, 4)
    assert torch.equal(TileDecoder(0, pytest.fail).decode_clip(vae, latents), vae._decode_clip(latents))


class Cramped(torch.nn.Module):
    """A decoder that runs out of memory above `limit` tiles."""

    def __init__(self, decoder, limit):
        super().__init__()
        self.decoder, self.limit, self.sizes = decoder, limit, []
        self.num_register_tokens, self.proj_out = decoder.num_register_tokens, decoder.proj_out

    def forward(self, tiles):
        self.sizes.append(tiles.shape[0])
        if tiles.shape[0] > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.decoder(tiles)


def test_out_of_memory_halves_the_stack_and_is_said(vae):
    latents = torch.randn(1, 24, 2, 18, 30)
    expected = vae._decode_clip(latents)
    vae.decoder = Cramped(vae.decoder, 2)
    said = []
    tiles = TileDecoder(0, said.append)
    assert torch.equal(tiles.decode_clip(vae, latents), expected)
    assert vae.decoder.sizes == [6, 3, 1, 1, 1, 1, 1, 1]
    assert said[-1].startswith("Not enough GPU memory for larger stacks: decoding 1 VAE tiles at a time")
    vae.decoder.sizes.clear()
    tiles.decode_clip(vae, latents)
    assert vae.decoder.sizes == [1] * 6  # the smaller stack is kept


def test_when_not_one_tile_fits_the_error_says_what_would(vae):
    vae.decoder = Cramped(vae.decoder, 0)
    with pytest.raises(DecodeOutOfMemory, match=r"one VAE tile needs about .* GiB and .* GiB are free.*offload"):
        TileDecoder(0, lambda _: None).decode_clip(vae, torch.randn(1, 24, 2, 18, 30))


def test_tiles_without_room_for_their_canvas_are_put_together_in_host_memory(vae, monkeypatch):
    clips = [torch.randn(1, 24, 2, 18, 30) for _ in range(2)]
    expected = [vae._decode_clip(clip) for clip in clips]
    stitch, calls, said = type(vae)._stitch_tiles, [], []

    def cramped(self, tiles, *overlaps):
        calls.append(tiles)
        if len(calls) in fails:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return stitch(self, tiles, *overlaps)

    monkeypatch.setattr(type(vae), "_stitch_tiles", cramped)
    fails = {1}
    got = TileDecoder(0, said.append).decode_clips(vae, clips)
    assert all(torch.equal(mine, one) for mine, one in zip(got, expected, strict=True))
    assert len(calls) == 3
    assert said == ["Not enough GPU memory to put VAE tiles together there: done in host memory, which is slower."]
    calls.clear()
    fails = {1, 2}
    with pytest.raises(
        DecodeOutOfMemory, match=r"the canvas of a clip's tiles needs about .* free on the GPU.*offload"
    ):
        TileDecoder(0, said.append).decode_clips(vae, clips)


def test_a_released_tile_needs_about_what_was_measured():
    """118 MB of activations for 1797 tokens of width 2048 (28 tiles in 3.6 GiB on an H200), pixels on top."""
    vae = models.on_meta(type(models.vae(CPU, torch.float32, tiny=True)))
    tile = torch.empty(1, 24, 7, 16, 16, dtype=torch.bfloat16, device="meta")
    assert 110e6 < vae_tiles.bytes_per_tile(vae, tile) < 200e6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_fused_blocks_differ_by_rounding_only():
    from backend.runtime.attention import choose
    from backend.runtime.kernels import triton_or_reason

    device = torch.device("cuda")
    vae = models.vae(device, torch.bfloat16, tiny=True)
    latents = torch.randn(1, 24, 7, 18, 30, device=device, dtype=torch.bfloat16)
    expected = vae._decode_clip(latents).float()
    ops, reason = triton_or_reason(device, torch.bfloat16)
    assert ops is not None, reason
    vae_tiles.speed_up(vae, choose(device, torch.bfloat16, "sdpa", 32), ops)
    got = TileDecoder(0, pytest.fail).decode_clip(vae, latents).float()
    assert float((got - expected).norm() / expected.norm()) < 1e-2
    vae_tiles.slow_down(vae)
    assert torch.equal(vae._decode_clip(latents).float(), expected)

"""The video VAE's tiles decoded in stacks: as many at once as memory allows, with the released tiles and precision.

Tile layout and blending stay diffusers' own; chunks, cross-fades and frames are not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from backend.errors import H3Error
from backend.runtime.parallel.group import alone
from backend.runtime.parallel.vae import TileShare

# Alive at once while a tile decodes, per token and channel of width: the residual (4 bytes), its norm (2), and the
# feed-forward's input and product of 8 and 4 widths (24), with some room. 28 tiles take 3.6 GiB on an H200.
BYTES_PER_TOKEN_AND_CHANNEL = 36
SHARE_OF_FREE = 0.85  # of free memory; the rest absorbs the allocator's rounding and the stitching


class DecodeOutOfMemory(H3Error):
    """Not even one tile, or not the canvas, fits; says how much memory that needs and how much is free."""


class TileDecoder:
    """Decodes clips of latents; the result of every tile is what the VAE computes for it alone.

    stack: tiles decoded together, 0 for as many as free memory allows. Out of memory halves the stack, said once
    through `notify`, and the smaller stack is kept. share: how several ranks divide the tiles; rank 0 decodes with
    `decode_clip` or `decode_clips`, the others call `help_clips` with the same clips, as often.
    """

    def __init__(self, stack: int, notify: Callable[[str], None], share: TileShare | None = None) -> None:
        self._wanted = stack
        self._share = share or TileShare(alone())
        self._limit: int | None = None
        self._notify = notify

    def decode_clip(self, vae: Any, latents: Tensor) -> Tensor:
        """One temporal clip, (1, 24, t, h, w) -> (1, 3, 4 t, 16 h, 16 w) in the VAE's pixel space."""
        return self.decode_clips(vae, [latents])[0]

    @torch.no_grad()
    def decode_clips(self, vae: Any, clips: Sequence[Tensor]) -> list[Tensor]:
        """Several clips of one shape, their tiles stacked together. Raises DecodeOutOfMemory."""
        if not vae.use_tiling:
            return [vae._decode_clip(clip) for clip in clips]
        layout = _Layout(vae, clips[0])
        decoded = self._shared(vae, layout, clips)
        if decoded is None:
            raise RuntimeError("only rank 0 puts tiles together; the others help")
        count = layout.rows * layout.columns
        whole = []
        while decoded:
            tiles, decoded = decoded[:count], decoded[count:]
            whole.append(self._together(vae, layout, tiles))
        return whole

    @torch.no_grad()
    def help_clips(self, vae: Any, clips: Sequence[Tensor]) -> None:
        """This rank's share of clips that rank 0 decodes; without tiling there is none."""
        if vae.use_tiling:
            self._shared(vae, _Layout(vae, clips[0]), clips)

    def _shared(self, vae: Any, layout: _Layout, clips: Sequence[Tensor]) -> list[Tensor] | None:
        tiles = torch.cat([tile for clip in clips for tile in layout.cut(clip)])
        return self._share.collect(self._in_stacks(vae, self._share.mine(tiles)), tiles.shape[0])

    def _together(self, vae: Any, layout: _Layout, tiles: list[Tensor]) -> Tensor:
        """`tiles` blended into one clip: on their device, or in host memory where that has no room beside them."""
        device = tiles[0].device
        try:
            return layout.stitch(vae, tiles)
        except torch.OutOfMemoryError:
            self._notify("Not enough GPU memory to put VAE tiles together there: done in host memory, which is slower.")
        # Outside the handler, as in `_in_stacks`. Only this list holds the tiles: they leave the GPU.
        for place, tile in enumerate(tiles):
            tiles[place] = tile.cpu()
        torch.cuda.empty_cache()
        try:
            return layout.stitch(vae, tiles).to(device)
        except torch.OutOfMemoryError:
            raise DecodeOutOfMemory(_no_canvas(tiles, device)) from None

    def _in_stacks(self, vae: Any, tiles: Tensor) -> list[Tensor]:
        """Each tile decoded, (1, 3, frames, height, width); one at a time where nothing more fits."""
        size = self._stack_size(vae, tiles)
        done: list[Tensor] = []
        while len(done) < tiles.shape[0]:
            try:
                stack = vae.decoder(vae.post_quant_conv(tiles[len(done) : len(done) + size]))
            except torch.OutOfMemoryError:
                if size == 1:
                    raise DecodeOutOfMemory(_too_small(vae, tiles)) from None
                size = self._limit = max(1, size // 2)
            else:
                done.extend(stack.split(1))
                continue
            # Outside the handler, where the failed attempt's tensors are no longer held by its traceback.
            torch.cuda.empty_cache()
            self._notify(
                f"Not enough GPU memory for larger stacks: decoding {size} VAE tiles at a time, which is slower."
            )
        return done

    def _stack_size(self, vae: Any, tiles: Tensor) -> int:
        size = self._wanted
        if size <= 0:
            free = free_bytes(tiles.device)
            size = tiles.shape[0] if free is None else int(free * SHARE_OF_FREE / bytes_per_tile(vae, tiles))
        if self._limit is not None:
            size = min(size, self._limit)
        return max(1, min(size, tiles.shape[0]))


class _Layout:
    """Where tiles lie on a clip, by the VAE's own rules."""

    def __init__(self, vae: Any, clip: Tensor) -> None:
        self._ratio = vae.spatial_compression_ratio
        height, width = clip.shape[-2] * self._ratio, clip.shape[-1] * self._ratio
        split = vae._split_tiles
        self._y = split(height, vae.tile_sample_min_height, vae.tile_sample_min_overlap_height)
        self._x = split(width, vae.tile_sample_min_width, vae.tile_sample_min_overlap_width)
        self.rows, self.columns = len(self._y[0]), len(self._x[0])

    def cut(self, clip: Tensor) -> list[Tensor]:
        """All tiles of a clip in latents, row by row; they are of one size, as the VAE's layout is."""
        return [
            clip[..., top : top + height, left : left + width]
            for top, height in self._in_latents(self._y)
            for left, width in self._in_latents(self._x)
        ]

    def stitch(self, vae: Any, tiles: list[Tensor]) -> Tensor:
        """Decoded tiles, row by row, blended into one clip."""
        grid = [tiles[start : start + self.columns] for start in range(0, len(tiles), self.columns)]
        return vae._stitch_tiles(grid, self._y[2], self._x[2])

    def _in_latents(self, axis: tuple[list[int], list[int], list[int]]) -> list[tuple[int, int]]:
        return [(start // self._ratio, length // self._ratio) for start, length in zip(axis[0], axis[1], strict=True)]


def bytes_per_tile(vae: Any, tiles: Tensor) -> int:
    """Working memory of decoding one tile, estimated from its tokens and the decoder's width."""
    tokens = tiles.shape[-3] * tiles.shape[-2] * tiles.shape[-1] + vae.decoder.num_register_tokens + 1
    width = vae.decoder.proj_out.in_features
    pixels = tokens * vae.decoder.proj_out.out_features
    return tokens * width * BYTES_PER_TOKEN_AND_CHANNEL + 4 * pixels * tiles.element_size()


def free_bytes(device: torch.device) -> int | None:
    """Memory that can still be allocated on `device`, what torch's allocator holds unused included; None on a CPU.

    A share of the GPU that this process was limited to counts as the whole of it.
    """
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    allocated = torch.cuda.memory_allocated(device)
    allowed = int(total * torch.cuda.get_per_process_memory_fraction(device.index))
    return min(free + torch.cuda.memory_reserved(device), allowed) - allocated


def _too_small(vae: Any, tiles: Tensor) -> str:
    need, free = bytes_per_tile(vae, tiles) / 2**30, (free_bytes(tiles.device) or 0) / 2**30
    return (
        f"decoding: one VAE tile needs about {need:.1f} GiB and {free:.1f} GiB are free on the GPU; "
        "use a preset with component offload, or close what else uses the GPU"
    )


def _no_canvas(tiles: list[Tensor], device: torch.device) -> str:
    need, free = sum(tile.nbytes for tile in tiles) / 2**30, (free_bytes(device) or 0) / 2**30
    return (
        f"decoding: the canvas of a clip's tiles needs about {need:.1f} GiB and {free:.1f} GiB are free on the GPU; "
        "use a preset with component offload, or close what else uses the GPU"
    )


def speed_up(vae: Any, attention: Callable[[Tensor, Tensor, Tensor], Tensor], ops: Any) -> None:
    """Replace the decoder's blocks by fused ones on the same parameters; see `vae_block`."""
    from backend.runtime.vae_block import FastVitBlock

    blocks = vae.decoder.transformer_blocks
    for number, block in enumerate(blocks):
        if not isinstance(block, FastVitBlock):
            blocks[number] = FastVitBlock(block, attention, ops)


def slow_down(vae: Any) -> None:
    """Undo `speed_up`: the decoder's own blocks again."""
    blocks = vae.decoder.transformer_blocks
    for number, block in enumerate(blocks):
        blocks[number] = getattr(block, "block", block)

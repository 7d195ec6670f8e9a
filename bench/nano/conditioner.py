"""The conditioner: a frozen Qwen3-VL of 52 very thin layers whose hidden state 50 keeps each token and some context.

Builds it, and reproduces diffusers' presentation (labels, vision blocks, prompt) in batches, with pixels as tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backend.checkpoints import nano
from backend.checkpoints.nano import MERGE, PATCH
from bench.nano import vocabulary
from bench.nano.architecture import TEXT_DIM, TEXT_LAYER, TEXT_LAYERS

SEED = 11
VISION_DIM = 48
TEXT_TAG, VIDEO_TAG = 1, 0  # h3-facts 3
# Share of the context in the hidden state: 100 branches of this size add up to about 0.6 of an embedding's own.
_BRANCH = 0.06


def build() -> Any:
    """The conditioner with its frozen weights, float32: the same on every machine."""
    text = {
        "hidden_size": TEXT_DIM,
        "intermediate_size": 32,
        "num_hidden_layers": TEXT_LAYERS,
        "vocab_size": vocabulary.size(),
        "tie_word_embeddings": True,
    }
    vision = {"hidden_size": VISION_DIM, "intermediate_size": 96, "num_position_embeddings": 256}
    model = nano.small_qwen3_vl(text, vision, vocabulary.special_tokens(), tied=True).float()
    generator = torch.Generator("cpu").manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
                continue
            scale = parameter[0].numel() ** -0.5
            if name.endswith("embed_tokens.weight"):
                scale = 1.0
            elif name.endswith("pos_embed.weight"):
                scale = 0.3
            elif name.endswith(("o_proj.weight", "down_proj.weight")):
                scale *= _BRANCH
            elif "deepstack" in name and name.endswith("linear_fc2.weight"):
                scale *= 0.3
            parameter.normal_(0.0, scale, generator=generator)
        # A patch is read as 4x4 mean colours: what a thing looks like, not its pixels' noise.
        patch = model.model.visual.patch_embed.proj.weight
        coarse = torch.empty(patch.shape[0], patch.shape[1], 1, 4, 4).normal_(0.0, 1.0, generator=generator)
        spread = coarse.repeat_interleave(PATCH // 4, -1).repeat_interleave(PATCH // 4, -2)
        patch.copy_(spread.expand_as(patch) / 500.0)
    return model.eval().requires_grad_(False)


def write_processor(folder: Path) -> None:
    """Image and video processor settings and the tokenizer a processor carries."""
    vocabulary.write(folder)
    nano.write_processor(folder, 64)


@dataclass(frozen=True, slots=True)
class Presentation:
    """Token ids and modality tags of one request, and which vision inputs it needs, in order."""

    ids: tuple[int, ...]
    tags: tuple[int, ...]


class Presenter:
    """Tokenizes presentations as diffusers' text encoder blocks do."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        vocabulary.write(folder)
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._special = vocabulary.special_tokens()
        self._cache: dict[str, tuple[int, ...]] = {}

    def text(self, text: str) -> tuple[int, ...]:
        """Token ids of `text`, without special tokens."""
        if text not in self._cache:
            self._cache[text] = tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        return self._cache[text]

    def vision(self, count: int, pad: str = "<|image_pad|>") -> tuple[int, ...]:
        """One vision block of `count` merged patches."""
        special = self._special
        return (special["<|vision_start|>"], *([special[pad]] * count), special["<|vision_end|>"])

    def keyframes(self, prompt: str, count: int, patches: int) -> Presentation:
        """`fl2va` with `count` keyframes of `patches` merged patches each; `t2va` for 0."""
        ids: tuple[int, ...] = ()
        tags: tuple[int, ...] = ()
        for index in range(count):
            ids, tags = self._append(ids, tags, self.text(f"<Picture {index + 1}>: "), TEXT_TAG)
            ids, tags = self._append(ids, tags, self.vision(patches), VIDEO_TAG)
        ids, tags = self._append(ids, tags, self.text(prompt), TEXT_TAG)
        return Presentation(ids, tags)

    def references(
        self, prompt: str, kinds: tuple[str, ...], patches: int, frames: int, video_patches: int
    ) -> Presentation:
        """`ref2va`: kinds "image", "audio", "video" (silent) or "video+audio"; videos of `frames` frames at 24 fps.

        `patches` and `video_patches` are merged patches of an image and of a frame pair.
        """
        ids: tuple[int, ...] = ()
        tags: tuple[int, ...] = ()
        counts = {"Picture": 0, "Video": 0, "Audio": 0}

        def label(name: str) -> tuple[int, ...]:
            counts[name] += 1
            return self.text(f"<{name} {counts[name]}>: ")

        for kind in kinds:
            if kind.endswith("audio"):
                ids, tags = self._append(ids, tags, label("Audio"), TEXT_TAG)
            if kind == "image":
                ids, tags = self._append(ids, tags, label("Picture"), TEXT_TAG)
                ids, tags = self._append(ids, tags, self.vision(patches), VIDEO_TAG)
            elif kind.startswith("video"):
                ids, tags = self._append(ids, tags, label("Video"), TEXT_TAG)
                for stamp in block_timestamps(frames):
                    ids, tags = self._append(ids, tags, self.text(f"<{stamp:.1f} seconds>"), TEXT_TAG)
                    ids, tags = self._append(ids, tags, self.vision(video_patches, "<|video_pad|>"), VIDEO_TAG)
        ids, tags = self._append(ids, tags, self.text(prompt), TEXT_TAG)
        return Presentation(ids, tags)

    @staticmethod
    def _append(ids: Any, tags: Any, more: tuple[int, ...], tag: int) -> tuple[Any, Any]:
        return (*ids, *more), (*tags, *([tag] * len(more)))


def sampled_frames(frames: int) -> list[int]:
    """Which frames of a reference video the conditioner sees: every twelfth (2 fps of 24), even in number."""
    index = list(range(0, frames, 12))
    return index + [index[-1]] * (len(index) % 2)


def block_timestamps(frames: int) -> list[float]:
    """Seconds of each merged pair, as diffusers labels them; a repeated last frame keeps its time."""
    index = list(range(0, frames, 12))
    stamps = [position / 2 for position in range(len(index))]
    stamps += [stamps[-1]] * (len(stamps) % 2)
    return [(stamps[position] + stamps[position + 1]) / 2 for position in range(0, len(stamps), 2)]


def patches(frames: Tensor) -> tuple[Tensor, Tensor]:
    """uint8 `(pairs, 2, height, width, 3)` to the processor's rows and its grid for one image or video.

    Rows are `(pairs * h * w, 3 * 2 * 16 * 16)` ordered by merged block, as Qwen2VLImageProcessor gives them.
    """
    pairs, _, height, width, _ = frames.shape
    rows, columns = height // PATCH, width // PATCH
    pixels = (frames.float() / 255.0 - 0.5) / 0.5
    pixels = pixels.permute(0, 1, 4, 2, 3)  # (pairs, 2, 3, H, W)
    pixels = pixels.reshape(pairs, 2, 3, rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH)
    pixels = pixels.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    grid = torch.tensor([[pairs, rows, columns]])
    return pixels.reshape(pairs * rows * columns, 3 * 2 * PATCH * PATCH), grid


@torch.no_grad()
def embed(model: Any, ids: Tensor, images: Tensor | None = None, videos: Tensor | None = None) -> Tensor:
    """Hidden state 50 of equally built presentations: `(batch, tokens, TEXT_DIM)`.

    `images` is uint8 `(batch, count, height, width, 3)`; `videos` uint8 `(batch, count, frames, height, width, 3)`,
    already sampled by `sampled_frames`.
    """
    one = (None if images is None else images[:1], None if videos is None else videos[:1])
    if len(ids) == 1 or (images is None and videos is None):
        return _hidden(model, ids, images, videos, None)
    # Equal layouts have equal rotary positions, which the model would otherwise work out for each item in Python.
    seen: list[Tensor] = []
    hook = model.model.language_model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["position_ids"]), with_kwargs=True
    )
    try:
        _hidden(model, ids[:1], *one, None)
    finally:
        hook.remove()
    positions = seen[0].expand(-1, len(ids), -1)
    return _hidden(model, ids, images, videos, positions)


def _hidden(model: Any, ids: Tensor, images: Tensor | None, videos: Tensor | None, positions: Tensor | None) -> Tensor:
    special = vocabulary.special_tokens()
    kinds = torch.zeros_like(ids)
    kinds[ids == special["<|image_pad|>"]] = 1
    kinds[ids == special["<|video_pad|>"]] = 2
    vision: dict[str, Tensor] = {}
    for name, grid_name, pictures in (
        (
            "pixel_values",
            "image_grid_thw",
            None if images is None else images[:, :, None].expand(-1, -1, 2, -1, -1, -1),
        ),
        ("pixel_values_videos", "video_grid_thw", videos),
    ):
        if pictures is None:
            continue
        flat = pictures.flatten(0, 1)  # (batch * count, frames, height, width, 3)
        rows, grid = patches(flat.flatten(0, 1).unflatten(0, (-1, 2)))
        grid[0, 0] //= len(flat)
        vision[name] = rows.to(model.dtype)
        vision[grid_name] = grid.to(ids.device).repeat(len(flat), 1)
    outputs = model.model(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        position_ids=positions,
        mm_token_type_ids=kinds,
        use_cache=False,
        output_hidden_states=True,
        **vision,
    )
    return outputs.hidden_states[TEXT_LAYER]

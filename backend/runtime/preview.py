"""A small picture of what is being made, from predicted clean latents by one 24 to 3 matrix: no VAE, a millisecond.

The matrix is the VAE's own first derivative: it is fitted at load, from the decoder's answers to constant latents one
standard deviation to either side of the mean, channel by channel; who looks at the pictures is not known here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

SIDE = 4  # latents a side of the constant tile that the fit decodes; the decoder takes any size
SHARE = 0.01  # of the time of sampling that pictures may take
SCALE = 4  # the picture is this many times the latents' size, 336x192 for 1344x768
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of the VAE's pixel space, components.pixel_mean / pixel_std


class LinearPreview:
    """Latents to RGB by `matrix` (3, 24) and `bias` (3,), in 0..1."""

    def __init__(self, matrix: Tensor, bias: Tensor) -> None:
        self.matrix = matrix
        self.bias = bias

    @classmethod
    @torch.no_grad()
    def fit(cls, vae: Any) -> LinearPreview:
        """Central differences of the decoder around the mean latent; decodes 49 tiles of 4x4 latents, once."""
        parameter = vae.post_quant_conv.weight
        device, kind = parameter.device, parameter.dtype
        mean = torch.tensor(vae.config.latents_mean, device=device)
        std = torch.tensor(vae.config.latents_std, device=device)
        steps = torch.diag(std)
        points = mean + torch.cat([torch.zeros_like(mean)[None], steps, -steps])  # (49, 24)
        frames = vae.tokens_chunk_size + vae.token_overlap
        tiles = points[:, :, None, None, None].expand(-1, -1, frames, SIDE, SIDE).to(kind)
        decoded = vae.decoder(vae.post_quant_conv(tiles)).float().mean(dim=(2, 3, 4))  # (49, 3)
        colours = decoded * torch.tensor(STD, device=device) + torch.tensor(MEAN, device=device)
        count = len(mean)
        # Per normalized latent, so that the bias is the colour of a latent of zeros.
        matrix = (colours[1 : count + 1] - colours[count + 1 :]).T / 2
        return cls(matrix, colours[0])

    @torch.no_grad()
    def picture(self, latents: Tensor) -> Tensor:
        """uint8 (4 h, 4 w, 3) on the latents' device, of the middle frame of normalized latents (1, 24, T, h, w)."""
        middle = latents[0, :, latents.shape[2] // 2].float()
        colours = torch.einsum("rc,chw->rhw", self.matrix.to(middle.device), middle)
        colours = colours + self.bias.to(middle.device)[:, None, None]
        larger = functional.interpolate(colours[None], scale_factor=SCALE, mode="bilinear", align_corners=False)[0]
        return (larger.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous()


class Previewer:
    """The `preview` hook: shows every `every`th forward, but never spends more than SHARE of the time on it.

    `show` gets (step, uint8 CPU tensor (h, w, 3)). Until `fit` was called there is nothing to show, which is said once
    through `notify`.
    """

    def __init__(self, every: int, show: Callable[[int, Tensor], None], notify: Callable[[str], None]) -> None:
        self._every = every
        self._show = show
        self._notify = notify
        self._linear: LinearPreview | None = None
        self._cost_s = 0.0  # of the last picture, on its way to the viewer included
        self._shown_at = 0.0

    def fit(self, vae: Any) -> None:
        """Learn the colours of this VAE, which is where it can compute; once."""
        if self._linear is None:
            self._linear = LinearPreview.fit(vae)

    def __call__(self, step: int, predicted: Callable[[], Tensor]) -> None:
        """Forward `step` is done; `predicted` gives normalized latents (1, 24, T, h, w)."""
        began = time.perf_counter()
        if step % self._every or began - self._shown_at < self._cost_s / SHARE:
            return
        if self._linear is None:
            self._notify(
                "No live preview in this job: the video decoder waits in host memory until it is needed. Later jobs "
                "show one."
            )
            return
        self._show(step, self._linear.picture(predicted()).cpu())
        self._shown_at = time.perf_counter()
        self._cost_s = self._shown_at - began

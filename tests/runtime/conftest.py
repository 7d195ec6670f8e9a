"""Tiny models with the released structure, made once."""

from collections.abc import Iterator

import pytest
import torch

from bench import models

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def transformer() -> torch.nn.Module:
    return models.transformer(CPU, torch.float32, tiny=True)


@pytest.fixture
def case() -> dict[str, torch.Tensor]:
    """Three distinct timesteps: video, audio, and two condition rows at 0.999."""
    shape = models.Shape(96, 64, 22)
    return models.sequence(shape, CPU, torch.float32, text_dim=48, condition_rows=2)

"""One of our pipelines and one of diffusers', loaded once for all tests of this folder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from stock import load_stock

from backend.h3.pipeline import Pipeline


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def pipeline(tiny_checkpoint: Path) -> Pipeline:
    return Pipeline(tiny_checkpoint, "cpu", "float32", lambda *_: None)


@pytest.fixture(scope="session")
def stock_pipeline(tiny_checkpoint: Path) -> Any:
    return load_stock(tiny_checkpoint)

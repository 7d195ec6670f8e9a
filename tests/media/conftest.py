"""Reading a file in this process, without the child: fast, and the same code after the sandbox's door."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from backend.media import readers
from backend.media.sandbox import Order, Role
from backend.types import MediaReport


@dataclass
class Seen:
    """What the model would see of a file."""

    report: MediaReport
    image: np.ndarray | None = None
    frames: np.ndarray | None = None
    audio: np.ndarray | None = None


@pytest.fixture
def see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Seen]:
    empty = tmp_path / "sandbox"
    empty.mkdir()

    def see(path: Path, **options: object) -> Seen:
        monkeypatch.chdir(empty)
        options.setdefault("role", Role.REFERENCE)
        stem = tmp_path / f"seen-{path.name[:40]}-{len(list(tmp_path.iterdir()))}"
        order = Order(field="file", name=path.name, stem=stem, **options)
        answer = readers.carry_out(order, os.open(path, os.O_RDONLY))
        return Seen(
            report=answer.report,
            image=np.asarray(Image.open(answer.image)) if answer.image else None,
            frames=np.load(answer.frames) if answer.frames else None,
            audio=np.load(answer.audio) if answer.audio else None,
        )

    return see


@pytest.fixture(autouse=True)
def _ordinary_priority():
    """SVT-AV1, which makes one of the inputs, puts the whole process at real-time priority and leaves it there."""
    yield
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))

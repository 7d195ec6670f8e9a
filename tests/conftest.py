"""Fixtures that many folders of tests share."""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Before torch is imported, here and in every child: one thread, so that ours and the reference sum in the same order
# and many ranks on two cores do not fight over them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The program's children render with random weights of few layers, which is fastest, unless a test asks for a model.
os.environ.setdefault("H3_CHECKPOINT", "tiny")


@pytest.fixture(scope="session")
def tiny_checkpoint() -> Path:
    """The built-in tiny checkpoint, built once while its sources stay the same. Read-only: copy to change it."""
    sources = [ROOT / "backend" / "checkpoints" / name for name in ("nano.py", "tokenizer.py", "catalog.py")]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / "h3-studio-tests" / f"tiny-{digest}"
    command = [sys.executable, "-m", "backend.checkpoints.nano", str(folder)]
    if not (folder / "modular_model_index.json").is_file():
        subprocess.run(command, cwd=ROOT, check=True, timeout=180, capture_output=True)
    return folder


@pytest.fixture
def world():
    """What the fake engines of a test share; a file that wants another pace has a `world` of its own."""
    from job_fakes import World

    return World()


@pytest.fixture
def backend(tmp_path, world):
    """A backend over an empty data folder whose engines and media are fakes."""
    from job_fakes import open_backend

    backend = open_backend(tmp_path / "data", world)
    yield backend
    backend.close()

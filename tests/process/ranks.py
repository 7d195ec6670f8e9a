"""What the tests of processes share: a fleet of the pretend model in a temporary installation, and who is left."""

import os
import time
from pathlib import Path

from backend.events import TERMINAL
from backend.presets import Deadlines
from backend.process.fleet import Fleet
from backend.process.spec import FleetSpec
from backend.settings import Settings
from backend.types import GenerationRequest, JobId, PreparedMedia, Render, Sampling

BRISK = Deadlines(silence_s=3.0, start_s=30.0, load_s=20.0, encode_s=20.0, step_s=20.0, decode_s=20.0, mux_s=20.0)


def spec(folder: Path, checkpoint: str = "stub:", **kwargs) -> FleetSpec:
    return FleetSpec(
        model=kwargs.pop("model", "stub"),
        checkpoint=checkpoint,
        settings=Settings(data_dir=folder / "data"),
        deadlines=kwargs.pop("deadlines", BRISK),
        **kwargs,
    )


def fleet(folder: Path, checkpoint: str = "stub:", **kwargs) -> Fleet:
    return Fleet(spec(folder, checkpoint, **kwargs))


def render(folder: Path, job: str = "job", steps: int = 5, frames: int = 22, **kwargs) -> Render:
    out = folder / job
    out.mkdir(exist_ok=True)
    sampling = Sampling(num_frames=frames, width=64, height=64, seed=7, num_inference_steps=steps + 1)
    return Render(
        job=JobId(job),
        request=GenerationRequest(prompt="a lighthouse", sampling=sampling),
        media=PreparedMedia(),
        folder=out,
        **kwargs,
    )


def ends(events: list) -> list:
    return [event for event in events if isinstance(event, TERMINAL)]


def alive(pid: int) -> bool:
    """Whether `pid` runs (a zombie does not)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


def children() -> set[int]:
    """Direct children of this process, zombies included."""
    found = set()
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def wait_until(condition, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True

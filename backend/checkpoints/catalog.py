"""Which checkpoints there are: the trained small one, the released one, a random tiny one, any folder or repository.

Reads JSON and file sizes, never weights and never the network; building the tiny model happens in a child process.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from backend import limits
from backend.checkpoints import layout
from backend.errors import CheckpointError
from backend.settings import Settings
from backend.types import Geometry, Task

NANO = "nano"  # trained by this project: read where it lies in this repository, never written
TINY = "tiny"
TINY_FOLDER = "tiny-1"  # the number changes with what `nano` builds, so that an old build is not mistaken for a new one
RELEASED = "MiniMaxAI/MiniMax-H3"
READY = "ready"
NOT_DOWNLOADED = "not downloaded"
NOT_BUILT = "not built yet: made on first use, in seconds"
BUILD_DEADLINE_S = 180.0  # takes about 10 s on two cores

# One 128 px short edge keeps every task fast on a CPU; `nano` writes these into the tiny checkpoint's index.
TINY_GEOMETRY = Geometry(canvas_short_edge=128, canvas_max_pixels=224 * 128, reference_image_short_edge=128)
TINY_NOTICE = "Random weights: it makes coloured noise and hiss, and proves that everything works."
TINY_STEPS, RELEASED_STEPS = 6, 50  # where the index says nothing; noise needs no more than a few
NANO_NOTICE = (
    "This small built-in model knows one world: a circle, square, triangle, star, ring, cross or heart in one of eight "
    "colours that slides, bounces, orbits, grows, shrinks or is panned past, with a hum or beeps. Another prompt gives "
    "something of that world. It is small: what should stand still sometimes sinks, and small stars come out round."
)
# What it does well, in words it was trained on.
NANO_EXAMPLES = (
    ("Bouncing ball", "A large red ball bounces up and down in the middle before a navy gradient; a row of beeps."),
    ("Hopping star", "A large blue star hops on the floor on the right before a flat teal wall; a row of beeps."),
    ("Sliding ring", "A large green ring slides from left to right in front of a maroon background. A humming sound."),
    ("Growing heart", "A pink heart gets bigger in the center in front of a plain teal background. A humming sound."),
    ("Shrinking square", "A huge white square shrinks in the center before maroon stripes. A beeping sound."),
    ("Rising triangle", "A large purple triangle climbs to the top on the left before gray stripes. A beeping sound."),
    ("Camera pan", "Camera pan to the right over a large yellow triangle, maroon checks behind; a row of beeps."),
)

_TITLES = {NANO: "H3-nano (built in)", TINY: "Random weights (built in)", RELEASED: "MiniMax-H3"}
_NOTICES = {NANO: NANO_NOTICE, TINY: TINY_NOTICE}
_REPO_ID = re.compile(r"[\w.-]+/[\w.-]+")
_ROOT = Path(__file__).resolve().parent.parent.parent
NANO_FOLDER = _ROOT / "assets" / "nano"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One model that can be rendered with. `folder` is None where it is not on this disk; sizes in px and bytes."""

    name: str
    source: str  # a folder, a repository id, or "built in"
    folder: Path | None
    layout: str
    tasks: tuple[Task, ...]
    bytes: int
    state: str  # READY, NOT_DOWNLOADED, NOT_BUILT or "incomplete: ..."
    geometry: Geometry
    default_width: int
    default_height: int
    default_steps: int
    title: str
    notice: str = ""
    examples: tuple[tuple[str, str], ...] = ()  # (title, prompt) that suit this model; () for the page's own

    @property
    def ready(self) -> bool:
        """Whether it can be loaded now."""
        return self.state == READY


def find(name: str, settings: Settings) -> Checkpoint:
    """The checkpoint called `name`: a catalog name, a folder, or a repository id in the local cache.

    Raises CheckpointError for an unknown name, a folder that is no checkpoint, and a missing or truncated file, which
    it names. The tiny and the released checkpoint are always found; their state says whether they are on this disk.
    """
    if name == NANO:
        return _from_folder(NANO_FOLDER, name=NANO, source="built in")
    if name == TINY:
        return _tiny(settings)
    path = Path(name).expanduser()
    looks_like_path = path.is_absolute() or name.startswith((".", "~")) or path.exists()
    if looks_like_path:
        return _from_folder(path.resolve(), name=name, source=str(path.resolve()))
    if "/" not in name and (settings.checkpoints_dir / name).is_dir():
        folder = settings.checkpoints_dir / name
        return _from_folder(folder, name=name, source=str(folder))
    if not _REPO_ID.fullmatch(name):
        raise CheckpointError(
            f"checkpoint={name}: there is no such checkpoint; "
            f"choose {NANO}, {RELEASED}, {TINY}, a folder, or a repository id"
        )
    folder_of_cache = _cached(name)
    if folder_of_cache is not None:
        return _from_folder(folder_of_cache, name=name, source=name)
    if name == RELEASED:
        return _released_elsewhere()
    raise CheckpointError(f"checkpoint={name}: not downloaded, and no folder of that name; {_download_hint(name)}")


def list_checkpoints(settings: Settings) -> tuple[Checkpoint, ...]:
    """Every checkpoint this program knows of, the built-in one first; damaged ones with the reason as their state."""
    names = [NANO, RELEASED, TINY]
    if settings.checkpoints_dir.is_dir():
        folders = sorted(settings.checkpoints_dir.iterdir())
        names += [item.name for item in folders if (item / layout.INDEX).is_file() and item.name != TINY_FOLDER]
    if settings.checkpoint and settings.checkpoint not in names:
        names.append(settings.checkpoint)
    return tuple(_find_or_state(name, settings) for name in names)


def ensure(name: str, settings: Settings, on_progress: Callable[[str], None]) -> Path:
    """The folder of checkpoint `name`, complete; the tiny one is built when absent, with a word to `on_progress`.

    Raises CheckpointError where it cannot be had, with the way out.
    """
    checkpoint = find(name, settings)
    if checkpoint.ready and checkpoint.folder is not None:
        return checkpoint.folder
    if checkpoint.name != TINY:
        raise CheckpointError(f"checkpoint={name}: {checkpoint.state}; {_download_hint(checkpoint.source)}")
    folder = settings.checkpoints_dir / TINY_FOLDER
    on_progress("building the tiny checkpoint (once, some seconds)")
    _build_tiny(folder)
    layout.examine(folder)
    return folder


def _build_tiny(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "backend.checkpoints.nano", str(folder)]
    try:
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=BUILD_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise CheckpointError(
            f"checkpoint={TINY}: building took over {BUILD_DEADLINE_S:g} s and was stopped"
        ) from error
    if done.returncode != 0:
        raise CheckpointError(
            f"checkpoint={TINY}: building failed with exit code {done.returncode}: {_tail(done.stderr)}"
        )


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-5:])


def _tiny(settings: Settings) -> Checkpoint:
    folder = settings.checkpoints_dir / TINY_FOLDER
    if (folder / layout.INDEX).is_file():
        return _from_folder(folder, name=TINY, source="built in")
    return _checkpoint(
        name=TINY,
        source="built in",
        folder=None,
        contents=layout.Contents(tasks=tuple(Task), geometry=TINY_GEOMETRY, bytes=0),
        state=NOT_BUILT,
    )


def _released_elsewhere(state: str = NOT_DOWNLOADED) -> Checkpoint:
    contents = layout.Contents(tasks=tuple(Task), geometry=Geometry(), bytes=0)
    return _checkpoint(name=RELEASED, source=RELEASED, folder=None, contents=contents, state=state)


def _from_folder(folder: Path, *, name: str, source: str) -> Checkpoint:
    return _checkpoint(name=name, source=source, folder=folder, contents=layout.examine(folder), state=READY)


def _find_or_state(name: str, settings: Settings) -> Checkpoint:
    try:
        return find(name, settings)
    except CheckpointError as error:
        contents = layout.Contents(tasks=(), geometry=Geometry(), bytes=0)
        return _checkpoint(name=name, source=name, folder=None, contents=contents, state=f"incomplete: {error}")


def _checkpoint(*, name: str, source: str, folder: Path | None, contents: layout.Contents, state: str) -> Checkpoint:
    small = contents.geometry.canvas_short_edge <= TINY_GEOMETRY.canvas_short_edge
    width, height = limits.canvas_for_ratio(16, 9, contents.geometry)
    title = _TITLES.get(name, Path(name).name)
    return Checkpoint(
        name=name,
        source=source,
        folder=folder,
        layout=layout.NAME,
        tasks=contents.tasks,
        bytes=contents.bytes,
        state=state,
        geometry=contents.geometry,
        default_width=width,
        default_height=height,
        default_steps=contents.default_steps or (TINY_STEPS if small else RELEASED_STEPS),
        title=title,
        notice=_NOTICES.get(name, ""),
        examples=NANO_EXAMPLES if name == NANO else (),
    )


def _cached(repo_id: str) -> Path | None:
    """The snapshot folder of a repository in Hugging Face's local cache, without asking any network."""
    from huggingface_hub import try_to_load_from_cache  # slow to import, and needed for repository ids only

    found = try_to_load_from_cache(repo_id, layout.INDEX)
    return Path(found).parent if isinstance(found, str) else None


def _download_hint(repo_id: str) -> str:
    return f"get it in the Models panel, or with: python app.py models download {repo_id}"

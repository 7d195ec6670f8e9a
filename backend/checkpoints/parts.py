"""Which files of a model repository a task needs, and how much of them lies on this disk.

Arithmetic over names and sizes, for the released diffusers layout; it asks no network and reads no weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backend.checkpoints import layout
from backend.types import Task

GIB = 2**30
SPARE_BYTES = GIB  # a download leaves this much of the disk
SHARED = (*layout.MODELS, *layout.CONFIGS)
# Bytes of the released weights: `metadata.total_size` of their indexes; the last is what its 196 GiB leave.
RELEASED_BYTES = {
    "text_encoder": 66_714_780_128,
    "transformer": 66_280_430_080,
    "transformer_ref": 66_280_430_080,
    "vae": 10_415_475_936,
    "audio_vae": 760_000_000,
}
_BESIDE = ("license", "notice", "readme.md", layout.INDEX, "model_index.json")  # small files of the repository's root


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Tasks that are downloaded together, in words for people."""

    key: str
    title: str
    about: str
    tasks: tuple[Task, ...]


BUNDLES = (
    Bundle(
        key="text",
        title="Text and keyframes",
        about="Videos from a prompt, or from a first and a last frame.",
        tasks=(Task.T2VA, Task.FL2VA),
    ),
    Bundle(
        key="references",
        title="References",
        about="Videos from reference pictures, clips and sounds.",
        tasks=(Task.REF2VA,),
    ),
    Bundle(key="all", title="Everything", about="All three ways; what both share is fetched once.", tasks=tuple(Task)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoFile:
    """One file of a repository: its path there, its size in bytes, and the name of its content in the cache.

    `etag` is the content's SHA-256 (64 digits) for large files, Git's SHA-1 (40 digits) for small ones.
    """

    path: str
    bytes: int
    etag: str

    @property
    def component(self) -> str:
        """The folder it belongs to, "" at the root."""
        return self.path.partition("/")[0] if "/" in self.path else ""


def components(tasks: Iterable[Task]) -> tuple[str, ...]:
    """The folders that `tasks` need: what all share, and the transformer of each."""
    wanted = set(tasks)
    transformers = [name for name, able in layout.TASKS_OF.items() if wanted & set(able)]
    return (*SHARED, *transformers)


def needed(files: Sequence[RepoFile], tasks: Iterable[Task]) -> tuple[RepoFile, ...]:
    """The files of a repository that `tasks` need, in the order they are fetched.

    Small ones first; a transformer's configuration last of all: without it, the folder does not count as begun.
    """
    wanted = set(components(tasks))
    chosen = [file for file in files if file.component in wanted or (not file.component and _beside(file.path))]
    return tuple(sorted(chosen, key=lambda file: (comes_last(file), file.bytes, file.path)))


def comes_last(file: RepoFile) -> bool:
    """Whether `file` makes a transformer count as there."""
    return file.component in layout.TASKS_OF and file.path == f"{file.component}/config.json"


def _beside(path: str) -> bool:
    return path.lower().startswith(_BESIDE)


def lacking(more: int, free: int) -> int:
    """By how many bytes a disk with `free` bytes is too small for `more` of a download; 0 where they fit."""
    return max(0, more + SPARE_BYTES - free) if more else 0

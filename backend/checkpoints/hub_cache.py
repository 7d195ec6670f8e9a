"""The local cache of Hugging Face: where a repository lies in it, what of a file is there, and taking a repository out.

Knows the cache's layout as huggingface_hub documents it (blobs, snapshots, refs); asks no network.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from backend.checkpoints.parts import RepoFile
from backend.errors import CheckpointError

PART = ".h3-part"  # ends the name of a file that is still being fetched; the library's own cannot be resumed
CHUNK = 8 << 20


def folder_of(repo: str) -> Path:
    """Where the cache keeps `repo`; it need not exist."""
    from huggingface_hub import constants  # slow to import, and needed for repositories only

    return Path(constants.HF_HUB_CACHE) / ("models--" + repo.replace("/", "--"))


def token_present() -> bool:
    """Whether a Hugging Face token is set on this machine; the token itself is never shown or kept."""
    from huggingface_hub import get_token

    return bool(get_token())


def blob_of(repo: str, file: RepoFile) -> Path:
    """The content of `file` in the cache, whether it is there or not."""
    return folder_of(repo) / "blobs" / file.etag


def part_of(repo: str, file: RepoFile) -> Path:
    """What was fetched of `file` so far."""
    blob = blob_of(repo, file)
    return blob.with_name(blob.name + PART)


def bytes_here(repo: str, file: RepoFile) -> int:
    """How many bytes of `file` are on this disk."""
    for path in (blob_of(repo, file), part_of(repo, file)):
        try:
            return min(path.stat().st_size, file.bytes)
        except OSError:
            continue
    return 0


def standing(folder: Path) -> Path:
    """`folder`, or the nearest one above it that is there: whose disk takes what is put into it."""
    while not folder.exists():
        folder = folder.parent
    return folder


def so_far(repo: str) -> str:
    """What has come of `repo`, in words for whoever sees a download end early: true also before the first byte."""
    blobs = folder_of(repo) / "blobs"
    begun = blobs.is_dir() and any(path.stat().st_size for path in blobs.iterdir())
    return "what came so far is kept" if begun else "nothing has come yet"


def point_main_at(repo: str, commit: str) -> None:
    """From now on the cache answers with `commit` when nobody names a revision."""
    ref = folder_of(repo) / "refs" / "main"
    ref.parent.mkdir(parents=True, exist_ok=True)
    part = ref.with_name(ref.name + PART)
    part.write_text(commit, encoding="utf-8")
    part.replace(ref)


def digest(path: Path, etag: str) -> str:
    """The hash of a file of the kind that `etag` is: SHA-256, or Git's SHA-1 of a blob."""
    small = len(etag) == 40
    summing = hashlib.sha1(usedforsecurity=False) if small else hashlib.sha256()
    if small:
        summing.update(f"blob {path.stat().st_size}\0".encode())
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            summing.update(chunk)
    return summing.hexdigest()


def remove(repo: str) -> int:
    """Take `repo` out of the cache, also what was only begun; returns bytes freed. Raises CheckpointError."""
    folder = folder_of(repo)
    if folder.is_symlink() or not folder.is_dir() or folder.resolve().parent != folder.parent.resolve():
        raise CheckpointError(f"{repo}: {folder} is no folder of the cache; remove it by hand")
    freed = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    going = folder.with_name(f".{folder.name}.removed")
    try:
        shutil.rmtree(going, ignore_errors=True)  # left by a removal that was cut short
        folder.rename(going)  # gone at once for everybody who looks; then the disk is given back
        shutil.rmtree(going)
    except OSError as error:
        raise CheckpointError(f"{repo}: {folder} cannot be removed: {error.strerror or error}") from error
    return freed

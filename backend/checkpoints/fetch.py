"""Downloading or checking one model, as a program of its own: an order comes in on stdin, reports go out on stdout.

Stands on huggingface_hub for addresses, requests and the cache's layout; parts of files are kept and gone on with. It
ends when stdin does, because then whoever gave the order is gone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

from backend import codec
from backend.checkpoints import hub_cache, layout, parts
from backend.checkpoints.errands import Action, Kind, Order, Reason, Report
from backend.checkpoints.parts import GIB, RepoFile
from backend.errors import CheckpointError
from backend.types import Task

T = TypeVar("T")

AT_ONCE = 4  # files that are fetched side by side
REPORT_S = 0.5
ATTEMPTS = 6  # in a row without a single byte
PIECE = 1 << 18  # bytes that are written, and counted, at a time
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


@dataclass
class Count:
    """Bytes so far and the file in hand; threads add, the reporter reads."""

    total: int = 0
    at: dict[str, int] = field(default_factory=dict)
    file: str = ""

    def report(self, kind: Kind = Kind.PROGRESS) -> Report:
        """The count as a report."""
        return Report(kind=kind, done=sum(self.at.values()), total=self.total, file=self.file)


class Stopped(CheckpointError):
    """It cannot go on, with the reason in words and the way out."""

    def __init__(self, reason: Reason, message: str, damaged: Sequence[RepoFile] = ()) -> None:
        super().__init__(message)
        self.reason = reason
        self.damaged = tuple(damaged)


Tell = Callable[[Report], None]


def carry_out(order: Order, tell: Tell) -> None:
    """Do what was ordered; the last report is DONE or FAILED."""
    try:
        folder = verify(order, tell) if order.action is Action.VERIFY else Download(order, tell).run()
        tell(Report(kind=Kind.DONE, folder=folder))
    except Stopped as stop:
        tell(Report(kind=Kind.FAILED, reason=stop.reason, message=str(stop), files=stop.damaged))
    except CheckpointError as error:
        tell(Report(kind=Kind.FAILED, reason=Reason.DAMAGED, message=str(error)))
    except OSError as error:
        tell(Report(kind=Kind.FAILED, reason=_disk_or_refused(error), message=_words(error, order.repo)))


class Download:
    """One download. Every file is fetched into a part beside its place, checked by its hash, then moved there."""

    def __init__(self, order: Order, tell: Tell) -> None:
        self._order = order
        self._tell = tell
        self._count = Count()
        self._doors: dict[str, threading.Lock] = defaultdict(threading.Lock)  # two names may have one content

    def run(self) -> Path:
        """Fetch everything; returns the snapshot's folder. Raises Stopped."""
        commit, listed = self._asked(self._list)
        files = parts.needed(listed, self._order.tasks)
        if not any(file.path == layout.INDEX for file in files):
            raise Stopped(Reason.REFUSED, f"{self._order.repo} is no MiniMax-H3 model: it has no {layout.INDEX}")
        self._forget_damaged(files)
        self._count.total = sum(file.bytes for file in files)
        self._count.at = {file.path: hub_cache.bytes_here(self._order.repo, file) for file in files}
        planned = self._count.report(Kind.PLANNED)
        everything = parts.needed(listed, Task)  # a page also says how large the rest is
        self._tell(Report(kind=planned.kind, done=planned.done, total=planned.total, files=everything))
        self._check_disk(planned.total - planned.done)
        with _reporting(self._count, self._tell):
            last = [file for file in files if parts.comes_last(file)]
            pool = ThreadPoolExecutor(AT_ONCE)
            try:
                futures = [pool.submit(self._fetch, commit, file) for file in files if file not in last]
                for future in as_completed(futures):
                    future.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # one that failed does not wait for the others
            for file in last:
                self._fetch(commit, file)
        hub_cache.point_main_at(self._order.repo, commit)
        folder = hub_cache.folder_of(self._order.repo) / "snapshots" / commit
        layout.examine(folder)
        return folder

    def _list(self) -> tuple[str, list[RepoFile]]:
        from huggingface_hub import HfApi

        info = HfApi().model_info(self._order.repo, files_metadata=True)
        listed = []
        for item in info.siblings or ():
            etag = item.lfs.sha256 if item.lfs is not None else item.blob_id
            if etag and item.size is not None:
                listed.append(RepoFile(path=item.rfilename, bytes=item.size, etag=etag))
        if info.sha is None:
            raise Stopped(Reason.REFUSED, f"{self._order.repo}: the server names no revision of it")
        return info.sha, listed

    def _forget_damaged(self, files: Sequence[RepoFile]) -> None:
        """What was found damaged, or is larger or smaller than it must be, does not count as there."""
        for file in files:
            blob = hub_cache.blob_of(self._order.repo, file)
            if blob.is_file() and (file.path in self._order.again or blob.stat().st_size != file.bytes):
                blob.unlink()

    def _check_disk(self, more: int) -> None:
        folder = hub_cache.standing(hub_cache.folder_of(self._order.repo))
        free = shutil.disk_usage(folder).free
        lacks = parts.lacking(more, free)
        if lacks:
            raise Stopped(
                Reason.DISK,
                f"{more / GIB:,.1f} GiB are still to be downloaded, and {folder} has {free / GIB:,.1f} GiB free; free "
                f"{lacks / GIB:,.1f} GiB there, or set HF_HOME to a larger disk",
            )

    def _fetch(self, commit: str, file: RepoFile) -> str:
        """The file in the snapshot's folder, fetched where it is not there yet."""
        from huggingface_hub import hf_hub_download

        with self._doors[file.etag]:
            if not hub_cache.blob_of(self._order.repo, file).is_file():
                self._count.file = file.path
                self._fetch_content(commit, file)
        self._count.at[file.path] = file.bytes
        # The content is there: the library only puts its name beside it, as every other program expects it.
        return self._asked(lambda: hf_hub_download(self._order.repo, file.path, revision=commit))

    def _fetch_content(self, commit: str, file: RepoFile) -> None:
        part, blob = hub_cache.part_of(self._order.repo, file), hub_cache.blob_of(self._order.repo, file)
        part.parent.mkdir(parents=True, exist_ok=True)
        for trial in (1, 2):
            with part.open("r+b" if part.exists() else "w+b") as stream:
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    message = f"{file.path} is being downloaded by another program on this machine; wait for it"
                    raise Stopped(Reason.REFUSED, message) from error
                self._asked(partial(self._go_on, commit, file, stream))
            if hub_cache.digest(part, file.etag) == file.etag:
                part.replace(blob)
                return
            part.unlink()
            self._count.at[file.path] = 0
            if trial == 2:
                raise Stopped(
                    Reason.DAMAGED,
                    f"{file.path} came with another checksum than the repository states, twice; try again later",
                )

    def _go_on(self, commit: str, file: RepoFile, stream: IO[bytes]) -> None:
        """Fetch from where the part ends to the end of the file."""
        from huggingface_hub import get_token, hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers

        at = stream.seek(0, os.SEEK_END)
        if at > file.bytes:
            stream.truncate(0)
            at = stream.seek(0)
        headers = {**build_hf_headers(token=get_token()), "Accept-Encoding": "identity"}
        if at < file.bytes or not file.bytes:
            http_get(
                hf_hub_url(self._order.repo, file.path, revision=commit),
                _Counted(stream, self._count, file.path),  # type: ignore[arg-type]
                resume_size=at,
                headers=headers,
                expected_size=file.bytes,
            )
        stream.flush()

    def _asked(self, ask: Callable[[], T]) -> T:
        """`ask`, again and again while the network is away, as long as bytes come now and then. Raises Stopped."""
        from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled

        failed, seen = 0, -1
        while True:
            try:
                return ask()
            except OfflineModeIsEnabled as error:
                message = "HF_HUB_OFFLINE is set, so nothing is downloaded; start the program without it"
                raise Stopped(Reason.OFFLINE, message) from error
            except HfHubHTTPError as error:
                if error.response is None or error.response.status_code not in TRANSIENT:
                    raise _refused(self._order.repo, error) from error
                last: Exception = error
            except HTTPError as error:
                last = error
            except OSError as error:
                if error.errno is not None and not isinstance(error, ConnectionError):
                    raise
                last = error  # the library's own word for a body that ended early
            done = sum(self._count.at.values())
            failed = 1 if done > seen else failed + 1
            seen = max(seen, done)
            if failed >= ATTEMPTS:
                raise Stopped(
                    Reason.OFFLINE,
                    f"the server cannot be reached ({_short(last)}); {hub_cache.so_far(self._order.repo)}: go on when "
                    "the network is back",
                )
            time.sleep(self._order.wait_s * 2 ** (failed - 1))


class _Counted:
    """A file that says how much of it is written."""

    def __init__(self, stream: IO[bytes], count: Count, name: str) -> None:
        self._stream = stream
        self._count = count
        self._name = name

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, data: bytes) -> int:
        """Write and count."""
        written = self._stream.write(data)
        self._count.at[self._name] = self._stream.tell()
        return written


def verify(order: Order, tell: Tell) -> Path:
    """Read every file again and compare; a plain folder has sizes to compare and no hashes. Raises Stopped."""
    folder = order.folder
    if folder is None:
        raise Stopped(Reason.REFUSED, f"{order.repo}: it is not on this disk")
    layout.examine(folder)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    # In the cache a file is a link to its content, which is called by its hash.
    links = {path: path.readlink().name for path in files if path.is_symlink()}
    hashed = {path: name for path, name in links.items() if len(name) in (40, 64)}
    count = Count(total=sum(path.stat().st_size for path in hashed))
    damaged: list[RepoFile] = []
    with _reporting(count, tell):
        for path, etag in hashed.items():
            name, size = path.relative_to(folder).as_posix(), path.stat().st_size
            count.file = name
            if hub_cache.digest(path, etag) != etag:
                damaged.append(RepoFile(path=name, bytes=size, etag=etag))
            count.at[name] = size
    if damaged:
        names = ", ".join(file.path for file in damaged)
        message = f"damaged: {names}; download again, which fetches only these anew"
        raise Stopped(Reason.DAMAGED, message, damaged)
    return folder


@contextlib.contextmanager
def _reporting(count: Count, tell: Tell) -> Iterator[None]:
    """Tell the count twice a second."""
    over = threading.Event()

    def speak() -> None:
        while not over.wait(REPORT_S):
            tell(count.report())

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield
        tell(count.report())
    finally:
        over.set()
        speaker.join()


def _refused(repo: str, error: Exception) -> Stopped:
    """A refusal of the hub, in words."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    page = f"https://huggingface.co/{repo}"
    here = hub_cache.token_present()
    if isinstance(error, GatedRepoError):
        if here:
            message = f"{repo} is gated, and your token has no access yet; ask for it at {page}, then go on"
            return Stopped(Reason.GATED, message)
        message = f"{repo} is gated: accept its terms at {page}, then set a token with `hf auth login` or HF_TOKEN"
        return Stopped(Reason.NO_TOKEN, message)
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, RepositoryNotFoundError) or status in (401, 403):
        if here:
            message = f"the server refuses your token for {repo} (HTTP {status}); check the name and the token"
            return Stopped(Reason.GATED, message)
        message = f"{repo} is not there, or it needs a token: set one with `hf auth login` or HF_TOKEN (HTTP {status})"
        return Stopped(Reason.NO_TOKEN, message)
    return Stopped(Reason.REFUSED, f"the server answered HTTP {status} for {repo}: {_short(error)}")


def _disk_or_refused(error: OSError) -> Reason:
    return Reason.DISK if error.errno in (errno.ENOSPC, errno.EDQUOT) else Reason.REFUSED


def _words(error: OSError, repo: str) -> str:
    if _disk_or_refused(error) is Reason.DISK:
        return f"the disk is full; {hub_cache.so_far(repo)}: free some room and go on"
    return f"{error.filename or 'a file'}: {error.strerror or error}"


def _short(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def main() -> None:
    """Read the order, carry it out, and leave when the giver does."""
    from huggingface_hub import constants

    out, door = sys.stdout, threading.Lock()
    order = codec.decode(Order, json.loads(sys.stdin.readline()))

    def tell(report: Report) -> None:
        with door:
            out.write(json.dumps(codec.encode(report)) + "\n")
            out.flush()

    def leave_with_the_giver() -> None:
        sys.stdin.read()
        os._exit(1)

    constants.DOWNLOAD_CHUNK_SIZE = PIECE  # the library holds back 10 MB, which a cut would lose and a person not see
    threading.Thread(target=leave_with_the_giver, daemon=True).start()
    carry_out(order, tell)
    os._exit(0)  # other threads may hang in a request: nothing of theirs is needed


if __name__ == "__main__":
    main()

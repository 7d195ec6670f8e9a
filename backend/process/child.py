"""One child process that cannot be orphaned: spawned fresh in its own session, watched, and killed with its group.

Knows processes and signals; it does not know what the child computes or what is said on its channel.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend import settings
from backend.process import channel as channels

REPOSITORY = Path(__file__).resolve().parents[2]
SEND_TIMEOUT_S = 5.0
TERM_S = 2.0  # between SIGTERM and SIGKILL
KILL_S = 3.0  # for the kernel to end what was killed
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: exit code, or the name of the signal."""

    code: int | None = None
    signal: str | None = None

    def __str__(self) -> str:
        return f"was killed by {self.signal}" if self.signal else f"exited with code {self.code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to start: `python -m module --fd N --parent PID`, printing into the descriptor `log`."""

    module: str
    name: str  # for threads and errors, such as "rank 1"
    log: int
    cwd: Path
    answers: Any  # union of dataclasses the child may send
    environment: dict[str, str]  # on top of `settings.worker_environment`
    with_token: bool = False


class Child:
    """A running child. `channel` is the line to it; `on_exit` is called once, on the watcher's thread."""

    def __init__(self, launch: Launch, on_exit: Callable[[Exit], None]) -> None:
        self.name = launch.name
        ours, theirs = channels.pair()
        try:
            self._process: subprocess.Popen[bytes] = _spawner().run(lambda: _spawn(launch, theirs.fileno()))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self.channel = channels.Channel(ours, launch.answers, launch.name, send_timeout_s=SEND_TIMEOUT_S)
        self._exit: Exit | None = None
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, args=(on_exit,), name=f"watch {self.name}", daemon=True)
        self._watcher.start()

    @property
    def exit(self) -> Exit | None:
        """How it ended, or None while it runs."""
        return self._exit

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; true when it came in time."""
        return self._ended.wait(max(0.0, timeout_s))

    def stopped(self) -> bool:
        """Whether the process is halted by a signal (SIGSTOP) rather than busy."""
        return _state(self.pid) in ("T", "t")

    def terminate(self) -> None:
        """SIGTERM to the whole group (SIGCONT after it: a stopped process cannot act on SIGTERM)."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def finish(self, term_s: float = TERM_S) -> tuple[int, ...]:
        """End the group: wait `term_s` for an asked-for exit, then SIGKILL; reap, hang up.

        Returns the ids of processes that even SIGKILL did not end in time (stuck in the kernel); normally empty.
        Idempotent.
        """
        self.wait(term_s)
        self._signal(signal.SIGKILL)  # the leader may be gone and its children not
        deadline = time.monotonic() + KILL_S
        survivors = group_members(self.pid)
        while survivors and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            survivors = group_members(self.pid)
        if self._ended.is_set():
            self._watcher.join()
            self._process.wait()  # only now may the kernel reuse the id
        self.channel.close()
        return survivors

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is not None:
            return  # reaped: the id may belong to somebody else by now
        with contextlib.suppress(ProcessLookupError):  # the whole group has ended: what a signal is for
            os.killpg(self.pid, number)

    def _watch(self, on_exit: Callable[[Exit], None]) -> None:
        # WNOWAIT leaves a zombie, which keeps process id and group id ours until `finish` has killed the group.
        result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert result is not None  # without WNOHANG it blocks until there is one
        if result.si_code == os.CLD_EXITED:
            self._exit = Exit(code=result.si_status)
        else:
            self._exit = Exit(signal=signal.Signals(result.si_status).name)
        self._ended.set()
        on_exit(self._exit)


def group_members(group: int) -> tuple[int, ...]:
    """Ids of living (not zombie) processes in process group `group`."""
    members = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            fields = _stat(int(folder.name))
            if fields and int(fields[2]) == group and fields[0] not in ("Z", "X"):
                members.append(int(folder.name))
    return tuple(members)


def _state(pid: int) -> str | None:
    fields = _stat(pid)
    return fields[0] if fields else None


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on: state, parent, group, ... (the name before may hold spaces)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _spawn(launch: Launch, fd: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", launch.module, "--fd", str(fd), "--parent", str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=launch.log,
        stderr=launch.log,
        pass_fds=(fd,),
        start_new_session=True,
        cwd=launch.cwd,
        env=_environment(launch),
    )


def _environment(launch: Launch) -> dict[str, str]:
    variables = settings.worker_environment(with_token=launch.with_token)
    paths = [str(REPOSITORY), *filter(None, [variables.get("PYTHONPATH")])]
    return {
        **variables,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",  # last words must be in the file when the process is killed
        "PYTHONFAULTHANDLER": "1",
        **launch.environment,
    }


class _Spawner:
    """A thread that never ends, to spawn from: PR_SET_PDEATHSIG fires when the *thread* that spawned a child ends."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._loop, name="spawner", daemon=True).start()

    def run(self, task: Callable[[], Any]) -> Any:
        future: Future[Any] = Future()
        self._tasks.put((task, future))
        return future.result()

    def _loop(self) -> None:
        while True:
            task, future = self._tasks.get()
            try:
                future.set_result(task())
            except BaseException as error:  # carried to the caller, who raises it
                future.set_exception(error)


_SPAWNER: list[_Spawner] = []
_SPAWNER_LOCK = threading.Lock()


def _spawner() -> _Spawner:
    with _SPAWNER_LOCK:
        if not _SPAWNER:
            _SPAWNER.append(_Spawner())
        return _SPAWNER[0]

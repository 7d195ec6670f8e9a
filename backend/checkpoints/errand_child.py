"""The child that downloads or checks a model: started, listened to, watched for silence, ended.

Knows the process and its reports; what they mean is the caller's.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from backend import codec
from backend.checkpoints import hub_cache
from backend.checkpoints.errands import Action, Kind, Order, Reason, Report
from backend.errors import CheckpointError
from backend.settings import worker_environment

SILENCE_S = 120.0  # it reports twice a second once it knows the files; asking for them is tried for a minute
END_S = 3.0
LOG_NAME = "models.log"
_ROOT = Path(__file__).resolve().parents[2]


class ErrandChild:
    """Runs `order` in a child; `hear` gets every report in a thread of its own, the last one DONE or FAILED.

    After `stop` it hears nothing more. Raises OSError where no process can be started.
    """

    def __init__(self, order: Order, logs_dir: Path, hear: Callable[[Report], None]) -> None:
        self._hear = hear
        self._order = order
        self._stopped = threading.Event()
        logs_dir.mkdir(parents=True, exist_ok=True)
        with (logs_dir / LOG_NAME).open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "backend.checkpoints.fetch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=_ROOT,
                env={**worker_environment(with_token=True), "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
                start_new_session=True,  # Ctrl-C is ours to hear
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once: the reader says so
            self._process.stdin.write(json.dumps(codec.encode(order)).encode() + b"\n")
            self._process.stdin.flush()
        self._reader = threading.Thread(target=self._listen, name="model-errand", daemon=True)
        self._reader.start()

    def stop(self) -> None:
        """End it now; parts of files stay."""
        self._stopped.set()
        self._end()
        if self._reader is not threading.current_thread():
            self._reader.join(END_S)

    def _listen(self) -> None:
        last: Report | None = None
        try:
            for line in self._lines():
                last = codec.decode(Report, json.loads(line))
                if not self._stopped.is_set():
                    self._hear(last)
        except (ValueError, CheckpointError, TimeoutError) as error:
            last = Report(kind=Kind.FAILED, reason=Reason.REFUSED, message=str(error))
            if not self._stopped.is_set():
                self._hear(last)
        self._end()
        if not self._stopped.is_set() and (last is None or last.kind not in (Kind.DONE, Kind.FAILED)):
            message = f"it ended without a word (exit code {self._process.returncode}); logs/{LOG_NAME} has more"
            self._hear(Report(kind=Kind.FAILED, reason=Reason.REFUSED, message=message))

    def _lines(self) -> Iterator[bytes]:
        assert self._process.stdout is not None
        pipe, rest = self._process.stdout.fileno(), b""
        while True:
            if not select.select([pipe], [], [], SILENCE_S)[0]:
                kept = f"; {hub_cache.so_far(self._order.repo)}" if self._order.action is Action.DOWNLOAD else ""
                raise TimeoutError(f"no sign of life for {SILENCE_S:g} s, so it was stopped{kept}")
            piece = os.read(pipe, 1 << 16)
            if not piece:
                return
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines

    def _end(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

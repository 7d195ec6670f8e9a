"""The life of a rank: Setup, load, Ready, then one Generate after the other until Shutdown.

Commands are read on a thread, so that Cancel is seen during a forward. Knows messages and the Model protocol only.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any

from backend.errors import H3Error
from backend.events import Cancelled, Failed, StageStarted, Succeeded
from backend.process import logs
from backend.process.channel import Channel, ChannelError, Closed
from backend.process.messages import Broken, Cancel, Command, Done, Generate, Pulse, Ready, Setup, Shutdown
from backend.types import JobId, Render, Stage
from backend.worker import models
from backend.worker.report import Report

PULSE_S = 0.5
EXIT_BROKEN = 1
_TAIL_LINES = 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Rank:
    """One rank, driven by the channel on descriptor `fd`."""

    def __init__(self, fd: int) -> None:
        self._channel = Channel(socket.socket(fileno=fd), Command, "the parent")
        self._orders: queue.SimpleQueue[Setup | Generate | Shutdown] = queue.SimpleQueue()
        self._current: JobId | None = None  # written by the reader when a job arrives, so that its Cancel finds it
        self._report = Report(0, self._channel.send)
        self._world_size = 1

    def run(self) -> int:
        """Serve until Shutdown (0) or an unexpected error (1)."""
        self._channel.read_into(self._receive)
        setup = self._orders.get()
        if not isinstance(setup, Setup):
            return 0
        self._world_size = setup.world_size
        self._report.rank = setup.rank
        self._report.stage_now = Stage.LOAD  # the parent times this stage: it knows when the process was spawned
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()
        try:
            self._serve(setup)
        except Exception as error:  # the outermost frame of the rank: it reports, and the fleet is replaced
            _log_error()
            self._channel.send(
                Broken(
                    rank=setup.rank,
                    reason=_in_a_line(error),
                    stage=self._report.stage_now,
                )
            )
            _leave(EXIT_BROKEN)
        _leave(0)
        return 0

    def _serve(self, setup: Setup) -> None:
        began = time.monotonic()
        if setup.rank == 0:
            self._channel.send(StageStarted(stage=Stage.LOAD, detail="loading libraries"))
        model = models.create(setup.model)
        info = model.load(setup, self._report)
        loaded_s = time.monotonic() - began
        self._report.stage_now = None
        _log(_readiness(setup, info, loaded_s))
        self._channel.send(Ready(rank=setup.rank, pid=os.getpid(), info=info))
        while isinstance(order := self._orders.get(), Generate):
            self._report.begin(model.agree, loaded_s)
            loaded_s = 0.0  # the job that waited for it has it in its sidecar
            self._generate(model, order.render)
            self._report.stage_now = None
        model.close()

    def _generate(self, model: models.Model, render: Render) -> None:
        rank, report = self._report.rank, self._report
        answer: Succeeded | Failed | Cancelled | None
        try:
            answer = model.generate(render, report)
            report.finish_stage()
        except models.Stopped as stopped:
            report.finish_stage()
            answer = Cancelled(stage=stopped.stage, step=stopped.step, steps=stopped.steps)
        except H3Error as error:  # the request's fault or the disk's, in words for people; the model is as it was
            if self._world_size > 1:
                raise  # the other ranks may wait in a collective for this one
            _log_error()
            answer = Failed(reason=logs.redact(str(error)), stage=report.stage_now, log_tail=_tail())
        if rank == 0 and answer is not None:
            self._channel.send(answer)
        else:
            self._channel.send(Done(rank=rank, job=render.job))

    def _receive(self, item: Any) -> None:
        match item:
            case Generate():
                self._current = item.render.job
                self._report.clear_stop()
                self._orders.put(item)
            case Cancel():
                if item.job == self._current:
                    self._report.stop()
            case Shutdown():
                self._report.stop()
                self._orders.put(item)
            case Closed() | ChannelError():  # the parent is gone, or mad: nobody is left to work for
                _end_group()
            case _:
                self._orders.put(item)

    def _beat(self) -> None:
        while True:
            report = self._report
            pulse = Pulse(
                rank=report.rank, stage=report.stage_now, progress=report.progress, rss_bytes=_resident_bytes()
            )
            try:
                self._channel.send(pulse)
            except ChannelError:
                return  # the reader sees the same end of the line and ends the process
            time.sleep(PULSE_S)


def _in_a_line(error: Exception) -> str:
    """Words for people as they are; of anything else its type and first line (CUDA's errors end in advice)."""
    text = str(error) if isinstance(error, H3Error) else "".join(traceback.format_exception_only(error)).strip()
    return logs.redact(text if isinstance(error, H3Error) else text.splitlines()[0])


def _readiness(setup: Setup, info: Mapping[str, object], loaded_s: float) -> str:
    """What was chosen here, in a line for whoever reads the log; the sidecars have more of it."""
    shared = info.get("parallel")
    exchange = shared["exchange"] if isinstance(shared, dict) else None
    form = setup.parallel.form(exchange or setup.parallel.wanted_exchange)
    facts = (f"rank {setup.rank} of {setup.world_size}", form, f"attention {info.get('attention')}")
    return f"Ready after {loaded_s:.1f} s: {', '.join(fact for fact in facts if fact)}"


def _log(text: str) -> None:
    """`text` into the log; a full disk takes no log either, and the parent must hear of it all the same."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - this is the rank's log


def _log_error() -> None:
    """The error that is being handled, into the log."""
    _log(traceback.format_exc())


def _tail() -> str:
    return logs.redact("".join(traceback.format_exc().splitlines(keepends=True)[-_TAIL_LINES:]))


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - twice a second, kept cheap
        return int(file.read().split()[1]) * _PAGE_BYTES


def _leave(code: int) -> None:
    """End at once: threads of libraries (encoders, collectives) must not keep a rank that is done."""
    with contextlib.suppress(OSError):  # a full disk
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _end_group() -> None:
    """End this process and whatever it started."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(EXIT_BROKEN)

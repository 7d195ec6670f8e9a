"""Entry point of a rank: `python -m backend.worker.main --fd N --parent PID`.

Ties the process to its parent before anything else is imported; what the rank then does is `loop`'s business.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h
EXIT_ORPHANED = 3


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when `parent` ends; exits at once if it already has."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it ended between spawn and prctl: the signal will never come
        os._exit(EXIT_ORPHANED)


def own_signals() -> None:
    """Undo what was inherited: a parent may ignore or block SIGTERM, and Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def main() -> int:
    """Run one rank to its end; the exit code is 0 after Shutdown and 1 after an unexpected error."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    own_signals()
    from backend.worker.loop import Rank

    return Rank(arguments.fd).run()


if __name__ == "__main__":
    sys.exit(main())

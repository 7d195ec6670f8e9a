"""Takes rights away from the process that calls it, before it touches a file from a user.

Linux only in its kernel parts; it knows limits and system calls, nothing of media.
"""

from __future__ import annotations

import ctypes
import platform
import resource
import signal
import struct
import sys
from typing import Any

ADDRESS_SPACE_BYTES = 4 * 2**30
OPEN_FILES = 32
FILE_BYTES = 3 * 2**30  # 15 s at 24 fps on the largest canvas are 1.1 GiB

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_SECCOMP_MODE_FILTER = 2
_EPERM = 1
# (audit architecture, socket, socketpair, execve, execveat) by machine: linux/audit.h and the kernel's syscall tables
_SYSCALLS = {
    "x86_64": (0xC000003E, (41, 53, 59, 322)),
    "aarch64": (0xC00000B7, (198, 199, 221, 281)),
}


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends."""
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def limit(cpu_s: int) -> None:
    """Cap address space, CPU time, open files and output size of this process, and forbid core dumps."""
    _cap(resource.RLIMIT_AS, ADDRESS_SPACE_BYTES)
    _cap(resource.RLIMIT_CPU, cpu_s)
    _cap(resource.RLIMIT_NOFILE, OPEN_FILES)
    _cap(resource.RLIMIT_FSIZE, FILE_BYTES)
    _cap(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the cap is an error, not a death


def deny_network() -> None:
    """Refuse sockets and new programs: in Python by an audit hook, below it by the kernel where it can."""
    sys.addaudithook(_refuse)
    machine = _SYSCALLS.get(platform.machine())
    if machine is not None and sys.platform == "linux":
        _filter_system_calls(*machine)


def _cap(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (value, value))


def _refuse(event: str, _arguments: tuple[Any, ...]) -> None:
    if event.startswith(("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.system")):
        raise PermissionError(f"{event} is not allowed while a user's file is read")


def _filter_system_calls(architecture: int, numbers: tuple[int, ...]) -> None:
    """Install a seccomp filter: `numbers` answer EPERM, all else is allowed (seccomp(2), classic BPF)."""
    load, equal, give = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
    allow, refuse = 0x7FFF0000, 0x00050000 | _EPERM
    count = len(numbers)
    program = [(load, 0, 0, 4), (equal, 0, count + 1, architecture), (load, 0, 0, 0)]
    program += [(equal, count - index, 0, number) for index, number in enumerate(numbers)]
    program += [(give, 0, 0, allow), (give, 0, 0, refuse)]
    code = b"".join(struct.pack("=HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code)
    header = ctypes.create_string_buffer(struct.pack("@HxxxxxxP", len(program), ctypes.addressof(buffer)))
    libc = _libc()
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # A kernel without seccomp answers an error: the audit hook and the readers' own whitelists still hold.
    libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(header), 0, 0)


def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    return libc

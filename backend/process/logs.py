"""What the ranks print: one file a rank, bounded in size, with a tail that is safe to show.

Knows files and secrets' shapes; it does not know what was logged or why.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

MAX_LOG_BYTES = 8 * 2**20
KEPT_FILES = 32
TAIL_LINES = 30
_TAIL_BYTES = 64 * 1024

_SECRETS = (
    re.compile(r"\b(hf|ghp|gho|github_pat|sk|xox[abp])[_-][A-Za-z0-9_-]{8,}"),
    re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"(?i)\b([a-z0-9_]*(?:token|secret|password|passwd|api_?key))(\s*[=:]\s*)(['\"]?)[^\s'\",;]{4,}"),
    re.compile(r"(?i)(https?://)[^/\s:@]+:[^/\s@]+@"),
)
_PUT_BACK = (r"\1_[redacted]", r"\1 [redacted]", r"\1\2\3[redacted]", r"\1[redacted]@")


def redact(text: str) -> str:
    """`text` without tokens, passwords and credentials in addresses."""
    for pattern, kept in zip(_SECRETS, _PUT_BACK, strict=True):
        text = pattern.sub(kept, text)
    return text


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last `lines` lines of the log at `path`, redacted; empty when there is no log."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            data = file.read()
    except FileNotFoundError:
        return ""
    text = data.decode("utf-8", errors="replace")
    return redact("\n".join(text.splitlines()[-lines:]))


def listing(logs_dir: Path) -> list[Path]:
    """All logs of ranks, newest first."""
    found = [(path.stat().st_mtime, path) for path in logs_dir.glob("*-rank*.log")]
    return [path for _, path in sorted(found, reverse=True)]


def open_log(logs_dir: Path, run: str, rank: int) -> tuple[Path, int]:
    """Create `<run>-rank<rank>.log` and prune old ones; returns the path and a descriptor to give to the child.

    The descriptor appends, so `rotate` may cut the file under a running child.
    """
    logs_dir.mkdir(parents=True, exist_ok=True)
    for old in listing(logs_dir)[KEPT_FILES - 1 :]:
        old.unlink(missing_ok=True)
        _older(old).unlink(missing_ok=True)
    path = logs_dir / f"{run}-rank{rank}.log"
    return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def close(descriptor: int) -> None:
    """Close our copy of a log's descriptor once the child has its own."""
    os.close(descriptor)


def rotate(path: Path) -> bool:
    """Move the content of a log that grew over MAX_LOG_BYTES to `.log.1`; true when it did."""
    try:
        if path.stat().st_size <= MAX_LOG_BYTES:
            return False
        shutil.copyfile(path, _older(path))
        os.truncate(path, 0)
    except FileNotFoundError:  # pruned meanwhile, or the folder was removed: there is nothing to cut
        return False
    return True


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")

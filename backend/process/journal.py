"""The log of the program itself: one JSON object a line, rotated, without secrets.

Knows the standard library's logging and `logs.redact`; what is worth a line is said where it happens.
"""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from backend.process import logs

NAME = "program.log"
MAX_BYTES = 8 * 2**20
KEPT = 3
LOGGERS = ("backend", "h3ui")
_PLAIN = {*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime", "taskName"}


class Journal:
    """Writes what our loggers say to `logs_dir/program.log` until `close`; idempotent."""

    def __init__(self, logs_dir: Path) -> None:
        logs_dir.mkdir(parents=True, exist_ok=True)
        self.path = logs_dir / NAME
        self._handler = _File(self.path, maxBytes=MAX_BYTES, backupCount=KEPT, encoding="utf-8", delay=True)
        self._handler.setFormatter(_Lines())
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self._handler)
            logging.getLogger(name).setLevel(logging.INFO)

    def close(self) -> None:
        """Write no more."""
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self._handler)
        self._handler.close()


class _File(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """A disk that takes no log is no reason to stop, nor to fill the terminal: the job says it in its own words."""


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _PLAIN}
        if record.exc_info and record.exc_info[0] is not None:
            fields["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps({name: _plain(value) for name, value in fields.items()}, ensure_ascii=False)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float) else logs.redact(str(value))

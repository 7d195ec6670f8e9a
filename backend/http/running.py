"""Where the running program of a data folder can be asked how it is, for `doctor`.

Knows one small file and `/ready`.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from backend.settings import Settings

ASK_S = 3.0


def announce(settings: Settings, url: str) -> None:
    """Leave word of where this program answers."""
    path = _file(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"url": url, "pid": os.getpid()}), encoding="utf-8")


def withdraw(settings: Settings) -> None:
    """This program answers no more."""
    _file(settings).unlink(missing_ok=True)


def ask(settings: Settings) -> dict[str, Any] | None:
    """What the running program's `/ready` says, with its `url` and `pid`; None when none answers."""
    try:
        word = json.loads(_file(settings).read_text(encoding="utf-8"))
        request = urllib.request.Request(f"{word['url']}/ready")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this machine
        try:
            with opener.open(request, timeout=ASK_S) as answer:
                body = json.load(answer)
        except urllib.error.HTTPError as error:  # 503 with the reason inside
            body = json.load(error)
    except (OSError, ValueError, KeyError):  # none runs, or it was killed and left its word
        return None
    return {**word, **body} if isinstance(body, dict) and "ready" in body else None


def _file(settings: Settings) -> Path:
    return settings.run_dir / "serving.json"

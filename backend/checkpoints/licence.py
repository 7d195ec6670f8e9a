"""The licence of the released weights: who must accept it, and where it is kept that somebody did.

Asked once an installation. The built-in model has random weights and needs none.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from backend.checkpoints import catalog
from backend.errors import H3Error
from backend.settings import Settings
from backend.types import Geometry

if TYPE_CHECKING:
    from backend.checkpoints.catalog import Checkpoint

NAME = "MiniMax H3 Community License"
URL = f"https://huggingface.co/{catalog.RELEASED}"
SUMMARY = "It names regions and duties of whoever runs the model for others, and what must be shown with the results."


@dataclass(frozen=True, slots=True, kw_only=True)
class Licence:
    """A licence somebody must accept before the model is run for people; `accepted` says whether it was."""

    name: str
    url: str
    summary: str
    accepted: bool


def licence_of(checkpoint: Checkpoint, settings: Settings) -> Licence | None:
    """The licence of `checkpoint`, or None where there is nothing to accept.

    A copy of the released model in some folder is told by its canvas rules.
    """
    released = catalog.RELEASED in (checkpoint.name, checkpoint.source) or checkpoint.geometry == Geometry()
    if not released:
        return None
    return Licence(name=NAME, url=URL, summary=SUMMARY, accepted=NAME in _stored(_file(settings)))


def accept(settings: Settings, by: str) -> None:
    """Store that `by` accepted it, whole or not at all. Raises H3Error when the disk refuses."""
    path = _file(settings)
    given = {**_stored(path), NAME: {"by": by, "at": time.time()}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(given, indent=1), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise H3Error(f"{path}: the acceptance could not be stored: {error.strerror or error}") from error


def _file(settings: Settings) -> Path:
    return settings.data_dir / "licences.json"


def _stored(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # unreadable is as good as never asked
        return {}
    return found if isinstance(found, dict) else {}

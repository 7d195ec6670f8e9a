"""The adapters that may be chosen by name: LoRA files in one folder of this installation, which only its owner fills.

A name is a file's name without its ending; no path ever comes from outside.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from backend.checkpoints.adapters import AdapterCard, NotAnAdapter, card
from backend.errors import InvalidRequest, Problem
from backend.settings import Settings
from backend.types import Adapter

MAX_SCALE = 4.0  # beyond it nothing but noise was ever seen
_NAME = re.compile(r"[\w][\w .+()-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedAdapter:
    """One adapter: its file, what it says of itself, or why it cannot be used."""

    name: str
    path: Path
    card: AdapterCard | None
    problem: str = ""

    @property
    def title(self) -> str:
        """What people call it."""
        return self.name if self.card is None else self.card.title


def listed(settings: Settings) -> tuple[ListedAdapter, ...]:
    """Every LoRA file of the folder, usable or not, by name."""
    found = []
    for path in sorted(settings.adapters_dir.glob("*.safetensors")):
        if not path.is_file():
            continue
        try:
            found.append(ListedAdapter(name=path.stem, path=path, card=card(path)))
        except NotAnAdapter as error:
            found.append(ListedAdapter(name=path.stem, path=path, card=None, problem=str(error.problem)))
    return tuple(found)


def pick(settings: Settings, name: str, scale: float = 1.0, field: str = "adapter") -> Adapter:
    """The adapter called `name`. Raises InvalidRequest naming those that are listed."""
    usable = {item.name: item for item in listed(settings) if item.card is not None}
    if name not in usable:
        names = ", ".join(usable) or "none is installed here"
        raise _wrong(field, name, "is no adapter of this server", f"choose one of: {names}" if usable else names)
    if not -MAX_SCALE <= scale <= MAX_SCALE:
        raise _wrong(
            field, f"{scale:g}", f"its strength must be {-MAX_SCALE:g} to {MAX_SCALE:g}", "1 is as it was made"
        )
    return Adapter(path=usable[name].path, scale=scale)


def fewest_steps(settings: Settings, below: int) -> ListedAdapter | None:
    """The usable adapter that states the fewest sigma points, fewer than `below`; the first by name of equals."""
    fewest, found = below, None
    for item in listed(settings):
        steps = None if item.card is None else item.card.num_inference_steps
        if steps is not None and steps < fewest:
            fewest, found = steps, item
    return found


def add(settings: Settings, source: Path, name: str) -> ListedAdapter:
    """Copy an uploaded file into the folder under `name`, whole or not at all. Raises InvalidRequest, NotAnAdapter."""
    stem = Path(name).stem
    if not _NAME.fullmatch(stem):
        raise _wrong("adapter", stem, "its name must be letters, digits, spaces, . + - ( ) and _", "rename the file")
    target = settings.adapters_dir / f"{stem}.safetensors"
    if target.exists():
        raise _wrong("adapter", stem, "there is one of that name already", "rename the file, or remove the other")
    found = card(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    try:
        shutil.copyfile(source, part)
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise _wrong("adapter", stem, f"it cannot be stored: {error.strerror or error}", "free some room") from error
    return ListedAdapter(name=stem, path=target, card=found)


def remove(settings: Settings, name: str) -> None:
    """Delete the adapter called `name` with what lies beside it. Raises InvalidRequest for an unknown one."""
    known = {item.name: item for item in listed(settings)}
    if name not in known:
        raise _wrong("adapter", name, "is no adapter of this server")
    known[name].path.unlink(missing_ok=True)
    known[name].path.with_suffix(".toml").unlink(missing_ok=True)


def _wrong(field: str, value: str, rule: str, way_out: str = "") -> InvalidRequest:
    return InvalidRequest((Problem(field=field, value=value[:80], rule=rule, way_out=way_out),))

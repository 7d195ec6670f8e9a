"""Times as a prompt writes them, `00:03.500`, and as people write them, `3.5 s`.

It knows spelling only; which times make sense is the lint's knowledge.
"""

from __future__ import annotations

import re

PATTERN = r"[0-9]{1,3}:[0-9]{1,2}(?:[.,][0-9]{1,3})?|[0-9]{1,4}(?:[.,][0-9]{1,3})?[ ]?(?:seconds?|secs?|s)\b"
_CLOCK = re.compile(r"([0-9]{1,3}):([0-9]{1,2})(?:[.,]([0-9]{1,3}))?")


def write(seconds: float) -> str:
    """`3.5` as `00:03.500`, the only form of the prompt guides (4.2)."""
    total_ms = max(round(seconds * 1000), 0)
    minutes, rest_ms = divmod(total_ms, 60_000)
    return f"{minutes:02d}:{rest_ms // 1000:02d}.{rest_ms % 1000:03d}"


def read(text: str) -> float | None:
    """Seconds that `text` means, written either way; None when it means none."""
    cleaned = text.strip()
    if clock := _CLOCK.fullmatch(cleaned):
        fraction = float(f"0.{clock[3]}") if clock[3] else 0.0
        return int(clock[1]) * 60 + int(clock[2]) + fraction
    if re.fullmatch(PATTERN, cleaned):
        return float(re.match(r"[0-9.,]+", cleaned)[0].replace(",", "."))  # type: ignore[index]
    return None


def is_exact(text: str) -> bool:
    """Whether `text` is written exactly as the format asks."""
    return re.fullmatch(r"[0-9]{2}:[0-5][0-9]\.[0-9]{3}", text) is not None

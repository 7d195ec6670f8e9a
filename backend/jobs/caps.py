"""How much one owner, and all of them together, may put in: waiting jobs and the media that wait with them.

States the limits and judges a count against them; counting is the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass

from backend.errors import InvalidRequest, Problem

MIB, GIB = 2**20, 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Limits of the queue and of uploads. `upload_*` bound files a browser has sent and no job owns yet."""

    waiting_per_owner: int = 500
    waiting_in_all: int = 2000
    media_bytes_per_owner: int = 64 * GIB
    file_bytes: int = 1 * GIB  # a 15 s reference clip from a camera is a few hundred MB
    upload_bytes_per_owner: int = 64 * GIB
    upload_bytes_in_all: int = 64 * GIB

    def sentence(self) -> str:
        """The limits in words, for the page."""
        return (
            f"Limits: {self.waiting_per_owner} waiting jobs a person and {self.waiting_in_all} in all; files up to "
            f"{size(self.file_bytes)}, {size(self.upload_bytes_per_owner)} a person and "
            f"{size(self.upload_bytes_in_all)} in all; they are removed a day after they were sent."
        )

    def check(self, crowd: Crowd, media_bytes: int, jobs: int = 1) -> None:
        """Raise InvalidRequest where `jobs` more with `media_bytes` of media in all are too much beside `crowd`."""
        if crowd.own + jobs > self.waiting_per_owner:
            rule = f"at most {self.waiting_per_owner} of your jobs may wait at a time"
            raise _refused(f"{crowd.own} waiting", rule, "wait for one to finish, or cancel one")
        if crowd.all + jobs > self.waiting_in_all:
            rule = f"at most {self.waiting_in_all} jobs may wait at a time"
            raise _refused(f"{crowd.all} waiting in all", rule, "try again later")
        if crowd.own_media_bytes + media_bytes > self.media_bytes_per_owner:
            held = size(crowd.own_media_bytes + media_bytes)
            rule = f"the media of your waiting jobs may take {size(self.media_bytes_per_owner)}"
            raise _refused(held, rule, "use smaller files, or wait for a job to finish")


# A stranger with the link gets enough for an evening and cannot fill the disk or the night.
SHARED = Caps(
    waiting_per_owner=5,
    waiting_in_all=50,
    media_bytes_per_owner=1 * GIB,
    file_bytes=256 * MIB,
    upload_bytes_per_owner=1 * GIB,
    upload_bytes_in_all=8 * GIB,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """What waits already: of one owner, and of everybody."""

    own: int
    all: int
    own_media_bytes: int = 0


def size(count: int) -> str:
    """Bytes for people: "256 MiB"."""
    return f"{count / GIB:.3g} GiB" if count >= GIB else f"{count / MIB:.3g} MiB"


def _refused(value: str, rule: str, way_out: str) -> InvalidRequest:
    return InvalidRequest((Problem(field="queue", value=value, rule=rule, way_out=way_out),))

"""A second MP4 of the same packets that can be played while it grows: fragments of half a second, index in front.

Knows packets and one file, which lives as long as its owner works; whether anybody watches is not known here.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import av

from backend.media.unbuffered import Appended
from backend.types import FPS

FRAGMENT_S = 0.5
# A fragment begins at every key frame and after FRAGMENT_S: players need a key frame at the start only, so that the
# finished file keeps its own distance of them. `delay_moov` writes the index with the first fragment, when the edit
# list that hides AAC's priming and x264's reordering is known: times are those of the finished file.
_OPTIONS = {
    "movflags": "frag_keyframe+empty_moov+default_base_moof+delay_moov",
    "frag_duration": str(round(FRAGMENT_S * 1e6)),
    "flush_packets": "1",
    "max_interleave_delta": "0",
}


class GrowingMp4:
    """Takes the packets of `video` and `audio`, two encoders' streams, after their own container has them.

    A disk that refuses ends this file and no other: `failure` then says why. Used from one thread, but for `remove`.
    """

    def __init__(self, path: Path, video: Any, audio: Any) -> None:
        self.failure: str | None = None
        self.playable_frames = 0  # pictures in fragments that are on the disk
        self._path = path
        self._handed = 0
        self._file: Appended | None = None
        self._container: Any = None
        try:
            self._file = Appended(path)
            self._container = av.open(self._file, "w", format="mp4", container_options=_OPTIONS)
            self._twins = {stream.index: self._container.add_stream_from_template(stream) for stream in (video, audio)}
            self._video = video.index
        except OSError as error:
            self._give_up(error)

    @property
    def playable_s(self) -> float:
        """Seconds that can be watched now."""
        return self.playable_frames / FPS

    def mux(self, packets: list[Any]) -> None:
        """Take packets of either stream; they keep their data."""
        if self._container is None or self._file is None:
            return
        try:
            for packet in packets:
                index, size = packet.stream.index, self._file.size
                packet.stream = self._twins[index]
                self._container.mux(packet)
                if self._file.size > size:  # the packet began a new fragment: those before it are written
                    self.playable_frames = self._handed
                self._handed += index == self._video
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Write the last fragment; the file stays until `remove`."""
        if self._container is None:
            return
        try:
            self._container.close()
            self.playable_frames = self._handed
        except OSError as error:
            self._give_up(error)
        self._container = None

    def remove(self) -> None:
        """Delete the file; whoever has it open reads on to its end. Idempotent."""
        if self._container is not None:  # left in the middle
            with contextlib.suppress(OSError):
                self._container.close()
            self._container = None
        if self._file is not None:
            self._file.raw.close()
        self._path.unlink(missing_ok=True)

    def _give_up(self, error: OSError) -> None:
        known = self._file.error if self._file is not None else None
        self.failure = str((known or error).strerror or error)
        self.remove()  # PyAV's last words say again what `failure` says

"""Which rows of the packed sequence a rank holds: all of them, or an equal part with dead rows at the very end.

Knows places of rows; what a row means is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backend.runtime.parallel.group import Group


@dataclass(frozen=True, slots=True)
class Stream:
    """The rows of one modality that a rank holds."""

    which: Tensor | None  # (n,) rows of the stream; None: all of them
    where: Tensor  # (n,) their places among this rank's rows

    def of(self, stream: Tensor) -> Tensor:
        """This rank's rows (n, channels) of a whole stream (rows, channels)."""
        return stream if self.which is None else stream.index_select(0, self.which)


class AllRows:
    """One rank holds the whole sequence."""

    def __init__(self, text_at: Tensor, video_at: Tensor, audio_at: Tensor) -> None:
        """Takes the places of each stream's rows in the packed sequence."""
        self.count = text_at.shape[0] + video_at.shape[0] + audio_at.shape[0]
        self.local = self.count
        self.device = text_at.device
        self.text, self.video, self.audio = Stream(None, text_at), Stream(None, video_at), Stream(None, audio_at)

    def mine(self, whole: Tensor) -> Tensor:
        """This rank's entries of something that has one for each row, (count, ...) -> (local, ...)."""
        return whole

    def gather(self, video: Tensor, audio: Tensor) -> tuple[Tensor, Tensor]:
        """This rank's video and audio outputs, (n, channels) each, to those of the whole sequence."""
        return video, audio


class PartOfRows(AllRows):
    """A group holds the sequence: rank r the rows from `r * local` on. `count` rows are real, the rest dead."""

    def __init__(self, group: Group, text_at: Tensor, video_at: Tensor, audio_at: Tensor) -> None:
        super().__init__(text_at, video_at, audio_at)
        self._group = group
        self._at = (video_at, audio_at)
        self.local = -(-self.count // group.size)
        self._start = group.rank * self.local
        # Waits for the device, once a request: how many rows of a stream lie here decides shapes.
        self.text, self.video, self.audio = (self._part(at) for at in (text_at, video_at, audio_at))

    def mine(self, whole: Tensor) -> Tensor:
        """See `AllRows`; zeros for dead rows."""
        part = whole[self._start : self._start + self.local]
        if part.shape[0] == self.local:
            return part
        padded = whole.new_zeros((self.local, *whole.shape[1:]))
        padded[: part.shape[0]] = part
        return padded

    def gather(self, video: Tensor, audio: Tensor) -> tuple[Tensor, Tensor]:
        """See `AllRows`. One collective for both: each output travels in its row's place, so sizes are equal."""
        out = video.new_zeros((self.local, max(video.shape[1], audio.shape[1])))
        out[:, : video.shape[1]].index_copy_(0, self.video.where, video)
        out[:, : audio.shape[1]].index_copy_(0, self.audio.where, audio.to(out.dtype))
        whole = self._group.gather(out)
        video_at, audio_at = self._at
        return (
            whole.index_select(0, video_at)[:, : video.shape[1]],
            whole.index_select(0, audio_at)[:, : audio.shape[1]].to(audio.dtype),
        )

    def _part(self, at: Tensor) -> Stream:
        which = torch.nonzero((at >= self._start) & (at < self._start + self.local))[:, 0]
        return Stream(which, at.index_select(0, which) - self._start)

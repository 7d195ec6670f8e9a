"""Reads finished MP4s in the child: their settings, their last picture, and the pictures of two side by side.

Runs inside the sandbox, where rights are limited already; formulas are `likeness`', boxes are `boxes`'.
"""

from __future__ import annotations

import collections
import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import av
import numpy as np
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter
from PIL import Image

from backend.errors import MediaRefused
from backend.media import boxes, containers, likeness, sniff
from backend.media.finished import Answer, Comparison, Question, Task
from backend.media.source import Source, open_source, refusal

MAX_SETTINGS_BYTES = 4 * 2**20  # a sidecar is some 10 KB; prompts are at most 7000 characters
MAX_PIXELS = 4096 * 2304  # H.264 level 5.1, as for references
MAX_FRAMES = 24 * 60  # four times what the model can make
_ACCURATE = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INP


def answer(question: Question, fds: list[int]) -> Answer:
    """Answer `question` from the open files `fds`; raises MediaRefused."""
    sources = [_mp4(name, fd) for name, fd in zip(question.names, fds, strict=True)]
    if question.task is Task.SETTINGS:
        return Answer(settings=_settings(sources[0]))
    if question.task is Task.LAST_FRAME:
        assert question.target is not None
        Image.fromarray(_last(sources[0])).save(question.target, format="PNG")
        return Answer()
    return Answer(comparison=_compare(sources[0], sources[1]))


def _mp4(name: str, fd: int) -> Source:
    source = open_source("file", name, fd)
    if source.format.family is sniff.Family.PICTURE or source.format not in (sniff.MP4, sniff.MOV):
        raise _foreign(name, f"is {source.format.title}")
    return source


def _foreign(name: str, why: str) -> MediaRefused:
    rule = "must be an MP4 that this program made, as it was downloaded"
    return refusal("file", name, why, rule, "other programs remove the settings when they save a video again")


def _settings(source: Source) -> dict[str, Any]:
    """The JSON object in the comment of the file."""
    try:
        text = boxes.metadata(source.file).get("comment", "")
    except ValueError as error:
        raise _foreign(source.name, str(error)) from error
    if not text:
        raise _foreign(source.name, "holds no settings")
    if len(text) > MAX_SETTINGS_BYTES:
        raise _foreign(source.name, "holds too much text")
    try:
        found = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise _foreign(source.name, "its comment is not ours") from error
    if not isinstance(found, dict) or not isinstance(found.get("request"), dict):
        raise _foreign(source.name, "its comment is not ours")
    return found


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")


def _last(source: Source) -> np.ndarray:
    """The last picture, uint8 (height, width, 3), by the BT.709 matrix our writer uses."""
    with containers.opened(source) as opened:
        frames = collections.deque(_decoded(source, opened), maxlen=1)
        if not frames:
            raise source.refuse("no picture", "must hold at least one picture", "make it again")
        pixels = VideoReformatter().reformat(
            frames[0],
            format="rgb24",
            src_colorspace=Colorspace.ITU709,
            src_color_range=ColorRange.MPEG,
            dst_color_range=ColorRange.JPEG,
            interpolation=_ACCURATE,
        )
        return pixels.to_ndarray()


def _compare(first: Source, second: Source) -> Comparison:
    with ExitStack() as held:
        both = [held.enter_context(containers.opened(source)) for source in (first, second)]
        streams: list[Any] = [opened.video for opened in both]
        for source, stream in zip((first, second), streams, strict=True):
            if stream is None:
                raise source.refuse("no picture", "must hold pictures", "choose another result")
        sizes = tuple(f"{stream.width} × {stream.height}" for stream in streams)
        if sizes[0] != sizes[1]:
            reason = f"The pictures differ in size, {sizes[0]} and {sizes[1]}: PSNR and SSIM need the same."
            return Comparison(sizes=sizes, frames=(streams[0].frames, streams[1].frames), reason=reason)
        counts, mse, ssim = [0, 0], [], []
        pairs = itertools.zip_longest(*(_decoded(*pair) for pair in zip((first, second), both, strict=True)))
        for one, other in pairs:
            counts[0] += one is not None
            counts[1] += other is not None
            if one is not None and other is not None:
                found = likeness.compare_planes(_planes(one), _planes(other))
                mse.append(found.mse)
                ssim.append(found.ssim)
        return Comparison(sizes=sizes, frames=tuple(counts), mse=tuple(mse), ssim=tuple(ssim))


def _decoded(source: Source, opened: containers.Opened) -> Iterator[av.VideoFrame]:
    stream: Any = opened.video
    if stream is None:
        return
    stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
    stream.codec_context.thread_type = "AUTO"
    try:
        for index, frame in enumerate(opened.container.decode(stream)):
            if index >= MAX_FRAMES:
                raise source.refuse(f"more than {MAX_FRAMES} pictures", "must be at most a minute", "cut it")
            yield frame
    except av.FFmpegError as error:
        raise containers.damaged(source, error) from error


def _planes(frame: av.VideoFrame) -> tuple[np.ndarray, ...]:
    """Y, U and V of a picture, uint8 (height, width) and half of that."""
    height, width = frame.height, frame.width
    if height % 2 or width % 2:  # our own never are; without whole chroma samples only luma is compared
        return (frame.to_ndarray(format="gray8"),)
    stacked = frame.to_ndarray(format="yuv420p")
    luma = stacked[:height]
    chroma = stacked[height:].reshape(2, height // 2, width // 2)
    return luma, chroma[0], chroma[1]

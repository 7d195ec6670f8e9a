"""Reads a video that another server made, picture by picture, and rewrites its index, in the child.

Runs inside the sandbox, where rights are limited already; what is good is `checks`', boxes are `boxes`'.
"""

from __future__ import annotations

from typing import Any

import av
import numpy as np

from backend.media import boxes, containers, sniff
from backend.media.checks import OutputChecks
from backend.media.received import Answer, Arrived, Order
from backend.media.source import Source, open_source
from backend.types import AUDIO_SAMPLE_RATE

MAX_PIXELS = 4096 * 2304
MAX_FRAMES = 24 * 60  # four times what the model can make


def carry_out(order: Order, fd: int) -> Answer:
    """Do what `order` says with the open file `fd`; raises MediaRefused, ValueError for a broken index."""
    source = open_source("video", "the file from the server", fd)
    if source.format not in (sniff.MP4, sniff.MOV):
        raise source.refuse(source.format.title, "must be an MP4", "look at the server's log")
    if order.target is None:
        return Answer(arrived=_look(source))
    with order.target.open("xb") as target:
        boxes.put_index_first(source.file, target, {"comment": order.comment})
        target.flush()
    return Answer()


def _look(source: Source) -> Arrived:
    checks = OutputChecks()
    with containers.opened(source) as opened:
        video: Any = opened.video
        if video is None:
            raise source.refuse("no picture", "must hold a video", "look at the server's log")
        video.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
        streams = [video] if opened.audio is None else [video, opened.audio]
        rate = 0 if opened.audio is None else int(opened.audio.codec_context.sample_rate or 0)
        # 32 kHz stereo, as our own: what the figures were measured on
        resampler = av.AudioResampler(format="fltp", layout="stereo", rate=AUDIO_SAMPLE_RATE)
        count = 0
        try:
            for frame in opened.container.decode(streams):
                if isinstance(frame, av.AudioFrame):
                    for part in resampler.resample(frame):
                        checks.audio(part.to_ndarray().astype(np.float32))
                    continue
                count += 1
                if count > MAX_FRAMES:
                    raise source.refuse(f"more than {MAX_FRAMES} pictures", "must be at most a minute", "ask for less")
                checks.video(frame.to_ndarray(format="rgb24")[None])
        except av.FFmpegError as error:
            raise containers.damaged(source, error) from error
        width, height = video.width, video.height
    found = checks.report()
    return Arrived(
        width=width,
        height=height,
        num_frames=count,
        sample_rate=rate,
        figures=found.figures,
        warnings=found.warnings,
        unusable=found.unusable,
    )

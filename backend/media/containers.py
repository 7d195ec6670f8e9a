"""Opening containers with nothing but the one reader their content names, and choosing the streams that count.

Knows FFmpeg through PyAV. Runs inside the sandbox; what streams hold is for `videos` and `audio`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
from av.stream import Disposition

from backend.media.source import Source

VIDEO_CODECS = ("h264", "hevc")  # h3-facts 2
AUDIO_CODECS = ("aac", "mp3", "mp3float", "alac", "flac", "vorbis", "opus", "ac3", "eac3")
_DECODERS = ",".join((*VIDEO_CODECS, *AUDIO_CODECS, "libopus", "libvorbis"))
_PCM = ",".join(
    f"pcm_{kind}"
    for kind in ("u8", "s16le", "s16be", "s24le", "s24be", "s32le", "s32be", "f32le", "f32be", "f64le", "f64be")
)
_PCM_OTHER = "pcm_alaw,pcm_mulaw"
_SHOWN = {"hevc": "H.265", "h264": "H.264", "vp9": "VP9", "vp8": "VP8", "libdav1d": "AV1", "av1": "AV1"}
_STILL = Disposition.attached_pic | Disposition.timed_thumbnails | Disposition.still_image


@dataclass(frozen=True, slots=True)
class Opened:
    """An open container with the streams that count: the first real video, and the first sound, if any."""

    container: Any
    video: Any | None
    audio: Any | None
    ignored: tuple[str, ...]  # what was left out, for people


@contextmanager
def opened(source: Source) -> Iterator[Opened]:
    """Open `source` with the demuxer of its own format only; raises MediaRefused where it is damaged.

    The reader gets an open file and no protocol, so nothing inside a file can make it open another.
    """
    av.logging.set_level(None)
    source.file.seek(0)
    options = {
        "codec_whitelist": f"{_DECODERS},{_PCM},{_PCM_OTHER}",
        "format_whitelist": source.format.reader,
        "protocol_whitelist": "",
    }
    try:
        container = av.open(source.file, format=source.format.reader, options=options, metadata_errors="replace")
    except av.FFmpegError as error:
        raise damaged(source, error) from error
    try:
        yield _choose(container)
    finally:
        container.close()


def decoder_name(stream: Any) -> str:
    """FFmpeg's name of a stream's decoder; "an unknown codec" where it has none."""
    return "an unknown codec" if stream.codec_context is None else stream.codec_context.name


def codec_name(stream: Any) -> str:
    """The codec of a stream as people know it."""
    name = decoder_name(stream)
    return _SHOWN.get(name, name.removesuffix("float"))


def damaged(source: Source, error: Exception) -> Exception:
    """The refusal for data that cannot be decoded."""
    words = getattr(error, "strerror", None) or str(error)
    has = f"{source.format.title}, {words[:1].lower()}{words[1:]}"
    return source.refuse(has, "must be a complete file of its format", "export or upload it again")


def seconds(value: int | None, time_base: Fraction | None) -> Fraction | None:
    """A time stamp in seconds, None where there is none."""
    return None if value is None or time_base is None else value * time_base


def _choose(container: Any) -> Opened:
    stills = [stream for stream in container.streams.video if stream.disposition & _STILL]
    videos = [stream for stream in container.streams.video if not stream.disposition & _STILL]
    sounds = [stream for stream in container.streams.audio if stream.codec_context is not None]
    ignored = []
    if len(sounds) < len(container.streams.audio):
        ignored.append("ignored sound of an unknown codec")
    if stills:
        ignored.append("ignored an attached picture")
    if len(videos) > 1:
        ignored.append(f"used the first of {len(videos)} video streams")
    if len(sounds) > 1:
        ignored.append(f"used the first of {len(sounds)} sound streams")
    return Opened(container, videos[0] if videos else None, sounds[0] if sounds else None, tuple(ignored))

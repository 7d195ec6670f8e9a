"""Video for the model: MP4 and MOV to upright 8-bit BT.709 frames at 24 fps on the canvas of their own aspect.

Knows streams, time and geometry. Runs inside the sandbox and never holds more than a few frames.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter

from backend.errors import InvalidRequest
from backend.limits import CLIP_TOLERANCE_S, MAX_CLIP_S, MIN_CLIP_S, canvas_for_ratio
from backend.media import colour, containers, timeline
from backend.media.source import VIDEO_FORMATS, Source
from backend.types import FPS, Geometry, MediaReport, ReferenceKind

MIN_FPS, MAX_FPS = 23.976, 60.0  # h3-facts 2
FPS_TOLERANCE = 0.005  # clocks of phones and screen recorders are off by this much
MAX_SIDE, MAX_PIXELS = 4096, 4096 * 2304  # 4K, H.264 level 5.1: beyond it a decoder needs more memory than we grant
PROBE_S = 30  # of a long file is enough to tell its rate
SEEK_MARGIN_S = 2
THREADS = 2
_TRUNCATED_S = 0.5
_SLANT = 0.01  # half a degree; matrices are rounded
_SCALE = Interpolation.LANCZOS | Interpolation.ACCURATE_RND


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the headers and one frame say. `flips` is what stands the picture upright."""

    stream: Any
    start: Fraction  # file time of the first frame, s
    duration: Fraction
    timing: timeline.Timing
    flips: Flips
    look: colour.Look | None
    display: tuple[float, float]  # width, height with rotation and pixel aspect, px
    interlaced: bool


@dataclass(frozen=True, slots=True)
class Flips:
    """A display matrix reduced to a transposition followed by mirroring, and its name for people."""

    transpose: bool = False
    left_right: bool = False
    up_down: bool = False
    exact: bool = True  # False: the matrix asks for more than quarter turns and mirroring, which was left out

    @property
    def words(self) -> str | None:
        """What was done, or None."""
        return {
            (False, False, False): None,
            (False, True, True): "rotated 180 degrees",
            (False, True, False): "mirrored left to right",
            (False, False, True): "mirrored top to bottom",
            (True, True, False): "rotated 90 degrees clockwise",
            (True, False, True): "rotated 90 degrees counterclockwise",
            (True, False, False): "mirrored and rotated 90 degrees counterclockwise",
            (True, True, True): "mirrored and rotated 90 degrees clockwise",
        }[(self.transpose, self.left_right, self.up_down)]

    def apply(self, frame: np.ndarray) -> np.ndarray:
        """(height, width, 3) as it is stored to (height, width, 3) as it is shown."""
        frame = frame.swapaxes(0, 1) if self.transpose else frame
        frame = frame[:, ::-1] if self.left_right else frame
        return frame[::-1] if self.up_down else frame


def probe(source: Source, opened: containers.Opened) -> tuple[Facts, MediaReport]:
    """Apply every rule about the file and decode one frame; raises MediaRefused."""
    stream: Any = opened.video
    _check_stream(source, stream)
    stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}  # holds for sizes that change midway, too
    stream.codec_context.thread_type = "AUTO"
    stream.codec_context.thread_count = THREADS
    header = containers.seconds(stream.duration, stream.time_base)
    found, whole = _timing(source, opened.container, stream, Fraction(0), None if header is None else Fraction(PROBE_S))
    if whole:
        duration = found.end - found.times[0]
        if header is not None and header - duration > _TRUNCATED_S:
            has = f"{float(duration):.1f} s of {float(header):.1f} s are there"
            raise source.refuse(has, "must be a complete file", "export or upload it again")
    else:
        duration = header or Fraction(0)
    _check_rate(source, found)
    frame = _first_frame(source, opened.container, stream)
    flips = _flips(frame)
    width, height = frame.width * float(stream.sample_aspect_ratio or 1), float(frame.height)
    display = (height, width) if flips.transpose else (width, height)
    facts = Facts(
        stream=stream,
        start=found.times[0],
        duration=duration,
        timing=found,
        flips=flips,
        look=colour.look_of(frame.color_trc, frame.color_primaries),
        display=display,
        interlaced=bool(frame.interlaced_frame),
    )
    return facts, _report(source, opened, facts)


def check_length(source: Source, facts: Facts, start: Fraction, length: Fraction | None) -> Fraction:
    """Seconds used from `start`; raises MediaRefused outside 2 to 15 s."""
    rest = facts.duration - start
    used = rest if length is None else min(length, rest)
    rule = f"a video reference must use {MIN_CLIP_S:g} to {MAX_CLIP_S:g} seconds"
    if used > MAX_CLIP_S + CLIP_TOLERANCE_S:
        raise source.refuse(f"{float(used):.2f} s used", rule, "trim it with start and length")
    if used < MIN_CLIP_S - CLIP_TOLERANCE_S:
        raise source.refuse(f"{max(0.0, float(used)):.2f} s used", rule, "use a longer part")
    return used


def canvas(source: Source, facts: Facts, geometry: Geometry) -> tuple[int, int]:
    """(width, height) of the canvas of the video's own aspect; raises MediaRefused outside 1:4 to 4:1."""
    try:
        return canvas_for_ratio(*facts.display, geometry)
    except InvalidRequest as error:
        has = f"shown at {facts.display[0]:.0f}x{facts.display[1]:.0f}"
        raise source.refuse(has, "a video must be between 1:4 and 4:1", "crop it") from error


def write_frames(
    source: Source, opened: containers.Opened, facts: Facts, part: tuple[Fraction, Fraction], target: Target
) -> int:
    """Write the frames of `part` (start and length, s) as `.npy` uint8 (n, height, width, 3); returns n."""
    origin = facts.start + part[0]
    found = facts.timing
    if part[0] > 0 or found.end - facts.start < part[1]:
        seek = max(Fraction(0), origin - SEEK_MARGIN_S)
        found, _ = _timing(source, opened.container, facts.stream, seek, origin + part[1] + 1)
    counts = timeline.slots(found, origin, part[1])
    total = sum(counts)
    if not total:
        raise source.refuse("no frames in the part that is used", "must hold a picture", "choose another part")
    width, height = target.size
    with target.path.open("wb") as file:
        shape = (total, height, width, 3)
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        written = 0
        painter = Painter(facts, target.size)
        for frame, times in _held(_frames(source, opened.container, facts.stream, found, origin), counts):
            if times and written < total:
                data = np.ascontiguousarray(facts.flips.apply(painter.rgb(frame))).data
                for _ in range(times):
                    file.write(data)
                written += times
    if written != total:
        has = f"{written} of {total} frames can be decoded"
        raise source.refuse(has, "must be a complete file", "export or upload it again")
    return total


@dataclass(frozen=True, slots=True)
class Target:
    """Where frames go, and their (width, height) as shown."""

    path: Path
    size: tuple[int, int]


class Painter:
    """Turns decoded frames into RGB at the stored orientation, scaled so that they fit `size` once upright."""

    def __init__(self, facts: Facts, size: tuple[int, int]) -> None:
        self._size = size[::-1] if facts.flips.transpose else size
        self._scaler = VideoReformatter()
        self._packer = VideoReformatter()
        self._look = facts.look
        self._graph: Any = None

    def rgb(self, frame: Any) -> np.ndarray:
        """uint8 (height, width, 3). A frame that is on size and in BT.709 takes PyAV's own path, as in diffusers."""
        if self._look is not None:
            deep = self._scaled(frame, "gbrp16le")
            if self._graph is None:
                self._graph = _table_graph(deep, self._look)
            self._graph.push(deep)
            return self._packed(self._graph.pull())
        if (frame.width, frame.height) == self._size:
            return frame.to_ndarray(format="rgb24")
        # Planar RGB in between: swscale's own way straight to rgb24 costs three times as much.
        return self._packed(self._scaled(frame, "gbrp"))

    def _scaled(self, frame: Any, pixel_format: str) -> Any:
        width, height = self._size
        return self._scaler.reformat(
            frame, width=width, height=height, format=pixel_format, interpolation=_SCALE, threads=THREADS
        )

    def _packed(self, frame: Any) -> np.ndarray:
        return self._packer.reformat(frame, format="rgb24", threads=THREADS).to_ndarray()


def _table_graph(frame: Any, look: colour.Look) -> Any:
    colour.write_cube(Path("look.cube"), look)  # in the sandbox's own empty folder
    graph = av.filter.Graph()
    start = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format, time_base=Fraction(1, FPS), name="in"
    )
    table = graph.add("lut3d", "file=look.cube:interp=tetrahedral")
    end = graph.add("buffersink")
    start.link_to(table)
    table.link_to(end)
    graph.configure()
    return graph


def _held(frames: Iterator[tuple[int, Any]], counts: tuple[int, ...]) -> Iterator[tuple[Any, int]]:
    """(frame, how often it is shown): slots of frames the decoder left out go to the one before."""
    ready: tuple[int, Any] | None = None
    for index, frame in frames:
        if ready is None:
            ready = (0, frame)  # slots before the first frame that decodes are its own
        else:
            yield ready[1], sum(counts[ready[0] : index])
            ready = (index, frame)
        if not sum(counts[index:]):
            break
    if ready is not None and len(counts) - ready[0] <= max(3, len(counts) // 20):
        yield ready[1], sum(counts[ready[0] :])


def _check_stream(source: Source, stream: Any) -> None:
    name = containers.decoder_name(stream)
    if source.format.reader != "mov" or name not in containers.VIDEO_CODECS:
        has = f"{source.format.title} with {containers.codec_name(stream)}"
        raise source.refuse(has, f"a video must be {VIDEO_FORMATS}", "export it as MP4 with H.264")
    width, height = stream.codec_context.width, stream.codec_context.height
    if not width or not height:
        raise source.refuse("no picture size", "must be a complete file", "export or upload it again")
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        raise source.refuse(f"{width}x{height}", "a video may have at most 4096x2304 pixels", "scale it down")


def _check_rate(source: Source, found: timeline.Timing) -> None:
    low, high = MIN_FPS * (1 - FPS_TOLERANCE), MAX_FPS * (1 + FPS_TOLERANCE)
    if not low <= found.rate <= high:
        rule = f"a video must have {MIN_FPS:g} to {MAX_FPS:g} frames a second"
        raise source.refuse(f"{found.rate:.3f} frames a second", rule, "export it with 24 or 30")


def _timing(
    source: Source, container: Any, stream: Any, seek: Fraction, until: Fraction | None
) -> tuple[timeline.Timing, bool]:
    """Timing of the frames from time `seek` to `until`, read from packets without decoding; and whether that is all."""
    times: list[Fraction] = []
    last, last_duration, whole = Fraction(-1), Fraction(1, FPS), True
    try:
        container.seek(int(seek * av.time_base), backward=True)
        for packet in container.demux(stream):
            if packet.pts is None or packet.is_discard:
                continue
            time = packet.pts * stream.time_base
            times.append(time)
            if time > last:
                last = time
                last_duration = (packet.duration or 0) * stream.time_base or last_duration
            if until is not None and packet.dts is not None and packet.dts * stream.time_base > until:
                whole = False
                break
    except av.FFmpegError as error:
        raise containers.damaged(source, error) from error
    if not times:
        raise source.refuse("no frames", "must hold a picture", "export or upload it again")
    nominal = stream.average_rate or stream.guessed_rate
    return timeline.timing(times, last_duration, nominal, stream.time_base), whole


def _frames(
    source: Source, container: Any, stream: Any, found: timeline.Timing, origin: Fraction
) -> Iterator[tuple[int, Any]]:
    """(index into the timing, frame) of each frame that decodes, in order of presentation."""
    first = found.times[0]
    ticks = stream.time_base / 2
    index = 0
    try:
        container.seek(int(max(Fraction(0), min(first, origin)) * av.time_base), backward=True)
        for frame in container.decode(stream):
            if frame.pts is None:
                continue
            time = frame.pts * stream.time_base
            while index + 1 < len(found.times) and found.times[index + 1] <= time + 3 * ticks:
                index += 1
            if time + 3 * ticks >= first:
                yield index, frame
    except av.FFmpegError as error:
        raise containers.damaged(source, error) from error


def _first_frame(source: Source, container: Any, stream: Any) -> Any:
    try:
        container.seek(0)
        return next(container.decode(stream))
    except (av.FFmpegError, StopIteration) as error:
        raise containers.damaged(source, error) from error


def _flips(frame: Any) -> Flips:
    """The display matrix of a frame, snapped to the nearest quarter turn as diffusers does."""
    data = frame.side_data.get("DISPLAYMATRIX")
    if data is None:
        return Flips()
    a, b, _, c, d, *_ = struct.unpack("=9i", bytes(data)[:36])  # shown x = a x + c y, shown y = b x + d y
    upright, turned = abs(a) + abs(d), abs(b) + abs(c)
    exact = min(upright, turned) <= _SLANT * max(upright, turned)
    if upright >= turned:
        return Flips(transpose=False, left_right=a < 0, up_down=d < 0, exact=exact)
    return Flips(transpose=True, left_right=c < 0, up_down=b < 0, exact=exact)


def _report(source: Source, opened: containers.Opened, facts: Facts) -> MediaReport:
    sound = opened.audio
    actions = list(opened.ignored)
    warnings = []
    if facts.flips.words:
        actions.append(f"{facts.flips.words} as its display matrix asks")
    if facts.stream.sample_aspect_ratio not in (None, 0, 1):
        actions.append(f"pixels of aspect {facts.stream.sample_aspect_ratio} made square")
    if facts.look is not None:
        wide = facts.look is colour.Look.WIDE
        actions.append(
            "converted from BT.2020 to BT.709" if wide else f"tone-mapped from {facts.look.upper()} to BT.709"
        )
    if not facts.flips.exact:
        warnings.append("it is turned by an angle that is no quarter turn: it was put at the nearest one")
    if facts.interlaced:
        warnings.append("it is interlaced: moving edges look like combs; export it progressive (deinterlaced)")
    if sound is None:
        warnings.append("it has no sound: it conditions the picture only")
    length = None if sound is None else containers.seconds(sound.duration, sound.time_base)
    return MediaReport(
        name=source.name,
        kind=ReferenceKind.VIDEO,
        container=source.format.title,
        codec=containers.codec_name(facts.stream),
        width=round(facts.display[0]),
        height=round(facts.display[1]),
        duration_s=round(float(facts.duration), 4),
        fps=round(facts.timing.rate, 3),
        audio_codec=None if sound is None else containers.codec_name(sound),
        audio_sample_rate=None if sound is None else sound.rate,
        audio_channels=None if sound is None else sound.channels,
        audio_duration_s=None if length is None else round(float(length), 4),
        actions=tuple(actions),
        warnings=tuple(warnings),
    )

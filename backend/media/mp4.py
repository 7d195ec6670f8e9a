"""The MP4 writer: frames and sound as they come, encoded beside the caller, and a complete file or none.

Knows codecs and files. What the frames show, and whether they are any good, is `checks`' business.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import av
import numpy as np
import soundfile
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc, Interpolation, VideoReformatter
from PIL import Image

from backend.errors import WriteFailure
from backend.media import boxes
from backend.media.growing import GrowingMp4
from backend.media.soundtrack import AAC_OPTIONS, Soundtrack
from backend.media.unbuffered import Scratch
from backend.types import AUDIO_CHANNELS, AUDIO_SAMPLE_RATE, FPS, EncoderSettings

QUEUED_FRAMES = 24  # one second; at 1344x768 that is 72 MB, and the caller waits when the encoder is behind
KEYFRAME_EVERY = 48  # frames; two seconds, so that scrubbing in a browser is quick
_ACCURATE = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INP
# With a growing file x264 must let go of frames early: by its own choice, at "fast" on 16 cores, it holds back 58.
# 12 frames of lookahead in at most 8 threads hold back 25; at the same size a real clip then loses 0.1 dB of 47.
_LOOKAHEAD, _THREADS = 12, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Mp4Info:
    """What was written. `notes` says where the sound was cut or padded to the picture's length."""

    path: Path
    width: int
    height: int
    num_frames: int
    duration_s: float
    audio_samples: int
    size_bytes: int
    last_frame: Path | None = None
    wav: Path | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Growing:
    """A second file that can be played while the first is written; gone when `close` or `abort` return.

    `tell` is called once, from the encoder's thread, when the first fragment is there.
    """

    path: Path
    tell: Callable[[], None]


class Mp4Writer:
    """Writes one H.264 + AAC file at 24 fps and 32 kHz; the file appears at `path` when `close` returns, or never.

    Use it from one thread. x264 runs in threads of its own behind a bounded queue; its errors come out of the next
    call as WriteFailure, after which nothing is left on disk. As a context manager it aborts unless it was closed.
    """

    def __init__(
        self,
        path: Path,
        width: int,
        height: int,
        settings: EncoderSettings,
        growing: Growing | None = None,
    ) -> None:
        if width % 2 or height % 2 or min(width, height) < 16:
            raise ValueError(f"size={width}x{height}: yuv420p needs even sides of at least 16 px")
        self._path = path
        self._size = (width, height)
        self._settings = settings
        self._part = path.with_name(f".{uuid.uuid4().hex}.part")
        self._sound = Soundtrack()
        self._growing = growing
        self._twin: GrowingMp4 | None = None
        self.first_second_at: float | None = None  # time.monotonic() when a second of the growing file was there
        self._num_frames = 0
        self._told = False
        self._last: np.ndarray | None = None
        self._queue: queue.Queue[np.ndarray | None] = queue.Queue(QUEUED_FRAMES)
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._finished = False
        self._file = _open(self._part)
        self._thread = threading.Thread(target=self._run, name="mp4-encoder", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def write_frames(self, frames: np.ndarray) -> None:
        """Append frames: uint8 (n, height, width, 3) RGB, any n. Waits while the encoder is a second behind."""
        width, height = self._size
        if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[1:] != (height, width, 3):
            raise ValueError(f"frames={frames.dtype} {frames.shape}: must be uint8 (n, {height}, {width}, 3)")
        for frame in frames:
            self._last = np.array(frame, order="C")  # a copy: the caller may use its buffer again
            self._num_frames += 1
            self._put(self._last)

    def write_audio(self, samples: np.ndarray) -> None:
        """Append sound: float32 (2, n) at 32 kHz in -1..1, any n. What comes before its picture can be heard with it in
        the growing file."""
        if samples.ndim != 2 or samples.shape[0] != AUDIO_CHANNELS:
            raise ValueError(f"samples={samples.dtype} {samples.shape}: must be float32 (2, n)")
        self._raise_error()
        self._sound.add(samples)

    def close(self, metadata: Mapping[str, str]) -> Mp4Info:
        """Finish the file and put it at its path with `metadata` (keys of `boxes.ATOMS`) in its index.

        The picture bounds the file: longer sound is cut, shorter sound is followed by silence. Raises WriteFailure
        (disk full, encoder error) or ValueError (no frames); nothing is left on disk then.
        """
        try:
            if not self._num_frames:
                raise ValueError("num_frames=0: a video needs at least one frame")
            self._sound.fit(self._num_frames)
            self._put(None)
            self._thread.join()
            self._raise_error()
            return self._publish(metadata)
        except OSError as error:
            raise self._failure(error) from error
        finally:
            self.abort()

    def abort(self) -> None:
        """Stop and remove whatever is not a complete file; idempotent."""
        self._stop.set()
        self._thread.join()
        self._file.raw.close()
        self._part.unlink(missing_ok=True)
        if self._twin is not None:
            self._twin.remove()
        self._last = None

    def _put(self, frame: np.ndarray | None) -> None:
        while True:
            self._raise_error()
            try:
                return self._queue.put(frame, timeout=0.1)
            except queue.Full:
                continue

    def _raise_error(self) -> None:
        if self._error is not None:
            error = self._error
            self.abort()
            raise self._failure(error) from error
        if self._stop.is_set():
            raise ValueError("this MP4 writer is closed")

    def _failure(self, error: BaseException) -> WriteFailure:
        way_out = f"free space in {self._path.parent} or choose another folder, then run it again"
        reason = _reason(self._file.error or error)
        return WriteFailure(f"{self._path.name} could not be written: {reason}; {way_out}")

    # ---- the encoder thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._encode()
        except BaseException as error:  # the outermost loop of this thread: it hands the error to the caller
            self._error = error

    def _encode(self) -> None:
        # Packets of one stream wait for the other (max_interleave_delta 0), so sound lies beside its picture in the
        # file also when it comes late. Encoded packets are small: the clip never lies in memory as pixels.
        with av.open(self._file, "w", format="mp4", container_options={"max_interleave_delta": "0"}) as container:
            video = self._video_stream(container)
            audio = container.add_stream("aac", rate=AUDIO_SAMPLE_RATE, layout="stereo", options=AAC_OPTIONS)
            audio.bit_rate = self._settings.audio_bitrate_kbps * 1000
            if self._growing is not None:
                container.start_encoding()  # not at the first packet: it settles what the other file copies
                self._twin = GrowingMp4(self._growing.path, video, audio)
            reformatter = VideoReformatter()
            for index in range(1 << 30):
                pixels = self._next()
                if pixels is None:
                    break
                frame = to_bt709(reformatter, pixels)
                frame.pts, frame.time_base, frame.duration = index, Fraction(1, FPS), 1
                self._mux(container, self._sound.encode(audio, index + 1))
                self._mux(container, video.encode(frame))
            if self._stop.is_set():
                return
            self._told = True  # who was not told by now will have the finished file as soon
            self._mux(container, video.encode(None))
            self._mux(container, self._sound.finish(audio))
            if self._twin is not None:
                self._twin.close()
                self._note_growth(self._twin)

    def _mux(self, container: Any, packets: list[Any]) -> None:
        container.mux(packets)
        if self._twin is not None:
            self._twin.mux(packets)
            self._note_growth(self._twin)
            if self._growing is not None and self._twin.playable_frames and not self._told:
                self._told = True
                self._growing.tell()

    def _note_growth(self, twin: GrowingMp4) -> None:
        if self.first_second_at is None and twin.playable_s >= 1.0:
            self.first_second_at = time.monotonic()

    def _next(self) -> np.ndarray | None:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Empty):
                return self._queue.get(timeout=0.1)
        return None

    def _video_stream(self, container: Any) -> Any:
        early = f":rc-lookahead={_LOOKAHEAD}" if self._growing is not None else ""
        options = {
            # crf 0 would mean lossless, which leaves the High profile that browsers need
            "crf": str(max(1, self._settings.crf)),
            "preset": self._settings.x264_preset,
            "profile": "high",
            "x264-params": "colorprim=bt709:transfer=bt709:colormatrix=bt709:range=tv:log-level=error" + early,
        }
        stream = container.add_stream("libx264", rate=FPS, options=options)
        stream.width, stream.height = self._size
        stream.pix_fmt = "yuv420p"
        context = stream.codec_context
        context.time_base = Fraction(1, FPS)
        context.gop_size = KEYFRAME_EVERY
        context.color_range = ColorRange.MPEG
        context.colorspace = 1  # AVCOL_SPC_BT709; PyAV's Colorspace enum counts as swscale does
        context.color_primaries = ColorPrimaries.BT709
        context.color_trc = ColorTrc.BT709
        context.thread_type = "AUTO"
        if self._growing is not None:
            context.thread_count = min(_THREADS, (os.cpu_count() or 1) * 3 // 2)
        return stream

    # ---- putting files in place ---------------------------------------------------------------------------------

    def _publish(self, metadata: Mapping[str, str]) -> Mp4Info:
        folder = self._path.parent
        last_frame = folder / "last_frame.png" if self._settings.save_last_frame else None
        wav = folder / "audio.wav" if self._settings.save_wav else None
        try:
            if last_frame is not None and self._last is not None:
                picture = Image.fromarray(self._last)
                _write_whole(last_frame, lambda file: picture.save(file, format="PNG"))
            if wav is not None:
                _write_whole(wav, lambda file: _write_wav(file, self._sound.samples))
            _write_whole(self._path, lambda file: boxes.put_index_first(self._file.raw, file, metadata))
        except BaseException:
            for extra in (last_frame, wav):
                if extra is not None:
                    extra.unlink(missing_ok=True)
            raise
        return Mp4Info(
            path=self._path,
            width=self._size[0],
            height=self._size[1],
            num_frames=self._num_frames,
            duration_s=self._num_frames / FPS,
            audio_samples=self._sound.samples.shape[1],
            size_bytes=self._path.stat().st_size,
            last_frame=last_frame,
            wav=wav,
            notes=(*self._sound.notes(), *self._growth_notes()),
        )

    def _growth_notes(self) -> tuple[str, ...]:
        if self._twin is None or self._twin.failure is None:
            return ()
        return (f"it could not be watched while it was decoded: {self._twin.failure}",)


def _open(part: Path) -> Scratch:
    try:
        return Scratch(part)
    except OSError as error:
        way_out = "choose a folder that exists and can be written"
        raise WriteFailure(f"{part.parent} cannot take the video: {_reason(error)}; {way_out}") from error


def to_bt709(reformatter: VideoReformatter, pixels: np.ndarray) -> av.VideoFrame:
    """RGB uint8 (height, width, 3) as a yuv420p frame by the BT.709 matrix in limited range, tagged as such."""
    frame = reformatter.reformat(
        av.VideoFrame.from_ndarray(pixels, format="rgb24"),
        format="yuv420p",
        src_color_range=ColorRange.JPEG,
        dst_color_range=ColorRange.MPEG,
        dst_colorspace=Colorspace.ITU709,
        interpolation=_ACCURATE,
    )
    frame.color_range, frame.colorspace = ColorRange.MPEG, 1
    frame.color_primaries, frame.color_trc = ColorPrimaries.BT709, ColorTrc.BT709
    return frame


def _write_whole(path: Path, write: Any) -> None:
    """Call `write(file)` on a temporary neighbour, flush it to the disk and rename it to `path`; or leave nothing."""
    part = path.with_name(f".{uuid.uuid4().hex}.part")
    try:
        with part.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write_wav(file: BinaryIO, sound: np.ndarray) -> None:
    soundfile.write(file, sound.T, AUDIO_SAMPLE_RATE, subtype="FLOAT", format="WAV")


def _reason(error: BaseException) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__

"""Media made for the tests with Pillow, PyAV and soundfile: known pictures, clips and sounds."""

import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from backend.media import boxes


def sine(hz: float, seconds: float, rate: int, channels: int = 1, amplitude: float = 0.5) -> np.ndarray:
    """float32 (channels, n)."""
    time = np.arange(round(seconds * rate)) / rate
    return np.repeat((amplitude * np.sin(2 * np.pi * hz * time))[None], channels, axis=0).astype(np.float32)


def peak_hz(samples: np.ndarray, rate: int = 32000) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum) * rate / len(samples))


def solid(rgb: tuple[int, int, int], width: int, height: int) -> np.ndarray:
    return np.broadcast_to(np.array(rgb, np.uint8), (height, width, 3)).copy()


def numbered(index: int, width: int = 320, height: int = 192) -> np.ndarray:
    """A frame whose brightness tells its number: 2 * index, below 256."""
    return solid((2 * index % 256,) * 3, width, height)


class Clip:
    """An MP4 or MOV written frame by frame with time stamps of our choosing."""

    def __init__(self, path: Path, width: int, height: int, *, codec: str = "libx264", **options: object) -> None:
        self.path = path
        self._clock = Fraction(str(options.pop("clock", "1/90000")))
        rate = options.pop("rate", 24)
        pixel_format = str(options.pop("pixel_format", "yuv420p"))
        tags = options.pop("tags", {})
        aspect = options.pop("aspect", None)
        sound = options.pop("sound", None)  # (rate, layout)
        container_format = options.pop("format", None)
        self._container = av.open(str(path), "w", format=container_format)
        extra = {"x265-params": "log-level=none"} if codec == "libx265" else {"preset": "ultrafast", "qp": "12"}
        self._video = self._container.add_stream(codec, rate=rate, options=extra if codec.startswith("libx26") else {})
        self._video.width, self._video.height, self._video.pix_fmt = width, height, pixel_format
        self._video.codec_context.time_base = self._clock
        if aspect:
            self._video.codec_context.sample_aspect_ratio = aspect
        for name, value in tags.items():
            setattr(self._video.codec_context, name, value)
        self._tags = tags
        self._audio = None
        if sound:
            self._audio = self._container.add_stream("aac", rate=sound[0], layout=sound[1])
            self._audio_layout = sound[1]

    def frame(self, pixels, seconds: Fraction | float) -> None:
        """uint8 (height, width, 3), or an av.VideoFrame, shown at `seconds`."""
        frame = pixels
        if isinstance(pixels, np.ndarray):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            frame = frame.reformat(
                format=self._video.pix_fmt,
                src_color_range=2,
                dst_color_range=self._tags.get("color_range", 1),
                dst_colorspace=self._tags.get("colorspace", 5),
            )
        frame.pts, frame.time_base = round(Fraction(seconds) / self._clock), self._clock
        self._container.mux(self._video.encode(frame))

    def sound(self, samples: np.ndarray, at: float = 0.0) -> None:
        rate = self._audio.rate
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="fltp", layout=self._audio_layout)
        frame.sample_rate, frame.pts, frame.time_base = rate, round(at * rate), Fraction(1, rate)
        self._container.mux(self._audio.encode(frame))

    def close(self) -> Path:
        self._container.mux(self._video.encode(None))
        if self._audio:
            self._container.mux(self._audio.encode(None))
        self._container.close()
        return self.path


def clip(path: Path, count: int = 96, width: int = 320, height: int = 192, fps: Fraction | int = 24, **options) -> Path:
    """`count` numbered frames at a constant rate."""
    made = Clip(path, width, height, rate=fps, **options)
    for index in range(count):
        made.frame(numbered(index, width, height), Fraction(index) / fps)
    return made.close()


def picture_and_pattern(width: int, height: int) -> np.ndarray:
    """Left half red, right half blue: tells rotations and mirrorings apart together with a green top left corner."""
    pixels = np.concatenate(
        [solid((220, 30, 30), width // 2, height), solid((30, 30, 220), width // 2, height)], axis=1
    )
    pixels[: height // 4, : width // 4] = (30, 200, 30)
    return pixels


def with_matrix(path: Path, matrix: tuple[float, float, float, float]) -> Path:
    """Set the display matrix (a, b, c, d; 1 is no scaling) of the first track, as `-display_rotation` does."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4
    at += 40 if data[at] == 0 else 52
    a, b, c, d = (round(value * 65536) for value in matrix)
    struct.pack_into(">9i", data, at, a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    return path


def top_level_kinds(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        return [box.kind for box in boxes.top_level(file)]


def mp3_with_cover(path: Path, samples: np.ndarray, rate: int, cover: bytes) -> Path:
    """An MP3 with an attached picture, as players write it."""
    with av.open(str(path), "w", format="mp3") as container:
        audio = container.add_stream("libmp3lame", rate=rate, layout="stereo")
        picture = container.add_stream("png", rate=1)
        picture.width = picture.height = 64
        picture.pix_fmt = "rgb24"
        picture.disposition = av.stream.Disposition.attached_pic
        container.start_encoding()
        packet = av.Packet(cover)
        packet.stream, packet.pts, packet.dts, packet.time_base = picture, 0, 0, Fraction(1, rate)
        container.mux(packet)
        frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="stereo")
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        container.mux(audio.encode(frame))
        container.mux(audio.encode(None))
    return path


def cmyk_profile() -> bytes:
    """A printer's ICC profile (version 2, lut8, two grid points) whose inks mix by multiplication.

    In sRGB cyan shows as (60, 180, 200), magenta as (210, 60, 140), yellow as (230, 220, 80).
    """
    inks = np.array([(60, 180, 200), (210, 60, 140), (230, 220, 80), (0, 0, 0)]) / 255
    nodes = np.stack(np.meshgrid(*[[0, 1]] * 4, indexing="ij"), axis=-1).reshape(-1, 4, 1)  # cyan varies slowest
    lab = srgb_to_lab(np.prod(np.where(nodes, inks, 1.0), axis=1))
    table = np.round(np.stack([lab[:, 0] * 2.55, lab[:, 1] + 128, lab[:, 2] + 128], axis=-1)).astype(np.uint8)
    ramp = bytes(range(256))
    body = b"mft1" + struct.pack(">I4B9i", 0, 4, 3, 2, 0, *(np.eye(3, dtype=int).ravel() << 16).tolist())
    body += ramp * 4 + table.tobytes() + ramp * 3
    body += bytes(-len(body) % 4)
    head = struct.pack(">I4sI4s4s4s", 144 + len(body), b"test", 0x02400000, b"prtr", b"CMYK", b"Lab ")
    head += bytes(12) + b"acsp" + bytes(28) + struct.pack(">3i", 63190, 65536, 54061)  # the D50 illuminant
    return head.ljust(128, b"\0") + struct.pack(">I4sII", 1, b"A2B0", 144, len(body)) + body


def srgb_to_lab(rgb: np.ndarray) -> np.ndarray:
    """(n, 3) in 0..1 to CIE L*a*b* under D50, by the matrices of IEC 61966-2-1 and Bradford."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_d50 = [[0.4360747, 0.3850649, 0.1430804], [0.2225045, 0.7168786, 0.0606169], [0.0139322, 0.0971045, 0.7141733]]
    ratio = linear @ np.array(to_d50).T / (0.9642, 1.0, 0.8249)
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=-1)

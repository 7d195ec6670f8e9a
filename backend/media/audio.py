"""Sound for the model: any of the allowed formats to 32 kHz stereo float32, trimmed, resampled once.

Knows samples and channel layouts. Runs inside the sandbox; budgets over several clips live in `backend.limits`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
import numpy as np

from backend.limits import CLIP_TOLERANCE_S, MAX_CLIP_S, MIN_CLIP_S
from backend.media import containers, riff
from backend.media.checks import DC_LEVEL, SILENT_DB
from backend.media.source import AUDIO_FORMATS, Source
from backend.types import AUDIO_SAMPLE_RATE, MediaReport, ReferenceKind

MIN_RATE, MAX_RATE = 8_000, 192_000  # issue 02
MAX_CHANNELS = 8
EXACT_LENGTH_UNDER_S = 120  # longer files are believed what their header says, as they must be trimmed anyway
GAP_S = Fraction(1, 50)  # time stamps may jitter by this much before a hole counts as a hole
SEEK_MARGIN_S = 2  # decoders of overlapping codecs need a packet or two before what is used
_CUT_S = Fraction(1, 20)
_PRIMING_S = 1  # more than any codec puts before the first sample
_HALF = 0.7071  # -3 dB, ITU-R BS.775 downmix; the LFE channel is left out as it asks
_DOWNMIX = {
    "FL": (1.0, 0.0), "FR": (0.0, 1.0), "FC": (_HALF, _HALF), "LFE": (0.0, 0.0), "BL": (_HALF, 0.0),
    "BR": (0.0, _HALF), "SL": (_HALF, 0.0), "SR": (0.0, _HALF), "BC": (0.5, 0.5), "FLC": (_HALF, 0.0),
    "FRC": (0.0, _HALF), "DL": (1.0, 0.0), "DR": (0.0, 1.0),
}  # fmt: skip
# What a file without a channel mask means by its channels: the order of WAVE_FORMAT_EXTENSIBLE
_USUAL = {
    1: ("FC",), 2: ("FL", "FR"), 3: ("FL", "FR", "FC"), 4: ("FL", "FR", "BL", "BR"), 5: ("FL", "FR", "FC", "BL", "BR"),
    6: ("FL", "FR", "FC", "LFE", "BL", "BR"), 7: ("FL", "FR", "FC", "LFE", "BC", "SL", "SR"),
    8: ("FL", "FR", "FC", "LFE", "BL", "BR", "SL", "SR"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """`samples` float32 (2, n) at 32 kHz, with what was done and noticed."""

    samples: np.ndarray
    actions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def probe(source: Source, opened: containers.Opened) -> MediaReport:
    """What a sound file is; raises MediaRefused where a rule about files is broken."""
    stream = check_stream(source, opened.audio)
    duration = containers.seconds(stream.duration, stream.time_base)
    if duration is None and opened.container.duration is not None:
        duration = Fraction(opened.container.duration, av.time_base)
    promised = duration if source.format.reader == "mov" else None  # elsewhere the header's length is an estimate
    if source.format.reader == "wav":
        promised = riff.promised_s(source.file.fileno())
    if duration is None or duration < EXACT_LENGTH_UNDER_S:
        counted = sum((block.shape[1] for _, block in blocks(source, opened.container, stream, None)), 0)
        duration = Fraction(counted, stream.rate)
    if not duration:
        raise source.refuse(source.format.title, "must hold sound", "export it again")
    return MediaReport(
        name=source.name,
        kind=ReferenceKind.AUDIO,
        container=source.format.title,
        codec=containers.codec_name(stream),
        duration_s=round(float(duration), 4),
        audio_codec=containers.codec_name(stream),
        audio_sample_rate=stream.rate,
        audio_channels=stream.channels,
        audio_duration_s=round(float(duration), 4),
        actions=opened.ignored,
        warnings=_cut_off(promised, duration),
    )


def _cut_off(promised: Fraction | None, duration: Fraction) -> tuple[str, ...]:
    if promised is None or promised - duration < _CUT_S:
        return ()
    return (f"its end is missing: {float(duration):.2f} s of {float(promised):.2f} s are there",)


def read(source: Source, opened: containers.Opened, start: Fraction, length: Fraction | None) -> Sound:
    """The part of a sound file from `start` (s) for `length` (s; None: to its end); raises MediaRefused."""
    stream = check_stream(source, opened.audio)
    most = Fraction(MAX_CLIP_S) + 1 if length is None else length
    raw = _collect(source, opened.container, stream, (None, start, start + most))
    used_s = raw.shape[1] / stream.rate
    if used_s > MAX_CLIP_S + CLIP_TOLERANCE_S:
        rule = f"a sound reference must use {MIN_CLIP_S:g} to {MAX_CLIP_S:g} seconds"
        raise source.refuse(f"more than {MAX_CLIP_S:g} s", rule, "trim it with start and length")
    if used_s < MIN_CLIP_S - CLIP_TOLERANCE_S:
        rule = f"a sound reference must use {MIN_CLIP_S:g} to {MAX_CLIP_S:g} seconds"
        raise source.refuse(f"{used_s:.2f} s used", rule, "use a longer part")
    return _finish(raw, stream)


def soundtrack(source: Source, opened: containers.Opened, origin: Fraction, length: Fraction) -> Sound | None:
    """The sound that belongs to `length` seconds of picture from file time `origin`; None where there is none.

    Sound that starts late is preceded by silence, sound that starts early is cut; the right end is not padded.
    """
    if opened.audio is None:
        return None
    stream = check_stream(source, opened.audio)
    raw = _collect(source, opened.container, stream, (origin, Fraction(0), length))
    return _finish(raw, stream) if raw.shape[1] else None


def resample(samples: np.ndarray, rate: int) -> np.ndarray:
    """float (channels, n) at `rate` Hz to 32 kHz: exactly round(n * 32000 / rate) samples, no delay.

    One band-limited pass in the frequency domain with a raised-cosine edge over the top 8 % of the band that both
    rates share; both ends are mirrored so that the transform's wrap-around is never heard.
    """
    if rate == AUDIO_SAMPLE_RATE:
        return samples
    count = samples.shape[1]
    wanted = round(Fraction(count * AUDIO_SAMPLE_RATE, rate))
    ratio = Fraction(AUDIO_SAMPLE_RATE, rate)
    step = ratio.denominator  # input samples after which the two grids meet
    margin = min(count - 1, 4096) // step * step
    padded = np.pad(samples.astype(np.float64), ((0, 0), (margin, margin)), mode="reflect")
    padded = np.pad(padded, ((0, 0), (0, -padded.shape[1] % step)), mode="edge")
    length_in = padded.shape[1]
    length_out = length_in // step * ratio.numerator
    spectrum = np.fft.rfft(padded, axis=1)
    bins = min(length_in, length_out) // 2 + 1
    edge = max(1, round(bins * 0.08))
    window = np.ones(bins)
    window[-edge:] = 0.5 + 0.5 * np.cos(np.pi * (np.arange(edge) + 0.5) / edge)
    kept = np.zeros((samples.shape[0], length_out // 2 + 1), np.complex128)
    kept[:, :bins] = spectrum[:, :bins] * window
    out = np.fft.irfft(kept, length_out, axis=1) * float(ratio)
    first = margin // step * ratio.numerator
    return out[:, first : first + wanted].astype(np.float32)


def to_stereo(samples: np.ndarray, channels: tuple[str, ...]) -> np.ndarray:
    """(channels, n) to (2, n): mono to both sides, more than two by ITU-R BS.775, scaled only if it would clip."""
    if len(channels) == 2 and not set(channels) - {"FL", "FR", "DL", "DR"}:
        return samples
    if len(channels) == 1:
        return np.repeat(samples, 2, axis=0)
    gains = np.array([_DOWNMIX.get(name, (0.5, 0.5)) for name in channels], np.float32)
    mixed = gains.T @ samples
    return mixed / max(1.0, float(np.abs(mixed).max(initial=0.0)))


def check_stream(source: Source, stream: Any) -> Any:
    """`stream`, if its codec, rate and channels are within the rules; raises MediaRefused."""
    if stream is None:
        raise source.refuse(source.format.title, "must hold sound", f"use {AUDIO_FORMATS}")
    name = containers.decoder_name(stream)
    if name not in containers.AUDIO_CODECS and not name.startswith("pcm_"):
        raise source.refuse(f"{source.format.title} with {name}", f"sound must be {AUDIO_FORMATS}", "export it as WAV")
    if not MIN_RATE <= stream.rate <= MAX_RATE:
        rule = f"sound must have {MIN_RATE} to {MAX_RATE} samples a second"
        raise source.refuse(f"{stream.rate} Hz", rule, "export it with 48000 Hz")
    if not 1 <= stream.channels <= MAX_CHANNELS:
        raise source.refuse(f"{stream.channels} channels", "sound may have 1 to 8 channels", "export it as stereo")
    return stream


def blocks(
    source: Source, container: Any, stream: Any, seek_to: Fraction | None
) -> Iterator[tuple[Fraction | None, np.ndarray]]:
    """(file time in s, float32 (channels, n)) of each decoded block, in the rate and layout of the file.

    Only what the file declares as its sound: priming and padding that codecs add around it are cut off.
    """
    # A change of format only. Packed, because PyAV 18 reads past the planes of a planar frame of eight channels.
    packed = av.AudioResampler(format="flt", layout=stream.layout, rate=stream.rate)
    begin, end = containers.seconds(stream.start_time, stream.time_base), _declared_end(source, stream)
    held: tuple[Fraction | None, np.ndarray] | None = None  # one block back, as only the last one is padded
    try:
        _seek(source, container, stream, seek_to)
        for frame in container.decode(stream):
            if frame.sample_rate != stream.rate or frame.layout.nb_channels != stream.channels:
                has = "its rate or channels change midway"
                raise source.refuse(has, "sound must keep one rate and layout", "export it again as WAV")
            at = containers.seconds(frame.pts, frame.time_base)
            for block in packed.resample(frame):
                if held is not None:
                    yield held
                held = _without_priming(at, block.to_ndarray().reshape(-1, stream.channels).T, begin, stream.rate)
    except av.FFmpegError as error:
        raise containers.damaged(source, error) from error
    if held is not None:
        at, samples = held
        keep = samples.shape[1] if at is None or end is None else round((end - at) * stream.rate)
        yield at, samples[:, :keep] if keep > 0 else samples  # an end before it is no end of this sound


def _seek(source: Source, container: Any, stream: Any, to: Fraction | None) -> None:
    """Go to file time `to` (s), None: before everything, so that decoders meet the priming they must drop.

    By the clock of the sound itself: a seek by the picture lands on a packet of sound behind the priming.
    """
    if to is not None:
        container.seek(int(max(Fraction(0), to) / stream.time_base), stream=stream)
    elif source.format.reader == "mov":  # its priming has negative time stamps; other readers refuse those
        container.seek(int(-_PRIMING_S / stream.time_base), stream=stream)
    else:
        container.seek(0, stream=stream)


def _declared_end(source: Source, stream: Any) -> Fraction | None:
    """File time (s) at which the sound ends by its header; None where that is only an estimate."""
    length = containers.seconds(stream.duration, stream.time_base) if source.format.reader == "mov" else None
    return length and length + (containers.seconds(stream.start_time, stream.time_base) or 0)


def _without_priming(
    at: Fraction | None, block: np.ndarray, begin: Fraction | None, rate: int
) -> tuple[Fraction | None, np.ndarray]:
    early = 0 if at is None or begin is None else max(0, round((begin - at) * rate))
    return (at, block) if not early or at is None else (at + Fraction(early, rate), block[:, early:])


def _collect(
    source: Source, container: Any, stream: Any, span: tuple[Fraction | None, Fraction, Fraction]
) -> np.ndarray:
    """float32 (channels, n) between two times after an origin (None: the first sample), holes filled with silence."""
    origin, start, end = span
    rate = stream.rate
    seek_to = None
    if source.format.reader in ("mov", "wav", "flac") and start + (origin or 0) > 5 * SEEK_MARGIN_S:
        seek_to = start + (origin or 0) - SEEK_MARGIN_S
        origin = containers.seconds(stream.start_time, stream.time_base) or Fraction(0) if origin is None else origin
    parts: list[np.ndarray] = []
    cursor: int | None = None  # where the next block goes, in samples since `start`; negative before it
    wanted = round((end - start) * rate)
    for at, block in blocks(source, container, stream, seek_to):
        if origin is None:
            origin = at if at is not None else Fraction(0)
        place = round((at - origin - start) * rate) if at is not None else (cursor or 0)
        if cursor is None or place - cursor > GAP_S * rate:
            hole = min(place, wanted) - max(0, cursor or 0)
            if hole > 0:
                parts.append(np.zeros((block.shape[0], hole), np.float32))
            cursor = place
        if cursor >= wanted:
            break
        parts.append(block[:, max(0, -cursor) : wanted - cursor])
        cursor += block.shape[1]
    return np.concatenate(parts, axis=1) if parts else np.zeros((stream.channels, 0), np.float32)


def _finish(raw: np.ndarray, stream: Any) -> Sound:
    actions, warnings = [], []
    bad = int(raw.size - np.count_nonzero(np.isfinite(raw)))
    if bad:
        raw = np.nan_to_num(raw, nan=0.0, posinf=0.0, neginf=0.0)
        warnings.append(f"{bad} of its samples were no numbers (NaN or infinite) and are silent now")
    names = tuple(channel.name for channel in stream.layout.channels)
    names = _USUAL[stream.channels] if "NONE" in names or len(names) != stream.channels else names
    stereo = to_stereo(raw, names)
    if len(names) == 1:
        actions.append("put the one channel on both sides")
    elif len(names) > 2:
        actions.append(f"mixed {len(names)} channels ({' '.join(names)}) down to stereo")
    samples = np.ascontiguousarray(resample(stereo, stream.rate), dtype=np.float32)
    if stream.rate != AUDIO_SAMPLE_RATE:
        actions.append(f"resampled from {stream.rate} to {AUDIO_SAMPLE_RATE} Hz")
    return Sound(samples=samples, actions=tuple(actions), warnings=(*warnings, *_notices(samples)))


def _notices(samples: np.ndarray) -> list[str]:
    if not samples.shape[1]:
        return []
    mean = samples.mean(axis=1, dtype=np.float64)
    rms = float(np.sqrt(np.maximum((samples.astype(np.float64) ** 2).mean(axis=1) - mean**2, 0)).max())
    warnings = []
    if 20 * np.log10(max(rms, 1e-9)) < SILENT_DB:
        warnings.append("its sound is silent")
    if float(np.abs(mean).max()) > DC_LEVEL:
        warnings.append(f"its sound has a constant offset of {np.abs(mean).max():.3f} of full scale")
    peak = float(np.abs(samples).max())
    if peak > 1.1:
        warnings.append(f"its sound goes beyond full scale (peak {peak:.2f})")
    return warnings

"""How one media file looks on the page: poster, name, what was found in it, what will be done to it, its clip to trim.

It knows reports and markup; where files lie and who may see them is Gradio's file route.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from backend import limits
from backend.types import MediaReport, ReferenceKind
from h3ui import markup
from h3ui.form import MediaItem, used_s

QUIET_PEAK = 0.1  # softer sounds than this are not drawn taller, so that silence looks silent


def url(path: Path) -> str:
    """Where the page's server hands out a file among the uploads; its folder has a name nobody guesses."""
    return "gradio_api/file=" + quote(str(path))


def thumbnail(item: MediaItem) -> str:
    """A picture, a frame of a clip, or a symbol."""
    poster = item.glimpse.poster
    if poster is not None:
        return f'<img class="thumb" src="{markup.text(url(poster))}" alt="" draggable="false">'
    symbol = {ReferenceKind.IMAGE: "image", ReferenceKind.VIDEO: "film"}.get(item.report.kind, "audio")
    return f'<span class="thumb sound">{markup.icon(symbol)}</span>'


def figures(report: MediaReport) -> str:
    """One line of figures: "JPEG · 1024 × 768", "MP4 h264 · 1280 × 720 · 6.0 s · 30 fps · sound"."""
    codec = report.codec if report.kind is not ReferenceKind.IMAGE else None  # of a picture it is Pillow's mode
    told = [" ".join(part for part in (report.container, codec) if part)]
    if report.width and report.height:
        told.append(f"{report.width} × {report.height}")
    seconds = report.duration_s if report.kind is ReferenceKind.VIDEO else report.audio_duration_s or report.duration_s
    if seconds:
        told.append(f"{seconds:.1f} s")
    if report.fps:
        told.append(f"{report.fps:g} fps")
    if report.kind is ReferenceKind.VIDEO:
        told.append("with sound" if report.audio_codec else "no sound")
    elif report.audio_sample_rate:
        told.append(f"{report.audio_sample_rate / 1000:g} kHz")
    return " · ".join(told)


def report_html(report: MediaReport) -> str:
    """The figures, then what was done and what to watch out for."""
    lines = "".join(f"<li>{markup.text(action)}</li>" for action in report.actions)
    lines += "".join(f'<li class="warn">{markup.text(warning)}</li>' for warning in report.warnings)
    listed = f'<ul class="actions">{lines}</ul>' if lines else ""
    return f'<div class="figures">{markup.text(figures(report))}</div>{listed}'


def clip_html(item: MediaItem) -> str:
    """The part of a clip or sound that is used: its pictures or waveform with two handles, numbers, and a player.

    Empty for a picture. `assets/scripts/tray.js` moves the handles and plays exactly the chosen part.
    """
    report = item.report
    if report.kind is ReferenceKind.IMAGE or not report.duration_s:
        return ""
    name, whole = markup.text(item.path.name), report.duration_s
    start, end = min(item.start_s, whole), min(item.start_s + used_s(item), whole)
    shown = f"--from:{start / whole * 100:.3f}%;--to:{end / whole * 100:.3f}%"
    handles = "".join(
        f'<span class="handle {side}" role="slider" tabindex="0" data-handle="{side}" '
        f'aria-label="{label} of {name}" aria-valuemin="0" aria-valuemax="{whole:.2f}" aria-valuenow="{at:.2f}" '
        f'aria-valuetext="{at:.1f} s"></span>'
        for side, label, at in (("start", "Start", start), ("end", "End", end))
    )
    return (
        f'<div class="clip {report.kind.value}" data-clip="{item.key}" data-whole="{whole:.4f}" '
        f'data-start="{start:.4f}" data-end="{end:.4f}" style="{shown}">'
        f"{_player(item)}"
        f'<div class="track">{_track(item)}<span class="shade before"></span><span class="shade after"></span>'
        f'<span class="part" data-part></span>{handles}<span class="playhead" data-own></span></div>'
        f'<div class="trim">{_play_button(name)}{_fields(item)}<span class="muted num of">of {whole:.1f} s</span></div>'
        '<p class="clip-note" role="status" data-own></p></div>'
    )


def _player(item: MediaItem) -> str:
    source = markup.text(url(item.path))
    if item.report.kind is ReferenceKind.AUDIO:
        return f'<audio preload="none" src="{source}" data-own></audio>'
    poster = f' poster="{markup.text(url(item.glimpse.poster))}"' if item.glimpse.poster else ""
    return f'<video class="stage" preload="none" playsinline src="{source}"{poster} hidden data-own></video>'


def _track(item: MediaItem) -> str:
    strip, wave = item.glimpse.strip, waveform(item.glimpse.peaks)
    pictures = f'<img class="strip" src="{markup.text(url(strip))}" alt="" draggable="false">' if strip else ""
    return pictures + wave


def _play_button(name: str) -> str:
    return (
        f'<button type="button" class="btn icon play" data-play aria-label="Play the chosen part of {name}" '
        f'title="Play the chosen part"><span class="when-still">{markup.icon("play")}</span>'
        f'<span class="when-playing">{markup.icon("pause")}</span></button>'
    )


def _fields(item: MediaItem) -> str:
    length = "" if item.length_s is None else f"{item.length_s:g}"
    rest = f"{max((item.report.duration_s or 0.0) - item.start_s, 0.0):.1f}"
    fields = (("start", "Start", f"{item.start_s:g}", "0"), ("length", "Length", length, rest))
    return "".join(
        f'<label>{label} <input type="text" inputmode="decimal" value="{markup.text(value)}" data-trim="{field}" '
        f'placeholder="{markup.text(placeholder)}" data-field="{field}"> s</label>'
        for field, label, value, placeholder in fields
    )


def waveform(peaks: Sequence[float]) -> str:
    """Peaks (0 to 1 in equal parts of the time) as one mirrored shape, 100 tall, as wide as there are peaks."""
    if not peaks:
        return ""
    tallest = max(*peaks, QUIET_PEAK)
    heights = [round(50 * peak / tallest, 1) for peak in peaks]
    above = " ".join(f"{place},{50 - height:g}" for place, height in enumerate(heights))
    below = " ".join(f"{place},{50 + height:g}" for place, height in reversed(list(enumerate(heights))))
    return (
        f'<svg class="wave" viewBox="0 0 {len(peaks) - 1} 100" preserveAspectRatio="none" aria-hidden="true">'
        f'<polygon points="{above} {below}"/></svg>'
    )


def used_line(kind: ReferenceKind, items: Sequence[MediaItem], plural: str) -> str:
    """The budget of one kind as an empty string or a pill: "11.2 of 15 s video, 2 of 3 clips"."""
    of_kind = [item for item in items if item.report.kind is kind]
    if not of_kind:
        return ""
    limit = limits.MAX_OF_KIND[kind]
    over, line = len(of_kind) > limit, f"{len(of_kind)} of {limit} {plural}"
    share = len(of_kind) / limit
    if kind is not ReferenceKind.IMAGE:
        used = sum(used_s(item) for item in of_kind)
        over = over or used > limits.MAX_CLIPS_TOTAL_S + limits.CLIP_TOLERANCE_S
        line += f", {used:.1f} of {limits.MAX_CLIPS_TOTAL_S:g} s"
        share = used / limits.MAX_CLIPS_TOTAL_S
    filled = f'<i style="width:{min(share, 1) * 100:.0f}%"></i>'
    return f'<span class="budget{" over" if over else ""}"><span>{line}</span>{filled}</span>'

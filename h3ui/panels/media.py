"""How one media file looks on the page: thumbnail, name, what was found in it, what will be done to it.

It knows reports and markup; where files lie and who may see them is Gradio's file route.
"""

from __future__ import annotations

from urllib.parse import quote

from backend.types import MediaReport, ReferenceKind
from h3ui import markup
from h3ui.form import MediaItem


def thumbnail(item: MediaItem) -> str:
    """A picture, a muted clip, or a symbol for sound."""
    url = "gradio_api/file=" + quote(str(item.path))
    if item.report.kind is ReferenceKind.IMAGE:
        return f'<img class="thumb" src="{markup.text(url)}" alt="" loading="lazy">'
    if item.report.kind is ReferenceKind.VIDEO:
        return f'<video class="thumb" src="{markup.text(url)}#t=0.1" muted playsinline preload="metadata"></video>'
    return f'<span class="thumb sound">{markup.icon("audio")}</span>'


def figures(report: MediaReport) -> str:
    """One line of figures: "JPEG · 1024 × 768", "MP4 h264 · 1280 × 720 · 6.0 s · 30 fps · sound"."""
    told = [" ".join(part for part in (report.container, report.codec) if part)]
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

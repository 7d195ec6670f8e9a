"""Two results side by side, driven in step by one button and one slider, with PSNR and SSIM when they are asked for.

It knows records and a comparison; playing is the page's script, measuring the backend's.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import gradio as gr

from backend.api import Comparison
from backend.jobs.records import JobRecord
from backend.types import FPS, VIDEO_NAME
from h3ui import keyed, markup
from h3ui.panels import result

PEAK = 255  # of 8-bit samples
CHART_WIDTH, CHART_HEIGHT = 600, 72


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePanel:
    """Components of the comparison; `pair` holds the two job ids, or None."""

    view: gr.HTML
    pair: gr.State


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: its record, and what opens its file."""

    record: JobRecord
    token: str


def build() -> ComparePanel:
    """Create the components in the current layout block."""
    view = keyed.html("", elem_id="compare", elem_classes="card", visible=False)
    return ComparePanel(view=view, pair=gr.State(None))


def html(left: Side, right: Side, measured: str = "") -> str:
    """Both videos with their controls; `measured` is what `figures_html` or `busy_html` made."""
    close = markup.button("Close the comparison", "compare-close", symbol="close", kind="icon")
    longest = max(side.record.request.sampling.num_frames for side in (left, right))
    name = markup.text(f"{left.record.id}-{right.record.id}")
    controls = (
        '<div class="together"><button type="button" class="btn primary" data-play aria-label="Play both">'
        f"{markup.icon('play')}<span data-play-word>Play</span></button>"
        '<button type="button" class="btn" data-step="-1" aria-label="One frame back">−1</button>'
        '<button type="button" class="btn" data-step="1" aria-label="One frame on">+1</button>'
        f'<input type="range" min="0" max="{longest - 1}" step="1" value="0" data-scrub aria-label="Frame">'
        f'<output class="num" data-frame>0</output>'
        '<label class="hear">Sound <select data-hear aria-label="Sound"><option value="-1">off</option>'
        '<option value="0">A</option><option value="1">B</option></select></label></div>'
    )
    measure = measured or markup.button("Measure PSNR and SSIM", "measure", symbol="compare")
    return (
        f'<div data-key="{name}" data-compare><div class="card-head"><h3>Compare</h3>{close}</div>'
        f'<div class="pair">{_side("A", left)}{_side("B", right)}</div>{controls}{_differences(left, right)}'
        f'<div class="measured" aria-live="polite">{measure}</div></div>'
    )


def _side(letter: str, side: Side) -> str:
    record = side.record
    source = markup.text(result.file_url(record, VIDEO_NAME, side.token))
    return (
        f'<figure><video src="{source}" muted playsinline preload="auto" data-side aria-label="Video {letter}"></video>'
        f'<figcaption><b>{letter}</b> <span translate="no">{markup.text(record.title)}</span>'
        f'<span class="muted num">{result.report_line(record)}</span></figcaption></figure>'
    )


def _differences(left: Side, right: Side) -> str:
    """Which settings are not the same, A and B beside each other."""
    rows = "".join(
        f'<tr><th scope="row">{label}</th><td translate="no">{markup.text(a)}</td>'
        f'<td translate="no">{markup.text(b)}</td></tr>'
        for label, a, b in differences(left.record, right.record)
    )
    if not rows:
        return markup.note("Both were made with the same settings.")
    head = '<thead><tr><th scope="col">Different</th><th scope="col">A</th><th scope="col">B</th></tr></thead>'
    return f'<div class="differences"><table>{head}<tbody>{rows}</tbody></table></div>'


def differences(a: JobRecord, b: JobRecord) -> tuple[tuple[str, str, str], ...]:
    """(what, of A, of B) for every setting that differs."""
    one, other = a.request.sampling, b.request.sampling
    told = (
        ("Prompt", a.request.prompt, b.request.prompt),
        ("Seed", str(one.seed), str(other.seed)),
        ("Size", f"{one.width} × {one.height}", f"{other.width} × {other.height}"),
        ("Frames", str(one.num_frames), str(other.num_frames)),
        ("Forwards", str(one.num_inference_steps - 1), str(other.num_inference_steps - 1)),
        ("Quality", a.quality, b.quality),
        ("Preset", a.preset, b.preset),
        ("Media", _media(a), _media(b)),
    )
    return tuple(row for row in told if row[1] != row[2])


def _media(record: JobRecord) -> str:
    request = record.request
    paths = [path for path in (request.first_frame, request.last_frame) if path is not None]
    names = [record.labels.get(path.name, path.name) for path in (*paths, *(item.path for item in request.references))]
    return ", ".join(names) or "none"


def busy_html() -> str:
    """While both are read."""
    words = "Measuring: both videos are decoded and compared, frame by frame."
    return f'<p class="muted busy">{markup.icon("clock")} {words}</p>'


def figures_html(found: Comparison) -> str:
    """What was measured, in figures and as a line over the frames; or why it was not."""
    if found.reason:
        return markup.note(found.reason, "warn")
    mean = statistics.fmean(found.mse)
    worst = max(range(len(found.mse)), key=found.mse.__getitem__)
    lowest = min(range(len(found.ssim)), key=found.ssim.__getitem__)
    tiles = (
        ("PSNR", psnr_text(mean), "of all frames together"),
        ("Lowest PSNR", psnr_text(found.mse[worst]), f"at frame {worst}"),
        ("SSIM", f"{statistics.fmean(found.ssim):.4f}", "mean of all frames"),
        ("Lowest SSIM", f"{found.ssim[lowest]:.4f}", f"at frame {lowest}"),
    )
    shown = "".join(
        f'<div class="tile"><span class="muted">{label}</span><b class="num">{value}</b>'
        f'<span class="muted num">{where}</span></div>'
        for label, value, where in tiles
    )
    short = ""
    if len(set(found.frames)) > 1:
        count = len(found.mse)
        short = markup.note(
            f"A has {found.frames[0]} frames and B has {found.frames[1]}: the first {count} were compared.", "warn"
        )
    how = '<p class="muted how">PSNR and SSIM of Y, U and V, weighted by their samples, as FFmpeg measures them.</p>'
    return f'<div class="tiles">{shown}</div>{_chart(found)}{short}{how}'


def psnr_text(mse: float) -> str:
    """Decibels for people."""
    return f"{10 * math.log10(PEAK * PEAK / mse):.2f} dB" if mse > 0 else "identical"


def _chart(found: Comparison) -> str:
    """SSIM of each frame as a line, from its lowest to 1."""
    if len(found.ssim) < 2:
        return ""
    low = min(min(found.ssim), 0.999)
    across = CHART_WIDTH / (len(found.ssim) - 1)
    points = " ".join(
        f"{index * across:.1f},{(1 - (value - low) / (1 - low)) * (CHART_HEIGHT - 4) + 2:.1f}"
        for index, value in enumerate(found.ssim)
    )
    seconds = (len(found.ssim) - 1) / FPS
    return (
        f'<figure class="over-time"><svg viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" preserveAspectRatio="none" '
        f'role="img" aria-label="SSIM over the frames, {low:.4f} to 1"><polyline points="{points}"/></svg>'
        f'<figcaption class="muted num"><span>0 s</span><span>SSIM, {low:.3f} to 1</span>'
        f"<span>{seconds:.1f} s</span></figcaption></figure>"
    )

"""The memory of every rank as a picture: one bar a rank, a piece a part, against the size of its card.

It knows SVG and figures of the forecast; it asks nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from h3ui import markup

if TYPE_CHECKING:
    from backend.api import Forecast, Part, RankPlace

WIDTH, ROW, BAR = 640, 46, 20  # of the picture's own coordinates
LEFT, RIGHT = 96, 8
SMALLEST_GIB = 0.005  # pieces below are left out of the legend
# Parts of one kind share a colour, whatever numbers their names carry.
KINDS = (
    ("text_encoder", "Text encoder", "mem-a"),
    ("transformer", "Transformer", "mem-b"),
    ("tables", "Schedule tables", "mem-c"),
    ("audio_vae", "Sound decoder", "mem-e"),
    ("vae", "Video decoder", "mem-d"),
    ("activations", "Working memory", "mem-f"),
    ("exchange", "Exchange between ranks", "mem-g"),
    ("NCCL", "Exchange between ranks", "mem-g"),
    ("CUDA", "CUDA and libraries", "mem-h"),
)
OTHER = ("Other", "mem-i")


def forecast_html(cost: Forecast | None) -> str:
    """The picture for what the panels would make now; a hint where that cannot be said."""
    if cost is None:
        return '<p class="muted">Memory is shown here as soon as the canvas can be made.</p>'
    ranks = cost.placement.ranks
    if not ranks:
        return '<p class="muted">Nothing is held in memory here: a server elsewhere makes the video.</p>'
    on_cpu = all(rank.gpu is None for rank in ranks)
    if on_cpu:
        head = "Memory of the process" if len(ranks) == 1 else f"Memory of {len(ranks)} processes"
    else:
        head = "GPU memory" if len(ranks) == 1 else f"Memory of {len(ranks)} GPUs"
    shape = cost.shape
    clip = f"{shape.width} × {shape.height}, {shape.num_frames} frames"
    refused = ""
    if cost.refusal is not None:
        refused = markup.problems([cost.refusal], title="This does not fit")
    elif all(rank.gpu is not None and rank.gpu.uuid.startswith("planned-") for rank in ranks):
        refused = markup.note("Such GPUs are not in this machine: the figures are for cards as the preset asks for.")
    host = "" if on_cpu else f" · {cost.host_gib:.0f} GiB of host RAM"
    return (
        f'<figure class="memory"><figcaption><b>{head}</b><span class="muted">{clip}, at the fullest moment{host}'
        f"</span></figcaption>{_picture(ranks)}{_legend(ranks)}</figure>{refused}"
    )


def _picture(ranks: Sequence[RankPlace]) -> str:
    sizes = [rank.gpu.memory_total_gib if rank.gpu is not None else 0.0 for rank in ranks]
    full = max([*sizes, *(rank.peak.gib for rank in ranks), 0.1]) * 1.02
    scale = (WIDTH - LEFT - RIGHT) / full
    rows, words = [], []
    for number, rank in enumerate(ranks):
        rows.append(_row(rank, number * ROW, scale))
        words.append(f"rank {rank.rank} needs {rank.peak.gib:.1f} GiB")
    height = ROW * len(ranks)
    told = markup.text("Memory by rank: " + "; ".join(words))
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{told}">{"".join(rows)}</svg>'


def _row(rank: RankPlace, top: int, scale: float) -> str:
    card = rank.gpu
    if card is None:
        name, size = f"Process {rank.rank}", ""
    else:
        number = "" if card.uuid.startswith("planned-") else f" {card.index}"
        name, size = f"GPU{number}", f" of {card.memory_total_gib:.0f}"
    pieces, at = [], float(LEFT)
    for part in rank.peak.parts:
        width = part.gib * scale
        if width > 0.2:
            title, colour = _kind(part)
            pieces.append(
                f'<rect class="{colour}" x="{at:.1f}" y="{top + 16}" width="{max(width, 1):.1f}" height="{BAR}">'
                f"<title>{title}: {part.gib:.2f} GiB ({markup.text(part.basis)})</title></rect>"
            )
        at += width
    frame = ""
    if card is not None:
        wide = card.memory_total_gib * scale
        over = " over" if rank.peak.gib > rank.usable_gib else ""
        frame = f'<rect class="mem-card{over}" x="{LEFT}" y="{top + 16}" width="{wide:.1f}" height="{BAR}" rx="4"/>'
        usable = LEFT + min(rank.usable_gib, card.memory_total_gib) * scale
        frame += f'<line class="mem-line" x1="{usable:.1f}" x2="{usable:.1f}" y1="{top + 12}" y2="{top + 20 + BAR}"/>'
    told = f"{rank.peak.gib:.1f}{size} GiB, while it {_doing(rank)}"
    return (
        f'<text class="mem-name" x="0" y="{top + 31}">{name}</text>'
        f'<text class="mem-told" x="{LEFT}" y="{top + 11}">{told}</text>{frame if card is None else ""}'
        f"{''.join(pieces)}{frame}"
    )


def _doing(rank: RankPlace) -> str:
    return {"encode": "reads the prompt", "denoise": "samples", "decode": "decodes"}[str(rank.peak.stage)]


def _legend(ranks: Sequence[RankPlace]) -> str:
    sums: dict[tuple[str, str], float] = {}
    for rank in ranks:
        own: dict[tuple[str, str], float] = {}
        for part in rank.peak.parts:
            own[_kind(part)] = own.get(_kind(part), 0.0) + part.gib
        for kind, gib in own.items():
            sums[kind] = max(sums.get(kind, 0.0), gib)
    rows = "".join(
        f'<li><i class="{colour}"></i><span>{title}</span><b class="num">{_gib(gib)}</b></li>'
        for (title, colour), gib in sums.items()
        if gib >= SMALLEST_GIB
    )
    return f'<ul class="mem-legend">{rows}</ul>'


def _kind(part: Part) -> tuple[str, str]:
    for begin, title, colour in KINDS:
        if part.name.startswith(begin) or (begin == "vae" and part.name.startswith("VAE")):
            return title, colour
    return OTHER


def _gib(gib: float) -> str:
    return f"{gib:.1f} GiB" if gib >= 1 else f"{gib * 1024:.0f} MiB"

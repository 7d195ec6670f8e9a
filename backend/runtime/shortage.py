"""A job that runs out of memory: recognised, let go of, and told with what would have fitted.

Knows requests and figures; what a runtime holds, and lets go of, is `setup`'s matter.
"""

from __future__ import annotations

import gc
import math
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from backend import limits
from backend.errors import WHAT_FITS, H3Error, memory_words
from backend.runtime.plan import GIB, Plan
from backend.runtime.vae_tiles import DecodeOutOfMemory
from backend.types import FPS, GenerationRequest, Stage, Task

MARGIN = 0.85  # of what the figures say would fit: the failed attempt shows the least it needed, not all
LARGEST = 0.9  # of the request: what is advised is smaller, whatever the figures say
UNKNOWN = 0.5  # of the request, where there are no figures
OTHERS_BYTES = GIB  # held by other programs that are worth naming
_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+) (KiB|MiB|GiB|bytes)")
_PLACE = re.compile(r"^\[enforce fail[^\]]*\] [^.]*\. ")  # where in torch's sources it noticed
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Exhausted(H3Error):
    """Memory ran out in a stage of a job; says the figures and what would fit. The model is as it was before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Bytes on one GPU: `held` by what stays loaded, `needed` by the job at the least, `allowed` to this process."""

    held: int
    needed: int
    allowed: int
    others: int = 0  # taken by other programs

    @property
    def left(self) -> int:
        """What a job can have."""
        return max(0, self.allowed - self.held)


@contextmanager
def caught(
    request: GenerationRequest, stage: Callable[[], Stage | None], release: Callable[[], Plan], device: torch.device
) -> Iterator[None]:
    """Around a render: memory that runs out inside becomes an `Exhausted`, after `release` let go of what it held.

    release: gives back what the job still holds on `device` and returns the plan in force. An error that is already
    in words for people passes, after the same.
    """
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    try:
        yield
    except DecodeOutOfMemory as error:
        _let_go(error, release, on_gpu)
        raise
    except (RuntimeError, MemoryError) as error:
        words = _words(error)
        if words is None:
            raise
        at = stage()
        peak = torch.cuda.max_memory_allocated(device) if on_gpu else 0
        plan = _let_go(error, release, on_gpu)
        figures = _figures(device, peak + asked(words)) if on_gpu else None
        raise Exhausted(report(request, at, plan, figures, words)) from None


def report(request: GenerationRequest, stage: Stage | None, plan: Plan, figures: Figures | None, words: str) -> str:
    """The failure in one line for people: stage, figures, and after "what fits:" the nearest changes."""
    where = f" in stage {stage.value}" if stage is not None else ""
    text = f"out of memory{where} ({_PLACE.sub('', words).split('. ')[0].rstrip('.')})"
    if figures is not None:
        text += (
            f": {figures.held / GIB:.1f} GiB of weights leave {figures.left / GIB:.1f} GiB of "
            f"{figures.allowed / GIB:.1f}, and this job needs at least {figures.needed / GIB:.1f}"
        )
        if figures.others > OTHERS_BYTES:
            text += f"; other programs hold {figures.others / GIB:.1f} GiB of this GPU"
    return f"{text}; {WHAT_FITS}{', or '.join(fitting(request, stage, plan, figures))}"


def fitting(request: GenerationRequest, stage: Stage | None, plan: Plan, figures: Figures | None) -> list[str]:
    """The nearest smaller requests and other ways to run it, in words; never empty. figures: None on a CPU."""
    share = UNKNOWN if figures is None else min(LARGEST, MARGIN * figures.left / max(1, figures.needed))
    changes: list[str] = []
    # The prompt and its media do not shrink with the clip.
    if stage is not Stage.ENCODE or request.task is Task.FL2VA:
        changes += _smaller(request, share, shorter=stage is not Stage.ENCODE)
    if stage is Stage.ENCODE:
        changes.append("fewer or smaller references" if request.references else "a shorter prompt")
    if figures is not None and not plan.parked:
        changes.append("a preset that parks idle components (offload = component)")
    elif not changes:
        changes.append("a machine with more memory, or several GPUs")
    return changes


def _smaller(request: GenerationRequest, share: float, *, shorter: bool) -> Iterator[str]:
    sampling = request.sampling
    most = share * limits.num_latent_frames(sampling.num_frames)
    step = limits.FRAMES_PER_CHUNK
    lengths = range(sampling.num_frames - step, limits.MIN_FRAMES - 1, -step)
    frames = next((each for each in lengths if limits.num_latent_frames(each) <= most), None)
    if shorter and frames is not None:
        yield f"{frames} frames ({frames / FPS:.1f} s)"
    if sampling.width is not None and sampling.height is not None:
        width, height = (int(side * math.sqrt(share)) // 32 * 32 for side in (sampling.width, sampling.height))
        ratio_holds = height and limits.MIN_RATIO <= width / height <= limits.MAX_RATIO
        if width and ratio_holds:
            yield f"a canvas of {width}x{height}"


def asked(words: str) -> int:
    """Bytes that the failed allocation wanted, by torch's own words; 0 where they do not say."""
    found = _ASKED.search(words)
    return int(float(found[1]) * _UNITS[found[2]]) if found else 0


def _words(error: BaseException) -> str | None:
    """What the error says of exhausted memory, or None where it is another error."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return str(error).strip() or type(error).__name__
    return memory_words(str(error))


def _let_go(error: BaseException, release: Callable[[], Plan], on_gpu: bool) -> Plan:
    # The failed calls' tensors hang on the error's frames, and these on the error that is being handled.
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__context__
    plan = release()
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
    return plan


def _figures(device: torch.device, reached: int) -> Figures:
    """reached: bytes allocated when it failed, and those asked for then."""
    free, total = torch.cuda.mem_get_info(device)
    held, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    limit = int(total * torch.cuda.get_per_process_memory_fraction(device.index))
    allowed = min(free + reserved, limit)
    return Figures(held=held, needed=max(0, reached - held), allowed=allowed, others=max(0, total - free - reserved))

"""Frames leave the GPU while the next ones are decoded: uint8 on the device, pinned memory, one chunk behind.

Knows tensors only; who decodes and who encodes is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


def to_host(chunks: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield each chunk as a CPU tensor, in order, after the work of the following chunk has been started.

    On CUDA a chunk is copied on a stream of its own, into pinned memory that belongs to the receiver. The first chunk
    is yielded at once, so that a preview can begin; CPU chunks pass through.
    """
    waiting: tuple[Tensor, torch.cuda.Event] | None = None
    copies: torch.cuda.Stream | None = None
    first = True
    for chunk in chunks:
        if not chunk.is_cuda:
            yield chunk
            continue
        copies = copies or torch.cuda.Stream(chunk.device)
        copies.wait_stream(torch.cuda.current_stream(chunk.device))
        with torch.cuda.stream(copies):
            host = torch.empty(chunk.shape, dtype=chunk.dtype, pin_memory=True)
            host.copy_(chunk, non_blocking=True)
            chunk.record_stream(copies)
            done = torch.cuda.Event()
            done.record(copies)
        if waiting is not None:
            waiting[1].synchronize()
            yield waiting[0]
        waiting = (host, done)
        if first:
            first = False
            done.synchronize()
            yield host
            waiting = None
    if waiting is not None:
        waiting[1].synchronize()
        yield waiting[0]

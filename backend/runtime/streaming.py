"""Weights that stay in page-locked host memory and come to the device block by block, the next one while one computes.

One mechanism for the fused trunk, which reads weights and calls no module, and for the conditioner, whose layers are
modules. (diffusers' group offloading hangs on module calls, so the fused trunk would never trigger it.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from backend.runtime.block import BlockWeights, OneAtATime
from backend.runtime.parallel.fsdp import MATRICES

ALIGNMENT = 256  # bytes; what cuBLAS and copies like best
_TRUNK, _LAYERS = "transformer_blocks.", "model.language_model.layers."


def stays(component: str, name: str) -> bool:
    """Whether parameter `name` of a streamed component remains in host memory while the component runs."""
    if component == "text_encoder":
        return name.startswith(_LAYERS)
    inside = name.removeprefix(_TRUNK).partition(".")[2].removesuffix(".weight")
    return name.startswith(_TRUNK) and inside in MATRICES


@dataclass(slots=True)
class _Room:
    """Device memory for one group; `number` is what it holds, `there` is recorded when that has arrived."""

    memory: Tensor
    number: int = -1
    there: Any = None


class Stream:
    """Groups of host tensors on a device, one at a time in order, with the next one on its way; two rooms suffice.

    resident: so many leading groups keep a place of their own from their first use until `release`.
    """

    def __init__(self, groups: Sequence[Sequence[Tensor]], device: torch.device, resident: int = 0) -> None:
        self._groups = [list(group) for group in groups]
        self._device = device
        self._resident = min(resident, len(self._groups))
        self._kept: dict[int, list[Tensor]] = {}
        self._used: _Room | None = None
        self._coming: _Room | None = None
        self._free: _Room | None = None
        self._side: Any = None

    def fetch(self, number: int) -> list[Tensor]:
        """Group `number` on the device, valid until the next was asked for and what was started with it is done."""
        if number < self._resident:
            if number not in self._kept:
                here = (each.to(self._device, non_blocking=True, copy=True) for each in self._groups[number])
                self._kept[number] = list(here)
            if self._used is None and self._coming is None:
                self._start(self._resident)
            return self._kept[number]
        if self._used is None or self._used.number != number:
            if self._coming is None or self._coming.number != number:
                self._start(number)
            self._used, self._free, self._coming = self._coming, self._used, None
            self._wait()
            if (following := self._after(number)) != number:
                self._start(following)
        assert self._used is not None
        return self._views(self._used.memory, number)

    def release(self) -> None:
        """Give the device's memory back; host tensors stay as they are."""
        if self._side is not None:
            self._side.synchronize()
        self._kept.clear()
        self._used = self._coming = self._free = None

    def _after(self, number: int) -> int:
        """The streamed group after `number`; after the last one comes the first one of the next pass."""
        return number + 1 if number + 1 < len(self._groups) else self._resident

    def _start(self, number: int) -> None:
        """Begin to copy a group into the room that is not in use."""
        if number >= len(self._groups):
            return
        room = self._coming or self._free
        if room is None:
            size = max(self._size(group) for group in self._groups[self._resident :])
            room = _Room(torch.empty(size, dtype=torch.uint8, device=self._device))
        self._coming, self._free = room, None
        room.number = number
        views = zip(self._views(room.memory, number), self._groups[number], strict=True)
        if self._device.type != "cuda":
            for view, host in views:
                view.copy_(host)
            return
        if self._side is None:
            self._side = torch.cuda.Stream(self._device)
        self._side.wait_stream(torch.cuda.current_stream(self._device))  # what was started with the room's last group
        with torch.cuda.stream(self._side):
            for view, host in views:
                view.copy_(host, non_blocking=True)
            room.there = self._side.record_event()

    def _wait(self) -> None:
        if self._used is not None and self._used.there is not None:
            torch.cuda.current_stream(self._device).wait_event(self._used.there)

    def _size(self, group: Sequence[Tensor]) -> int:
        return sum(-(-each.nbytes // ALIGNMENT) * ALIGNMENT for each in group)

    def _views(self, memory: Tensor, number: int) -> list[Tensor]:
        views, start = [], 0
        for each in self._groups[number]:
            views.append(memory[start : start + each.nbytes].view(each.dtype).view(each.shape))
            start += -(-each.nbytes // ALIGNMENT) * ALIGNMENT
        return views


class StreamedBlocks(OneAtATime):
    """Blocks of a trunk whose matrices lie in host memory. Asking for one has it there and the next one coming."""

    def __init__(self, blocks: Sequence[BlockWeights], device: torch.device, resident: int = 0) -> None:
        super().__init__(len(blocks))
        self._blocks = list(blocks)
        self._stream = Stream([[each.qkv, each.out, each.ff_in, each.ff_out] for each in blocks], device, resident)

    def bring(self, number: int) -> BlockWeights:
        """Block `number`, its matrices on the device."""
        qkv, out, ff_in, ff_out = self._stream.fetch(number)
        return replace(self._blocks[number], qkv=qkv, out=out, ff_in=ff_in, ff_out=ff_out)

    def release(self) -> None:
        """See `Stream.release`."""
        self._stream.release()


class Streamer:
    """What the runtime keeps of streaming: page-locked storages, and what is on the device at this moment."""

    def __init__(self, device: torch.device, resident: int, notify: Callable[[str], None]) -> None:
        self._device, self._resident, self._notify = device, resident, notify
        self._locked: dict[str, list[int]] = {}
        self._trunk: StreamedBlocks | None = None
        self._conditioner: Stream | None = None

    def trunk(self, blocks: Sequence[BlockWeights]) -> Sequence[BlockWeights]:
        """The blocks of a transformer that is about to run, streamed."""
        self.leave("transformer")
        self._lock("transformer", [part for each in blocks for part in (each.qkv, each.out, each.ff_in, each.ff_out)])
        self._trunk = StreamedBlocks(blocks, self._device, self._resident)
        return self._trunk

    def conditioner(self, text_encoder: Any) -> None:
        """Have the layers of a loaded conditioner come when they are called."""
        layers = list(text_encoder.model.language_model.layers)
        if any(each.is_meta for each in layers[0].parameters()):
            return  # other ranks encode
        parameters = [list(layer.parameters()) for layer in layers]
        homes = [[each.data for each in group] for group in parameters]
        self._lock("text_encoder", [each for group in homes for each in group])
        stream = self._conditioner = Stream(homes, self._device)

        def arrive(number: int) -> Callable[..., None]:
            def before(_module: nn.Module, _inputs: Any) -> None:
                for parameter, there in zip(parameters[number], stream.fetch(number), strict=True):
                    parameter.data = there

            return before

        def go_home(number: int) -> Callable[..., None]:
            def after(_module: nn.Module, _inputs: Any, _output: Any) -> None:
                for parameter, home in zip(parameters[number], homes[number], strict=True):
                    parameter.data = home

            return after

        for number, layer in enumerate(layers):
            layer.register_forward_pre_hook(arrive(number))
            layer.register_forward_hook(go_home(number))

    def leave(self, component: str) -> None:
        """A component left the device: its rooms go too."""
        if component == "text_encoder" and self._conditioner is not None:
            self._conditioner.release()
        if component != "text_encoder" and self._trunk is not None:
            self._trunk.release()
            self._trunk = None

    def forget(self, component: str) -> None:
        """A component is about to be freed: its memory is page-locked no longer."""
        self.leave(component)
        for address in self._locked.pop("text_encoder" if component == "text_encoder" else "transformer", []):
            torch.cuda.cudart().cudaHostUnregister(address)

    def _lock(self, component: str, tensors: Sequence[Tensor]) -> None:
        """Page-lock host storages in place, once: torch's own pinned memory would round each up to a power of two."""
        if self._device.type != "cuda" or component in self._locked:
            return
        locked = self._locked[component] = []
        for storage in {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}.values():
            status = torch.cuda.cudart().cudaHostRegister(storage.data_ptr(), storage.nbytes(), 0)
            if int(status) != 0:
                self._notify(
                    f"Host memory of the {component.replace('_', ' ')} could not be page-locked (CUDA error "
                    f"{int(status)}): weights are copied without overlap, which is slower."
                )
                return
            locked.append(storage.data_ptr())

"""Exchanges by copy engines through memory that the GPUs of one host map from each other, and whether that works here.

What is tried at the start is tried by all ranks together, in limited time, and all come to the same answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from backend.errors import Unavailable
from backend.runtime.parallel.group import Group

TRIAL_S = 30.0  # memory is mapped in 0.03 s; a rank that does not come this far never will
WIDTH = 256  # numbers in the exchange that is tried


class MappedTravel:
    """By copy engines into memory that the ranks of one host map from each other: no processor takes part.

    Needs GPUs that reach each other's memory. Holds two rooms of each exchange; a rank that starts an exchange for the
    second time after another has proven, by the arrivals between, that nobody reads the first one's room any more.
    """

    def __init__(self, group: Group, device: torch.device) -> None:
        """Takes the device of this rank; nothing is allocated yet."""
        self._group, self._device = group, device
        self._beside = torch.cuda.Stream(device)
        self._rooms: dict[tuple[str, int], tuple[Any, list[Tensor]]] = {}
        self._turns: dict[str, int] = {}

    def start(self, name: str, parts: Sequence[Tensor | None]) -> Callable[[], Tensor]:
        """See `Travel`. The first of a name or of another shape allocates, and waits for all ranks."""
        some = next(part for part in parts if part is not None)
        turn = self._turns[name] = 1 - self._turns.get(name, 1)
        handle, rooms = self._room((name, turn), (self._group.size, *some.shape), some.dtype)
        me = self._group.rank
        own = parts[me]
        if own is not None:
            rooms[me][me].copy_(own)
        # Packed before, not beside, what comes next: attention leaves no processor for it.
        send = [part.contiguous() if part is not None and place != me else None for place, part in enumerate(parts)]
        self._beside.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._beside):
            for place, part in enumerate(send):
                if part is not None:
                    rooms[place][me].copy_(part)  # contiguous on both sides: a copy engine does it
            handle.barrier(channel=0)  # everything has arrived everywhere
        arrived = self._beside.record_event()

        def wait() -> Tensor:
            torch.cuda.current_stream(self._device).wait_event(arrived)
            send.clear()  # until now the copies read it
            return rooms[me]

        return wait

    def _room(self, key: tuple[str, int], shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, list[Tensor]]:
        found = self._rooms.get(key)
        if found is None or found[1][0].shape != shape or found[1][0].dtype is not dtype:
            # Not at the top: it is private to torch, and not every build has it.
            import torch.distributed._symmetric_memory as symmetric

            torch.cuda.synchronize(self._device)  # nobody may still write into a room that goes
            self._rooms.pop(key, None)
            mine = symmetric.empty(shape, dtype=dtype, device=self._device)
            handle = symmetric.rendezvous(mine, self._group.handle.group_name)
            rooms = [
                mine if place == self._group.rank else handle.get_buffer(place, shape, dtype)
                for place in range(self._group.size)
            ]
            found = self._rooms[key] = (handle, rooms)
        return found


def reach(group: Group, device: torch.device) -> bool:
    """Whether every rank of the group sits on a GPU of its own whose memory the others reach; the same on all ranks."""
    if device.type != "cuda" or torch.cuda.device_count() <= max(group.members):
        return False
    pairs = [(one, other) for one in group.members for other in group.members if one != other]
    return all(torch.cuda.can_device_access_peer(one, other) for one, other in pairs)


def why_not(group: Group, device: torch.device) -> str | None:
    """Why ranks of `group` cannot exchange by mapped memory, or None; a collective, and the same on all ranks.

    A small exchange is set up and made. Raises Unavailable where it was begun and did not end well: a GPU that waits in
    it can do nothing else, so the processes must end.
    """
    travel: list[MappedTravel] = []
    sent = [group.rank * group.size + place for place in range(group.size)]

    def set_up() -> None:
        if not reach(group, device):
            raise Unavailable("not every rank has a GPU of its own that reaches the others' memory")
        with torch.cuda.device(device):  # a thread begins on the first GPU
            travel.append(MappedTravel(group, device))
            travel[0]._room(("trial", 0), (group.size, WIDTH), torch.int64)

    def exchange() -> None:
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
            parts = [torch.full((WIDTH,), each, device=device) for each in sent]
            got = travel[0].start("trial", parts)()
            if got[:, -1].tolist() != [each * group.size + group.rank for each in range(group.size)]:
                raise RuntimeError("what arrived was not what was sent")

    if (reason := agree(group, set_up)) is not None:
        return reason
    if (reason := agree(group, exchange)) is not None:
        raise Unavailable(f"parallel.exchange=mapped: {reason}; choose another exchange in the preset")
    return None


def agree(group: Group, attempt: Callable[[], None], seconds: float = TRIAL_S) -> str | None:
    """Why `attempt` failed on some rank of `group`, the first of them, or None; the same on all ranks.

    One that does not come back in `seconds` has failed, whoever it waits for: its thread is left behind.
    """
    said: list[str | None] = []

    def run() -> None:
        try:
            attempt()
            said.append(None)
        except Exception as error:  # whatever it is, it is told, and every rank does without
            said.append(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")

    thread = threading.Thread(target=run, name="exchange-trial", daemon=True)
    thread.start()
    thread.join(seconds)
    mine = f"no answer in {seconds:g} s" if thread.is_alive() else said[0]
    everyone: list[str | None] = [None] * group.size
    dist.all_gather_object(everyone, mine, group=group.handle)
    return next((f"rank {group.members[place]}: {each}" for place, each in enumerate(everyone) if each), None)

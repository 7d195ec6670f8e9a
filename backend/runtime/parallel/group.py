"""The groups of a fleet: who shares rows with whom, who shares weights with whom, built once after the ranks joined.

Knows ranks and collectives; what travels is not known here.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from backend.presets import Parallel

# Waits inside a collective are bounded by the parent's deadlines, which know the stage; torch's own must be longer.
TIMEOUT = datetime.timedelta(days=1)
# Newer versions of torch have renamed it, and warn of the old name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True, slots=True)
class Group:
    """Some ranks of the fleet, this one among them: `members` by their rank in the fleet, `rank` counted within."""

    members: tuple[int, ...]
    rank: int
    handle: Any  # a torch ProcessGroup; None in a group of one

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.members)

    def exchange(self, send: Tensor) -> Tensor:
        """`send[j]` goes to rank j of the group; row j of the result came from it. (size, ...) -> the same shape."""
        got = torch.empty_like(send)
        dist.all_to_all_single(got, send, group=self.handle)
        return got

    def gather(self, part: Tensor) -> Tensor:
        """Equal parts (n, ...) of all ranks in their order, (size * n, ...)."""
        whole = part.new_empty((self.size * part.shape[0], *part.shape[1:]))
        self.gather_into(whole, part.contiguous())
        return whole

    def gather_into(self, whole: Tensor, part: Tensor, *, wait: bool = True) -> Any:
        """`gather` into contiguous room that is there; without `wait` what to wait for is returned."""
        return _all_gather(whole, part, group=self.handle, async_op=not wait)

    def sum(self, part: Tensor) -> Tensor:
        """The sum over all ranks, in place where `part` is contiguous."""
        part = part.contiguous()
        dist.all_reduce(part, group=self.handle)
        return part


@dataclass(frozen=True, slots=True)
class Groups:
    """All groups that one rank belongs to."""

    world: Group
    ulysses: Group  # ranks that hold the rows of one sequence between them
    tensor: Group  # ranks that hold the heads and channels of every block between them
    weights: Group  # those of `ulysses` again, with a communicator of its own: FSDP's gathers pass the exchanges by
    conditioner: Group | None  # the first ranks, which encode; None on every other rank


def alone() -> Group:
    """A group of this rank only."""
    return Group((0,), 0, None)


def form(rank: int, world_size: int, parallel: Parallel) -> Groups:
    """The groups of `rank`. With several ranks a collective: every rank calls it once, after joining.

    Ranks that share weights are neighbours: rank = ulysses rank * tensor_parallel_size + tensor rank. Raises
    ValueError where the degrees do not make up the fleet; a fleet without any runs the trunk on every rank alike.
    """
    if world_size == 1:
        one = alone()
        return Groups(one, one, one, one, one)
    degree, tensor = parallel.ulysses_degree, parallel.tensor_parallel_size
    if degree * tensor not in (1, world_size):
        raise ValueError(
            f"world_size={world_size}: must equal ulysses_degree={degree} times tensor_parallel_size={tensor}"
        )
    world = _group(rank, [tuple(range(world_size))])
    assert world is not None
    sequence = [tuple(range(first, degree * tensor, tensor)) for first in range(tensor)]
    weights = [tuple(range(first, first + tensor)) for first in range(0, degree * tensor, tensor)]
    return Groups(
        world=world,
        ulysses=_group(rank, sequence if degree > 1 else []) or alone(),
        tensor=_group(rank, weights if tensor > 1 else []) or alone(),
        weights=_group(rank, sequence if degree > 1 and parallel.fsdp else []) or alone(),
        conditioner=_encoders(rank, parallel.conditioner_tensor_parallel),
    )


def _encoders(rank: int, count: int) -> Group | None:
    if count == 1:
        return alone() if rank == 0 else None
    return _group(rank, [tuple(range(count))])


def _group(rank: int, all_members: list[tuple[int, ...]]) -> Group | None:
    """The group among disjoint ones that `rank` is in; torch wants every rank to make all of them."""
    mine = None
    for members in all_members:
        handle = dist.new_group(list(members), timeout=TIMEOUT)
        if rank in members:
            mine = Group(members, members.index(rank), handle)
    return mine

"""The trial of mapped memory: whatever happens on one rank, all ranks hear the same in limited time, and carry on."""

import time

import pytest
import torch

from backend.errors import Unavailable
from backend.presets import Device, Dtype, Exchange, Parallel
from backend.process.messages import Setup
from backend.runtime.parallel import mapped, ranks, sharing
from backend.runtime.parallel.group import alone, form

CPU = torch.device("cpu")


def agreed(rank, size, failing):
    """What rank 1 does instead of the others' barrier-like wait: nothing at all, an error, or a success."""
    group = form(rank, size, Parallel(ulysses_degree=size)).ulysses

    def attempt():
        if rank == 1 and failing == "error":
            raise MemoryError("no room left\nin detail")
        if failing == "error" or (failing == "hang" and rank == 1):
            time.sleep(3)  # as a rendezvous does in which one rank is missing

    began = time.monotonic()
    told = mapped.agree(group, attempt, 0.5)
    spent = time.monotonic() - began
    # The group is whole afterwards: a collective gives every rank's number.
    return told, spent, group.gather(torch.tensor([float(rank)])).tolist()


@pytest.mark.parametrize(
    ("failing", "said"),
    [("", None), ("hang", "rank 1: no answer in 0.5 s"), ("error", "rank 0: no answer in 0.5 s")],
)
def test_ranks_agree_in_time_and_go_on(teams, failing, said):
    for size in (2, 4):
        for told, spent, numbers in teams(size).run(agreed, failing):
            assert told == said
            assert spent < 2.5  # not the three seconds that somebody waits
            assert numbers == [float(rank) for rank in range(size)]


def settled(rank, size, errors):
    """`settled` where set-up (first) and exchange (second) fail as told on rank 1 only."""
    group = form(rank, size, Parallel(ulysses_degree=size)).ulysses
    calls = []

    class Travel(mapped.MappedTravel):
        def __init__(self, group, device):
            self._group = group

        def _room(self, key, shape, dtype):
            if rank == 1 and "set up" in errors:
                raise RuntimeError("CUDA driver error: system not yet initialized")

        def start(self, name, parts):
            calls.append(name)
            sent = torch.stack(list(parts))
            if rank == 1 and "exchange" in errors:
                return lambda: sent
            return lambda: torch.arange(rank, size * size, size)[:, None]  # rank j sends j * size + rank here

    class Nothing:
        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return False

    kept = mapped.MappedTravel, mapped.reach, torch.cuda.device, torch.cuda.stream, torch.cuda.Stream
    mapped.MappedTravel, mapped.reach = Travel, lambda *_: True
    torch.cuda.device = torch.cuda.stream = torch.cuda.Stream = Nothing
    notices = []
    try:
        return ranks.settled(Exchange.MAPPED, group, CPU, notices.append), notices, len(calls)
    except Unavailable as error:
        return str(error), notices, len(calls)
    finally:
        mapped.MappedTravel, mapped.reach, torch.cuda.device, torch.cuda.stream, torch.cuda.Stream = kept


def test_a_trial_that_goes_well_is_kept(teams):
    for size in (2, 4):
        assert teams(size).run(settled, ()) == [(Exchange.MAPPED, [], 1)] * size


def test_a_failed_set_up_on_one_rank_is_done_without_on_all_and_said_once(teams):
    for size, instead in ((2, "gathered"), (4, "overlapped")):
        words = (
            f"Exchanging rows over {size} ranks is {instead} instead of mapped: "
            "rank 1: RuntimeError: CUDA driver error: system not yet initialized."
        )
        assert teams(size).run(settled, ("set up",)) == [(Exchange(instead), [words], 0)] * size


def test_an_exchange_that_was_begun_and_went_wrong_ends_all_ranks_with_words(teams):
    words = (
        "parallel.exchange=mapped: rank 1: RuntimeError: what arrived was not what was sent; choose another exchange"
    )
    for size in (2, 4):
        assert teams(size).run(settled, ("exchange",)) == [(f"{words} in the preset", [], 1)] * size


def test_the_default_over_two_ranks_is_gathered_and_packed_over_more():
    """docs/presets.md: gathered is the fastest of those whose faults were run; over more ranks it moves more."""
    wanted = {degree: Parallel(ulysses_degree=degree).wanted_exchange for degree in (1, 2, 4, 7, 8)}
    assert wanted == {2: Exchange.GATHERED, **dict.fromkeys((1, 4, 7, 8), Exchange.PACKED)}
    assert Parallel(ulysses_degree=2, exchange=Exchange.MAPPED).wanted_exchange is Exchange.MAPPED
    assert ranks.settled(Exchange.MAPPED, alone(), CPU, lambda _: None) is Exchange.MAPPED


def told_by(rank, size, exchange):
    notices = []
    made = Setup(
        run="x", rank=rank, world_size=size, model="native", checkpoint="", device=Device.CPU, dtype=Dtype.FLOAT32,
        rendezvous="", cache_dir="", parallel=Parallel(ulysses_degree=size, exchange=exchange),
    )  # fmt: skip
    return str(sharing.Sharing(made, CPU, notices.append).info()["exchange"]), len(notices)


def test_log_and_sidecar_name_the_exchange_that_is_used(teams):
    assert teams(2).run(told_by, Exchange.AUTO) == [("gathered", 0)] * 2
    assert teams(2).run(told_by, Exchange.MAPPED) == [("gathered", 1)] * 2
    assert teams(4).run(told_by, Exchange.AUTO) == [("packed", 0)] * 4

import pytest

from backend.presets import Deadlines
from backend.process.watch import Watch
from backend.types import Stage

LIMITS = Deadlines(silence_s=4, start_s=5, load_s=50, encode_s=20, step_s=10, decode_s=30, mux_s=8)


class Clock:
    """Time in steps small enough that the watch does not think it was halted."""

    def __init__(self, world_size=2):
        self.now = 100.0
        self.watch = Watch(world_size, LIMITS, self.now)
        self.count = 0

    def until(self, end, pulsing=(), stage=None, moving=()):
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            self.count += 1
            for rank in pulsing:
                self.watch.heard(rank, self.now)
                self.watch.pulse(rank, self.now, stage, self.count if rank in moving else 0)
            found = self.watch.verdict(self.now)
            if found:
                return self.now, *found
        return None


def ready(clock):
    for rank in (0, 1):
        clock.watch.heard(rank, clock.now)
        clock.watch.rest(rank)


def test_a_rank_that_never_speaks_fails_at_the_start_limit():
    clock = Clock()
    assert clock.until(120, pulsing=[0], moving=[0]) == (105.5, 1, "said nothing within 5 s of its start")


@pytest.mark.parametrize(
    ("stage", "limit"), [(Stage.LOAD, 50), (Stage.ENCODE, 20), (Stage.DENOISE, 10), (Stage.DECODE, 30), (Stage.MUX, 8)]
)
def test_a_pulse_without_progress_is_a_hang_at_the_stage_limit(stage, limit):
    clock = Clock()
    clock.until(102, pulsing=[0, 1], moving=[0, 1], stage=stage)
    now, rank, why = clock.until(300, pulsing=[0, 1], moving=[0], stage=stage)
    assert rank == 1
    assert limit < now - 102 <= limit + 1.5
    assert f"in stage {stage.value}" in why
    assert f"limit {limit} s" in why


def test_silence_is_found_long_before_the_stage_limit_and_names_the_silent():
    clock = Clock()
    clock.until(102, pulsing=[0, 1], moving=[0, 1], stage=Stage.DECODE)
    now, rank, why = clock.until(300, pulsing=[1], moving=[1], stage=Stage.DECODE)
    assert (now, rank) == (106.5, 0)
    assert why == "gave no sign of life for 4.5 s in stage decode"


def test_silence_outranks_the_peer_it_holds_up():
    clock = Clock()
    clock.until(102, pulsing=[0, 1], moving=[0, 1], stage=Stage.DENOISE)
    clock.watch._looked = 112.0  # one look, late, at both: the silent rank is the one to name
    clock.watch.heard(0, 112.9)
    assert clock.watch.verdict(113.0)[0] == 1


def test_loading_may_be_silent():
    clock = Clock()
    clock.until(102, pulsing=[0, 1], moving=[0, 1], stage=Stage.LOAD)
    now, _, _ = clock.until(300)
    assert 150 < now < 154


def test_an_idle_rank_must_live_but_not_progress():
    clock = Clock()
    ready(clock)
    assert clock.until(400, pulsing=[0, 1]) is None
    assert clock.until(500, pulsing=[0])[1] == 1


def test_a_new_job_starts_the_clock_anew():
    clock = Clock()
    ready(clock)
    clock.until(300, pulsing=[0, 1])
    clock.watch.work(clock.now)
    now, _, _ = clock.until(400, pulsing=[0, 1], stage=Stage.ENCODE)
    assert 320 < now < 321.5


def test_a_halted_parent_blames_nobody():
    clock = Clock()
    ready(clock)
    clock.until(110, pulsing=[0, 1])
    clock.now += 3600  # Ctrl-Z, or a suspended laptop
    assert clock.watch.verdict(clock.now) is None
    assert clock.until(clock.now + 3) is None
    assert clock.until(clock.now + 3) is not None

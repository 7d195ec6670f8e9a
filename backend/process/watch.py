"""Decides from times alone whether a rank is hung: no sign of life, or life without progress.

Pure bookkeeping on a clock that is handed in; it knows neither processes nor channels.

Two limits, because a heartbeat alone proves little. A rank's pulse comes from a thread of its own, so it keeps coming
while the main thread waits for ever in a collective; therefore each pulse carries a counter of what the main thread
achieved, and a counter that stands still for the stage's deadline is a hang. Silence of the pulse itself (SIGSTOP, a
dead host thread) is found much sooner, after `silence_s`, since no stage is entitled to it except loading.
"""

from __future__ import annotations

from dataclasses import dataclass

from backend.presets import Deadlines
from backend.types import Stage

PAUSE_S = 5.0  # the watch looks several times a second: a longer gap means that the parent itself was halted


@dataclass(slots=True)
class _Rank:
    heard: float
    progressed: float
    started: bool = False
    working: bool = True  # starting and loading count as work
    stage: Stage | None = None
    progress: int = -1


class Watch:
    """The clocks of all ranks of one fleet; `now` is monotonic seconds."""

    def __init__(self, world_size: int, deadlines: Deadlines, now: float) -> None:
        self._deadlines = deadlines
        self._ranks = [_Rank(heard=now, progressed=now) for _ in range(world_size)]
        self._looked = now

    def stage(self, rank: int) -> Stage | None:
        """Where `rank` was last heard of."""
        return self._ranks[rank].stage

    def work(self, now: float) -> None:
        """All ranks were given something to do."""
        for rank in self._ranks:
            rank.working, rank.progressed, rank.stage = True, now, Stage.ENCODE

    def rest(self, rank: int) -> None:
        """`rank` has nothing to do: it must live, not progress."""
        self._ranks[rank].working = False
        self._ranks[rank].stage = None

    def heard(self, rank: int, now: float) -> None:
        """Any message of `rank` arrived."""
        self._ranks[rank].heard = now
        self._ranks[rank].started = True

    def progressed(self, rank: int, now: float, stage: Stage | None = None) -> None:
        """`rank` achieved something; `stage` where it says so."""
        state = self._ranks[rank]
        state.progressed = now
        if stage is not None and state.working:
            state.stage = stage

    def pulse(self, rank: int, now: float, stage: Stage | None, progress: int) -> None:
        """A heartbeat arrived: progress only if its counter moved."""
        state = self._ranks[rank]
        if progress != state.progress:
            state.progress = progress
            self.progressed(rank, now, stage)

    def verdict(self, now: float) -> tuple[int, str] | None:
        """The rank that is hung and why, or None."""
        gap = now - self._looked
        self._looked = now
        if gap > PAUSE_S:  # nobody read the channels meanwhile, so nobody is to blame
            for rank in self._ranks:
                rank.heard += gap
                rank.progressed += gap
        verdicts = [(since, index, why) for index in range(len(self._ranks)) for since, why in self._judge(index, now)]
        return None if not verdicts else max(verdicts)[1:]

    def _judge(self, index: int, now: float) -> list[tuple[float, str]]:
        """Reasons against a rank, each with how far it is over its limit: the worst offender is the one to name."""
        rank, deadlines = self._ranks[index], self._deadlines
        quiet, idle = now - rank.heard, now - rank.progressed
        if not rank.started:
            over = quiet - deadlines.start_s
            return [(over, f"said nothing within {deadlines.start_s:g} s of its start")] if over > 0 else []
        found = []
        if rank.stage is not Stage.LOAD and quiet > deadlines.silence_s:
            # A silent rank holds up its peers: it is the cause, whatever the others' clocks say.
            found.append((quiet + 1e9, f"gave no sign of life for {quiet:.1f} s{_in(rank.stage)}"))
        limit = self._limit(rank.stage)
        if rank.working and idle > limit:
            found.append((idle - limit, f"made no progress for {idle:.1f} s{_in(rank.stage)} (limit {limit:g} s)"))
        return found

    def _limit(self, stage: Stage | None) -> float:
        deadlines = self._deadlines
        return {
            Stage.LOAD: deadlines.load_s,
            Stage.ENCODE: deadlines.encode_s,
            Stage.DENOISE: deadlines.step_s,
            Stage.DECODE: deadlines.decode_s,
            Stage.MUX: deadlines.mux_s,
        }.get(stage or Stage.ENCODE, deadlines.encode_s)


def _in(stage: Stage | None) -> str:
    return f" in stage {stage.value}" if stage else ""

"""TimeReference: the anchor and the calibration set, which make the times of a search comparable.

The speed of a machine drifts by more than candidates differ. So each candidate is timed in turns
with one program, the anchor. The speed of the anchor relative to other programs differs between
processes by up to a tenth; all times of a process would be wrong by this factor. So each new
process first times a calibration set: programs with known times. The time of the anchor in this
process follows from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from metasched.measure.samples import BEHIND
from metasched.runtime.devices import Program
from metasched.runtime.timing import beside_each_other

HANDOVER = 1.25  # a program that seems this many times faster than the anchor may replace it
HANDOVER_SECONDS = 0.12  # seconds in which the program and the anchor take turns
SET_SIZE = 6  # programs of a calibration set
WITHIN = 1.4  # a program of the set takes at most this many times the seconds of the best
SET_SECONDS = 0.25  # seconds in which the set takes turns with the anchor
LEAST_ROUNDS = 4  # the fewest rounds of turns
OLD = 1.6  # a set is replaced when its median exceeds this many times the seconds of the best
AGAIN_SECONDS = 0.15  # seconds in which the fastest programs are timed again

_P = TypeVar("_P")


@dataclass
class TimeReference:
    """The anchor and the calibration set of a search.

    Attributes:
        anchor: a program that was right, and the seconds that it takes in the present process.
        calibration: the calibration set: programs that were right and the seconds that they took.
        unit: seconds of the clock in the present process for one second of the stored times: the
            machine may be slower or faster than at the first times.
    """

    anchor: tuple[Program, float] | None = None
    calibration: Sequence[tuple[Program, float]] = ()
    unit: float = 1.0

    @property
    def by_the_clock(self) -> tuple[Program, float] | None:
        """The anchor with its seconds by the clock of the present process."""
        return self.anchor and (self.anchor[0], self.anchor[1] * self.unit)

    def challenged(self, program: Program, seconds: float) -> bool:
        """Whether a program seems HANDOVER times faster than the anchor, so that it may replace it.

        Without an anchor the program becomes the anchor at once. It also does so if the anchor is
        too slow to be timed in turns with the program.
        """
        if self.anchor is None or seconds * BEHIND[1] < self.anchor[1]:
            self.anchor = program, seconds
        return seconds * HANDOVER < self.anchor[1]

    def replaced(self, program: Program, turns: Sequence[Sequence[float]]) -> float | None:
        """Make a program the anchor after its turns with the present anchor; returns its seconds.

        None if one of the two was dropped from the turns. The first time of the program is biased:
        the program was chosen because this time was low. So the time beside the old anchor counts.
        """
        if self.anchor is None or min(map(len, turns)) < 2:
            return None
        before, now = beside_each_other(turns)
        self.anchor = program, self.anchor[1] * now / before
        return self.anchor[1]

    def turns_with(self, count: int, sample: float) -> tuple[int, int]:
        """How many of `count` programs to time again in turns with the anchor, and in how many
        rounds.

        The programs are about as fast as the anchor. No program if AGAIN_SECONDS hold too few
        calls.
        """
        call = max(self.anchor[1] * self.unit if self.anchor else math.inf, sample)
        most = int(AGAIN_SECONDS / ((LEAST_ROUNDS + 1) * call)) - 1
        count = min(count, most) if most > 1 else 0
        return (count, int(AGAIN_SECONDS / ((count + 1) * call))) if count else (0, 0)

    def beside_anchor(self, turns: Sequence[Sequence[float]]) -> list[float]:
        """Seconds of programs by their turns with the anchor, which stands first in `turns`.

        Empty if the anchor was dropped from the turns.
        """
        if self.anchor is None or len(turns[0]) < max(map(len, turns)):
            return []
        first, *others = beside_each_other(turns)
        return [self.anchor[1] / first * seconds for seconds in others]

    def choose(self, known: Iterable[tuple[Program, float]]) -> None:
        """Make a calibration set of programs that were timed, unless the present set is fast enough
        (see OLD)."""
        some = spread(known)
        if some and (not self.calibration or self._centre > OLD * min(s for _, s in some)):
            self.calibration = some

    @property
    def _centre(self) -> float:
        return median(seconds for _, seconds in self.calibration)

    @property
    def beside(self) -> list[Program]:
        """The programs that a new process times in turns: the anchor and the calibration set."""
        first = self.anchor or (self.calibration[0] if self.calibration else None)
        return [first[0], *(program for program, _ in self.calibration)] if first else []

    def calibrate(self, turns: Sequence[Sequence[float]]) -> None:
        """Set the seconds of the anchor in this process by its turns with the calibration set.

        Then the fastest program of the set becomes the anchor: it reacts to slow-downs of the
        machine like the fast candidates that are timed next. `turns` has the samples of the
        programs of `beside`.
        """
        most = max(map(len, turns))
        first, *others = beside_each_other(turns)
        full = [
            (now, known, program)
            for (program, known), now, samples in zip(
                self.calibration, others, turns[1:], strict=True
            )
            if len(samples) == most > 1
        ]
        if full and len(turns[0]) == most:
            takes = median(known / now * first for now, known, _ in full)
            self.anchor, self.unit = (self.beside[0], takes), first / takes
            now, _, program = min(full, key=lambda each: each[0])
            if now < first:
                self.anchor = program, now / self.unit


def spread(known: Iterable[tuple[_P, float]]) -> list[tuple[_P, float]]:
    """At most SET_SIZE programs with known times, from the fastest to WITHIN times as slow.

    A set of only the fastest programs would be biased: their times are low partly by luck.
    """
    ranking = sorted(known, key=lambda pair: pair[1])
    near = [pair for pair in ranking if pair[1] <= WITHIN * ranking[0][1]]
    count = min(SET_SIZE, len(near))
    return [near[(2 * n + 1) * len(near) // (2 * count)] for n in range(count)]


def rounds_of_two(one: float, other: float, sample: float) -> int:
    """The rounds in which two programs take turns, from the seconds of their calls and of a
    sample."""
    return max(5, min(24, int(HANDOVER_SECONDS / (max(one, sample) + max(other, sample)))))


def rounds_of_calibration(seconds: Sequence[float], sample: float) -> int:
    """Rounds in which a calibration set and the anchor take turns."""
    whole = sum(max(each, sample) for each in seconds)
    return max(LEAST_ROUNDS, min(12, int(SET_SECONDS / whole)))

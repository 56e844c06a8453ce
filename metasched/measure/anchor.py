"""What the times of a search are measured by, so that they compare.

The clock of a machine wanders by more than candidates differ. So each candidate is timed in turns
with one program, the anchor. How fast the anchor is beside others differs from process to process,
for some programs by a tenth. All times of a process would be too low or too high by this factor,
and the best of many processes would come from one in which the anchor was slow. So each new process
first times a calibration set: programs whose times are known, which tell what the anchor takes
there.
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

HANDOVER = 1.25  # times faster that a program must seem to be timed beside the anchor
HANDOVER_SECONDS = 0.12  # in which the two take turns
SET_SIZE = 6  # programs of a calibration set
WITHIN = 1.4  # times slower than the best that they may be
SET_SECONDS = 0.25  # in which they take turns with the anchor
LEAST_ROUNDS = 4  # of any turns
OLD = 1.6  # times slower than the best that half of a calibration set may become
AGAIN_SECONDS = 0.15  # in which the fastest programs are read again

_P = TypeVar("_P")


@dataclass
class TimeReference:
    """The anchor and the calibration set of a search.

    Attributes:
        anchor: a program that was right, and the seconds that it takes in the present process.
        calibration: the calibration set: programs that were right and the seconds that they took.
        unit: what the clock says in the present process for what counts as a second; the machine
            may have become twice as slow since, or an earlier run have begun on a slow one.
    """

    anchor: tuple[Program, float] | None = None
    calibration: Sequence[tuple[Program, float]] = ()
    unit: float = 1.0

    @property
    def by_the_clock(self) -> tuple[Program, float] | None:
        """The anchor with what the clock says that it takes."""
        return self.anchor and (self.anchor[0], self.anchor[1] * self.unit)

    def challenged(self, program: Program, seconds: float) -> bool:
        """Whether a program is to be timed in turns with the anchor: it seems clearly faster.

        Where there is no anchor, or it is so slow that turns would give it up at once, the program
        becomes the anchor without turns.
        """
        if self.anchor is None or seconds * BEHIND[1] < self.anchor[1]:
            self.anchor = program, seconds
        return seconds * HANDOVER < self.anchor[1]

    def replaced(self, program: Program, turns: Sequence[Sequence[float]]) -> float | None:
        """Make a program the anchor by its turns with the present one; returns its time. Nothing
        where one of the two was given up.

        Its first time is biased: it was chosen because that time was low. So it is timed again
        beside the old anchor, and the second time counts.
        """
        if self.anchor is None or min(map(len, turns)) < 2:
            return None
        before, now = beside_each_other(turns)
        self.anchor = program, self.anchor[1] * now / before
        return self.anchor[1]

    def turns_with(self, count: int, sample: float) -> tuple[int, int]:
        """How many of `count` programs about as fast as the anchor take turns with it to be read
        again, and in how many rounds; none where a call takes long: it says enough."""
        call = max(self.anchor[1] * self.unit if self.anchor else math.inf, sample)
        most = int(AGAIN_SECONDS / ((LEAST_ROUNDS + 1) * call)) - 1
        count = min(count, most) if most > 1 else 0
        return (count, int(AGAIN_SECONDS / ((count + 1) * call))) if count else (0, 0)

    def beside_anchor(self, turns: Sequence[Sequence[float]]) -> list[float]:
        """Seconds of programs by their turns with the anchor, which come first; none where it was
        given up in them."""
        if self.anchor is None or len(turns[0]) < max(map(len, turns)):
            return []
        first, *others = beside_each_other(turns)
        return [self.anchor[1] / first * seconds for seconds in others]

    def choose(self, known: Iterable[tuple[Program, float]]) -> None:
        """Make a calibration set of programs that were timed, unless the present set will do."""
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
        """Set what the anchor takes in this process by its turns with the calibration set (see
        `beside`), and pick the fastest program of the set as anchor: it reacts to the states of the
        machine like the fast candidates that are timed next."""
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
    """SET_SIZE programs of those with known times, from the fastest to WITHIN times as slow.

    The times of the fastest alone are biased low: timed again they would all seem slower.
    """
    ranking = sorted(known, key=lambda pair: pair[1])
    near = [pair for pair in ranking if pair[1] <= WITHIN * ranking[0][1]]
    count = min(SET_SIZE, len(near))
    return [near[(2 * n + 1) * len(near) // (2 * count)] for n in range(count)]


def rounds_of_two(one: float, other: float, sample: float) -> int:
    """Rounds in which two programs take turns, by the seconds of a call of each and of a sample."""
    return max(5, min(24, int(HANDOVER_SECONDS / (max(one, sample) + max(other, sample)))))


def rounds_of_calibration(seconds: Sequence[float], sample: float) -> int:
    """Rounds in which a calibration set and the anchor take turns."""
    whole = sum(max(each, sample) for each in seconds)
    return max(LEAST_ROUNDS, min(12, int(SET_SECONDS / whole)))

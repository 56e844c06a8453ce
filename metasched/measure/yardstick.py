"""What the times of a search are measured by, so that they compare.

The clock of a machine wanders by more than candidates differ; so each is timed in turns with one
program, the anchor. How fast that is beside others differs from process to process, by some per
cent and for some by a tenth: all that a process times would be that much faster or slower than what
the others did, and the best of many processes would come from one in which the anchor was slow. So
each new process times a panel of programs first whose times are known, and these say what the
anchor takes there.
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

# Times faster that a program must be to become the anchor, and for about how many seconds the two
# take turns then.
_HANDOVER, _TURNS_TAKE = 1.25, 0.12
# Programs of a panel, how many times slower than the best they may be, seconds and rounds at least
# that they take turns with the anchor, and how many times slower than the best a panel may become.
_PANEL, _WITHIN, _PANEL_TAKES, _LEAST, _OLD = 6, 1.4, 0.25, 4, 1.6
_AGAIN_TAKES = 0.15  # seconds in which the fastest programs are read again

_P = TypeVar("_P")


@dataclass
class Yardstick:
    """The anchor and the panel of a search.

    Attributes:
        anchor: a program that was right, and the seconds that it takes in the present process.
        panel: programs that were right and the seconds that they took.
        unit: what the clock says in the present process for what counts as a second; the machine
            may have become twice as slow since, or an earlier run have begun on a slow one.
    """

    anchor: tuple[Program, float] | None = None
    panel: Sequence[tuple[Program, float]] = ()
    unit: float = 1.0

    @property
    def by_the_clock(self) -> tuple[Program, float] | None:
        """The anchor with what the clock says that it takes."""
        return self.anchor and (self.anchor[0], self.anchor[1] * self.unit)

    def challenged(self, program: Program, seconds: float) -> bool:
        """Whether a program is to be timed in turns with the anchor: it seems clearly faster. Where
        turns would say nothing, for there is no anchor or it is far behind, it replaces that."""
        if self.anchor is None or seconds * BEHIND[1] < self.anchor[1]:  # (given up at once there)
            self.anchor = program, seconds
        return seconds * _HANDOVER < self.anchor[1]

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
        most = int(_AGAIN_TAKES / ((_LEAST + 1) * call)) - 1
        count = min(count, most) if most > 1 else 0
        return (count, int(_AGAIN_TAKES / ((count + 1) * call))) if count else (0, 0)

    def beside_anchor(self, turns: Sequence[Sequence[float]]) -> list[float]:
        """Seconds of programs by their turns with the anchor, which come first; none where it was
        given up in them."""
        if self.anchor is None or len(turns[0]) < max(map(len, turns)):
            return []
        first, *others = beside_each_other(turns)
        return [self.anchor[1] / first * seconds for seconds in others]

    def choose(self, known: Iterable[tuple[Program, float]]) -> None:
        """Make a panel of programs that were timed, unless that which there is will do."""
        some = spread(known)
        if some and (not self.panel or self._centre > _OLD * min(s for _, s in some)):
            self.panel = some

    @property
    def _centre(self) -> float:
        return median(seconds for _, seconds in self.panel)

    @property
    def beside(self) -> list[Program]:
        """The programs that a new process times in turns: the anchor and the panel."""
        first = self.anchor or (self.panel[0] if self.panel else None)
        return [first[0], *(program for program, _ in self.panel)] if first else []

    def calibrate(self, turns: Sequence[Sequence[float]]) -> None:
        """Set what the anchor takes in this process by its turns with the panel (see `beside`), and
        pick the fastest panel program as anchor: it reacts to the states of the machine like the
        fast candidates that are timed next."""
        most = max(map(len, turns))
        first, *others = beside_each_other(turns)
        full = [
            (now, known, program)
            for (program, known), now, samples in zip(self.panel, others, turns[1:], strict=True)
            if len(samples) == most > 1
        ]
        if full and len(turns[0]) == most:
            takes = median(known / now * first for now, known, _ in full)
            self.anchor, self.unit = (self.beside[0], takes), first / takes
            now, _, program = min(full, key=lambda each: each[0])
            if now < first:
                self.anchor = program, now / self.unit


def spread(known: Iterable[tuple[_P, float]]) -> list[tuple[_P, float]]:
    """A few programs of those with known times, from the fastest to what is somewhat slower. (The
    fastest alone owe their place to luck, and timed again they would all seem slower.)"""
    ranking = sorted(known, key=lambda pair: pair[1])
    near = [pair for pair in ranking if pair[1] <= _WITHIN * ranking[0][1]]
    count = min(_PANEL, len(near))
    return [near[(2 * n + 1) * len(near) // (2 * count)] for n in range(count)]


def rounds_of_two(one: float, other: float, sample: float) -> int:
    """Rounds in which two programs take turns, by the seconds of a call of each and of a sample."""
    return max(5, min(24, int(_TURNS_TAKE / (max(one, sample) + max(other, sample)))))


def rounds_of_panel(seconds: Sequence[float], sample: float) -> int:
    """Rounds in which a panel and the anchor take turns."""
    whole = sum(max(each, sample) for each in seconds)
    return max(_LEAST, min(12, int(_PANEL_TAKES / whole)))

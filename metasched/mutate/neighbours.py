"""neighbours: lists every trace that is one small step away from a trace."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import TypeAlias

from metasched.mutate.base import Constraints, tilings
from metasched.schedule import domain as domains
from metasched.schedule.domain import Decision, factorize, moved
from metasched.schedule.instruction import Entry
from metasched.schedule.trace import Trace

Changes: TypeAlias = dict[int, Decision]
"""Other decisions, by the positions of their steps."""


def neighbours(trace: Trace) -> list[Trace]:
    """All traces in which one decision differs by its smallest step, constraints kept.

    A tiling moves one prime factor from one part to another, or changes its total size. Another
    step takes any of its nearest decisions (see `mended`).
    The order follows the trace; tilings that trade a factor come last (see `traded`).
    """
    constraints, found = Constraints(trace), list[Changes]()
    for position, entry in trace.sampling():
        for decision in smallest_steps(entry):
            change: Changes = {position: decision}
            if domains.is_tiling(entry.domain):
                found += filter(constraints.keep, [change])
            else:
                found += mended(constraints, change)
    found += filter(constraints.keep, traded(trace))
    return [constraints.changed(changes) for changes in found]


def traded(trace: Trace) -> Iterator[Changes]:
    """The changes by which two tilings trade a prime factor between their last parts.

    The first tiling moves the factor from its last part to another part; the second moves the same
    factor to its last part. A block that fills the registers is slower with larger and with smaller
    tiles. So 2 x 4 becomes 4 x 2 in one step, not in two steps through a slower block. The changes
    may break constraints.
    """
    for (i, giver), (k, taker) in permutations(tilings(trace), 2):
        less, more = giver.decision, taker.decision
        for prime, _ in factorize(less[-1]):
            for source in (n for n in range(len(more) - 1) if more[n] % prime == 0):
                last = moved(more, source, len(more) - 1, prime)
                for goal in range(len(less) - 1):
                    yield {i: moved(less, len(less) - 1, goal, prime), k: last}


def mended(constraints: Constraints, change: Changes) -> list[Changes]:
    """The change of one decision, if it keeps the constraints; else the changes that keep them by
    one more small step.

    The other step is the smallest change of one more decision: wider vectors, for example, need
    wider tiles.
    """
    if constraints.keep(change):
        return [change]
    others = ((i, e) for i, e in constraints.trace.sampling() if i not in change)
    both = ({**change, i: decision} for i, e in others for decision in smallest_steps(e))
    return list(filter(constraints.keep, both))


def smallest_steps(entry: Entry) -> Iterator[Decision]:
    """Other decisions of a step; only the nearest ones if the domain has an order."""
    return domains.near(entry.domain, entry.decision)

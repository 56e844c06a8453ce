"""neighbours: lists every trace that is one small step away from a trace."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from metasched.mutate.base import consistent, tilings
from metasched.schedule import domain as domains
from metasched.schedule.domain import Decision, factorize, moved
from metasched.schedule.instruction import Entry
from metasched.schedule.trace import Trace


def neighbours(trace: Trace) -> list[Trace]:
    """All traces in which one decision differs by its smallest step, constraints kept.

    A tiling moves one prime factor from one part to another, or changes its total size. Another
    step takes any of its nearest decisions (see `mended`).
    The order follows the trace; tilings that trade a factor come last (see `trades`).
    """
    found: list[Trace] = []
    for position, entry in trace.sampling():
        for decision in smallest_steps(entry):
            near = trace.with_decision(position, decision)
            tiled = domains.is_tiling(entry.domain)
            found += filter(consistent, [near]) if tiled else mended(near, position)
    return [*found, *filter(consistent, trades(trace))]


def trades(trace: Trace) -> Iterator[Trace]:
    """The traces in which two tilings trade a prime factor between their last parts.

    The first tiling moves the factor from its last part to another part; the second moves the same
    factor to its last part. A block that fills the registers is slower with larger and with smaller
    tiles. So 2 x 4 becomes 4 x 2 in one step, not in two steps through a slower block. The traces
    may break constraints.
    """
    for (i, giver), (k, taker) in permutations(tilings(trace), 2):
        less, more = giver.decision, taker.decision
        for prime, _ in factorize(less[-1]):
            for source in (n for n in range(len(more) - 1) if more[n] % prime == 0):
                for goal in range(len(less) - 1):
                    near = trace.with_decision(i, moved(less, len(less) - 1, goal, prime))
                    yield near.with_decision(k, moved(more, source, len(more) - 1, prime))


def mended(trace: Trace, changed: int) -> list[Trace]:
    """The trace, if it keeps its constraints; else traces that keep them by one more small step.

    The other step is the smallest change of one more decision: wider vectors, for example, need
    wider tiles.
    """
    if consistent(trace):
        return [trace]
    others = ((i, d) for i, e in trace.sampling() if i != changed for d in smallest_steps(e))
    return [near for near in (trace.with_decision(i, d) for i, d in others) if consistent(near)]


def smallest_steps(entry: Entry) -> Iterator[Decision]:
    """Other decisions of a step; only the nearest ones if the domain has an order."""
    return domains.near(entry.domain, entry.decision)

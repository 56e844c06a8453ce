"""neighbours: lists every trace that is one small step away from a trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from typing import Any

from metasched.mutate.base import TILES, choices, consistent
from metasched.schedule.domain import Decision, Domain, factorize, repair
from metasched.schedule.instruction import Entry
from metasched.schedule.trace import Trace


def neighbours(trace: Trace) -> list[Trace]:
    """All traces in which one decision differs by its smallest step, constraints kept.

    A tiling moves one prime factor from one part to another, or changes its total size. A
    categorical step takes any other of its candidates (see `mended`), a location any other place.
    The order follows the trace; tilings that trade a factor come last (see `trades`).
    """
    found: list[Trace] = []
    for position, entry in trace.sampling():
        for decision in smallest_steps(entry):
            near = trace.with_decision(position, decision)
            mends = entry.domain["kind"] == "categorical"
            found += mended(near, position) if mends else filter(consistent, [near])
    return [*found, *filter(consistent, trades(trace))]


def trades(trace: Trace) -> Iterator[Trace]:
    """The traces in which two tilings trade a prime factor between their last parts.

    The first tiling moves the factor from its last part to another part; the second moves the same
    factor to its last part. A block that fills the registers is slower with larger and with smaller
    tiles. So 2 x 4 becomes 4 x 2 in one step, not in two steps through a slower block. The traces
    may break constraints.
    """
    for (i, giver), (k, taker) in permutations(choices(trace, TILES), 2):
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
    return NEAR[entry.domain["kind"]](entry.domain, entry.decision)


def moved(tile: Sequence[int], source: int, goal: int, factor: int) -> list[int]:
    """The tiling with `factor` moved from part `source` to part `goal`."""
    parts = list(tile)
    parts[source] //= factor
    parts[goal] *= factor
    return parts


def _near_tiles(domain: Domain, tile: Any) -> Iterator[Decision]:
    """One prime factor moves from one part to another."""
    for source, goal in permutations(range(len(tile)), 2):
        yield from (moved(tile, source, goal, prime) for prime, _ in factorize(tile[source]))


def _near_padded(domain: Domain, tile: Any) -> Iterator[Decision]:
    """The nearest tile of each other size; then one prime factor moves."""
    for size in domain["sizes"]:
        if size != math.prod(tile):
            yield repair({**domain, "sizes": [size]}, tile)
    yield from _near_tiles(domain, tile)


NEAR: dict[str, Callable[[Domain, Any], Iterator[Decision]]] = {
    "perfect_tile": _near_tiles,
    "partitioned_tile": _near_tiles,
    "padded_tile": _near_padded,
    "categorical": lambda d, own: (i for i, p in enumerate(d["probs"]) if p > 0 and i != own),
    "location": lambda d, own: (place for place in d["candidates"] if place != own),
    "fixed": lambda d, own: iter(()),
}
"""The smallest steps in each kind of domain: the decisions nearest to a decision."""

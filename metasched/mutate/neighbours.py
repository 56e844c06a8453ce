"""neighbours: lists every trace one small step away, for a final coordinate descent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any

from metasched.mutate.base import TILES, choices, consistent
from metasched.schedule.domain import factorize, repair
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
    """The traces in which two tilings trade a prime factor between their last parts. The first
    moves it from its last part to another part, the second from another part to its last.

    Their constraints may be broken. A block that fills the registers is slower with larger and with
    smaller tiles. So from 2 x 4 to 4 x 2 is one step here, but two steps through a slower block
    otherwise.
    """
    for (i, giver), (k, taker) in permutations(choices(trace, TILES), 2):
        less, more = giver.decision, taker.decision
        for prime, _ in factorize(less[-1]):
            for source in (n for n in range(len(more) - 1) if more[n] % prime == 0):
                for goal in range(len(less) - 1):
                    near = trace.with_decision(i, moved(less, len(less) - 1, goal, prime))
                    yield near.with_decision(k, moved(more, source, len(more) - 1, prime))


def mended(trace: Trace, changed: int) -> list[Trace]:
    """The trace, if it keeps its constraints. Else the traces that keep them and differ in one more
    decision by its smallest step: wider vectors, for example, need wider tiles."""
    if consistent(trace):
        return [trace]
    others = ((i, d) for i, e in trace.sampling() if i != changed for d in smallest_steps(e))
    return [near for near in (trace.with_decision(i, d) for i, d in others) if consistent(near)]


def smallest_steps(entry: Entry) -> Iterator[Any]:
    """Other decisions of a step; only the nearest ones if the domain has an order."""
    kind = entry.domain["kind"]
    if kind == "padded_tile":
        for size in entry.domain["sizes"]:
            if size != math.prod(entry.decision):
                yield repair({**entry.domain, "sizes": [size]}, entry.decision)
    if kind in TILES:
        tile = entry.decision
        for source, goal in permutations(range(len(tile)), 2):
            yield from (moved(tile, source, goal, prime) for prime, _ in factorize(tile[source]))
    elif kind == "categorical":
        probs = entry.domain["probs"]
        yield from (i for i, p in enumerate(probs) if p > 0 and i != entry.decision)
    elif kind == "location":
        yield from (c for c in entry.domain["candidates"] if c != entry.decision)


def moved(tile: Sequence[int], source: int, goal: int, factor: int) -> list[int]:
    """The tiling with `factor` moved from part `source` to part `goal`."""
    parts = list(tile)
    parts[source] //= factor
    parts[goal] *= factor
    return parts

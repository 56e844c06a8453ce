"""neighbours: every trace one small step away, for a finish by coordinate descent."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from metasched.mutate.base import TILES, consistent
from metasched.schedule.domain import factorize, repair
from metasched.schedule.instruction import Entry
from metasched.schedule.trace import Trace


def neighbours(trace: Trace) -> list[Trace]:
    """All traces in which one decision differs by its smallest step, constraints kept.

    A tiling gives one prime factor of one part to another part, or
    changes the size it is of; a categorical step takes any other
    of its candidates (see `mended`); a location any other place. The order is that of the trace.
    """
    found = []
    for position, entry in trace.sampling():
        for decision in smallest_steps(entry):
            near = trace.with_decision(position, decision)
            if entry.domain["kind"] == "categorical":
                found += mended(near, position)
            elif consistent(near):
                found.append(near)
    return found


def mended(trace: Trace, changed: int) -> list[Trace]:
    """The trace, or where its constraints are broken by the decision at `changed`, those that keep
    them and differ in one more decision by its smallest step: vectors twice as wide need tiles
    that are, too, and narrow vectors in wide tiles may be worse than either."""
    if consistent(trace):
        return [trace]
    others = ((i, d) for i, e in trace.sampling() if i != changed for d in smallest_steps(e))
    return [near for near in (trace.with_decision(i, d) for i, d in others) if consistent(near)]


def smallest_steps(entry: Entry) -> Iterator[Any]:
    """Other decisions of a step, the nearest ones where some are nearer than others."""
    kind = entry.domain["kind"]
    if kind == "padded_tile":
        for size in entry.domain["sizes"]:
            if size != math.prod(entry.decision):
                yield repair({**entry.domain, "sizes": [size]}, entry.decision)
    if kind in TILES:
        for source, part in enumerate(entry.decision):
            for prime, _ in factorize(part):
                for goal in range(len(entry.decision)):
                    if goal != source:
                        tile = list(entry.decision)
                        tile[source] //= prime
                        tile[goal] *= prime
                        yield tile
    elif kind == "categorical":
        probs = entry.domain["probs"]
        yield from (i for i, p in enumerate(probs) if p > 0 and i != entry.decision)
    elif kind == "location":
        yield from (c for c in entry.domain["candidates"] if c != entry.decision)

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
    of its candidates; a location any other place. The order is that of the trace.
    """
    found = []
    for position, entry in trace.sampling():
        for decision in _steps(entry):
            near = trace.with_decision(position, decision)
            if consistent(near):
                found.append(near)
    return found


def _steps(entry: Entry) -> Iterator[Any]:
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

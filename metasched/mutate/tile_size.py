"""tile_size: moves a factor between parts of a tiling, or trades factors between two tilings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from metasched.mutate.base import ATTEMPTS, Constraints, tilings
from metasched.mutate.neighbours import traded
from metasched.schedule.domain import divisors, factorize, moved, repair
from metasched.schedule.instruction import Entry
from metasched.schedule.rng import Rng
from metasched.schedule.trace import Trace
from metasched.target import Target


@dataclass(frozen=True, slots=True)
class MutateTileSize:
    """Move a divisor of one part of a tiling to another part of the same loop.

    Half of the moves are small: one prime factor goes to the next part (one tile doubled, its
    neighbour halved). The other moves take any divisor to any part. In a share `resizes` of the
    moves, a tiling with a choice of total sizes changes its size. In a share `trades` of the
    mutations, the last parts of two loops trade a factor instead.
    """

    small_steps: float = 0.5
    resizes: float = 0.2
    trades: float = 0.1

    @property
    def name(self) -> str:
        return "tile_size"

    def __call__(self, trace: Trace, rng: Rng, target: Target) -> Trace | None:
        steps = [(i, e) for i, e in tilings(trace) if math.prod(e.decision) > 1 < len(e.decision)]
        constraints = Constraints(trace)
        if rng.random() < self.trades:
            near = sorted(traded(trace), key=lambda _: rng.random())
            if (found := next(filter(constraints.keep, near), None)) is not None:
                return constraints.changed(found)
        refused: set[tuple[int, Any]] = set()
        for _ in range(ATTEMPTS if steps else 0):
            position, entry = rng.choice(steps)
            tile = self._moved(entry, rng)
            key = (position, tuple(tile))
            if tile != entry.decision and key not in refused:
                if constraints.keep({position: tile}):
                    return trace.with_decision(position, tile)
                refused.add(key)
        return None

    def _moved(self, entry: Entry, rng: Rng) -> Any:
        tile = list(entry.decision)
        others = [n for n in entry.domain.get("sizes", ()) if n != math.prod(tile)]
        if others and rng.random() < self.resizes:
            return repair({**entry.domain, "sizes": [rng.choice(others)]}, tile)
        source = rng.choice([i for i, f in enumerate(tile) if f > 1])
        small = rng.random() < self.small_steps
        if small:
            goals = [i for i in (source - 1, source + 1) if 0 <= i < len(tile)]
            factor = rng.choice([p for p, _ in factorize(tile[source])])
        else:
            goals = [i for i in range(len(tile)) if i != source]
            factor = rng.choice([d for d in divisors(tile[source]) if d > 1])
        return moved(tile, source, rng.choice(goals), factor)

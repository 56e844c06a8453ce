"""Coordinate descent: neighbours of the fastest programs, one by one, once a search is stale."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from metasched.mutate.neighbours import neighbours
from metasched.search.population import Request
from metasched.search.proposals.source import SearchState, Unreserved

_PARENTS = 4


class Neighbours(Unreserved):
    """Neighbours, not yet replayed, of the four fastest programs in order of speed.

    None before `EvolutionOptions.stale` rounds without a new best.
    """

    name = "neighbours"

    def requests(self, state: SearchState, count: int) -> Iterator[Request]:
        """At most `count` neighbours."""
        if state.stale < state.options.stale:
            return iter(())
        parents = [p for p in state.task.population.parents(_PARENTS) if p.space >= 0]
        near = (Request(trace, p.space) for p in parents for trace in neighbours(p.trace))
        return islice((r for r in near if not state.replayed(r)), count)

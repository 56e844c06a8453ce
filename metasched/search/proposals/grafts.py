"""Grafts: the decisions of the fastest programs, tried in the other design spaces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metasched.mutate.crossover import graft
from metasched.search.population import Request, SearchCandidate
from metasched.search.proposals.source import SearchState

_GRAFTED = 4  # fastest programs whose decisions are tried in the other spaces


class Grafts:
    """Puts the decisions of the fastest programs into the best program of each other space.

    A space looks slow while only its slow register blocks were measured.
    """

    name = "grafts"

    def __init__(self) -> None:
        self.keys: set[str] = set()

    def requests(self, state: SearchState, count: int) -> Iterator[Request]:
        """All grafts, whatever `count` is: at most `_GRAFTED` for each space."""
        population = state.task.population
        best: dict[int, SearchCandidate] = {}
        for candidate in population.parents(len(population.measured)):
            best.setdefault(candidate.space, candidate)
        for parent in population.parents(_GRAFTED):
            for space, stock in best.items():
                if space >= 0 and parent.space not in (space, -1):
                    trace = graft(parent.trace, stock.trace)
                    if trace is not None:
                        yield Request(trace, space)

    def entered(self, requests: Sequence[Request], keys: Sequence[str]) -> None:
        """Remember the programs of this round."""
        self.keys = set(keys)

    def pick(
        self, state: SearchState, ranked: Sequence[SearchCandidate], count: int
    ) -> list[SearchCandidate]:
        """The best grafts of the round."""
        return [candidate for candidate in ranked if candidate.key in self.keys][:count]

"""Best neighbours: small steps from the model's best programs, those that the surrogate prefers."""

from __future__ import annotations

import numpy as np

from metasched.mutate.neighbours import neighbours
from metasched.schedule.trace import Trace
from metasched.search.draft import Array, Draft
from metasched.search.population import Request, SearchCandidate
from metasched.search.proposals.drafts import surrogate
from metasched.search.proposals.source import Decisions, SearchState, Unreserved

_PARENTS = 3  # the model's best programs whose neighbours are ranked, and the most spaces
_LEAST_ROWS = 6  # the fewest replayed programs of a space to which a surrogate is fitted
_LEAD = 2  # for each neighbour of a further space, this many of the model's best programs


class BestNeighbours(Unreserved):
    """Proposes neighbours of the best programs of the pool, for a search of few replays.

    A random mutation is rarely the step that helps. Each neighbour gets the model's score of its
    parent, and the difference that the surrogate expects of the step. The best programs of further
    spaces have a share, since a few random programs do not show which space is best.

    Attributes:
        near: the neighbours of programs that were parents before, by their traces, each with its
            row of numbers.
    """

    name = "best neighbours"

    def __init__(self) -> None:
        self.near: dict[Trace, list[tuple[Array, Request]]] = {}

    def requests(self, state: SearchState, count: int) -> list[Request]:
        """The `count` neighbours with the highest expected scores, the spaces in turns."""
        ranked = state.ranked(list(state.pool.values()))
        spaces: dict[int, tuple[SearchCandidate, float]] = {}
        for parent, score in ranked:
            spaces.setdefault(parent.space, (parent, score))
        leaders = list(spaces.values())[1:_PARENTS]
        scorers = {
            space: surrogate(state, space, draft, _LEAST_ROWS)
            for space in {parent.space for parent, _ in ranked[:_PARENTS] + leaders}
            if (draft := state.tables[space]) is not None
        }

        def expected(parent: SearchCandidate, score: float) -> list[tuple[float, Request]]:
            """The new neighbours of a program, with the scores that are expected of them."""
            draft = state.tables[parent.space]
            own = None if draft is None else state.row_of(draft, parent)
            if draft is None or own is None:
                return []
            known = [x for x in self._near(state, draft, parent) if not state.replayed(x[1])]
            scored = scorers[parent.space]
            numbers = np.stack([own, *(row for row, _ in known)])
            scores = np.zeros(len(numbers)) if scored is None else scored(numbers)
            gains = scores[1:] - scores[0]
            return [(score + float(gain), r) for gain, (_, r) in zip(gains, known, strict=True)]

        top = _best([near for pair in ranked[:_PARENTS] for near in expected(*pair)])
        turns = [top] * _LEAD + [_best(expected(*pair)) for pair in leaders]
        found: dict[Decisions, Request] = {}
        while len(found) < count and any(turns):
            for turn in turns:
                if turn:
                    request = turn.pop(0)
                    found[request.space, request.trace.decisions()] = request
        return list(found.values())[:count]

    def _near(
        self, state: SearchState, draft: Draft, parent: SearchCandidate
    ) -> list[tuple[Array, Request]]:
        if parent.trace not in self.near:
            traces = ((draft.row_of(trace), trace) for trace in neighbours(parent.trace))
            self.near[parent.trace] = [
                (row, Request(trace, parent.space, state.task.seed))
                for row, trace in traces
                if row is not None
            ]
        return self.near[parent.trace]


def _best(near: list[tuple[float, Request]]) -> list[Request]:
    return [request for _, request in sorted(near, key=lambda pair: -pair[0])]

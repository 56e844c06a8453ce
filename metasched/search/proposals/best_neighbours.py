"""Best neighbours: small steps from the model's best programs, those that the surrogate prefers."""

from __future__ import annotations

import numpy as np

from metasched.mutate.neighbours import neighbours
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
    """

    name = "best neighbours"

    def requests(self, state: SearchState, count: int) -> list[Request]:
        """The `count` neighbours with the highest expected scores, the spaces in turns."""
        ranked = state.ranked(list(state.pool.values()))
        spaces: dict[int, tuple[SearchCandidate, float]] = {}
        for parent, score in ranked:
            spaces.setdefault(parent.space, (parent, score))
        top = _best([near for pair in ranked[:_PARENTS] for near in _expected(state, *pair)])
        others = [_best(_expected(state, *pair)) for pair in list(spaces.values())[1:_PARENTS]]
        turns = [top] * _LEAD + others
        found: dict[Decisions, Request] = {}
        while len(found) < count and any(turns):
            for turn in turns:
                if turn:
                    request = turn.pop(0)
                    found[request.space, request.trace.decisions()] = request
        return list(found.values())[:count]


def _best(near: list[tuple[float, Request]]) -> list[Request]:
    return [request for _, request in sorted(near, key=lambda pair: -pair[0])]


def _expected(
    state: SearchState, parent: SearchCandidate, score: float
) -> list[tuple[float, Request]]:
    """The new neighbours of a program, with the scores that are expected of them."""
    draft, space = state.tables[parent.space], parent.space
    own = None if draft is None else draft.row_of(parent.trace)
    if draft is None or own is None:
        return []
    asked = (Request(trace, space, state.task.seed) for trace in neighbours(parent.trace))
    rows = [(draft.row_of(r.trace), r) for r in asked if not state.replayed(r)]
    known = [(row, request) for row, request in rows if row is not None]
    numbers = np.stack([own, *(row for row, _ in known)])
    scores = surrogate(state, space, draft, numbers, _LEAST_ROWS)
    gains = np.zeros(len(numbers)) if scores is None else scores - scores[0]
    return [(score + float(gain), r) for gain, (_, r) in zip(gains[1:], known, strict=True)]

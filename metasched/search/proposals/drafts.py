"""Drafts: decision vectors drawn and ranked in NumPy, of which the best are replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from metasched.cost.model import predicted
from metasched.schedule.rng import derive_seed
from metasched.search.draft import Array, Draft
from metasched.search.population import Request
from metasched.search.proposals.source import SearchState, Unreserved

_LEAST_ROWS = 24  # the fewest replayed programs of a space to which a surrogate is fitted
_MOST_ROWS = 512  # the surrogate is fitted to at most this many programs, the latest


class BestDrafts(Unreserved):
    """Proposes the best drafts of each space by a surrogate of the model.

    Proposes random drafts while fewer than `_LEAST_ROWS` programs of the space were replayed.
    """

    name = "best drafts"
    best = True

    def requests(self, state: SearchState, count: int) -> Iterator[Request]:
        """`count` drafts that were not replayed, divided evenly among the spaces."""
        options, task = state.options, state.task
        open_spaces = [(n, draft) for n, draft in enumerate(state.tables) if draft is not None]
        for space, draft in open_spaces:
            seed = derive_seed(task.seed, state.round, space, self.best)
            some, rng = options.drafts // len(open_spaces), np.random.default_rng(seed)
            rows = draft.draw(some, rng, options.whole)
            scored = surrogate(state, space, draft) if self.best else None
            order: Array = np.random.default_rng(seed + 1).permutation(len(rows))
            if scored is not None:
                order = np.argsort(-scored(rows.numbers), kind="stable")
            share = count // len(open_spaces) + (space < count % len(open_spaces))
            for position in order:
                if share <= 0:
                    break
                request = Request(draft.decoded(rows, int(position)), space, seed)
                share -= not state.replayed(request)
                yield request


class UnbiasedDrafts(BestDrafts):
    """Proposes random drafts of each space, not ranked."""

    name = "unbiased drafts"
    best = False


def surrogate(
    state: SearchState, space: int, draft: Draft, least: int = _LEAST_ROWS
) -> Callable[[Array], Array] | None:
    """A function that scores rows of decisions, by a linear regression on the model's scores of
    replayed programs; None if fewer than `least` programs of the space were replayed.

    The regression is linear: a quadratic regression ranked drafts first that were ten times slower
    than the best of 10,000 rows. Trees ranked no better, and worse in the first rounds.
    """
    known = list(state.known.get(space, {}).values())[-_MOST_ROWS:]
    rows = ((candidate, state.row_of(draft, candidate)) for candidate in known)
    fitted = [(candidate, row) for candidate, row in rows if row is not None]
    if len(fitted) < least:
        return None
    scores = predicted(state.task.model, [candidate for candidate, _ in fitted])
    measured = _logarithms(np.stack([row for _, row in fitted]))
    line = state.options.surrogate(measured, scores)
    return lambda numbers: line.predict(_logarithms(numbers))


def _logarithms(numbers: Array) -> Array:
    """The logarithms of decisions plus 1; 0 for a negative decision, which names a place."""
    return np.log2(1.0 + np.maximum(numbers, 0))

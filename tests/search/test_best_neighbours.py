"""Best neighbours: which small steps are proposed, and for which programs."""

from __future__ import annotations

import numpy as np
import pytest

from metasched.kinds import default_space
from metasched.mutate.neighbours import neighbours
from metasched.search.population import CandidateFactory, Population
from metasched.search.proposals.best_neighbours import BestNeighbours
from metasched.search.proposals.drafts import UnbiasedDrafts
from metasched.search.proposals.source import EvolutionOptions, SearchState
from metasched.search.strategy import SearchTask
from tests.search.tasks import TARGET, matmul


class LikesLargeNumbers:
    """A model that scores a program by the largest column of its decisions."""

    ready = True

    def predict(self, vectors):
        return np.log2(1.0 + np.asarray(vectors)[:, 0])


@pytest.fixture(scope="module")
def state():
    """Random programs of all spaces, whose scores are a number among their decisions."""
    shop = CandidateFactory(matmul(), TARGET, default_space(TARGET), 0)
    task = SearchTask("task", shop, Population(), LikesLargeNumbers(), 0)
    made = SearchState(task, EvolutionOptions(), guided=True)
    made.begin_round()
    made.enter(UnbiasedDrafts().requests(made, 24 * len(shop.spaces)))
    for candidate in made.pool.values():
        numbers = made.tables[candidate.space].row_of(candidate.trace)
        candidate._vector = np.array([float(numbers[0]) + 0.001 * candidate.space])
    return made


def test_programs_of_the_tables_are_in_the_pool(state):
    for space, draft in enumerate(state.tables):
        assert draft is None or (space, draft.trace.decisions()) in state.made


def test_new_neighbours_of_the_best_programs_are_proposed(state):
    asked = BestNeighbours().requests(state, 8)
    parents = [candidate for candidate, _ in state.ranked(list(state.pool.values()))]
    best = {candidate.space: candidate for candidate in reversed(parents)}
    near = {
        (parent.space, trace.decisions())
        for parent in [*parents[:3], *best.values()]
        for trace in neighbours(parent.trace)
    }
    found = [(request.space, request.trace.decisions()) for request in asked]
    assert len(set(found)) == len(found) == 8
    assert set(found) <= near and not any(state.replayed(request) for request in asked)


def test_the_surrogate_says_which_step_helps(state):
    """The first proposal has the largest number of all neighbours of the three best programs."""
    first = BestNeighbours().requests(state, 1)[0]
    top = [candidate for candidate, _ in state.ranked(list(state.pool.values()))[:3]]
    number = {
        (parent.space, trace.decisions()): int(row[0])
        for parent in top
        for trace in neighbours(parent.trace)
        if (row := state.tables[parent.space].row_of(trace)) is not None
    }
    new = {at: n for at, n in number.items() if at not in state.made}
    assert new[first.space, first.trace.decisions()] == max(new.values())


def test_further_spaces_have_a_share(state):
    spaces = [request.space for request in BestNeighbours().requests(state, 9)]
    known = len({candidate.space for candidate in state.pool.values()})
    assert known > 1 and len(set(spaces)) == min(known, 3)

"""What a round of the evolutionary search replays and measures."""

from __future__ import annotations

import numpy as np

from metasched.mutate.neighbours import neighbours
from metasched.schedule.rng import Rng
from metasched.search.evolution import EvolutionarySearch, EvolutionOptions
from metasched.search.population import Population, Workshop
from metasched.search.strategy import SearchTask
from metasched.tune import default_space
from tests.search.tasks import TARGET, matmul


class Ranks:
    """A model that likes what has a large first number."""

    ready = True

    def predict(self, vectors):
        return np.asarray(vectors)[:, 0]


def test_drafts_that_nothing_is_known_of_are_not_the_first_of_their_table():
    shop = Workshop(matmul(), TARGET, default_space(TARGET), 0)
    search = EvolutionarySearch(SearchTask("task", shop, Population(), Ranks(), 0))
    spaces = [n for n, draft in enumerate(search._tables()) if draft is not None]
    asked = list(search._drafted(8 * len(spaces), best=True))
    for space in spaces:
        draft = search._tables()[space]
        rows = draft.draw(20_000, np.random.default_rng(0))
        first = {draft.decoded(rows, n).decisions() for n in range(8)}
        drafted = {r.trace.decisions() for r in asked if r.space == space}
        assert len(drafted) == 8 and len(drafted & first) < 4


def test_neighbours_that_were_replayed_make_room_for_others():
    shop = Workshop(matmul(), TARGET, default_space(TARGET), 0)
    task = SearchTask("task", shop, Population(), Ranks(), 0)
    found = [one for n in range(8) if (one := shop.fresh(0, n)) is not None]
    task.population.add(found, [1.0 + n for n in range(len(found))])
    search, asked = EvolutionarySearch(task), []
    while batch := list(search._near(7)):
        asked += [(r.space, r.trace.decisions()) for r in batch]
        search._made.update(dict.fromkeys(asked))
    near = {(p.space, t.decisions()) for p in found[:4] for t in neighbours(p.trace)}
    assert len(asked) >= len(near) > 14 and set(asked) == near


def test_the_best_of_a_space_that_nothing_was_measured_of_takes_part():
    """Whatever the model says of it; once one was measured, the model decides."""
    shop = Workshop(matmul(), TARGET, default_space(TARGET), 0)
    task = SearchTask("task", shop, Population(), Ranks(), 0)
    found = [one for n in range(24) if (one := shop.fresh(0, n)) is not None]
    for n, one in enumerate(found):
        one.space, one._vector = n % 2, np.array([float(n if n % 2 else -n)])
    pool = {one.key: one for one in found}
    search = EvolutionarySearch(task)
    search.options = EvolutionOptions(epsilon=0.0)
    chosen = search._pick(pool, 8, Rng(0))
    best = max((one for one in pool.values() if one.space == 0), key=lambda one: one._vector[0])
    assert [one for one in chosen if one.space == 0] == [best]
    task.population.add([best], [1.0])
    assert all(one.space == 1 for one in search._pick(pool, 8, Rng(0)))

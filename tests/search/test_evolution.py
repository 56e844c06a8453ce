"""What a round of the evolutionary search replays and measures."""

from __future__ import annotations

import numpy as np

from metasched.mutate.neighbours import neighbours
from metasched.search.evolution import EvolutionarySearch
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

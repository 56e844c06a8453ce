"""What a round of the evolutionary search replays and measures."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

from metasched.kinds import default_space
from metasched.mutate.crossover import graft
from metasched.mutate.neighbours import neighbours
from metasched.schedule.rng import Rng
from metasched.search.evolution import PROPOSALS, EvolutionarySearch, EvolutionOptions
from metasched.search.picks import best_apart
from metasched.search.population import CandidateFactory, Population
from metasched.search.proposals import new_decisions
from metasched.search.proposals.drafts import BestDrafts
from metasched.search.proposals.grafts import Grafts
from metasched.search.proposals.new_decisions import NewDecisions
from metasched.search.proposals.source import SearchState, changes
from metasched.search.strategy import SearchTask
from metasched.workloads import get
from tests.search.tasks import TARGET, matmul


class Ranks:
    """A model that likes what has a large first number."""

    ready = True

    def predict(self, vectors):
        return np.asarray(vectors)[:, 0]


def state_of(task, **options):
    """The state of a search before its first round."""
    return SearchState(task, EvolutionOptions(**options), guided=True)


def source_of(search, kind):
    """The source of a search that is of a class."""
    return next(source for _, source in search.table if isinstance(source, kind))


def pick(search, pool, count):
    """What a search measures of a pool."""
    search.state.pool, search.state.rng = pool, Rng(0)
    return search._pick(count)


def test_drafts_without_a_surrogate_are_drawn_at_random():
    shop = CandidateFactory(matmul(), TARGET, default_space(TARGET), 0)
    state = state_of(SearchTask("task", shop, Population(), Ranks(), 0))
    spaces = [n for n, draft in enumerate(state.tables) if draft is not None]
    asked = list(BestDrafts().requests(state, 8 * len(spaces)))
    for space in spaces:
        draft = state.tables[space]
        rows = draft.draw(20_000, np.random.default_rng(0))
        first = {draft.decoded(rows, n).decisions() for n in range(8)}
        drafted = {r.trace.decisions() for r in asked if r.space == space}
        assert len(drafted) == 8 and len(drafted & first) < 4


def test_the_best_candidate_of_a_little_measured_space_is_picked():
    """Whatever the model says of it; once a fair number was measured, the model decides."""
    shop = CandidateFactory(matmul(), TARGET, default_space(TARGET), 0)
    task = SearchTask("task", shop, Population(), Ranks(), 0)
    made = [one for n in range(48) if (one := shop.random_member(0, n)) is not None]
    found = list({one.key: one for one in made}.values())
    for n, one in enumerate(found):
        one.space, one._vector = n % 2, np.array([float(n if n % 2 else -n)])
    pool = {one.key: one for one in found}
    search = EvolutionarySearch(task, EvolutionOptions(epsilon=0.0, fair=2))

    def of_the_poor_space():
        return [one for one in pick(search, pool, 8) if one.space == 0]

    poor = sorted((p for p in found if p.space == 0), key=lambda one: -one._vector[0])
    assert of_the_poor_space() == poor[:1]
    task.population.add(poor[:1], [1.0])
    del pool[poor[0].key]
    rich = [one for one in found if one.space == 1]
    task.population.add(rich[:1], [1.0])
    assert of_the_poor_space() == poor[1:2]
    task.population.add(rich[1:2], [1.0])  # the other space has had its share now
    assert of_the_poor_space() == poor[1:3]
    task.population.add(poor[1:2], [1.0])
    assert of_the_poor_space() == []


def test_the_least_measured_of_many_spaces_are_picked():
    shop = CandidateFactory(matmul(), TARGET, default_space(TARGET), 0)
    task = SearchTask("task", shop, Population(), Ranks(), 0)
    made = [one for n in range(80) if (one := shop.random_member(0, n)) is not None]
    found = list({one.key: one for one in made}.values())[:36]
    for n, one in enumerate(found):
        one.space, one._vector = n % 6, np.array([float(-(n % 6))])
    task.population.add(found[:15], [1.0] * 15)  # of the first three spaces one more each
    search = EvolutionarySearch(task, EvolutionOptions(epsilon=0.0))
    chosen = pick(search, {one.key: one for one in found[15:]}, 8)
    assert [one.space for one in chosen] == [3, 4, 0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(("knowing", "expected"), [(True, 2), (False, 4)])
def test_a_share_of_a_round_explores_unmeasured_blocks(knowing, expected):
    """The best of each by the model; a model that knew something before gets a smaller share."""
    shop = CandidateFactory(matmul(), TARGET, default_space(TARGET), 0)
    model = Ranks()
    model.ready = knowing
    task = SearchTask("task", shop, Population(), model, 0)
    made = [one for n in range(80) if (one := shop.random_member(0, n)) is not None]
    found = list({one.key: one for one in made}.values())[:32]
    for n, one in enumerate(found):  # eight programs of each block of four, the best ones first
        tile = [4, 1 + n // 8]
        one.trace = SimpleNamespace(decisions=lambda tile=tile: (tuple(tile), 0))
        one._vector = np.array([float(-n)])
    search = EvolutionarySearch(task, EvolutionOptions(fair=0, epsilon=0.25, unguided=0.5))
    pool = {one.key: one for one in found}
    chosen = pick(search, pool, 8)
    assert chosen[: 8 - expected] == found[: 8 - expected]
    new = [found[8], found[16], found[24]][:expected]  # and any where there are no more blocks
    assert chosen[8 - expected :][:3] == new and len({one.key for one in chosen}) == 8
    task.population.add([found[8], found[16]], [1.0, 2.0])
    del pool[found[8].key], pool[found[16].key]
    assert found[24] in pick(search, pool, 8)


def test_the_fastest_decisions_are_grafted_into_another_space():
    """Of which the wrong blocks were measured: whatever the model says, one takes part."""
    func = get("dep").func((1, 16, 16, 32, 3, 1, 1))
    shop = CandidateFactory(func, TARGET, default_space(TARGET), 0)
    task = SearchTask("task", shop, Population(), Ranks(), 0)
    drawn = [[shop.random_member(space, 9 * space + seed) for seed in range(6)] for space in (0, 1)]
    fast, slow = ([one for one in some if one is not None] for some in drawn)
    task.population.add([*fast, *slow], [1.0 + n for n in range(len(fast) + len(slow))])
    search = EvolutionarySearch(task, EvolutionOptions(epsilon=0.0, fair=0))
    chosen = search.propose(16)
    wanted = {
        trace.decisions()
        for one in fast[:4]
        if (trace := graft(one.trace, slow[0].trace)) is not None
    }
    keys = source_of(search, Grafts).keys
    assert wanted and keys
    moved = [one for one in chosen if one.key in keys]
    assert moved and {one.space for one in moved} == {1}
    assert {one.trace.decisions() for one in moved} <= wanted
    alone = SearchTask("task", shop, Population(), Ranks(), 0)
    alone.population.add(fast, [1.0 + n for n in range(len(fast))])
    assert list(Grafts().requests(state_of(alone), 112)) == []


def test_a_new_decision_is_tried_in_the_fastest_program_against_the_model():
    """All programs that had it were slow for other reasons: it is one step away from the best."""
    shop = CandidateFactory(matmul(), TARGET, default_space(TARGET), 0)
    task = SearchTask("task", shop, Population(), Ranks(), 0)
    found = [one for n in range(40) if (one := shop.random_member(0, n)) is not None]
    task.population.add(found, [1.0 + n for n in range(len(found))])
    search = EvolutionarySearch(task, EvolutionOptions(epsilon=0.0, fair=0))
    near = {t.decisions() for one in found[:2] for t in neighbours(one.trace)}
    share = search.state.options.replays // 3
    source = NewDecisions()
    some = source.requests(search.state, share)
    source.entered(some, [str(n) for n in range(len(some))])
    assert some and len(some) <= share + len(set(source.steps.values()))
    assert {r.trace.decisions() for r in some} <= near
    chosen = search.propose(16)
    novel = [one for one in chosen if one.key in source_of(search, NewDecisions).steps]
    assert len(novel) >= 2 and {one.trace.decisions() for one in novel} <= near


def test_sampling_steps_take_turns_with_new_decisions():
    """The model likes new tiles of one loop best, whatever they cost."""
    shop = CandidateFactory(matmul(), TARGET, default_space(TARGET), 0)
    task = SearchTask("task", shop, Population(), Ranks(), 0)
    found = [one for n in range(40) if (one := shop.random_member(0, n)) is not None]
    task.population.add(found, [1.0 + n for n in range(len(found))])
    search = EvolutionarySearch(task)
    search.propose(16)
    own = [one.trace.decisions() for one in found[:2]]
    source, known = source_of(search, NewDecisions), search.state.known
    for key, (space, step) in source.steps.items():
        new = known[space][key].trace.decisions()
        assert any(step in (n for n, _ in changes(new, old)[:2]) for old in own)
    ranked = [known[space][key] for key, (space, _) in source.steps.items()]
    steps, turns = set(source.steps.values()), []
    assert len(steps) > 2
    source.turns.clear()
    for _ in range(2 * len(steps)):
        turns += [source.steps[one.key] for one in source.pick(search.state, ranked, 1)]
    assert set(turns[: len(steps)]) == steps and turns[len(steps) :] == turns[: len(steps)]


def test_picked_candidates_differ_in_two_decisions_or_more():
    shop = CandidateFactory(matmul(), TARGET, default_space(TARGET), 0)
    best = shop.random_member(0, 0)
    near = [one for t in neighbours(best.trace) if (one := shop.replay(t, 0)) is not None]
    far = [one for n in range(1, 40) if (one := shop.random_member(0, n)) is not None]

    def between(a, b):
        return len(changes(a.trace.decisions(), b.trace.decisions()))

    alike = [one for one in near if between(one, best) == 1]
    heads = best_apart([best, *alike, *far], 6)[:6]
    assert len(alike) > 1 and heads[0] is best and not set(heads) & set(alike)
    assert all(between(a, b) > 1 for a, b in combinations(heads, 2))
    assert best_apart([best, *alike], 6)[0] is best and set(best_apart([best, *alike], 6)) == {
        best,
        *alike,
    }
    alike[0].space = 1  # the decisions of another space mean something else
    assert best_apart([best, alike[0], *far], 2)[:2] == [best, alike[0]]


def test_a_decision_is_new_unless_a_similar_program_was_measured_with_it(monkeypatch):
    monkeypatch.setattr(new_decisions, "_PARENTS", 1)
    shop = CandidateFactory(matmul(), TARGET, default_space(TARGET), 0)
    task = SearchTask("task", shop, Population(), Ranks(), 0)
    best = shop.random_member(0, 0)
    own = best.trace.decisions()
    task.population.add([best], [1.0])

    def asked():
        found = NewDecisions().requests(state_of(task), 3_000)
        return {request.trace.decisions() for request in found}

    near = {trace.decisions() for trace in neighbours(best.trace)}
    assert asked() == near
    drawn = [one for n in range(1, 80) if (one := shop.random_member(0, n)) is not None]
    far = [one for one in drawn if len(changes(one.trace.decisions(), own)) > 2]
    had = {pair for one in far for pair in enumerate(one.trace.decisions())}
    assert any(had.issuperset(changes(decisions, own)) for decisions in near)
    task.population.add(far, [2.0] * len(far))
    assert asked() == near
    around = [shop.replay(trace, 0) for trace in neighbours(best.trace)]
    known = [one for one in around if one is not None]
    task.population.add(known, [3.0] * len(known))
    assert known and asked().isdisjoint(one.trace.decisions() for one in known)


def test_traces_of_different_length_differ_in_all_decisions():
    assert changes((1, (2, 3)), (1, (2, 3))) == []
    assert changes((1, (2, 3)), (1, (3, 2))) == [(1, (2, 3))]
    assert changes((1, (2, 3)), ((2, 3),)) == [(0, 1), (1, (2, 3))]


def test_a_search_without_a_row_of_the_table_never_asks_that_source():
    shop = CandidateFactory(matmul(), TARGET, default_space(TARGET), 0)
    task = SearchTask("task", shop, Population(), Ranks(), 0)
    found = [one for n in range(40) if (one := shop.random_member(0, n)) is not None]
    task.population.add(found, [1.0 + n for n in range(len(found))])
    without = [row for row in PROPOSALS if row.source is not NewDecisions]
    search = EvolutionarySearch(task, EvolutionOptions(epsilon=0.0), without)
    assert len(search.propose(16)) == 16 and len(search.table) == len(PROPOSALS) - 1
    near = {t.decisions() for one in found[:2] for t in neighbours(one.trace)}
    asked = {decisions for _, decisions in search.state.made}
    full = EvolutionarySearch(task, EvolutionOptions(epsilon=0.0))
    full.propose(16)
    assert len(near & asked) < len(near & {decisions for _, decisions in full.state.made})


def test_the_rows_of_the_table_stand_in_the_order_of_their_stages():
    """Rows of one stage must be neighbours, since their requests are replayed together."""
    assert [row.stage for row in PROPOSALS] == sorted(row.stage for row in PROPOSALS)
    assert len({row.source.name for row in PROPOSALS}) == len(PROPOSALS)

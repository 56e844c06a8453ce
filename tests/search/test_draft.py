"""Drafts: rows keep the constraints, decode to traces that replay, and a surrogate ranks them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from metasched.kinds import default_space
from metasched.schedule.numbers import number_of
from metasched.search.draft import Draft
from metasched.search.population import CandidateFactory
from tests.search.tasks import TARGET, matmul


@pytest.fixture(scope="module")
def factory():
    return CandidateFactory(matmul(64), TARGET, default_space(TARGET), 0)


@pytest.fixture(scope="module", params=[0, 1])
def draft(request, factory):
    return request.param, Draft(factory.random_member(request.param, 1).trace, 0)


def test_rows_are_distinct_and_keep_every_constraint(draft):
    _, table = draft
    rows = table.draw(2000, np.random.default_rng(0))
    assert len(rows) > 40
    assert len(np.unique(rows.picks, axis=0)) == len(rows)
    for position in range(0, len(rows), max(7, len(rows) // 40)):
        trace = table.decoded(rows, position)
        values = {}
        for _, entry in trace.sampling():
            row = dict(zip(entry.outputs, table.row_of(trace)[: len(entry.outputs)], strict=False))
            assert row is not None
        for rv, column in table.columns.items():
            values[rv] = int(rows.numbers[position, column])
        assert all(number_of(c, values) for c in table.conditions)


def test_a_small_space_is_listed_whole_and_a_large_one_drawn_from(draft):
    _, table = draft
    every = table.draw(10, np.random.default_rng(0))
    vectors = list(itertools.product(*(range(len(x)) for x in table.lists)))
    picks = np.array(vectors)
    good = table._allowed(table._numbers(picks), table.conditions)[0]
    assert np.array_equal(every.picks, picks[good])
    some = table.draw(200, np.random.default_rng(0), whole=table.size - 1)
    assert 80 < len(some) <= 200  # few draws are lost to constraints
    assert {*map(tuple, some.picks.tolist())} <= {*map(tuple, every.picks.tolist())}


def test_a_decoded_row_replays_with_exactly_its_decisions(draft, factory):
    space, table = draft
    rows = table.draw(500, np.random.default_rng(1))
    for position in range(0, len(rows), max(1, len(rows) // 12)):
        trace = table.decoded(rows, position)
        made = factory.replay(trace, space, decisions="stored")
        assert made is not None
        assert made.trace.decisions() == trace.decisions()
        assert np.array_equal(table.row_of(made.trace), rows.numbers[position])


def test_a_trace_of_another_space_has_no_row(factory):
    first, second = (Draft(factory.random_member(n, 1).trace, 0) for n in (0, 1))
    other = factory.random_member(1, 3).trace
    assert second.row_of(other) is not None
    assert len(first.steps) == len(second.steps) or first.row_of(other) is None

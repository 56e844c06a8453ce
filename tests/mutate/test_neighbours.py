"""neighbours: all smallest steps, each consistent, none repeated."""

from __future__ import annotations

import pytest

from metasched.ir.expr import EQ, compare
from metasched.kinds import default_space
from metasched.mutate.base import Constraints, consistent
from metasched.mutate.choice import mutate_categorical
from metasched.mutate.neighbours import neighbours, traded
from metasched.mutate.tile_size import MutateTileSize
from metasched.schedule.domain import DOMAINS, allows, enumerated, is_tiling, near
from metasched.schedule.rng import Rng
from metasched.schedule.schedule import Schedule
from metasched.search.population import CandidateFactory
from tests.search.tasks import TARGET, matmul

EXAMPLES = {
    "perfect_tile": {"extent": 12, "n": 2, "max_innermost": -1},
    "partitioned_tile": {"extent": 12, "n": 2, "position": 1, "inner_factor": 2},
    "padded_tile": {"sizes": [6, 8], "probs": [0.5, 0.5], "n": 2, "max_innermost": -1},
    "categorical": {"candidates": [1, 2, 4], "probs": [0.5, 0.0, 0.5]},
    "location": {"candidates": [-2, -1, 3]},
    "fixed": {"value": [5]},
}


def test_every_kind_of_domain_has_an_example():
    missing = [*(set(DOMAINS) - EXAMPLES.keys())]
    assert not missing, f"the table EXAMPLES of this file has no domain of kind {missing}"


@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_nearest_decisions_connect_a_domain(kind):
    domain = {"kind": kind, **EXAMPLES[kind]}
    every = enumerated(domain, 100)
    reached = [every[0]]
    for decision in reached:
        found = [d for d in near(domain, decision) if allows(domain, d)]
        assert decision not in found
        reached += [d for d in found if d not in reached]
    assert sorted(map(str, reached)) == sorted(map(str, every))
    assert is_tiling(domain) == kind.endswith("_tile")


def test_each_neighbour_differs_in_few_decisions_and_replays():
    """In one, or in a category and one more that its constraints ask for, or in two tilings."""
    factory = CandidateFactory(matmul(32), TARGET, default_space(TARGET), 0)
    one = factory.random_member(0, 1)
    found = neighbours(one.trace)
    assert len(found) >= 3
    seen = {one.trace.decisions()}
    for trace in found:
        changed = [a != b for a, b in zip(trace.decisions(), one.trace.decisions(), strict=True)]
        tiled = [is_tiling(e.domain) for _, e in trace.sampling()]
        traded = sum(changed) == 2 and all(t for t, c in zip(tiled, changed, strict=True) if c)
        assert sum(changed) == 1 + (traded or (changed[0] and changed[1])) and consistent(trace)
        assert trace.decisions() not in seen
        seen.add(trace.decisions())
    assert factory.replay(found[0], 0, decisions="stored") is not None


def test_a_tile_and_a_category_have_the_expected_neighbours():
    sch = Schedule(matmul(16), seed=0)
    loop = sch.get_loops("Z")[1]
    sch.sample_perfect_tile(loop, 2, decision=[4, 4])
    sch.sample_categorical([1, 2, 3], [0.5, 0.5, 0.0], decision=0)
    assert [t.decisions() for t in neighbours(sch.trace)] == [
        ((2, 8), 0),
        ((8, 2), 0),
        ((4, 4), 1),
    ]


def test_vectors_are_widened_with_their_tiles():
    """Tiles that hold no whole vector of the other width are no dead end."""
    sch = Schedule(matmul(16), seed=0)
    loop = sch.get_loops("Z")[1]
    width = sch.sample_categorical([4, 8], [0.5, 0.5], decision=0)
    _, tile = sch.sample_perfect_tile(loop, 2, decision=[4, 4])
    sch.require(compare(EQ, tile % width, 0))
    wider = (1, (2, 8))
    assert [t.decisions() for t in neighbours(sch.trace)] == [wider, (0, (2, 8))]
    mutants = [mutate_categorical(sch.trace, Rng(s), TARGET) for s in range(4)]
    assert [m and m.decisions() for m in mutants] == [wider] * 4


def traded_decisions(trace):
    return [Constraints(trace).changed(changes).decisions() for changes in traded(trace)]


def test_full_blocks_of_registers_change_their_shape_in_one_step():
    """A block of eight can be of no other size; from 2 x 4 it goes to 4 x 2."""
    sch = Schedule(matmul(16), seed=0)
    _, rows, columns, _ = sch.get_loops("Z")
    _, high = sch.sample_perfect_tile(rows, 2, decision=[8, 2])
    _, wide = sch.sample_perfect_tile(columns, 2, decision=[4, 4])
    sch.require(compare(EQ, high * wide, 8))
    every = traded_decisions(sch.trace)
    assert every == [((16, 1), (2, 8)), ((4, 4), (8, 2))]
    assert [t.decisions() for t in neighbours(sch.trace)] == every
    mutants = [MutateTileSize(trades=1.0)(sch.trace, Rng(s), TARGET) for s in range(8)]
    assert {m and m.decisions() for m in mutants} == set(every)
    assert MutateTileSize(trades=0.0)(sch.trace, Rng(0), TARGET) is None


def test_a_trade_takes_a_factor_that_the_other_tiling_has():
    sch = Schedule(matmul(12), seed=0)
    _, rows, columns, _ = sch.get_loops("Z")
    sch.sample_perfect_tile(rows, 3, decision=[2, 1, 6])
    sch.sample_perfect_tile(columns, 2, decision=[6, 2])
    assert traded_decisions(sch.trace) == [
        ((4, 1, 3), (3, 4)),
        ((2, 2, 3), (3, 4)),
        ((6, 1, 2), (2, 6)),
        ((2, 3, 2), (2, 6)),
        ((1, 1, 12), (12, 1)),
    ]

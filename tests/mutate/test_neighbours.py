"""neighbours: all smallest steps, each consistent, none repeated."""

from __future__ import annotations

from metasched.mutate.base import consistent
from metasched.mutate.neighbours import neighbours
from metasched.schedule.schedule import Schedule
from metasched.search.population import Workshop
from metasched.tune import default_space
from tests.search.tasks import TARGET, matmul


def test_each_neighbour_differs_in_one_decision_and_replays():
    workshop = Workshop(matmul(32), TARGET, default_space(TARGET), 0)
    one = workshop.fresh(0, 1)
    near = neighbours(one.trace)
    assert len(near) >= 3
    seen = {one.trace.decisions()}
    for trace in near:
        changed = [a != b for a, b in zip(trace.decisions(), one.trace.decisions(), strict=True)]
        assert sum(changed) == 1 and consistent(trace)
        assert trace.decisions() not in seen
        seen.add(trace.decisions())
    assert workshop.replay(near[0], 0, decisions="stored") is not None


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

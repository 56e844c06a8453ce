"""The scheduler of many tasks: first rounds, slopes, weights, similar tasks, earlier runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from metasched.search.run import Progress
from metasched.search.scheduler import GradientScheduler, structure
from metasched.workloads import get
from tests.search.tasks import matmul


@dataclass
class Task:
    """As much of a TaskRun as the scheduler looks at."""

    best_seconds: float = math.inf
    func: object = field(default_factory=matmul)
    flops: float = 1e6
    done: bool = False
    progress: Progress = field(default_factory=Progress)


OTHER = get("sfm").func((16, 16))


def scheduler(*tasks, weights=None, **options):
    return GradientScheduler(tasks, weights or [1.0] * len(tasks), **options)


def spend(plan, task, *bests):
    for best in bests:
        plan.runs[task].best_seconds = best
        plan.ended(task)


def test_each_task_has_a_first_round_and_ended_ones_have_none():
    plan = scheduler(Task(), Task(func=OTHER), Task(func=OTHER))
    assert plan.next() == 0
    spend(plan, 0, 1.0)
    assert plan.next() == 1
    spend(plan, 1, 1.0)
    plan.runs[2].done = True
    assert plan.next() in (0, 1)
    plan.runs[0].done = plan.runs[1].done = True
    assert plan.next() is None


def test_the_longer_task_goes_first_until_its_weight_says_otherwise():
    for weights, expected in (([1.0, 1.0], 1), ([4.0, 1.0], 0)):
        plan = scheduler(Task(), Task(func=OTHER), weights=weights)
        spend(plan, 0, 1.0)
        spend(plan, 1, 3.0)
        assert plan.next() == expected


def test_a_task_whose_time_falls_goes_before_a_task_whose_time_stands():
    plan = scheduler(Task(), Task(func=OTHER), alpha=0.9)
    spend(plan, 0, 4.0, 4.0, 4.0, 4.0, 4.0)
    spend(plan, 1, 9.0, 7.0, 5.0, 4.0, 4.0)
    assert plan.next() == 1


def test_a_task_without_a_right_program_goes_before_all():
    plan = scheduler(Task(), Task(func=OTHER))
    spend(plan, 0, 100.0)
    spend(plan, 1, math.inf)
    assert plan.next() == 1


def test_the_rate_of_a_similar_task_raises_the_expected_gain():
    """The second product runs at a tenth of the first one's rate; the softmax is longer."""
    plan = scheduler(Task(), Task(func=matmul(128)), Task(func=OTHER))
    spend(plan, 0, *[0.1] * 8)
    spend(plan, 1, *[1.0] * 8)
    spend(plan, 2, *[1.5] * 8)
    assert plan.next() == 1
    alone = scheduler(Task(func=OTHER), Task(func=matmul(128)), Task(func=OTHER))
    spend(alone, 0, *[0.1] * 8)
    spend(alone, 1, *[1.0] * 8)
    spend(alone, 2, *[1.5] * 8)
    assert alone.next() == 2


def test_rounds_of_earlier_runs_count():
    """Both take a second; the one with sixty rounds behind it has less to gain."""
    known = Task(best_seconds=1.0, progress=Progress(trials=960))
    plan = scheduler(known, Task(func=OTHER))
    assert plan.next() == 1  # its first round; the other has had many
    spend(plan, 1, 1.0)
    assert plan.next() == 1
    assert scheduler(Task(best_seconds=1.0, progress=Progress(trials=960))).next() == 0


@pytest.mark.parametrize(("a", "b", "same"), [
    (matmul(16), matmul(128), True), (matmul(16), OTHER, False),
])  # fmt: skip
def test_structure_leaves_out_the_numbers(a, b, same):
    assert (structure(a) == structure(b)) is same

"""Rank quality by hand, and that nothing of a held-out task is seen in training."""

from __future__ import annotations

import math

import numpy as np
import pytest

from metasched.cost.quality import Quality, Sample, agreement, held_out, rank_quality

SECONDS = np.array([4.0, 2.0, 1.0, 8.0])


def test_right_reversed_and_unknown_orders():
    assert rank_quality(-SECONDS, SECONDS) == Quality(1.0, 1.0, 1.0)
    assert rank_quality(SECONDS, SECONDS) == Quality(0.0, 0.125, 1.0)
    assert agreement(np.zeros(4), SECONDS) == 0.5


def test_the_best_of_the_first_five():
    seconds = np.arange(1.0, 13.0)
    scores = np.roll(-seconds, 3)  # the three slowest are named first
    assert rank_quality(scores, seconds).top1 == pytest.approx(1 / 4)
    assert rank_quality(seconds, seconds).top5 == pytest.approx(1 / 8)


def test_pairs_within_the_noise_say_nothing():
    seconds = np.array([1.0, 1.02, 2.0])
    assert agreement(np.array([0.0, 1.0, -1.0]), seconds) == 1.0
    assert math.isnan(agreement(np.zeros(2), seconds[:2]))


def test_failures_are_slower_than_all():
    seconds = np.array([1.0, math.inf, 2.0])
    assert agreement(np.array([3.0, 1.0, 2.0]), seconds) == 1.0
    assert rank_quality(np.array([0.0, 1.0, 0.5]), seconds).top1 == 0.0


def tasks():
    vectors = np.arange(12.0).reshape(12, 1)
    names = [("a", "x"), ("b", "x"), ("c", "y"), ("d", "y"), ("e", "z")]
    return [Sample(task, group, vectors, 1.0 + vectors[:, 0]) for task, group in names]


@pytest.mark.parametrize("by_group", [False, True])
def test_held_out_groups_are_not_trained_on(by_group):
    seen = []

    def train(samples):
        seen.append([(s.task, s.group) for s in samples])
        return lambda vectors: -vectors[:, 0]

    found = held_out(tasks(), train, by_group=by_group, folds=5)
    assert found == [Quality(1.0, 1.0, 1.0)] * 5
    left_out = [{s.task for s in tasks()} - {task for task, _ in each} for each in seen]
    assert sorted(task for each in left_out for task in each) == list("abcde")
    if by_group:
        assert all(len({group for _, group in each}) == 2 for each in seen)
        assert sorted(map(sorted, left_out)) == [["a", "b"], ["c", "d"], ["e"]]


def test_a_task_of_equal_times_is_left_out():
    equal = Sample("f", "z", np.zeros((3, 1)), np.ones(3))
    found = held_out([*tasks(), equal], lambda s: lambda v: -v[:, 0], folds=3)
    assert len(found) == 5
    assert Quality.mean(found) == Quality(1.0, 1.0, 1.0)

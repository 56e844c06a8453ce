"""Timing: enough calls in a sample, robust statistics, nothing thrown away."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.runtime.timing import Timing, measure


@given(st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=20))
def test_statistics_stand_in_order(samples):
    t = Timing(tuple(samples))
    assert t.min <= t.median <= max(samples) and t.iqr >= 0
    assert t.min <= t.mean * (1 + 1e-9)


def test_one_slow_sample_does_not_move_the_median():
    assert Timing((1.0, 1.0, 1.0, 1.0, 50.0)).median == 1.0
    assert Timing((1.0, 1.0, 1.0, 1.0, 50.0)).iqr == 0.0


def test_calls_fill_the_time():
    counts = []

    def repeat(count):
        counts.append(count)
        time.sleep(1e-4 * count)

    t = measure(repeat, warmup=2, repeats=3, min_repeat_ms=2.0)
    assert counts[0] == 2 and len(t.samples) == 3 and 5 < t.calls <= 40
    assert t.median == pytest.approx(1e-4, rel=2)


def test_preparation_is_not_timed():
    t = measure(lambda n: None, repeats=2, before=lambda: time.sleep(0.01))
    assert t.calls == 1 and max(t.samples) < 0.009

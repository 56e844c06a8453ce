"""Timing: enough calls in a sample, robust statistics, nothing thrown away."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import metasched as ms
from metasched.runtime.timing import Timing, beside_each_other, clocked, measure
from metasched.script import parse

STORE = """
@T.prim_func
def main(A: T.Buffer((1,), "float32")):
    A[0] = T.float32(3)
"""


def test_each_call_of_a_kernel_without_loops_is_run():
    assert ms.build(parse(STORE)).time(repeats=3).min > 1e-10


@given(st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=20))
def test_statistics_stand_in_order(samples):
    t = Timing(tuple(samples))
    assert t.min <= t.median <= max(samples) and t.iqr >= 0
    assert t.min <= t.mean * (1 + 1e-9)


def test_one_slow_sample_does_not_move_the_median():
    assert Timing((1.0, 1.0, 1.0, 1.0, 50.0)).median == 1.0
    assert Timing((1.0, 1.0, 1.0, 1.0, 50.0)).iqr == 0.0


def test_calls_fill_the_time():
    """Each call takes 0.1 ms of a simulated clock."""
    counts = []

    def repeat(count):
        counts.append(count)

    t = measure(clocked(repeat, lambda: 1e-4 * sum(counts)), warmup=2, repeats=3, min_repeat_ms=2.0)
    assert counts == [2, 1, *[t.calls] * 4] and len(t.samples) == 3 and 20 <= t.calls <= 21
    assert t.median == pytest.approx(1e-4)


def test_a_device_says_its_own_seconds():
    """Simulated calls take 2 s of the device and no time of this process."""
    t = measure(lambda calls: 2.0 * calls, repeats=3)
    assert t.samples == (2.0, 2.0, 2.0) and t.calls == 1


def test_preparation_is_not_timed():
    t = measure(clocked(lambda n: None), repeats=2, before=lambda: time.sleep(0.01))
    assert t.calls == 1 and max(t.samples) < 0.009


def test_a_clock_that_wanders_does_not_change_who_is_faster():
    clock = (1.0, 1.3, 1.5, 1.1, 0.8)
    a, b = [2.0 * c for c in clock], [2.1 * c for c in clock]
    b[1] *= 3  # one disturbed sample
    given_up = [8.0 * c for c in clock[:2]]
    quick, slow, slowest = beside_each_other([a, b, given_up])
    assert slow / quick == pytest.approx(1.05)
    assert slowest / quick == pytest.approx(4.0, rel=0.35)  # one of its two rounds was disturbed
    assert beside_each_other([[3.0], [2.0]]) == [3.0, 2.0]

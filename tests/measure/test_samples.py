"""Samples: how many a program gets, when one is taken again, and what turns and an anchor do."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from metasched.measure import jobs, samples
from metasched.measure.candidate import Status
from metasched.measure.samples import TimingPlan, in_turns, samples_of
from metasched.runtime.timing import clocked

REPEAT = None  # the calls of a program that is not run: `take` is made up


@pytest.mark.parametrize(
    ("lost", "expected"), [([0.0], 1.0), ([0.5, 0.5, 0.0], 3.0), ([9.0] * 9, 1.0)]
)
def test_a_disturbed_sample_is_taken_again(monkeypatch, lost, expected):
    """`lost` seconds of waiting in each sample of 1, 2, 3 ... ms."""
    clock = iter(x for each in lost for x in (0.0, each * 1e-3))
    times = iter(1e-3 * n for n in range(1, 99))
    monkeypatch.setattr(samples, "waited", lambda: next(clock))
    monkeypatch.setattr(samples, "take", lambda repeat, calls: next(times) / calls)
    assert samples.undisturbed(lambda count: None, 10) == pytest.approx(expected * 1e-4)


def test_patience_ends(monkeypatch):
    taken = []
    state = iter(range(99))
    monkeypatch.setattr(samples, "waited", lambda: next(state))
    monkeypatch.setattr(samples, "take", lambda repeat, calls: taken.append(calls) or 0.06)
    assert samples.undisturbed(lambda count: None, 1) == 0.06 and len(taken) == 2


def test_a_short_program_is_not_judged_by_the_waking_of_its_threads(monkeypatch):
    """The first call takes 50 us, each other one 4: against a best of 8 us that is not hopeless."""

    class Sleepy:
        def __init__(self):
            self.calls, self.now = [], 0.0

        def repeat(self, count):
            self.calls.append(count)
            self.now += 4e-6 * count + (50e-6 if count == 1 else 0.0)

    sleepy = Sleepy()
    monkeypatch.setattr(samples, "waited", lambda: 0.0)
    plan = TimingPlan(sample_ms=0.2, samples=3, best=8e-6)
    found = samples_of(clocked(sleepy.repeat, lambda: sleepy.now), 60e-6, plan)
    assert len(found) == 3 and max(found) < 40e-6
    assert max(sleepy.calls) > 10


def test_sample_count_depends_on_time_and_distance_to_the_best(monkeypatch):
    took = {}
    monkeypatch.setattr(samples, "take", lambda repeat, calls: took["ms"] * 1e-3)

    def count(ms, best, **settings):
        took["ms"] = ms
        plan = TimingPlan(best=best * 1e-3, **settings)
        return len(samples_of(REPEAT, 1e-3, plan))

    assert [count(ms, 0.0) for ms in (2.5, 5.5, 20, 89, 91, 299, 301)] == [9, 5, 3, 3, 1, 1, 1]
    behind = (1.0, 1.02, 1.1, 1.3, 1.5, 2.0, 3.1)
    assert [count(2.5 * by, 2.5) for by in behind] == [9, 6, 5, 3, 2, 1, 1]
    assert [count(5.5 * by, 5.5) for by in behind[:5]] == [5, 3, 3, 2, 1]
    # what would be the best is read twice as often before that is believed
    assert [count(ms, 1.01 * ms) for ms in (2.5, 5.5, 20, 89, 91, 301)] == [9, 9, 6, 6, 2, 1]


def test_a_first_candidate_that_takes_long_runs_once(monkeypatch):
    monkeypatch.setattr(samples, "take", lambda repeat, calls: 0.1)
    assert samples_of(REPEAT, 0.19, TimingPlan()) == (0.19,)
    assert samples_of(REPEAT, 0.08, TimingPlan()) == (0.1,) * 3
    assert samples_of(REPEAT, 0.19, TimingPlan(best=0.09)) == (0.1,)


def test_in_turns_what_is_far_behind_runs_less(monkeypatch):
    """Ten times slower: the run that warms up; five times: one sample; twice: three."""
    took = [0.0]

    def take(repeat, calls):
        repeat(calls)
        return took[0]

    for name in ("take", "undisturbed"):
        monkeypatch.setattr(samples, name, take)
    times = [0.02, 0.029, 0.041, 0.12, 0.201]
    repeats = [lambda count, seconds=seconds: took.__setitem__(0, seconds) for seconds in times]
    found = in_turns(repeats, 6, 1.0)
    assert [len(each) for each in found] == [6, 6, 3, 1, 1]
    assert [each[0] for each in found] == times


def test_in_turns_a_disturbed_first_run_is_taken_again(monkeypatch):
    """What waited for its core for a scheduler's slice is not far behind."""
    calls, lost = [], [0.0]

    def take(repeat, count):
        calls.append(count)
        disturbed = len(calls) in (1, 3, 4)  # of the first two programs; two times of the second
        lost[0] += 2.9e-3 if disturbed else 0.0
        return 3e-3 if disturbed else 4e-5

    monkeypatch.setattr(samples, "take", take)
    monkeypatch.setattr(samples, "waited", lambda: lost[0])
    assert in_turns([REPEAT] * 2, 5, 2.5) == [(4e-5,) * 5] * 2


@pytest.mark.parametrize("slow", [0, 1])
def test_in_turns_one_slow_first_run_leaves_no_program_out(monkeypatch, slow):
    """A pause of the whole machine counts no waiting: the first run of a program takes 9 ms."""
    ran = [0, 0]

    def took(number, calls):
        ran[number] += 1
        return 9e-3 if number == slow and ran[number] == 1 else 4e-5

    monkeypatch.setattr(samples, "take", lambda repeat, calls: repeat(calls))
    monkeypatch.setattr(samples, "waited", lambda: 0.0)
    repeats = [lambda calls, number=number: took(number, calls) for number in range(2)]
    assert in_turns(repeats, 5, 2.5) == [(4e-5,) * 5] * 2


def test_samples_are_taken_at_the_pace_of_an_anchor(monkeypatch):
    clock, now = iter((1.0, 1.5, 0.8, 1.2, 1.0, 1.4, 1.3, 1.0)), [1.0]

    def take(repeat, calls):
        now[0] = next(clock)
        return 0.011 * now[0]

    monkeypatch.setattr(samples, "take", take)
    plan = TimingPlan(samples=5, budget_ms=1e3, best=0.012)
    found = samples_of(REPEAT, 0.025, plan, lambda: now[0])
    assert found == pytest.approx((0.011,) * 5)
    slow = samples_of(REPEAT, 0.025, replace(plan, best=0.009), lambda: now[0])
    assert slow == pytest.approx((0.011,) * 2)  # neither is its haste or slowness its own
    clock = iter((1.0,) * 6)
    ahead = samples_of(REPEAT, 0.001, replace(plan, best=1.0, sample_ms=1), lambda: 1 / 0)
    assert ahead  # what is far ahead is not timed beside an anchor that takes long


def test_a_time_under_a_clock_cycle_is_no_success(monkeypatch):
    loaded = SimpleNamespace(
        restore=lambda *_: None, breach=lambda: "", repeat=lambda program: None
    )
    for name, value in (("_loaded_task", loaded), ("samples_of", (1e-11, 1e-9))):
        monkeypatch.setattr(jobs, name, lambda *_, value=value: value)
    passed = jobs.Trial(Status.OK, run_seconds=1e-3)
    found = jobs.timed(None, 0, SimpleNamespace(kind="cpu"), TimingPlan(), passed)
    assert found.status is Status.RUN_ERROR and "less than a clock cycle" in found.message
    assert found.seconds == ()

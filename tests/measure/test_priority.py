"""Priority: levels of processes and of their sessions, and samples taken again when disturbed."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from metasched.measure import jobs, priority
from metasched.measure.priority import FIRST, GROUP_LAST, LAST, beside_timing, prioritise, waited
from metasched.measure.process import Worker, wait


def test_a_worker_that_must_not_disturb_is_last_among_the_sessions_too():
    worker = Worker("last", nice=LAST)
    level = worker.run("os:getpriority", os.PRIO_PROCESS, 0, limit=5).value
    group = Path(f"/proc/{worker.pid}/autogroup")
    text = group.read_text() if group.exists() else f"nice {GROUP_LAST}"
    worker.close()
    assert level == LAST
    assert text.strip().endswith(f"nice {GROUP_LAST}")


def test_what_is_not_permitted_changes_nothing(monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    assert prioritise(FIRST) == os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.parametrize(("limit", "level"), [(40, 0), (0, LAST)])
def test_builders_step_back_where_the_timed_process_may_not_come_first(monkeypatch, limit, level):
    """`limit` is of RLIMIT_NICE; no capability is held here."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    monkeypatch.setattr(priority, "_SYS_NICE", 60)
    assert beside_timing() == level


def test_a_process_leaves_the_group_of_another_session_alone(monkeypatch, tmp_path):
    group = tmp_path / "autogroup"
    group.write_text("0")
    levels = []
    monkeypatch.setattr(priority, "_GROUP", str(group))
    monkeypatch.setattr(os, "setpriority", lambda kind, who, nice: levels.append(nice))
    monkeypatch.setattr(os, "getsid", lambda who: os.getpid() + 1)
    assert prioritise(7) == 7 and levels == [7] and group.read_text() == "0"
    monkeypatch.setattr(os, "getsid", lambda who: os.getpid())
    prioritise(7)
    assert group.read_text() == "7"


def test_waiting_for_a_core_is_noticed():
    """Two busy processes on one core: each waits for the other."""
    pair = [Worker("one"), Worker("two")]
    busy = "import time; end = time.time() + 0.1\nwhile time.time() < end: pass"
    for worker in pair:
        worker.run("os:sched_setaffinity", 0, {min(os.sched_getaffinity(0))}, limit=5)
    for worker in pair:
        worker.submit("builtins:exec", busy, limit=5)
    ended = 0
    while ended < 2:
        ended += len(wait(pair, 5))
    lost = [worker.run(f"{priority.__name__}:{waited.__name__}", limit=5).value for worker in pair]
    for worker in pair:
        worker.close()
    assert min(lost) > 0.01


@pytest.mark.parametrize(
    ("lost", "expected"), [([0.0], 1.0), ([0.5, 0.5, 0.0], 3.0), ([9.0] * 9, 1.0)]
)
def test_a_disturbed_sample_is_taken_again(monkeypatch, lost, expected):
    """`lost` seconds of waiting in each sample of 1, 2, 3 ... ms."""
    clock = iter(x for each in lost for x in (0.0, each * 1e-3))
    times = iter(1e-3 * n for n in range(1, 99))
    monkeypatch.setattr(jobs, "waited", lambda: next(clock))
    monkeypatch.setattr(jobs, "take", lambda repeat, calls: next(times) / calls)
    assert jobs.undisturbed(lambda count: None, 10) == pytest.approx(expected * 1e-4)


def test_patience_ends(monkeypatch):
    taken = []
    state = iter(range(99))
    monkeypatch.setattr(jobs, "waited", lambda: next(state))
    monkeypatch.setattr(jobs, "take", lambda repeat, calls: taken.append(calls) or 0.06)
    assert jobs.undisturbed(lambda count: None, 1) == 0.06 and len(taken) == 2


def test_a_short_program_is_not_judged_by_the_waking_of_its_threads():
    """The first call takes 50 us, each other one 4: against a best of 8 us that is not hopeless."""

    class Sleepy:
        def __init__(self):
            self.calls = []

        def repeat(self, count):
            self.calls.append(count)
            end = time.perf_counter() + 4e-6 * count + (50e-6 if count == 1 else 0.0)
            while time.perf_counter() < end:
                pass

    native = Sleepy()
    plan = jobs.TimingPlan(sample_ms=0.2, samples=3, best=8e-6)
    samples = jobs._samples(native, [], 60e-6, plan)
    assert len(samples) == 3 and max(samples) < 40e-6
    assert max(native.calls) > 10


def test_how_many_samples_a_program_gets_says_its_time_and_how_far_it_is_behind(monkeypatch):
    took = {}
    monkeypatch.setattr(jobs, "take", lambda repeat, calls: took["ms"] * 1e-3)
    native = SimpleNamespace(repeat=None)

    def count(ms, best, **settings):
        took["ms"] = ms
        plan = jobs.TimingPlan(best=best * 1e-3, **settings)
        return len(jobs._samples(native, [], 1e-3, plan))

    assert [count(ms, 0.0) for ms in (2.5, 5.5, 20, 89, 91, 299, 301)] == [9, 5, 3, 3, 1, 1, 1]
    behind = (1.0, 1.02, 1.1, 1.3, 1.5, 2.0, 3.1)
    assert [count(2.5 * by, 2.5) for by in behind] == [9, 6, 5, 3, 2, 1, 1]
    assert [count(5.5 * by, 5.5) for by in behind[:5]] == [5, 3, 3, 2, 1]
    # what would be the best is read twice as often before that is believed
    assert [count(ms, 1.01 * ms) for ms in (2.5, 5.5, 20, 89, 91, 301)] == [9, 9, 6, 6, 2, 1]


def test_a_first_candidate_that_takes_long_runs_once(monkeypatch):
    monkeypatch.setattr(jobs, "take", lambda repeat, calls: 0.1)
    native = SimpleNamespace(repeat=None)
    assert jobs._samples(native, [], 0.19, jobs.TimingPlan()) == (0.19,)
    assert jobs._samples(native, [], 0.08, jobs.TimingPlan()) == (0.1,) * 3
    assert jobs._samples(native, [], 0.19, jobs.TimingPlan(best=0.09)) == (0.1,)


def test_in_turns_what_is_far_behind_runs_less(monkeypatch):
    """Ten times slower: the run that warms up; five times: one sample; twice: three."""
    bench = SimpleNamespace(restore=lambda: None, values=lambda native, signature: [])
    monkeypatch.setattr(jobs, "_bench", lambda task, fd: bench)
    took = [0.0]

    def loaded(seconds):
        return SimpleNamespace(repeat=lambda count: took.__setitem__(0, seconds))

    def take(repeat, calls):
        repeat(calls)
        return took[0]

    for name in ("take", "undisturbed"):
        monkeypatch.setattr(jobs, name, take)
    monkeypatch.setattr(jobs.Native, "of", lambda program: loaded(program.seconds))
    times = [0.02, 0.029, 0.041, 0.12, 0.201]
    programs = [SimpleNamespace(signature=None, seconds=seconds) for seconds in times]
    found = jobs.interleave(None, 0, programs, 6, 1.0)
    assert [len(samples) for samples in found] == [6, 6, 3, 1, 1]
    assert [samples[0] for samples in found] == times


def test_in_turns_a_disturbed_first_run_is_taken_again(monkeypatch):
    """What waited for its core for a scheduler's slice is not far behind."""
    bench = SimpleNamespace(restore=lambda: None, values=lambda native, signature: [])
    monkeypatch.setattr(jobs, "_bench", lambda task, fd: bench)
    calls, lost = [], [0.0]

    def take(repeat, count):
        calls.append(count)
        disturbed = len(calls) in (1, 3, 4)  # of the first two programs; two times of the second
        lost[0] += 2.9e-3 if disturbed else 0.0
        return 3e-3 if disturbed else 4e-5

    monkeypatch.setattr(jobs, "take", take)
    monkeypatch.setattr(jobs, "waited", lambda: lost[0])
    monkeypatch.setattr(jobs.Native, "of", lambda program: SimpleNamespace(repeat=None))
    found = jobs.interleave(None, 0, [SimpleNamespace(signature=None)] * 2, 5, 2.5)
    assert found == [(4e-5,) * 5] * 2


def test_samples_are_taken_at_the_pace_of_an_anchor(monkeypatch):
    clock, now = iter((1.0, 1.5, 0.8, 1.2, 1.0, 1.4, 1.3, 1.0)), [1.0]

    def take(repeat, calls):
        now[0] = next(clock)
        return 0.011 * now[0]

    monkeypatch.setattr(jobs, "take", take)
    native = SimpleNamespace(repeat=None)
    plan = jobs.TimingPlan(samples=5, budget_ms=1e3, best=0.012)
    samples = jobs._samples(native, [], 0.025, plan, lambda: now[0])
    assert samples == pytest.approx((0.011,) * 5)
    slow = jobs._samples(native, [], 0.025, replace(plan, best=0.009), lambda: now[0])
    assert slow == pytest.approx((0.011,) * 2)  # neither is its haste or slowness its own
    clock = iter((1.0,) * 6)
    ahead = jobs._samples(native, [], 0.001, replace(plan, best=1.0, sample_ms=1), lambda: 1 / 0)
    assert ahead  # what is far ahead is not timed beside an anchor that takes long

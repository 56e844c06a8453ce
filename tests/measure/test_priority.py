"""Priority: levels of processes and of their sessions, and time spent waiting for a core."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from metasched.measure import priority
from metasched.measure.priority import FIRST, GROUP_LAST, LAST, beside_timing, prioritise, waited
from metasched.measure.process import Worker, wait


def test_a_background_worker_is_last_in_its_session_too():
    worker = Worker("last", nice=LAST)
    level = worker.run("os:getpriority", os.PRIO_PROCESS, 0, limit=5).value
    group = Path(f"/proc/{worker.pid}/autogroup")
    text = group.read_text() if group.exists() else f"nice {GROUP_LAST}"
    worker.close()
    assert level == LAST
    assert text.strip().endswith(f"nice {GROUP_LAST}")


def test_prioritise_keeps_the_priority_without_permission(monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    assert prioritise(FIRST) == os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.parametrize(("limit", "level"), [(40, 0), (0, LAST)])
def test_builders_lower_their_priority_when_timing_cannot_rise(monkeypatch, limit, level):
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

"""The event log read back: sessions end to end, best so far, failures, the model's agreement."""

from __future__ import annotations

import json
import math

import pytest
from report.programs import round_done, started, trial, write_log

from metasched.report.history import read_history
from metasched.search.observe import EventLog, TaskStarted, TrialDone


def test_two_sessions_of_one_workload_are_one_history(tmp_path):
    log = write_log(
        tmp_path / "log",
        [
            started(), trial(2e-3, 1.0), trial(3e-3, 2.0), round_done(search=1.0, run=0.5),
            {"event": "TaskFinished", "task": "gmm", "reason": "interrupted"},
            started(known=2), trial(1e-3, 0.5), round_done(search=0.25, run=0.5),
            {"event": "TaskFinished", "task": "gmm", "reason": "budget"},
            {"event": "PeerTimed", "task": "gmm", "peer": "numpy", "seconds": 4e-3},
        ],
    )  # fmt: skip
    (one,) = read_history(log)
    assert [t.at for t in one.trials] == [1.0, 2.0, 2.5]
    assert [best for _, best in one.best_so_far()] == [2e-3, 2e-3, 1e-3]
    assert one.phases == {"search": 1.25, "run": 1.0}
    assert one.best == 1e-3 and one.ended == "budget" and one.peers == {"numpy": 4e-3}
    assert [t.round for t in one.trials] == [0, 0, 1]


def test_workloads_of_one_name_are_told_apart_by_their_hash(tmp_path):
    events = [started("aa"), trial(1e-3, 1.0), started("bb"), trial(2e-3, 1.0), trial(3e-3, 2.0)]
    a, b = read_history(write_log(tmp_path / "log", events))
    assert (a.workload, len(a.trials)) == ("aa", 1) and (b.workload, len(b.trials)) == ("bb", 2)


def test_failures_by_stage_with_their_first_reason(tmp_path):
    events = [
        started(), trial(None, 0.1, status="run_crash", message="signal 11"),
        trial(None, 0.2, status="run_crash", message="signal 6"),
        trial(None, 0.3, status="wrong_result", message="element 3"),
        trial(None, 0.3, status="out_of_bounds"), trial(None, 0.3, status="build_timeout"),
    ]  # fmt: skip
    (one,) = read_history(write_log(tmp_path / "log", events))
    assert one.failures()[0] == ("run", "run_crash", 2, "signal 11")
    assert {f[0] for f in one.failures()} == {"run", "check", "build"}
    assert one.best == math.inf and one.best_so_far() == []


def test_agreement_counts_pairs_within_a_round(tmp_path):
    events = [
        started(), trial(1e-3, 0.1, 3.0), trial(2e-3, 0.2, 2.0), trial(3e-3, 0.3, 2.5),
        round_done(), trial(9e-3, 0.4, 100.0), trial(8e-3, 0.5, None),
    ]  # fmt: skip
    (one,) = read_history(write_log(tmp_path / "log", events))
    assert one.agreement() == pytest.approx(2 / 3)
    (none,) = read_history(write_log(tmp_path / "log", [started(), trial(1e-3, 0.1, 1.0)]))
    assert none.agreement() is None


def test_a_log_that_breaks_off_is_read_as_far_as_it_goes(tmp_path):
    log = write_log(tmp_path / "log", [started(), trial(1e-3, 1.0)])
    lost = [{"event": "TrialDone", "task": "gmm"}, {"event": "TrialDone", "task": "nobody"}]
    with log.open("a") as out:
        out.write(f'[1]\n{json.dumps(lost[0])}\n{json.dumps(lost[1])}\n{{"event": "Trial')
    with pytest.warns(UserWarning, match="is damaged and left out") as told:
        (one,) = read_history(log)
    assert [str(w.message).split(" is ")[0].rpartition(": ")[2] for w in told] == [
        "line 3", "line 4",
    ]  # fmt: skip
    assert len(one.trials) == 1
    assert read_history(tmp_path / "none") == []


@pytest.mark.parametrize(
    "event",
    [
        trial(1e-3, 1.0) | {"elapsed": float("inf")}, trial(1e-3, 1.0) | {"seconds": True},
        trial(1e-3, 1.0) | {"seconds": [1]}, trial(1e-3, 1.0) | {"seconds": 10**400},
        trial(1e-3, 1.0) | {"predicted": "x"}, round_done() | {"phases": [["search", 1]]},
        started() | {"flops": -1}, started() | {"flops": float("nan")},
    ],
)  # fmt: skip
def test_numbers_that_no_run_writes_are_damage(tmp_path, event):
    log = write_log(tmp_path / "log", [started(), trial(2e-3, 1.0), event, trial(3e-3, 2.0)])
    with pytest.warns(UserWarning, match="line 3 is damaged and left out: {"):
        (one,) = read_history(log)
    assert [t.seconds for t in one.trials] == [2e-3, 3e-3]


def test_damaged_lines_are_counted_and_quoted_in_part(tmp_path):
    log = write_log(tmp_path / "log", [started()])
    with log.open("a") as out:
        out.write("x" * 5000 + "\n" + "]\n" * 20)
    with pytest.warns(UserWarning, match="damaged") as told:
        read_history(log)
    assert len(told) == 6 and "16 more lines are damaged" in str(told[-1].message)
    assert len(str(told[0].message)) < 400


def test_read_history_reads_the_event_log(tmp_path):
    log = EventLog(tmp_path / "log")
    log(TaskStarted("gmm", 1e6, 4, 0, 1, "cc"))
    log(TrialDone("gmm", 0, "ok", 1e-3, "", 1e-3, 1, 0, 0.5, 0.25, machine="a Xeon 4"))
    log(TrialDone("gmm", 1, "run_crash", math.inf, "signal 11", 1e-3, 2, 1, 0.75))
    log.close()
    (one,) = read_history(tmp_path / "log")
    assert one.workload == "cc" and [t.ok for t in one.trials] == [True, False]
    assert [t.predicted for t in one.trials] == [0.25, None]

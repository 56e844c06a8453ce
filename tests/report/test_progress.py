"""Progress: plain lines for logs, a table for terminals, times in the unit that suits them."""

from __future__ import annotations

import io
import math
import sys

import pytest
from rich.console import Console

from metasched.report.progress import LiveProgress, PlainProgress, progress
from metasched.report.tables import columns, duration
from metasched.search.observe import (
    FinalStep,
    PeerTimed,
    RoundDone,
    TaskFinished,
    TaskStarted,
    TrialDone,
)

EVENTS = [
    TaskStarted("gmm", 2e9, 64, 3, 2, "aa"),
    TrialDone("gmm", 3, "ok", 0.02, "", 0.02, 4, 0, 1.0),
    TrialDone("gmm", 4, "run_crash", math.inf, "signal 11", 0.02, 5, 1, 1.5),
    RoundDone("gmm", 1, 5, 1, 0.02, 2.0, {"search": 1.0}),
    PeerTimed("gmm", "numpy", 0.01),
    TaskFinished("gmm", "budget", 0.02, 5, 1, 2.5),
    FinalStep("gmm", 2, 4, "9 programs are timed in turns"),
]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.5, "2.5 s"), (0.0123, "12.3 ms"), (4.5e-6, "4.5 us"), (3e-9, "3 ns"), (math.inf, "-"),
        (math.nan, "-"),
    ],
)  # fmt: skip
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_plain_lines():
    out = io.StringIO()
    with PlainProgress(200.0, out) as told:
        for event in EVENTS:
            told(event)
    assert out.getvalue().splitlines() == [
        "gmm: 64 trials, 2 design spaces, 3 known already",
        "gmm: round 1, 5 trials, 1 failed, best 20 ms, 100.0 GFLOP/s (50 % of peak), 2.0 s",
        "gmm: the search ended after 2.5 s: all trials are used",
        "gmm: final comparison 2/4: 9 programs are timed in turns",
    ]


def test_one_design_space_is_one():
    out = io.StringIO()
    with PlainProgress(None, out) as told:
        told(TaskStarted("gmm", 2e9, 64, 0, 1, "aa"))
    assert out.getvalue() == "gmm: 64 trials, 1 design space\n"


def test_the_table_of_a_terminal():
    told = LiveProgress(200.0, time_limit=1000.0)

    def table():
        out = io.StringIO()
        Console(file=out, width=100).print(told._table())
        return out.getvalue()

    for event in EVENTS[:-1]:
        told(event)
    for part in ("gmm", "5/64", "4/1", "20 ms", "100.0", "50 %", "budget", "s left"):
        assert part in table()
    told(EVENTS[-1])
    assert "final 2/4: 9 programs" in table()


def test_a_pipe_gets_lines_and_a_terminal_the_table(monkeypatch):
    assert isinstance(progress(1.0), PlainProgress)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert isinstance(progress(1.0), LiveProgress)


def test_columns_line_up():
    assert columns([("a", "bbb"), ("cc", "d")]) == "a   bbb\ncc  d"
    assert columns([]) == ""

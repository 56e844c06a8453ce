"""The summary that ends `metasched tune`."""

from __future__ import annotations

from metasched import tune
from metasched.report.tables import records_text, tune_text
from tests.database.records import record
from tests.search.tasks import TARGET, matmul, replay_runner


def test_both_times_of_a_contest_are_told(tmp_path):
    """Our time from the final would contradict the ratio where the clock wanders in between."""
    result = tune(
        matmul(), target=TARGET, trials=2, seed=0, runner=replay_runner, work_dir=tmp_path
    )
    text = tune_text(result, peer=6e-3, over=1.5)
    assert "  1.50 x NumPy (6 ms beside 4 ms), timed in turns\n" in text
    assert "NumPy" not in tune_text(result)


def test_records_of_several_machines_name_their_machine():
    """Times of different machines do not compare: one machine stands after the other."""
    slow, fast = record(0.2, machine="a Atom 2"), record(0.1, machine="b Epyc 64")
    (first, second) = records_text([fast, slow]).splitlines()
    assert first.endswith("k0.2  a Atom 2") and second.endswith("k0.1  b Epyc 64")
    assert "Atom" not in records_text([slow])

"""The replay runner answers from a table; the recording runner makes one."""

from __future__ import annotations

import json

import pytest
from measure.programs import candidate, scale

from metasched.errors import MeasureError
from metasched.measure.candidate import Outcome, Status
from metasched.measure.replay import RecordingRunner, ReplayRunner

GOOD = Outcome(Status.OK, (0.5, 0.4), check="exact", build_seconds=0.1)
BAD = Outcome(Status.RUN_CRASH, message="SIGSEGV")


def test_known_keys_unknown_keys_and_a_cost_function():
    runner = ReplayRunner({"key0": GOOD, "key1": BAD})
    asked = [candidate(scale(), n, f"key{n}") for n in range(3)]
    seen = []
    outcomes = runner.measure(asked, lambda c, o: seen.append(c.key))
    assert outcomes[:2] == [GOOD, BAD] and outcomes[2].status is Status.NOT_RECORDED
    assert "key2" in outcomes[2].message and not outcomes[2].ok
    assert runner.measured == seen == ["key0", "key1", "key2"]
    costly = ReplayRunner({"key0": GOOD}, cost=lambda c: c.index + 1.0)
    assert [o.median for o in costly.measure(asked)] == [0.45, 2.0, 3.0]
    given = ReplayRunner(cost=lambda c: BAD)
    assert given.measure(asked[:1]) == [BAD]
    costly.close()


def test_recorded_table_round_trip(tmp_path):
    recorder = RecordingRunner(ReplayRunner({"key0": GOOD, "key1": BAD}))
    asked = [candidate(scale(), n, f"key{n}") for n in range(2)]
    first = recorder.measure(asked)
    recorder.save(tmp_path / "table.json")
    assert ReplayRunner.load(tmp_path / "table.json").measure(asked) == first
    recorder.close()


def test_bad_tables_are_explained(tmp_path):
    path = tmp_path / "table.json"
    for text, message in (
        ("{", "cannot be read"),
        ("{}", "table version None"),
        ('{"schema_version": 9}', "table version 9"),
        (json.dumps({"schema_version": 1, "outcomes": {"k": {"status": "no"}}}), "entry 'k'"),
        (json.dumps({"schema_version": 1, "outcomes": {"k": {}}}), "entry 'k'"),
    ):
        path.write_text(text)
        with pytest.raises(MeasureError, match=message):
            ReplayRunner.load(path)
    with pytest.raises(MeasureError, match="cannot be read"):
        ReplayRunner.load(tmp_path / "none.json")
    with pytest.raises(MeasureError, match="cannot be written"):
        RecordingRunner(ReplayRunner()).save(tmp_path / "none" / "table.json")

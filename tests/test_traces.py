"""The traces that ship in traces/: old ones must keep replaying for the machine they came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metasched.database.record import TraceFile
from metasched.database.replay import replay
from metasched.ir.equal import structural_hash
from metasched.ir.verify import verify
from metasched.schedule.trace import Trace
from metasched.script import parse

FILES = sorted((Path(__file__).resolve().parent.parent / "traces").glob("*.trace.json"))


def test_there_are_traces():
    assert FILES


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name.split(".")[0])
def test_a_shipped_trace_replays(path):
    stored = TraceFile.load(path)
    func = parse(stored.workload)
    assert structural_hash(func) == stored.workload_hash
    sch = replay(path, func, target=stored.target)
    verify(sch.mod)
    assert sch.trace.decisions() == Trace.from_json(json.dumps(stored.trace)).decisions()
    assert stored.ok and stored.check

"""Records and trace files: round trips, and the place and reason of everything unreadable."""

from __future__ import annotations

import json
import os

import pytest
from database.records import record
from hypothesis import given
from hypothesis import strategies as st

from metasched.database.record import SCHEMA_VERSION, Record, TraceFile
from metasched.errors import DatabaseError, TraceError
from metasched.measure.candidate import Status

samples = st.lists(st.floats(1e-9, 1e3), max_size=5)


@given(samples, st.sampled_from(Status), st.text(max_size=20), st.integers(0, 1 << 62))
def test_json_round_trip(seconds, status, message, seed):
    a = record(samples=seconds, status=status, message=message, seed=seed)
    b = Record.from_json(a.to_json())
    assert b == a and b.status is status and b.seconds == a.seconds


def test_trace_file_of_a_record_survives_disk(tmp_path):
    file = TraceFile.from_record(record(0.25, seed=7), default_seconds=0.5)
    path = file.save(tmp_path / "new" / "folder" / "x.json")
    again = TraceFile.load(path)
    assert again == file and again.trace == [["split", 1, [2, None]]] and again.ok
    assert "candidate_key" not in json.loads(path.read_text())
    assert os.listdir(path.parent) == ["x.json"]


def test_unknown_fields_survive_a_rewrite():
    data = {**json.loads(record().to_json()), "added_later": {"a": 1}}
    assert json.loads(Record.from_data(data).to_json())["added_later"] == {"a": 1}


def test_truncated_file_says_where(tmp_path):
    path = TraceFile.from_record(record()).save(tmp_path / "x.json")
    text = path.read_text()
    for cut in (10, len(text) // 2, len(text) - 3):
        path.write_text(text[:cut])
        with pytest.raises(TraceError) as caught:
            TraceFile.load(path)
        assert str(path) in str(caught.value) and "line " in str(caught.value)
    assert "truncated" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 99}, r"field schema_version: 99 is not readable here; this metasched"),
        ({"schema_version": "one"}, r"field schema_version: 'one'"),
        ({"samples": [0.1, "fast"]}, r"field samples\[1\]: .*number"),
        ({"samples": [-1.0]}, r"field samples: .*positive number"),
        ({"status": "fine"}, r"field status: .*'ok'"),
        ({"target": {"kind": "lvm"}}, r"field target: .*did you mean llvm"),
        ({"workload_hash": ""}, r"field workload_hash"),
        ({"format": "other"}, r"field format: .*'metasched-trace'"),
        ({"seed": 1.5}, r"field seed"),
    ],
)
def test_hand_edited_file_names_the_field(tmp_path, change, message):
    data = json.loads(TraceFile.from_record(record(), tool_version="9.9").to_json())
    path = tmp_path / "edited.json"
    path.write_text(json.dumps({**data, **change}))
    with pytest.raises(TraceError, match=message) as caught:
        TraceFile.load(path)
    assert str(path) in str(caught.value)
    if change.get("schema_version") == 99:
        assert "written by metasched 9.9" in str(caught.value)
        assert f"versions 1 to {SCHEMA_VERSION}" in str(caught.value)


def test_files_that_are_no_traces_are_refused(tmp_path):
    path = tmp_path / "x.json"
    for text, message in (
        ("[1, 2]", "not a metasched trace file"),
        ("{}", "no field schema_version"),
        ("[" * 100000, "not valid JSON"),
        (b"\xff\xfe{", "not valid JSON"),
    ):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(TraceError, match=message):
            TraceFile.load(path)
    with pytest.raises(
        TraceError, match=r"Is a directory; name a trace file in it, \*\.trace\.json"
    ):
        TraceFile.load(tmp_path)
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        TraceFile.load(tmp_path / "missing.json")
    with pytest.raises(DatabaseError, match="record"):
        Record.from_json("{}")
    with pytest.raises(TraceError, match="cannot be read: File name too long") as error:
        TraceFile.load("{" * 9000)  # the text of a file in place of its name
    assert len(str(error.value)) < 400


def test_missing_field_is_named():
    data = json.loads(record().to_json())
    del data["workload"]
    with pytest.raises(DatabaseError, match="field workload: Field required"):
        Record.from_data(data)


def test_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = TraceFile.from_record(record(0.5)).save(tmp_path / "x.json")
    before = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DatabaseError, match=r"x\.json: .*No space left on device"):
        TraceFile.from_record(record(0.1)).save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["x.json"]


def test_place_that_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseError, match="could not be saved"):
        TraceFile.from_record(record()).save(tmp_path / "file" / "x.json")


def test_a_trace_file_names_the_machine_that_measured_it():
    """The field is informative: a file without it loads."""
    file = TraceFile.from_record(record(machine="a Xeon 4"))
    assert TraceFile.from_json(file.to_json()).machine == "a Xeon 4"
    data = json.loads(file.to_json())
    del data["machine"]
    assert TraceFile.from_data(data).machine == ""

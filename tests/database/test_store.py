"""The store: queries, two tuners, kill -9, corrupt and foreign files, full disk."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
from database.records import CASCADE, HASWELL, record

from metasched.database.store import Store
from metasched.errors import DatabaseError
from metasched.measure.candidate import Status

HERE = Path(__file__).resolve().parent.parent


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "db.sqlite") as made:
        yield made


def test_best_all_and_keys(store):
    store.put([record(0.5), record(0.2), record(0.3)])
    store.put(record(0.1, target=CASCADE))
    store.put(record(0.05, workload="w2"))
    store.put(record(status=Status.RUN_CRASH, samples=[], message="SIGSEGV", candidate_key="bad"))
    assert len(store) == 6
    best = store.best("w1", HASWELL)
    assert best is not None and best.samples == [0.2] and best.target_value == HASWELL
    assert store.best("w1", CASCADE).samples == [0.1]
    assert store.best("w2", CASCADE) is None
    assert store.keys("w1", HASWELL) == {"k0.5", "k0.2", "k0.3", "bad"}
    assert [r.samples for r in store.all("w1", HASWELL)] == [[0.5], [0.2], [0.3], []]
    assert [r.message for r in store.all(status=Status.RUN_CRASH)] == ["SIGSEGV"]
    assert len(store.all(limit=2)) == 2
    assert set(store.workloads()) == {"w1", "w2"}
    assert {t.key for t in store.targets("w1")} == {HASWELL.key, CASCADE.key}


def test_records_come_back_as_they_went_in(store):
    one = record(0.5, seed=3, check="exact", index=4, workload_name="gmm", note="kept")
    store.put(one)
    assert store.all() == [one]


def test_reopening_finds_everything(tmp_path):
    with Store(tmp_path / "db.sqlite") as first:
        first.put(record(0.5))
    with Store(tmp_path / "db.sqlite") as again:
        assert len(again) == 1 and again.set_aside is None
    with Store(tmp_path / "db.sqlite", read_only=True) as reader:
        assert len(reader) == 1
        with pytest.raises(DatabaseError, match="readonly"):
            reader.put(record(0.1))


def test_in_memory():
    with Store(":memory:") as made:
        made.put(record())
        assert len(made) == 1


def test_put_is_all_or_none(store):
    broken = record(0.2)
    object.__setattr__(broken, "candidate_key", object())
    with pytest.raises(ValueError):
        store.put([record(0.1), broken])
    assert len(store) == 0


def test_two_tuners_on_one_file(tmp_path):
    path = tmp_path / "db.sqlite"

    def work(start):
        with Store(path) as mine:
            for n in range(start, start + 40):
                mine.put(record(n + 1.0))

    threads = [threading.Thread(target=work, args=(n * 100,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Store(path) as made:
        assert len(made) == 120 and len(made.keys("w1", HASWELL)) == 120


WRITER = """
import sys
from database.records import record
from metasched.database.store import Store
with Store(sys.argv[1]) as store:
    for n in range(1, 100000):
        store.put(record(float(n)))
        sys.stdout.write(f"{n}\\n"); sys.stdout.flush()
"""


def test_kill_at_any_moment_loses_nothing_acknowledged(tmp_path):
    path = tmp_path / "db.sqlite"
    total = 0
    for attempt in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True,
            cwd=HERE, env={"PYTHONPATH": f"{HERE}:{HERE.parent}"},
        )  # fmt: skip
        for _ in range(attempt * 7 + 1):
            child.stdout.readline()
        child.kill()
        acknowledged = attempt * 7 + 1 + len(child.stdout.readlines())
        child.wait()
        child.stdout.close()
        total += acknowledged
        with Store(path) as made:
            assert made.set_aside is None
            assert total <= len(made) <= total + 1
            total = len(made)
            assert made.best("w1", HASWELL).samples == [1.0]


@pytest.mark.parametrize("damage", ["text", "middle", "header"])
def test_corrupt_file_is_set_aside(tmp_path, damage):
    path = tmp_path / "db.sqlite"
    with Store(path) as made:
        made.put([record(float(n + 1)) for n in range(200)])
    raw = bytearray(path.read_bytes())
    if damage == "text":
        raw = bytearray(b"this is not a database, not at all " * 100)
    else:
        where = 4096 if damage == "middle" else 24
        raw[where : where + 3000] = b"\xa5" * 3000
    path.write_bytes(raw)
    (tmp_path / "db.sqlite-wal").write_bytes(b"log")
    with pytest.warns(UserWarning, match=r"is corrupt .*it was kept as .*corrupt-"):
        made = Store(path)
    with made:
        assert made.set_aside is not None and made.set_aside.read_bytes() == bytes(raw)
        assert len(made) == 0
        made.put(record())
    path.write_bytes(b"broken once more, so that a second name is needed" * 100)
    with pytest.warns(UserWarning), Store(path) as third:
        assert third.set_aside not in (None, made.set_aside)


def test_foreign_and_later_databases_are_left_alone(tmp_path):
    path = tmp_path / "foreign.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE t (x)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(DatabaseError, match="another program"):
        Store(path)
    assert path.read_bytes() == before
    later = tmp_path / "later.sqlite"
    Store(later).close()
    connection = sqlite3.connect(later)
    connection.execute("PRAGMA user_version=7")
    connection.close()
    with pytest.raises(DatabaseError, match="schema version 7; this metasched"):
        Store(later)


def test_full_disk_keeps_records_and_writes_them_later(store):
    store.put(record(1.0))
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count={pages}")
    big = [record(float(n), message="x" * 4000) for n in range(2, 12)]
    words = r"10 record\(s\) could not be saved \(.*full\); what was saved before is intact$"
    with pytest.raises(DatabaseError, match=words):
        store.put(big)
    assert len(store) == 1 and store.unsaved == big
    store._connection.execute("PRAGMA max_page_count=100000")
    store.put(record(99.0))
    assert len(store) == 12 and store.unsaved == []


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseError, match="cannot be opened"):
        Store(tmp_path / "file" / "db.sqlite")
    with pytest.raises(DatabaseError, match="cannot be opened"):
        Store(tmp_path)
    with pytest.raises(DatabaseError, match="cannot be opened"):
        Store(tmp_path / "missing.sqlite", read_only=True)


def test_a_disk_without_room_for_a_new_file(tmp_path, monkeypatch):
    def full(self):
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(Store, "_connect", full)
    with pytest.raises(DatabaseError, match="disk I/O error; its disk may be full or fail: free"):
        Store(tmp_path / "db.sqlite")


@pytest.mark.parametrize(
    "change",
    [
        "body = replace(body, '\"samples\": [', '\"samples\": [1e-9, ')", "median = median / 2",
        "status = 'wrong_result'", "candidate = 'c'", "body = x'80'", "body = 3", "body = '[]'",
        "body = json_remove(body, '$.checksum')", "body = replace(body, 'checksum', 'sum')",
        "body = json_remove(body, '$.checksum', '$.shared')",
    ],
)  # fmt: skip
def test_a_record_with_a_wrong_checksum_is_reported_and_skipped(store, change):
    store.put([record(), record()])
    store._connection.execute(f"UPDATE records SET {change} WHERE id = 1")
    expected = 2 if "json_remove" in change and "shared" in change else 1  # early versions had none
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert len(store.all()) == len(store.all()) == expected
    assert len(told) == 2 - expected
    assert all("record 1 is damaged and left out" in str(w.message) for w in told)


def test_targets_and_scripts_that_are_damaged_are_named(store):
    store.put(record())
    early = "body = json_remove(body, '$.checksum', '$.shared')"
    store._connection.execute(f"UPDATE records SET {early}")
    store._connection.execute("UPDATE targets SET json = '{\"kind\": 3}'")
    with pytest.warns(UserWarning, match="a target of workload .* no target kind is called 3"):
        assert store.targets(record().workload_hash) == []
    store._connection.execute("UPDATE workloads SET script = x'00'")
    with pytest.warns(UserWarning, match="its script is no text"):
        assert store.workloads() == {}


def test_a_changed_script_or_target_is_named_with_its_records(store):
    store.put([record(), record(workload="w2", script="another")])
    store._connection.execute("UPDATE workloads SET script = script || ' ' WHERE hash = 'w2'")
    with pytest.warns(UserWarning, match="record 2 is damaged .* not what it was stored with"):
        assert [r.workload_hash for r in store.all()] == ["w1"]
    with pytest.warns(UserWarning, match="workload w2 is damaged .* of another script"):
        assert list(store.workloads()) == ["w1"]
    store._connection.execute("UPDATE targets SET json = replace(json, ' ', '  ')")
    with pytest.warns(UserWarning, match="record 1 is damaged .* not what it was stored with"):
        assert store.all() == []
    with pytest.warns(UserWarning, match="a target of workload w1 .* of another target"):
        assert store.targets("w1") == []


def test_damage_found_later_is_an_error_not_a_loss(store):
    store.put([record(), record()])
    store._connection.execute("UPDATE records SET body = '{' WHERE id = 1")
    with pytest.warns(UserWarning, match="record 1 is damaged and left out"):
        assert len(store.all()) == 1
    store._connection.execute("DROP TABLE records")
    with pytest.raises(DatabaseError, match="cannot be read"):
        store.all()

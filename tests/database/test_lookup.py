"""Lookups: a hit, or a miss that says which part did not fit."""

from __future__ import annotations

import pytest
from database.records import CASCADE, HASWELL, record

from metasched.database.base import UnionDatabase
from metasched.database.lookup import Hit, Miss, explain, first_change, lookup
from metasched.database.store import Store
from metasched.hardware import times_compare
from metasched.measure.candidate import Status
from metasched.target import Target


def filled(*records):
    store = Store(":memory:")
    store.put(list(records))
    return store


def test_exact_hit_takes_the_fastest():
    hit = lookup(filled(record(0.5), record(0.2)), "w1", HASWELL)
    assert isinstance(hit, Hit) and hit.exact and hit.record.samples == [0.2] and not hit.note


def test_other_target_that_can_run_here_is_a_hit_with_a_note():
    store = filled(record(0.5, target=HASWELL))
    hit = lookup(store, "w1", CASCADE)
    assert isinstance(hit, Hit) and not hit.exact and "avx512f" in hit.note
    miss = lookup(store, "w1", CASCADE, strict=True)
    assert isinstance(miss, Miss) and miss.field == "target" and "avx512f" in miss.reason


def test_missing_feature_is_explained():
    miss = lookup(filled(record(0.5, target=CASCADE)), "w1", HASWELL)
    assert isinstance(miss, Miss) and miss.field == "target"
    assert "tuned for cpu/cascadelake" in miss.reason and "lacks the CPU features" in miss.reason
    assert miss.nearest is not None and miss.nearest.samples == [0.5]


def test_only_failures():
    bad = record(status=Status.RUN_TIMEOUT, samples=[], message="longer than 1 s")
    miss = lookup(filled(bad), "w1", HASWELL)
    assert isinstance(miss, Miss) and miss.field == "status"
    assert "run_timeout: longer than 1 s" in miss.reason


def test_unknown_workload_names_the_nearest_and_the_line():
    store = filled(
        record(workload="a"),
        record(0.1, workload="b", script="def f(\n    A: T.Buffer((8, 8))\n):\n    x"),
    )
    script = "def f(\n    A: T.Buffer((16, 8))\n):\n    x"
    miss = lookup(store, "c", HASWELL, script=script)
    assert isinstance(miss, Miss) and miss.field == "workload"
    assert miss.nearest is not None and miss.nearest.workload_hash == "b"
    assert "it has `A: T.Buffer((8, 8))` where this one has `A: T.Buffer((16, 8))`" in miss.reason
    assert "no record of workload c among 2" in lookup(store, "c", HASWELL).reason
    assert lookup(Store(":memory:"), "c", HASWELL).reason == "the database has no records"


def test_explain_one_record():
    one = record(target=CASCADE)
    assert explain(one, "w1", CASCADE) == Hit(one, True, "")
    assert "lacks" in explain(one, "w1", HASWELL).reason
    other = explain(one, "w2", CASCADE, script="def w2():\n    pass")
    assert other.field == "workload" and "`def w1():`" in other.reason
    arm = Target.of({"triple": "aarch64-unknown-linux-gnu", "mcpu": "neoverse-n1"})
    assert "made for x86_64" in explain(one, "w1", arm).reason


def test_first_change():
    assert first_change("a\nb", "a\nb\n") == ""
    assert "2 lines, this one 3" in first_change("a\nb", "a\nb\nc")


@pytest.mark.parametrize(("a", "b", "compare"), [
    ("a Xeon 4", "b Xeon 4", True), ("a Xeon 4", "a Xeon 8", False), ("a Xeon 4", "", True),
])  # fmt: skip
def test_times_compare_between_machines_of_one_kind(a, b, compare):
    assert times_compare(a, b) is compare


def test_the_best_record_is_the_fastest_of_one_machine():
    """Of this machine if it has any, else of the machine with the most records."""
    with Store(":memory:") as store:
        store.put([record(0.1, machine="x Atom 2"), record(0.4, machine="y Epyc 64")])
        store.put([record(0.3, machine="y Epyc 64"), record(0.2, machine="x Xeon 4")])
        own = lookup(store, "w1", HASWELL, machine="z Xeon 4")
        assert own.record.seconds == 0.2 and own.note == ""
        other = lookup(store, "w1", HASWELL, machine="z Opteron 4")
        assert other.record.seconds == 0.3 and other.note == "measured on y Epyc 64"


def test_a_union_keeps_the_times_of_each_machine():
    with Store(":memory:") as first, Store(":memory:") as second:
        first.put(record(0.4, machine="x Atom 2", candidate_key="k"))
        second.put(record(0.1, machine="y Epyc 64", candidate_key="k"))
        both = UnionDatabase(first, second)
        assert lookup(both, "w1", HASWELL, machine="x Atom 2").record.seconds == 0.4
        assert lookup(both, "w1", HASWELL, machine="y Epyc 64").record.seconds == 0.1

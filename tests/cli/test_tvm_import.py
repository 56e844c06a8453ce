"""JSONDatabase files of TVM 0.26 (tests/data/tvm): read as data, replayed, stored, compiled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import check_numbers, expected

import metasched as ms
from metasched.database.store import Store
from metasched.database.tvm_import import fastest, read_tvm_database
from metasched.errors import MetaschedError
from metasched.ir.interp import run
from metasched.measure.candidate import Status
from metasched.script import parse

DATA = Path(__file__).parent.parent / "data" / "tvm"
WORKLOADS, RECORDS = DATA / "workloads.json", DATA / "records.json"
FOUND = read_tvm_database(WORKLOADS, RECORDS)
SOFTMAX = 2  # its exponentials and quotients are rounded in another order


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("number", range(len(FOUND)))
def test_each_record_replays_to_the_same_numbers(number: int) -> None:
    record = FOUND[number].record
    assert record is not None and FOUND[number].line == number + 1
    func = parse(record.workload)
    sch = ms.Schedule(func)
    ms.Trace.from_json(json.dumps(record.trace)).apply(sch)
    assert len(sch.trace) >= len(lines(RECORDS)[number][1][0][0])
    assert ms.structural_hash(sch.mod) == record.candidate_key
    if lines(RECORDS)[number][0] != SOFTMAX:
        check_numbers(func, sch.mod, compiled=True)
        return
    given, want = expected(func)
    args = [a.copy() for a in given]
    run(sch.mod, *args)
    np.testing.assert_allclose(args[1], want[1], rtol=1e-5)


def test_imported_records_hold_times_target_and_status() -> None:
    first, second = FOUND[0].record, FOUND[1].record
    assert first.samples == pytest.approx([2e-6, 3e-6]) and first.status is Status.OK
    assert first.target_value.num_cores == 2 and first.target_value.kind == "cpu"
    assert second.samples == [] and second.status is Status.NOT_RECORDED
    assert "the times are TVM's" in first.message and first.workload_name.startswith("tvm_")
    best = fastest(FOUND)
    assert len(best) == 4 and best[0] is first
    assert [r.seconds for r in best[1:]] == [1e-4] * 3


def test_the_command_stores_and_ships(cli: Any, tmp_path: Path) -> None:
    ran = cli("db", "import", WORKLOADS, RECORDS, "--work-dir", "tvm")
    assert ran.code == 0 and "12 of 12 records replayed" in ran.out
    with Store(tmp_path / "tvm" / "metasched.db") as store:
        assert len(store) == 12 and len(store.workloads()) == 4
    listed = json.loads(cli("db", "tvm", "--json").out)
    assert len(listed) == 11  # the one without a time is no measurement
    path = tmp_path / "tvm" / f"{FOUND[0].record.workload_name}.trace.json"
    func = parse(FOUND[0].record.workload)
    sch = ms.replay(path, func)
    check_numbers(func, sch.mod, compiled=True)
    again = json.loads(cli("db", "import", WORKLOADS, RECORDS, "--work-dir", "tvm", "--json").out)
    assert (again["records"], again["imported"], again["problems"]) == (12, 12, [])
    assert len(again["traces"]) == 4
    for wrong in (("import",), ("import", WORKLOADS), ("a", "b"), ("import", "no", RECORDS)):
        ran = cli("db", *wrong)
        assert ran.code == 2 and len(ran.err.splitlines()) == 1, ran.err


def test_import_reports_unusable_records_and_keeps_the_others(cli: Any, tmp_path: Path) -> None:
    workloads, records = lines(WORKLOADS), lines(RECORDS)
    workloads[1][1] = "AAAA"
    records[0][1][0][0][4][0] = "Explode"
    records[11][1][2]["kind"] = "hexagon"
    bad_factor = json.loads(json.dumps(records[1]))
    bad_factor[1][0][1][0][1] = [5, 2]
    for name, data in (("w.json", workloads), ("r.json", [*records, bad_factor])):
        text = "\n".join(json.dumps(item) for item in data) + "\n\n"
        (tmp_path / name).write_text(text, encoding="utf-8")
    problems = {f.line: f.problem for f in read_tvm_database("w.json", "r.json") if f.problem}
    assert problems[1] == "instruction 4 (Explode): there is no such step here"
    assert "hexagon" in problems[12] and "decision" in problems[13]
    products = [n for n, item in enumerate(records, 1) if item[0] == 1]
    assert all("w.json:2: not JSON" in problems[n] for n in products)
    assert set(problems) == {1, 12, 13, *products}
    ran = cli("db", "import", "w.json", "r.json", "--work-dir", "tvm")
    assert ran.code == 0 and f"{13 - len(problems)} of 13 records" in ran.out
    assert len(ran.err.splitlines()) == len(problems) and "r.json:1: instruction 4" in ran.err
    (tmp_path / "r.json").write_text(json.dumps(bad_factor), encoding="utf-8")
    assert cli("db", "import", "w.json", "r.json", "--work-dir", "tvm").code == 1


@pytest.mark.parametrize(
    "workload, record, message",
    [
        ("{", "", "w.json:1: not JSON"),
        ("{}", "", "w.json:1: is not [hash, module]"),
        ('["1", 2]', "", "w.json:1: is not [hash, module]"),
        ('["1", "e30="]', "3", "r.json:1: is not [workload, record]"),
        ('["1", "e30="]', "[7, []]", "r.json:1: there is no workload 7"),
        ('["1", "e30="]', "[-1, []]", "r.json:1: there is no workload -1"),
    ],
)
def test_files_of_another_form_are_refused(cli, tmp_path, workload, record, message) -> None:
    (tmp_path / "w.json").write_text(workload, encoding="utf-8")
    (tmp_path / "r.json").write_text(record, encoding="utf-8")
    with pytest.raises(MetaschedError) as caught:
        read_tvm_database("w.json", "r.json")
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["e30=", "!!", "{}", '{"nodes": 3}', "AAAAAAAAAAA="])
def test_modules_of_another_form_are_told(cli, tmp_path, text) -> None:
    (tmp_path / "w.json").write_text(json.dumps(["1", text]), encoding="utf-8")
    (tmp_path / "r.json").write_text("[0, [[[], []], null, null, null]]", encoding="utf-8")
    (found,) = read_tvm_database("w.json", "r.json")
    assert found.record is None and found.problem.startswith("w.json:1: ")


def test_damaged_records_are_errors_of_ours(cli, tmp_path) -> None:
    """Each part of a record, replaced by values of other kinds, is read or told."""
    whole = lines(RECORDS)[0]
    damaged = []
    for place in range(4):
        for value in (None, 3, "x", [], {}, [[]], [None], [True], [-1.0], {"kind": 3}, "llvm"):
            record = [*whole[1]]
            record[place] = value
            damaged.append([0, record])
    damaged += [[0, value] for value in (None, 3, "x", [], {})]
    (tmp_path / "r.json").write_text("\n".join(map(json.dumps, damaged)), encoding="utf-8")
    found = read_tvm_database(WORKLOADS, "r.json")
    assert len(found) == len(damaged)
    assert all((f.record is None) is bool(f.problem) for f in found)

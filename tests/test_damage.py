"""Damaged traces, trace files, records and event logs: explained, never a bare error of Python.

A short run with fixed seeds of what found the faults; each fault has its smallest case below.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import warnings

import numpy as np
import pytest
from damage import damaged_text
from search.tasks import TARGET, replay_runner

from metasched.database.replay import replay
from metasched.database.store import Store
from metasched.errors import MetaschedError, ScheduleError, TraceError
from metasched.report.html import Machine, chapters_of, page
from metasched.report.tables import records_text
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.search.learning import samples_of
from metasched.tune import EVENTS, STORE, tune
from metasched.workloads import get

FUNC = get("gmm").func((1, 16, 16, 16))
LONGEST = 4000  # characters of a message, with the lines of the script that it shows


def explained(what):
    """Calls `what`; of all errors only ours pass, with a message of bounded length."""
    try:
        what()
    except MetaschedError as error:
        assert 0 < len(str(error)) < LONGEST


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("damage") / "w"
    tune(
        FUNC, target=TARGET, trials=10, seed=1, work_dir=place, name="gmm", prior=False,
        runner=replay_runner, strategy="random",
    )  # fmt: skip
    return place


def used(text: str) -> None:
    """All that is done with a trace that was read."""
    trace = Trace.from_json(text)
    trace.as_python()
    assert Trace.from_json(trace.to_json()).to_json() == trace.to_json()
    for mode in ("stored", "repair", "fresh"):
        sch = Schedule(FUNC, seed=0)
        trace.apply(sch, decisions=mode)
        sch.trace.to_json()


def test_damaged_traces(folder):
    (path,) = folder.glob("*.trace.json")
    data = json.loads(path.read_text())["trace"]
    for seed in range(400):
        text = damaged_text(data, random.Random(seed))
        explained(lambda text=text: used(text))


def test_damaged_trace_files(folder, tmp_path):
    (path,) = folder.glob("*.trace.json")
    data, damaged = json.loads(path.read_text()), tmp_path / "x.trace.json"
    for seed in range(100):
        damaged.write_text(damaged_text(data, random.Random(seed)))
        explained(lambda: replay(damaged, FUNC, target=TARGET))


@pytest.fixture
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def test_damaged_event_logs(folder, tmp_path, quiet):
    events = [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]
    for seed in range(60):
        text = damaged_text(events, random.Random(seed))
        (tmp_path / EVENTS).write_text(text[1:-1].replace("}, {", "}\n{") + "\n")
        explained(lambda: page(chapters_of(tmp_path), Machine(100.0, 10.0), "damaged"))


def read_all(path):
    with Store(path, read_only=True) as store:
        for workload in store.workloads():
            for target in store.targets(workload):
                found = store.all(workload, target)
                records_text(found)
                _ = [record.to_json() for record in found]
        samples_of(store)


def test_damaged_records(folder, tmp_path, quiet):
    for seed in range(60):
        rng = random.Random(seed)
        copy = tmp_path / f"{seed}.db"
        shutil.copy(folder / STORE, copy)
        with sqlite3.connect(copy) as connection:
            table, column = rng.choice((("records", "body"), ("targets", "json")))
            (body,) = connection.execute(f"SELECT {column} FROM {table}").fetchone()
            data = {k: v for k, v in json.loads(body).items() if k != "checksum"}
            text = damaged_text(data, rng)
            connection.execute(f"UPDATE {table} SET {column} = ?", (text,))
        connection.close()
        explained(lambda copy=copy: read_all(copy))


def test_damaged_records_are_named_or_unchanged(folder, tmp_path):
    """No fault in a record, its workload or its target gives a silently different record."""

    def contents(path):
        with Store(path, read_only=True) as store:
            pairs = [(w, t) for w in store.workloads() for t in store.targets(w)]
            return [record.to_json() for w, t in pairs for record in store.all(w, t)]

    intact = contents(folder / STORE)
    for seed in range(80):
        rng = random.Random(seed)
        copy = tmp_path / f"{seed}.db"
        shutil.copy(folder / STORE, copy)
        with sqlite3.connect(copy) as connection:
            (body,) = connection.execute("SELECT body FROM records").fetchone()
            data = json.loads(body)
            if seed == 0:
                data["checksumx"] = data.pop("checksum")
            text = json.dumps(data) if seed == 0 else damaged_text(data, rng)
            connection.execute("UPDATE records SET body = ? WHERE id = 1", (text,))
            if seed >= 60:
                table, column = rng.choice((("workloads", "script"), ("targets", "json")))
                (given,) = connection.execute(f"SELECT {column} FROM {table}").fetchone()
                at = rng.randrange(len(given))
                text = given[:at] + rng.choice(" x0") + given[at + rng.choice((0, 1)) :]
                connection.execute("UPDATE records SET body = ? WHERE id = 1", (body,))
                connection.execute(f"UPDATE {table} SET {column} = ?", (text,))
        connection.close()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = contents(copy)
        assert found == intact or any("is damaged and left out" in str(w.message) for w in caught)


def edited(change) -> str:
    sch = Schedule(FUNC, seed=0)
    block = sch.get_block("Z")
    loop = sch.get_loops(block)[1]
    sch.split(loop, sch.sample_perfect_tile(loop, n=2))
    data = json.loads(sch.trace.to_json())
    change(data["steps"])
    return json.dumps(data).replace('"huge"', "9" * 5000)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: s.append({"kind": "get_loops", "args": {"block": "$l2"}, "outputs": []}),
            "block takes BlockRV or str, not LoopRV",
        ),
        (lambda s: s[1]["args"].update(block="Z"), "block takes blocks that earlier steps gave"),
        (lambda s: s[2]["args"].update(loop="$b0"), "loop takes LoopRV, not BlockRV"),
        (lambda s: s[2]["args"].update(n=True), "n takes int, not bool True"),
        (lambda s: s[2]["args"].update(n=2.0), "n takes int, not float 2.0"),
        (lambda s: s[2]["args"].update(n=10**12), "bad-tile"),
        (lambda s: s[2]["args"].update(n="huge"), "is not JSON: Exceeds the limit"),
        (lambda s: s[2]["args"].update(n=1 << 70), "is an integer of more than 64 bits"),
        (lambda s: s[2].update(decision=[True, 16]), "decision takes list.int. or None, not list"),
        (lambda s: s[2].update(domain={"kind": "nothing"}), "an object .domain. that holds it"),
        (lambda s: s[2].update(domain={"kind": "perfect_tile"}), "an object .domain."),
        (lambda s: s[3]["args"].update(factors=4), "factors takes .*, not int 4"),
        (lambda s: s[3]["args"].update(preserve_unit_iters=1), "takes bool, not int 1"),
        (lambda s: s[3]["args"].update(preserve_unit_iters="yes"), "takes bool, not str 'yes'"),
        (lambda s: s[3]["args"].update(factors=[{"expr": ["Add", "$b0", 1]}, 2]), "an expression"),
        (lambda s: s[3]["args"].update(factors=[{"expr": 1 << 70}, 2]), "an expression"),
        (lambda s: s[3]["args"].update(factors=[{"expr": ["const", "int8", "999"]}, 2]), "an expr"),
        (lambda s: s[0]["args"].update(name="\ud800"), "surrogates not allowed"),
        (lambda s: s[0]["args"].update(name=float("nan")), "NaN is no number of JSON"),
        (lambda s: s[0]["args"].update({"x" * 5000: 1}), "unknown arguments x+[.][.][.]$"),
    ],
)
def test_steps_that_do_not_fit_their_signature_are_refused(change, message):
    with pytest.raises(MetaschedError, match=message) as caught:
        Trace.from_json(edited(change)).apply(Schedule(FUNC, seed=0))
    assert len(str(caught.value)) < LONGEST


def test_data_of_many_levels_are_refused():
    deep = json.loads(edited(lambda steps: None))
    for levels in (200, 100_000):
        text = json.dumps(deep).replace('"Z"', "[" * levels + "]" * levels)
        with pytest.raises(TraceError, match="more than 100 levels"):
            Trace.from_json(text)


def test_numbers_and_flags_of_a_step_are_what_a_trace_can_store():
    sch = Schedule(FUNC, seed=0)
    loop = sch.get_loops(sch.get_block("Z"))[1]
    sch.split(loop, [2, 8], preserve_unit_iters=np.True_)
    loop = sch.get_loops(sch.get_block("Z"))[1]
    sch.sample_perfect_tile(loop, n=np.int64(2))
    text = sch.trace.to_json()
    assert Trace.from_json(text).to_json() == text
    for name, value, message in (
        ("preserve_unit_iters", 1, "takes bool, not int 1"),
        ("preserve_unit_iters", "yes", "takes bool, not str 'yes'"),
    ):
        with pytest.raises(ScheduleError, match=message):
            sch.split(loop, [2, 1], **{name: value})
    with pytest.raises(ScheduleError, match="n takes int, not bool True"):
        sch.sample_perfect_tile(loop, n=True)

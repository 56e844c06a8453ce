"""Data of anybody's with values of 10,000 characters in every place: no message repeats them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from schedule.programs import matmul

from metasched.errors import (
    QUOTED,
    MetaschedError,
    ParseError,
    ScheduleError,
    TargetError,
    TraceError,
)
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.script.tvm_json import program_of
from metasched.target import Target

LONG: list[Any] = [
    "x y " * 2500, "$" + "q " * 5000, [["ab cd"] * 2] * 500, {"x y " * 2500: 1}, 10**4000,
]  # fmt: skip
FOLDER = Path(__file__).parent / "data" / "tvm"


def damaged(data: Any) -> Iterator[Any]:
    """Copies of the data, each with something long in one place."""

    def places(inner: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        keys = inner if isinstance(inner, dict) else range(len(inner))
        for key in keys if isinstance(inner, dict | list) else ():
            yield (*path, key)
            if isinstance(inner[key], dict | list):
                yield from places(inner[key], (*path, key))

    for *path, last in places(data, ()):
        for value in LONG:
            whole = copy.deepcopy(data)
            inner = whole
            for key in path:
                inner = inner[key]
            inner[last] = value
            yield whole


def said(error: MetaschedError) -> str:
    return f"{error.message}{error.hint}" if isinstance(error, ScheduleError) else str(error)


def test_traces():
    sch = Schedule(matmul)
    i, *_ = sch.get_loops("C")
    sch.split(i, sch.sample_perfect_tile(i, n=2))
    sch.cache_write("C", 0, "local")
    sch.transform_layout("C", ("read", 0), lambda i, j: (i, j // 4, j % 4), pad_value=0)
    sch.annotate("C", "note", {"a": sch.sample_categorical([1, 2], [0.5, 0.5])})
    refused = 0
    for data in damaged(json.loads(sch.trace.to_json())):
        try:
            Trace.from_json(json.dumps(data)).apply(Schedule(matmul))
        except (TraceError, ScheduleError) as error:
            refused += 1
            assert len(said(error)) < 4 * QUOTED, said(error)[:QUOTED]
    assert refused > 200


def test_targets():
    refused = 0
    for data in damaged(Target.of("llvm -mcpu=haswell").to_json()):
        try:
            Target.of(data)
        except TargetError as error:
            refused += 1
            assert len(str(error)) < 4 * QUOTED, str(error)[:QUOTED]
    assert refused > 20


def test_programs_of_tvm():
    line = (FOLDER / "workloads.json").read_text(encoding="utf-8").splitlines()[0]
    from metasched.database.tvm_import import _module_text

    module = json.loads(_module_text(json.loads(line)[1]))
    for node in (*range(0, len(module["nodes"]), 11), -1):
        for field in ("type", "data"):
            for value in LONG:
                data = copy.deepcopy(module)
                data["nodes"][node][field] = value
                try:
                    program_of(json.dumps(data))
                except ParseError as error:
                    assert len(str(error)) < 4 * QUOTED, str(error)[:QUOTED]
    with pytest.raises(ParseError) as caught:
        program_of(json.dumps({**module, "root_index": "x y " * 2500}))
    assert len(str(caught.value)) < 2 * QUOTED


def test_a_long_word_in_any_message():
    word = "x" * 10_000
    assert str(MetaschedError(f"no {word} here")) == f"no {'x' * (QUOTED - 3)}... here"
    assert ScheduleError("split", "factors", lambda: word).message == f"{'x' * (QUOTED - 3)}..."

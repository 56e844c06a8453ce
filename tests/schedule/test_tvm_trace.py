"""Traces that TVM 0.26 wrote, compared with the programs that TVM built from them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from oracle import check_numbers, check_trace

import metasched as ms
from metasched.errors import ScheduleError, TraceError
from metasched.ir.expr import as_int
from metasched.ir.func import PrimFunc
from metasched.schedule.tvm_trace import _STEPS
from metasched.script import parse

DATA = json.loads(
    (Path(__file__).parent.parent / "data" / "tvm" / "steps.json").read_text(encoding="utf-8")
)
PROGRAMS = {name: parse(text) for name, text in DATA["programs"].items()}
# Results that differ on purpose: declared regions of parts, an init that TVM's rfactor leaves out,
# iterators of one iteration, a mark that is a number here.
OURS = {"loop_partition", "rfactor", "decompose_padding", "read_at", "write_at"}
EXACT = {"transform_layout", "transform_layout2", "transform_layout3"}


def function(module: ms.IRModule) -> PrimFunc:
    (func,) = module.functions.values()
    return func


@pytest.mark.parametrize("name", DATA["steps"])
def test_each_step_gives_the_program_that_tvm_made(name: str) -> None:
    case = DATA["steps"][name]
    module = PROGRAMS[case["program"]]
    trace = ms.Trace.from_tvm_json(json.dumps(case["trace"]))
    sch = ms.Schedule(module)
    trace.apply(sch)
    assert ("result" in case) is (name not in OURS)
    if "result" in case:
        ms.assert_structural_equal(sch.mod, parse(case["result"]))
    if name not in EXACT:  # blocks with padding or another layout keep to other regions
        check_numbers(function(module), sch.mod)
    check_trace(module, sch)
    again = ms.Schedule(module)
    ms.Trace.from_json(trace.to_json()).apply(again)
    ms.assert_structural_equal(again.mod, sch.mod)


def test_sample_traces_use_most_of_the_known_steps() -> None:
    seen = {item[0] for case in DATA["steps"].values() for item in case["trace"][0]}
    missing = {
        "CacheIndex", "CacheInplace", "FuseReductionEpilogue", "GetBlock", "Merge", "Parallel",
        "RollingBuffer", "SamplePerfectTile", "Tensorize", "UnsafeHideBufferAccess",
    }  # fmt: skip
    assert seen == set(_STEPS) - missing


def test_steps_that_tvm_accepts_silently_are_accepted() -> None:
    """Annotating an equal value, parallel on a parallel loop, fuse of one loop: nothing changes."""
    trace = [
        [
            ["GetSBlock", [], ["C", "main"], ["b0"]],
            ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
            ["Annotate", ["b0", '"first"'], ["note"], []],
            ["Annotate", ["b0", '"second"'], ["note"], []],
            ["Annotate", ["l1", 3], ["note"], []],
            ["Annotate", ["l1", 4], ["note"], []],
            ["Parallel", ["l1"], [], []],
            ["Fuse", ["l1"], [1], ["l4"]],
            ["Parallel", ["l4"], [], []],
            ["Fuse", ["l2"], [1], ["l5"]],
            ["Vectorize", ["l5"], [], []],
            ["Vectorize", ["l5"], [], []],
        ],
        [],
    ]
    sch = ms.Schedule(PROGRAMS["p0"])
    ms.Trace.from_tvm_json(trace).apply(sch)
    i, j, _ = sch.get_loops("C")
    assert (
        sch.get(sch.get_block("C")).annotations["note"] == "first"
        and sch.get(i).annotations["note"] == 3
    )
    assert [sch.get(loop).kind.value for loop in (i, j)] == ["parallel", "vectorized"]
    check_numbers(function(PROGRAMS["p0"]), sch.mod)
    check_trace(PROGRAMS["p0"], sch)


def test_decisions_are_data_and_are_checked() -> None:
    sample = [
        ["GetSBlock", [], ["C", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
        ["SamplePerfectTile", ["l1"], [2, 8], ["v4", "v5"]],
        ["Split", ["l1", "v4", "v5"], [1, 0], ["l6", "l7"]],
        ["SampleCategorical", [], [[1, 2], [0.5, 0.5]], ["v8"]],
        ["Annotate", ["l6", "v8"], ["unroll"], []],
    ]
    sch = ms.Schedule(PROGRAMS["p0"])
    ms.Trace.from_tvm_json([sample, [[2, [4, 4]], [4, 1]]]).apply(sch)
    assert sch.get(sch.get_loops("C")[0]).annotations["unroll"] == 2
    assert [as_int(sch.get(loop).extent) for loop in sch.get_loops("C")[:2]] == [4, 4]
    for decisions, reason in (([[2, [4, 5]], [4, 1]], "decision-not-allowed"),
                              ([[2, [4, 4]], [4, 2]], "decision-not-allowed"),
                              ([[4, 1]], "no-decision")):  # fmt: skip
        with pytest.raises(ScheduleError) as caught:
            ms.Trace.from_tvm_json([sample, decisions]).apply(ms.Schedule(PROGRAMS["p0"]))
        assert caught.value.reason == reason
    free = ms.Schedule(PROGRAMS["p0"], seed=3)
    ms.Trace.from_tvm_json([sample, []]).apply(free, decisions="fresh")
    check_numbers(function(PROGRAMS["p0"]), free.mod)


GET = ["GetSBlock", [], ["C", "main"], ["b0"]]
LOOPS = ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]]
DAMAGED: list[tuple[Any, str]] = [
    ("{", "the trace is not JSON"),
    ("{}", "a list of instructions and a list of decisions"),
    ([[]], "a list of instructions and a list of decisions"),
    ([[], [3]], "3 is no decision"),
    ([["GetSBlock"], []], "instruction 0 is not [kind, inputs, attributes, outputs]"),
    ([[["GetSBlock", [], ["C"], ["b0"]]], []], "(GetSBlock) has other inputs or attributes"),
    ([[["EvalPython", [], ["import os"], []]], []], "(EvalPython): there is no such step here"),
    ([[GET, ["Parallel", ["l9"], [], []]], []], "uses 'l9', which no earlier instruction gives"),
    ([[GET, GET], []], "instruction 1 (GetSBlock) has a bad or repeated output 'b0'"),
    ([[["GetSBlock", [], ["C", "main"], ["x"]]], []], "bad or repeated output 'x'"),
    ([[["GetSBlock", [], ["C", "main"], [["b"]]]], []], "bad or repeated output ['b']"),
    ([[GET, ["Parallel", ["b0"], [], []]], []], "loop takes LoopRV, not BlockRV"),
    ([[GET, LOOPS, ["Bind", ["l1"], [3], []]], []], "thread_axis takes str, not int 3"),
    ([[GET, LOOPS, ["Split", ["l1", 4], ["x"], []]], []], "(Split) has other inputs"),
    ([[GET, ["TransformLayout", ["b0", "{}"], [0, 0, None, 1], []]], []], "not a program of TVM's"),
    ([[GET, ["TransformBlockLayout", ["b0"], ["lambda i: i"], []]], []], "not JSON"),
    ([[GET, ["ReIndex", ["b0"], [0, 7], ["b1"]]], []], "IndexError"),
]  # fmt: skip


@pytest.mark.parametrize("data, message", DAMAGED, ids=[m for _, m in DAMAGED])
def test_from_tvm_json_names_what_it_cannot_read(data: Any, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        ms.Trace.from_tvm_json(data)
    assert message in str(caught.value)


def test_damage_anywhere_is_an_error_of_ours() -> None:
    """Each value of two traces is replaced by values of other types, and read or refused."""
    for name in ("transform_layout", "location"):
        whole = DATA["steps"][name]["trace"]
        for path in _paths(whole):
            for value in (None, True, -1, 1e300, "x", [], {}):
                damaged = _with(whole, path, value)
                try:
                    trace = ms.Trace.from_tvm_json(damaged)
                    trace.apply(ms.Schedule(PROGRAMS[DATA["steps"][name]["program"]]))
                except ms.MetaschedError:
                    continue


def _paths(value: Any) -> list[tuple[int, ...]]:
    if not isinstance(value, list):
        return [()]
    return [(i, *rest) for i, item in enumerate(value) for rest in [(), *_paths(item)]]


def _with(whole: Any, path: tuple[int, ...], value: Any) -> Any:
    copied = copy.deepcopy(whole)
    inner = copied
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return copied

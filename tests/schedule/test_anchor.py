"""Anchor traces: a trace of one function, applied to a similar function."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from oracle import check_transform

import metasched as ms
from metasched.errors import ScheduleError, TraceError
from metasched.ir.visit import blocks_of
from metasched.script import tir as T

RECORDS = Path(__file__).parent.parent / "data" / "tvm" / "records.json"
PRODUCT = 1  # the workload of the samples that is a product of 16 x 16 matrices
TRACES = [
    ms.Trace.from_tvm_json(record[0])
    for workload, record in map(json.loads, RECORDS.read_text(encoding="utf-8").splitlines())
    if workload == PRODUCT
]


def product(before: bool, after: bool, *, rows: int = 16) -> ms.PrimFunc:
    """relu(A) @ B + bias, in up to five stages; the product's block is C as in the samples."""

    @T.macro
    def multiply(left, right, result):
        for i, j, k in T.grid(rows, 16, 16):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    result[vi, vj] = T.float32(0)
                result[vi, vj] = result[vi, vj] + left[vi, vk] * right[vk, vj]

    @T.macro
    def each(name, result, value):
        for i, j in T.grid(rows, 16):
            with T.block(name):
                vi, vj = T.axis.remap("SS", [i, j])
                result[vi, vj] = value(vi, vj)

    @T.prim_func
    def main(
        A: T.Buffer((rows, 16), "float32"),
        B: T.Buffer((16, 16), "float32"),
        bias: T.Buffer((16,), "float32"),
        out: T.Buffer((rows, 16), "float32"),
    ):
        if before:
            relu = T.alloc_buffer((rows, 16))
            each("relu", relu, lambda i, j: T.max(A[i, j], T.float32(0)))
        if after:
            raw = T.alloc_buffer((rows, 16))
            biased = T.alloc_buffer((rows, 16))
        multiply(relu if before else A, B, raw if after else out)
        if after:
            each("bias", biased, lambda i, j: raw[i, j] + bias[j])
            each("out", out, lambda i, j: T.max(biased[i, j], T.float32(0)))

    return main


def blocks(sch: ms.Schedule) -> set[str]:
    return {r.block.name for r in blocks_of(sch.mod["main"].root.body)}


@pytest.mark.parametrize("trace", TRACES, ids=range(len(TRACES)))
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_a_trace_serves_functions_with_stages_around_its_block(trace, before, after):
    func = product(before, after)
    sch = ms.Schedule(func)
    assert ms.schedule_using_anchor_trace(sch, trace) == []
    check_transform(func, sch)
    assert not blocks(sch) & {"relu", "bias"} and {"C_init", "C_update"} <= blocks(sch)
    if after:  # the last stage is part of the write-back, where the trace has one
        assert ("out" in blocks(sch)) is ("raw_global" not in blocks(sch))


def test_anchoring_on_the_same_function_keeps_the_trace():
    sch, plain = (ms.Schedule(product(before=False, after=False)) for _ in range(2))
    ms.schedule_using_anchor_trace(sch, TRACES[0], target="llvm")
    TRACES[0].apply(plain)
    ms.assert_structural_equal(sch.mod, plain.mod)


def test_steps_for_absent_blocks_are_skipped_and_reported():
    long = ms.Schedule(product(before=True, after=True))
    long.compute_inline("relu")
    out = long.get_block("out")
    i, _ = long.get_loops(out)
    long.annotate(i, "note", 1)
    long.reverse_compute_inline("out")
    first, *_ = long.get_loops("C")
    long.parallel(first)
    sch = ms.Schedule(product(before=False, after=False))
    told = ms.schedule_using_anchor_trace(sch, long.trace)
    assert told[0] == "get_block 'relu': not in this function"
    assert "compute_inline: not in this function" in told and len(told) >= 4
    assert sch.get(sch.get_loops("C")[0]).kind.value == "parallel"
    check_transform(product(before=False, after=False), sch)


def test_an_inlining_is_tried_in_the_other_direction():
    @T.prim_func
    def chain(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
        X = T.alloc_buffer((8,), "int32")
        for i in range(8):
            with T.block("x"):
                vi = T.axis.remap("S", [i])
                X[vi] = A[vi] + 1
        for i in range(8):
            with T.block("y"):
                vi = T.axis.remap("S", [i])
                B[vi] = X[vi] * 2
        for i in range(8):
            with T.block("z"):
                vi = T.axis.remap("S", [i])
                C[vi] = A[vi]

    @T.prim_func
    def other(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
        X = T.alloc_buffer((8,), "int32")
        for i in range(8):
            with T.block("y"):
                vi = T.axis.remap("S", [i])
                X[vi] = A[vi] + 1
        for i in range(8):
            with T.block("z"):
                vi = T.axis.remap("S", [i])
                B[vi] = X[vi] * 2
                C[vi] = A[vi]

    recorded = ms.Schedule(chain)
    recorded.reverse_compute_inline("y")
    sch = ms.Schedule(other)
    assert ms.schedule_using_anchor_trace(sch, recorded.trace) == []
    assert "y" not in blocks(sch)
    check_transform(other, sch)


def test_a_trace_that_does_not_fit_leaves_the_schedule_unchanged():
    for func, error, message in [
        (product(before=True, after=True, rows=12), ScheduleError, "decision"),
        (ms.workloads.get("sfm").func((4, 8)), TraceError, "no block of the trace is here"),
    ]:
        sch = ms.Schedule(func)
        whole = sch.mod
        with pytest.raises(error, match=message):
            ms.schedule_using_anchor_trace(sch, TRACES[0])
        assert sch.mod is whole and not len(sch.trace)
    with pytest.raises(TraceError, match="takes a Schedule and a Trace"):
        ms.schedule_using_anchor_trace(func, TRACES[0])
    module = ms.IRModule({"a": product(before=False, after=False), "b": product(False, True)})
    with pytest.raises(TraceError, match="a module of one function"):
        ms.schedule_using_anchor_trace(ms.Schedule(module), TRACES[0])

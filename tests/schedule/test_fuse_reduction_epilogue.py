"""fuse_reduction_epilogue: epilogues that may start the reduction, and refusals of all others."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform

from metasched.ir.equal import assert_structural_equal
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T


@T.prim_func
def bias(
    A: T.Buffer((4, 8), "int32"),
    B: T.Buffer((8, 6), "int32"),
    E: T.Buffer((4, 6), "int32"),
    D: T.Buffer((6, 4), "int32"),
):
    C = T.alloc_buffer((4, 6), "int32")
    for i, j, k in T.grid(4, 6, 8):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(4, 6):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vj, vi] = C[vi, vj] + E[vi, vj]


@T.prim_func
def bias_fused(
    A: T.Buffer((4, 8), "int32"),
    B: T.Buffer((8, 6), "int32"),
    E: T.Buffer((4, 6), "int32"),
    D: T.Buffer((6, 4), "int32"),
):
    T.func_attr({"global_symbol": "bias"})
    for i, j, k in T.grid(4, 6, 8):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            T.reads(E[vi, vj], A[vi, vk], B[vk, vj])
            T.writes(D[vj, vi])
            with T.init():
                D[vj, vi] = E[vi, vj]
            D[vj, vi] = D[vj, vi] + A[vi, vk] * B[vk, vj]


def test_a_bias():
    sch = Schedule(bias, seed=0)
    block = sch.get_block("C")
    sch.fuse_reduction_epilogue(block, "D")
    assert_structural_equal(sch.mod["main"], bias_fused)
    assert sch.get(block).name == "C"
    check_transform(bias, sch)


def epilogue(update: str, init: str, value: str, where: str = "", middle: str = "", more: str = ""):
    text = f"""
@T.prim_func
def main(
    A: T.Buffer((4, 8), "int32"), E: T.Buffer((4,), "int32"),
    D: T.Buffer((4,), "int32"), F: T.Buffer((4,), "int32"),
):
    C = T.alloc_buffer((4,), "int32")
    G = T.alloc_buffer((4,), "int32")
    for i, k in T.grid(4, 8):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = {init}
            C[vi] = {update}
    {middle}
    for i in range(4):
        with T.block("D"):
            vi = T.axis.spatial(4, i)
            {where}
            D[vi] = {value}
    {more}
"""
    return parse(text)


SUM = ("C[vi] + A[vi, vk]", "0")
LOW = "T.min_value('int32')"


@pytest.mark.parametrize(
    ("update", "init", "value"),
    [
        (*SUM, "C[vi] + E[vi]"),
        (*SUM, "E[vi] + C[vi]"),
        (*SUM, "C[vi] - E[vi] * 3"),
        (*SUM, "C[vi] + 7"),
        ("C[vi] * A[vi, vk]", "1", "C[vi] * E[vi]"),
        ("T.max(C[vi], A[vi, vk])", LOW, "T.max(C[vi], 0)"),
        ("T.min(C[vi], A[vi, vk])", "T.max_value('int32')", "T.min(E[vi], C[vi])"),
    ],
)
def test_epilogues_by_the_same_operation(update, init, value):
    func = epilogue(update, init, value)
    sch = Schedule(func, seed=0)
    sch.fuse_reduction_epilogue("C", "D")
    check_transform(func, sch)


@pytest.mark.parametrize(
    ("update", "init", "value"),
    [
        (*SUM, "T.max(C[vi], 0)"),
        (*SUM, "C[vi] * 2"),
        (*SUM, "E[vi] - C[vi]"),
        (*SUM, "C[vi] + C[vi]"),
        (*SUM, "T.max(C[vi], 0) + E[vi]"),
        ("T.max(C[vi], A[vi, vk])", LOW, "T.min(C[vi], 6)"),
        ("T.max(C[vi], A[vi, vk])", LOW, "C[vi] + 6"),
    ],
)
def test_an_epilogue_that_must_come_last_is_refused(update, init, value):
    sch = Schedule(epilogue(update, init, value), seed=0)
    step = lambda: sch.fuse_reduction_epilogue("C", "D")  # noqa: E731
    error = check_refused(sch, step, "not-fusable", "would change the result")
    assert "reverse_compute_at" in error.hint


def test_structure_that_is_refused():
    def refused(func, reason, message, blocks=("C", "D")):
        sch = Schedule(func, seed=0)
        check_refused(sch, lambda: sch.fuse_reduction_epilogue(*blocks), reason, message)

    plain = epilogue(*SUM, "C[vi] + 1")
    refused(plain, "no-init", "has no init", ("D", "C"))
    refused(epilogue(*SUM, "C[vi] + 1", "T.where(i < 3)"), "has-predicate", "D has a predicate")
    refused(epilogue(*SUM, "E[vi] + 1"), "other-consumers", "not D reads C")
    refused(
        epilogue("C[vi] + A[vi, vk]", "1", "C[vi] + 1"), "no-reducer", "starts from its identity"
    )
    refused(epilogue(*SUM, "C[3 - vi] + 1"), "other-iterators", r"read at 3 - vi,")
    refused(plain, "is-root", "root", ("root", "D"))
    two = """for i in range(4):
        with T.block("F"):
            vi = T.axis.spatial(4, i)
            F[vi] = C[vi]
"""
    refused(epilogue(*SUM, "C[vi] + 1", more=two), "other-consumers", "F reads C")
    between = """for i in range(4):
        with T.block("G"):
            vi = T.axis.spatial(4, i)
            G[vi] = E[vi] * 2
"""
    func = epilogue(*SUM, "C[vi] + G[vi]", middle=between)
    refused(func, "in-between", "G is between the two blocks, and the epilogue depends on it by G")
    sch = Schedule(bias, seed=0)
    sch.fuse_reduction_epilogue("C", "D")
    sch = Schedule(epilogue(*SUM, "C[vi] + 1"), seed=0)
    outer = sch.blockize(sch.get_loops("C")[0])
    check_refused(
        sch, lambda: sch.fuse_reduction_epilogue("C", "D"), "other-scope", "different blocks"
    )
    assert sch.get(outer)


def test_the_reduction_writes_no_output():
    @T.prim_func
    def output(
        A: T.Buffer((4, 8), "int32"), C: T.Buffer((4,), "int32"), D: T.Buffer((4,), "int32")
    ):
        for i, k in T.grid(4, 8):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = 0
                C[vi] = C[vi] + A[vi, vk]
        for i in range(4):
            with T.block("D"):
                vi = T.axis.spatial(4, i)
                D[vi] = C[vi] + 1

    sch = Schedule(output, seed=0)
    check_refused(
        sch, lambda: sch.fuse_reduction_epilogue("C", "D"), "output-block", "writes an output"
    )


def test_a_body_of_two_stores_is_refused():
    func = epilogue(*SUM, "C[vi] + 1\n            F[vi] = 1")
    sch = Schedule(func, seed=0)
    check_refused(
        sch, lambda: sch.fuse_reduction_epilogue("C", "D"), "not-one-store", "is not one store"
    )


def test_after_tiling():
    sch = Schedule(bias, seed=0)
    i, j, k = sch.get_loops("C")
    i0, i1 = sch.split(i, [None, 3])
    k0, k1 = sch.split(k, [None, 4])
    sch.reorder(i0, j, k0, i1, k1)
    sch.fuse_reduction_epilogue("C", "D")
    check_transform(bias, sch)

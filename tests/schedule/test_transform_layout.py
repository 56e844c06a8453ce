"""transform_layout: buffers in another layout, with each way to fill the padding."""

from __future__ import annotations

from typing import Any

import numpy as np
from oracle import check_refused, check_transform
from schedule.golden_programs import becomes
from schedule.programs import elementwise, matmul_relu

from metasched.arith.indexmap import IndexMap
from metasched.ir.interp import run
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.script import tir as T


@T.prim_func
def packed(A: T.Buffer((8, 12), "float32"), C: T.Buffer((8, 12), "float32")):
    B = T.alloc_buffer((2, 3, 4, 4), "float32")
    for i, j in T.grid(8, 12):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi // 4, vj // 4, vi % 4, vj % 4] = A[vi, vj] * T.float32(2)
    for i, j in T.grid(8, 12):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi // 4, vj // 4, vi % 4, vj % 4] + T.float32(1)


@T.prim_func
def copy(A: T.Buffer((14,), "int32"), B: T.Buffer((14,), "int32")):
    for i in range(14):
        with T.block("block"):
            vi = T.axis.spatial(14, i)
            B[vi] = A[vi]


@T.prim_func
def copy_assumes(A: T.Buffer((4, 4), "int32"), B: T.Buffer((14,), "int32")):
    for i, j in T.grid(4, 4):
        with T.block("buffer_A_assumption"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.evaluate(T.assume(not (vi == 3 and 2 <= vj) or A[vi, vj] == 42))
    for i in range(14):
        with T.block("block"):
            vi = T.axis.spatial(14, i)
            B[vi] = A[vi // 4, vi % 4]


@T.prim_func
def copy_chooses(A: T.Buffer((14,), "int32"), B: T.Buffer((4, 4), "int32")):
    for i, j in T.grid(4, 4):
        with T.block("block"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = T.if_then_else(vi == 3 and 2 <= vj, 7, A[vi * 4 + vj])


@T.prim_func
def copy_front(A: T.Buffer((14,), "int32"), B: T.Buffer((4, 4), "int32")):
    for i, j in T.grid(4, 4):
        with T.block("block"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = T.if_then_else(vi == 0 and vj < 2, vi + vj, A[vi * 4 + vj - 2])


@T.prim_func
def reduction(A: T.Buffer((14, 6), "int32"), B: T.Buffer((14,), "int32")):
    for i, k in T.grid(14, 6):
        with T.block("block"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = 0
            B[vi] = B[vi] + A[vi, vk]


@T.prim_func
def reduction_fills(A: T.Buffer((14, 6), "int32"), B: T.Buffer((4, 4), "int32")):
    for i, k in T.grid(14, 6):
        with T.block("block"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi // 4, vi % 4] = 0
            B[vi // 4, vi % 4] = B[vi // 4, vi % 4] + A[vi, vk]
    for i, j in T.grid(4, 4):
        with T.block("block_pad_B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.reads()
            T.writes(B[vi, vj])
            if vi == 3 and 2 <= vj:
                B[vi, vj] = 0


@T.prim_func
def viewed(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32")):
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            T.reads(A[vi, 0:8])
            T.writes(B[vi, 0:8])
            V = T.match_buffer(B[vi, 0:8], (8,), "float32")
            for j in range(8):
                with T.block("inner"):
                    vj = T.axis.spatial(8, j)
                    V[vj] = A[vi, vj]


@T.prim_func
def symbolic(a: T.handle, b: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n, 8), "float32")
    B = T.match_buffer(b, (8,), "float32")
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[0, vi]


@T.prim_func
def strided(A: T.Buffer((4, 4), "float32", strides=(8, 1)), B: T.Buffer((4, 4), "float32")):
    for i, j in T.grid(4, 4):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj]


def pack(i, j):
    return i // 4, j // 4, i % 4, j % 4


rows = lambda i: [i // 4, i % 4]  # noqa: E731


def results(sch, *args):
    """The last argument after running interpreted, which compiled code must equal."""
    first, second = ([a.copy() for a in args] for _ in range(2))
    run(sch.mod, *first, check_regions=True)
    build(sch.mod)(*second)
    np.testing.assert_array_equal(first[-1], second[-1])
    return first[-1]


def test_a_temporary_in_blocks():
    whole = elementwise.root.alloc_buffers[0]
    for block, given in (("B", ("write", 0)), ("C", ("read", 0)), ("C", "B"), ("B", whole)):
        sch = Schedule(elementwise)
        sch.transform_layout(block, given, pack)
        becomes(elementwise, sch, packed)
    sch = Schedule(elementwise)
    sch.transform_layout("B", "B", IndexMap.of(pack, 2))
    becomes(elementwise, sch, packed)


def test_a_parameter_changes_its_shape():
    sch = Schedule(elementwise)
    sch.transform_layout("B", ("read", 0), lambda *i: [i[1], i[0]])
    data = np.arange(96, dtype="float32").reshape(8, 12)
    out = results(sch, np.ascontiguousarray(data.T), np.zeros((8, 12), "float32"))
    np.testing.assert_array_equal(out, data * 2 + 1)


def test_padding_of_an_input_is_assumed():
    sch = Schedule(copy)
    sch.transform_layout("block", "A", rows, pad_value=42)
    becomes(copy, sch, copy_assumes, numbers=False)
    data = np.full(16, 42, "int32")
    data[:14] = np.arange(14)
    out = results(sch, data.reshape(4, 4), np.zeros(14, "int32"))
    np.testing.assert_array_equal(out, np.arange(14))


def test_an_element_wise_writer_writes_the_padding_along():
    sch = Schedule(copy)
    sch.transform_layout("block", "B", rows, 7)
    becomes(copy, sch, copy_chooses, numbers=False)
    out = results(sch, np.arange(14, dtype="int32"), np.zeros((4, 4), "int32"))
    np.testing.assert_array_equal(out.reshape(-1), [*range(14), 7, 7])


def test_padding_in_front_by_a_function_of_the_index():
    sch = Schedule(copy)
    sch.transform_layout("block", "B", lambda i: [(i + 2) // 4, (i + 2) % 4], lambda i, j: i + j)
    becomes(copy, sch, copy_front, numbers=False)
    out = results(sch, np.arange(14, dtype="int32"), np.zeros((4, 4), "int32"))
    np.testing.assert_array_equal(out.reshape(-1), [0, 1, *range(14)])


def test_padding_after_a_reduction_is_filled():
    sch = Schedule(reduction)
    sch.transform_layout("block", ("write", 0), rows, pad_value=0)
    becomes(reduction, sch, reduction_fills, numbers=False)
    out = results(sch, np.ones((14, 6), "int32"), np.full((4, 4), 9, "int32"))
    np.testing.assert_array_equal(out.reshape(-1), [*[6] * 14, 0, 0])


def test_an_offset_is_padding():
    sch = Schedule(elementwise)
    sch.transform_layout("B", "B", lambda i, j: (i + 2, j), pad_value=5)
    check_transform(elementwise, sch)
    assert "T.if_then_else(v0 < 2, T.float32(5)" in sch.script()


def test_padding_in_two_dimensions_of_a_temporary():
    sch = Schedule(matmul_relu)
    sch.transform_layout("C", "C", lambda i, j: (i // 3, j // 4, i % 3, j % 4), pad_value=1.5)
    check_transform(matmul_relu, sch)
    sch = Schedule(elementwise)
    sch.transform_layout("B", "B", lambda i, j: (i // 3, j // 5, i % 3, j % 5), pad_value=-1)
    check_transform(elementwise, sch)
    assert "if_then_else" in sch.script()


def test_assume_injective_transform_skips_the_proof():
    sch = Schedule(copy)
    sch.transform_layout("block", "B", lambda i: i * 2, assume_injective_transform=True)
    out = results(sch, np.arange(14, dtype="int32"), np.zeros(27, "int32"))
    np.testing.assert_array_equal(out[::2], np.arange(14))


def test_a_buffer_used_under_moved_loops():
    sch = Schedule(elementwise)
    sch.compute_at("B", sch.get_loops("C")[0])
    sch.transform_layout("B", "B", pack)
    check_transform(elementwise, sch)


def test_refusals():
    sch = Schedule(copy)

    def try_(reason, message, fn=rows, buffer="B", pad=None, sch=sch, block="block"):
        step = lambda: sch.transform_layout(block, buffer, fn, pad)  # noqa: E731
        return check_refused(sch, step, reason, message)

    error = try_("needs-pad-value", "padding elements without an old element, where")
    assert "pad_value" in error.hint
    try_("not-injective", "injective on the elements of B", lambda i: i // 2)
    try_("not-injective", "leaves gaps", lambda i: i * 2)
    try_("bad-index-map", "gives values that are not integers", lambda i: i < 3)
    other = T.int32()
    try_("bad-index-map", "mentions", lambda i: i + other)
    try_("negative-index", "may be negative", lambda i: i - 3)
    try_("bad-index-map", "takes 2 indices, 1 are needed", lambda i, j: i)
    try_("bad-pad-value", "pad_value is float32, B holds int32", pad=1.5)
    try_("bad-pad-value", "pad_value is float32, B holds int32", pad=T.float32(1) + T.float32(2))
    try_("bad-pad-value", "gives 2 values", pad=lambda i, j: [i, j])
    try_("bad-pad-value", "takes 1 indices, 2 are needed", pad=lambda i: i)
    try_("bad-pad-value", "loads from memory", pad=lambda i, j: copy.params[0][i])
    error = try_("bad-pad-value", "does not fit", pad=1 << 40)
    assert error.message == f"pad_value for B: {1 << 40} does not fit in int32"
    assert "an integer from -2147483648 to 2147483647" in error.hint
    assert "int32" in try_("bad-pad-value", "does not fit", pad=10**400).hint
    try_("no-such-buffer", "no buffer 'X'", buffer="X")
    swap = lambda i, j: (j, i)  # noqa: E731
    flip = lambda i: 7 - i  # noqa: E731
    sch = Schedule(viewed)
    try_("matched-buffer", "is a view made by match_buffer", flip, "V", sch=sch, block="inner")
    try_("opaque-use", "B matches a region of B", swap, "B", sch=sch, block="B")
    try_("strided", "A has strides", swap, "A", sch=Schedule(strided), block="B")
    lines = lambda i, j: (i // 4, i % 4, j)  # noqa: E731
    sch = Schedule(symbolic)
    step = lambda: sch.transform_layout("B", "A", lines, None, True)  # noqa: E731
    check_refused(sch, step, "symbol-lost", "the extent n would no longer follow")
    sch = Schedule(elementwise)
    sch.storage_align("B", 0, 0, 16, 4)
    try_("aligned-buffer", "B aligns axis 0 of B", swap, "B", sch=sch, block="C")
    sch = Schedule(elementwise)
    sch.vectorize(sch.get_loops("C")[1])
    sch.transform_layout("C", "B", swap)
    check_transform(elementwise, sch)


def test_a_map_over_a_sampled_value_follows_the_decision():
    sch = Schedule(elementwise, seed=0)
    block = sch.get_block("B")
    (i, _) = sch.get_loops(block)
    _, strip = sch.sample_perfect_tile(i, n=2)
    sch.transform_layout(block, ("write", 0), lambda x, y: (x // strip, y, x % strip))
    trace = sch.trace
    source: dict[str, Any] = {}
    exec(trace.as_python(), source)
    written = Schedule(elementwise)
    source["apply_trace"](written)
    stored = Trace.from_json(trace.to_json())
    assert written.trace.to_json() == stored.to_json() == trace.to_json()
    ((position, _),) = stored.sampling()
    for width in (2, 4):
        again = Schedule(elementwise)
        stored.with_decision(position, [8 // width, width]).apply(again)
        shape = again.get(again.get_block("B")).writes[0].buffer.shape
        assert [n.value for n in shape] == [8 // width, 12, width]

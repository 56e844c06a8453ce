"""Loops of every kind against the interpreter: vectors and their rests, unrolling, teams, tests."""

from __future__ import annotations

import re

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, build, call, integers

MATMUL = """
@T.prim_func
def main(A: T.Buffer(({n}, {k}), "float32"), B: T.Buffer(({k}, {m}), "float32"),
         C: T.Buffer(({n}, {m}), "float32")):
    for i in T.{outer}({n}):
        for k in T.serial({k}):
            for j in T.{inner}({m}):
                with T.block("C"):
                    vi, vk, vj = T.axis.remap("SRS", [i, k, j])
                    with T.init():
                        C[vi, vj] = T.float32(0)
                    C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""


@pytest.mark.parametrize("outer", ["serial", "parallel", "unroll"])
@pytest.mark.parametrize("inner", ["serial", "vectorized", "unroll"])
def test_matmul_in_every_kind_of_loop(outer: str, inner: str) -> None:
    n, m, k = 6, 23, 5
    text = MATMUL.format(n=n, m=m, k=k, outer=outer, inner=inner)
    arrays = integers((n, k)), integers((k, m), seed=1), np.full((n, m), np.nan, "float32")
    agree(text, *arrays)


@pytest.mark.parametrize("extent", [1, 2, 3, 7, 15, 16, 17, 31, 48, 100, 16 * 40 + 5])
def test_vector_loops_of_any_extent(extent: int) -> None:
    text = f"""
@T.prim_func
def main(A: T.Buffer(({extent},), "float32"), B: T.Buffer(({extent},), "float32")):
    for i in T.vectorized({extent}):
        with T.block("B"):
            vi = T.axis.spatial({extent}, i)
            B[vi] = A[vi] * T.float32(2) + T.Cast("float32", vi)
"""
    agree(text, integers((extent,)), np.zeros(extent, "float32"))


def test_vector_loop_of_symbolic_extent() -> None:
    text = """
@T.prim_func
def main(a: T.handle, b: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n, 3), "float32")
    B = T.match_buffer(b, (3, n), "float32")
    for i in T.serial(3):
        for j in T.vectorized(n):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vj, vi] + T.Cast("float32", n)
"""
    for n in (0, 1, 15, 16, 50):
        compiled = agree(text, integers((n, 3)), np.zeros((3, n), "float32"))
    assert compiled.signature.symbols == ("n",)


def test_accesses_with_strides_and_in_reverse() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((40, 3), "float32"), B: T.Buffer((40,), "float32"),
         C: T.Buffer((40, 2), "float32")):
    for i in T.vectorized(40):
        with T.block("B"):
            vi = T.axis.spatial(40, i)
            B[vi] = A[39 - vi, 1] + A[vi, 0]
    for i in T.vectorized(40):
        with T.block("C"):
            vi = T.axis.spatial(40, i)
            C[vi, 1] = B[39 - vi]
"""
    agree(text, integers((40, 3)), np.zeros(40, "float32"), np.zeros((40, 2), "float32"))


def test_gather_through_an_index_buffer() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((50,), "float32"), I: T.Buffer((37,), "int32"),
         B: T.Buffer((37,), "float32")):
    for i in T.vectorized(37):
        with T.block("B"):
            vi = T.axis.spatial(37, i)
            B[vi] = A[I[vi]] + A[vi // 3 + vi % 5]
"""
    index = np.random.default_rng(0).integers(0, 50, 37).astype("int32")
    agree(text, integers((50,)), index, np.zeros(37, "float32"))


PLACES = """
@T.prim_func
def main(A: T.Buffer(({size},), "{kind}"), I: T.Buffer((37,), "{index}"),
         B: T.Buffer((37,), "{kind}")):
    for i in T.vectorized(37):
        with T.block("B"):
            vi = T.axis.spatial(37, i)
            {access}
"""


@pytest.mark.parametrize("kind", ["float32", "float64", "int64"])
@pytest.mark.parametrize(
    ("index", "start", "access"),
    [
        ("int32", 0, "B[vi] = A[I[vi] * 3 + vi]"),
        ("int32", -40, "B[vi] = A[I[vi] * 2 + 90]"),
        ("int64", 3 << 33, "B[vi] = A[(I[vi] - 3 * 8589934592) * 4 + 5]"),
        ("int64", 0, "B[vi] = A[(I[vi] * 4294967299 + vi) % 190]"),
        ("int32", 0, "A[I[vi] * 3] = B[vi]"),
    ],
)
def test_places_of_lanes_are_added_in_32_bits(kind, index, start, access) -> None:
    text = PLACES.format(size=200, kind=kind, index=index, access=access)
    if access[0] == "B":  # without an order in the lanes
        assert re.search(r"getelementptr \w+, ptr %\w+, <\d+ x i32>", build(text).llvm_ir)
    places = np.random.default_rng(0).permutation(37).astype(index) + start
    values = integers((200,)).astype(kind)
    agree(text, values, places, integers((37,)).astype(kind))


def test_places_in_a_large_buffer_have_64_bits() -> None:
    for size, narrow in ((1 << 31, True), ((1 << 31) + 1, False)):
        text = PLACES.format(size=size, kind="float32", index="int32", access="B[vi] = A[I[vi]]")
        found = re.search(r"getelementptr float, ptr %\w+, <\d+ x i32>", build(text).llvm_ir)
        assert bool(found) is narrow


def test_a_vector_loop_that_accumulates_runs_in_order() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((37,), "float32"), B: T.Buffer((1,), "float32")):
    for i in T.vectorized(37):
        B[0] = B[0] + A[i]
"""
    arrays = integers((37,)), np.zeros(1, "float32")
    assert call(build(text), *arrays) == 0
    assert arrays[1][0] == arrays[0].sum()


def test_predicates_are_masks_and_split_loops() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((45, 50), "float32"), B: T.Buffer((45, 50), "float32")):
    for i0 in T.parallel(6):
        for i1 in T.unroll(8):
            for j0 in T.serial(4):
                for j1 in T.vectorized(16):
                    with T.block("B"):
                        T.where(i0 * 8 + i1 < 45 and j0 * 16 + j1 < 50)
                        vi = T.axis.spatial(45, i0 * 8 + i1)
                        vj = T.axis.spatial(50, j0 * 16 + j1)
                        B[vi, vj] = A[vi, vj] + T.float32(1)
"""
    compiled = agree(text, integers((45, 50)), np.zeros((45, 50), "float32"))
    assert "masked.store" in compiled.llvm_ir


def test_padding_reads_only_where_the_condition_holds() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((30,), "float32"), B: T.Buffer((34,), "float32")):
    for i in T.{kind}(34):
        with T.block("B"):
            vi = T.axis.spatial(34, i)
            B[vi] = T.if_then_else(vi >= 2 and vi < 32, A[vi - 2], T.float32(0))
"""
    for kind in ("serial", "vectorized", "unroll"):
        agree(text.replace("{kind}", kind), integers((30,)), np.zeros(34, "float32"))


def test_steps_and_starts() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((60,), "float32")):
    for i in T.serial(3, 60, step=7):
        A[i] = T.Cast("float32", i)
    for i in T.serial(40, 44):
        A[i] = A[i] - T.float32(1)
"""
    agree(text, np.zeros(60, "float32"))


def test_while_break_continue_and_return() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((20,), "int32"), B: T.Buffer((4,), "int32")):
    for i in T.serial(20):
        if A[i] == 3:
            continue
        if A[i] == 9:
            break
        B[0] = B[0] + A[i]
    B[1] = 1
    while B[1] < 100:
        B[1] = B[1] * 2
    B[2] = B[1] + B[0]
"""
    data = np.array([1, 2, 3, 4, 5, 3, 9] + [7] * 13, "int32")
    agree(text, data, np.zeros(4, "int32"))


def test_failed_assertion_is_a_return_code() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((4,), "int32")):
    for i in T.serial(4):
        assert A[i] > 0, "all positive"
        A[i] = 7
"""
    compiled = build(text)
    data = np.array([1, 2, -1, 4], "int32")
    code = call(compiled, data)
    assert compiled.signature.failure(code) == "assertion failed: all positive"
    assert list(data) == [7, 7, -1, 4]
    assert compiled.signature.failure(1) == "out of memory for a temporary buffer"
    assert compiled.signature.failure(3) == "the kernel returned 3"


def test_repeat_calls_the_kernel_n_times() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((1,), "int32")):
    A[0] = A[0] + 1
"""
    data = np.zeros(1, "int32")
    assert call(build(text), data, repeat=5) == 0
    assert data[0] == 5
    assert call(build(text), data, repeat=0) == 0
    assert data[0] == 5


def test_unroll_pragma_replicates_inner_loops() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((8, 4), "float32")):
    for i in T.serial(8, annotations={"pragma_auto_unroll_max_step": {steps}}):
        for j in T.serial(4):
            A[i, j] = A[i, j] + T.float32(1)
"""
    count = [
        agree(text.replace("{steps}", str(n)), integers((8, 4))).llvm_ir.count("phi i64 [ 0, %pre")
        for n in (0, 4, 32)
    ]
    assert count == [2, 1, 0]


def test_parallel_runs_serially_where_asked() -> None:
    text = MATMUL.format(n=6, m=8, k=3, outer="parallel", inner="vectorized")
    arrays = integers((6, 3)), integers((3, 8)), np.zeros((6, 8), "float32")
    assert agree(text, *arrays).parallel
    serial = agree(text, *arrays, parallel=False)
    assert not serial.parallel and "GOMP_parallel" not in serial.externs


def test_nested_parallel_loops_run_once() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((5, 7), "int32"), B: T.Buffer((5, 7), "int32")):
    for i in T.parallel(5):
        for j in T.parallel(7):
            B[i, j] = B[i, j] + A[i, j]
"""
    compiled = agree(text, integers((5, 7), "int32"), integers((5, 7), "int32"))
    assert compiled.llvm_ir.count("call void @GOMP_parallel") == 1


ROWS = """
@T.prim_func
def main(A: T.Buffer(({n}, {n}), "int32"), B: T.Buffer(({n}, {n}), "int32")):
    for i in T.parallel({n}):
        {row}
"""


@pytest.mark.parametrize(
    ("row", "calls"),
    [
        ("for j in range({n}): B[i, j] = B[i, j] + A[i, j]", 1),
        ("for j in range(i + 1): B[i, j] = B[i, j] + A[i, j]", 2),
        ("for j in range(i, {n}): B[i, j] = B[i, j] + A[i, j]", 2),
        ("for j in range({n}):\n            if j < i: B[i, j] = B[i, j] + A[i, j]", 2),
    ],
)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_threads_take_shares_from_both_ends_where_work_is_uneven(row, calls, n) -> None:
    """Each iteration runs once, whatever the number of iterations and threads."""
    text = ROWS.format(n=n, row=row.format(n=n))
    compiled = agree(text, integers((n, n), "int32"), integers((n, n), "int32"))
    if n == 8:
        assert len(re.findall(r"call i32 @[^ ]*body\(", compiled.llvm_ir)) == calls


def test_a_failed_assertion_in_a_team_is_reported() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((64,), "int32")):
    for i in T.parallel(64):
        assert A[i] >= 0, "not negative"
        A[i] = A[i] + 1
"""
    data = np.zeros(64, "int32")
    compiled = build(text)
    assert call(compiled, data) == 0
    data[63] = -5
    assert compiled.signature.failure(call(compiled, data)) == "assertion failed: not negative"


def test_extents_of_zero_do_nothing() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((4,), "int32")):
    for i in T.serial(0):
        A[i] = 1
    for i in T.vectorized(0):
        A[i] = 1
"""
    agree(text, np.zeros(4, "int32"))


def test_parallel_extents_below_zero_do_nothing() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((4,), "int32"), n: T.int32):
    for i in T.parallel(n - 3):
        A[i] = A[i] + 1
    for t in range(2):
        for i in T.parallel(n - t * 3):
            A[i] = A[i] + 1
"""
    for n in (0, 1, 2, 3, 4):
        agree(text, np.zeros(4, "int32"), n)


def test_arrays_need_only_the_alignment_of_their_items() -> None:
    text = MATMUL.format(n=4, m=40, k=3, outer="serial", inner="vectorized")
    backing = [np.zeros(n + 1, "float32") for n in (12, 120, 160)]
    a, b, c = (x[1:].reshape(s) for x, s in zip(backing, ((4, 3), (3, 40), (4, 40)), strict=True))
    a[...], b[...] = integers((4, 3)), integers((3, 40), seed=2)
    assert call(build(text), a, b, c) == 0
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize(("n", "dtype"), [(16, "float32"), (8, "int32"), (4, "float32")])
def test_squares_are_transposed_in_registers(n, dtype):
    text = f"""
@T.prim_func
def main(A: T.Buffer((48, 48), "{dtype}"), B: T.Buffer((48, 48), "{dtype}")):
    for jo, io in T.grid({48 // n}, {48 // n}):
        for i in T.unroll({n}):
            for j in T.vectorized({n}):
                with T.block("B"):
                    vi = T.axis.spatial(48, io * {n} + i)
                    vj = T.axis.spatial(48, jo * {n} + j)
                    B[vi, vj] = A[vj, vi]
"""
    compiled = agree(text, integers((48, 48), dtype), np.zeros((48, 48), dtype))
    assert ("shufflevector" in compiled.llvm_ir) == (NATIVE.vector_bits >= n * 32)


def test_a_transposition_onto_itself_runs_element_by_element():
    text = """
@T.prim_func
def main(A: T.Buffer((16, 16), "float32")):
    for i in T.unroll(16):
        for j in T.vectorized(16):
            with T.block("A"):
                vi, vj = T.axis.remap("SS", [i, j])
                A[vi, vj] = A[vj, vi]
"""
    assert "shufflevector" not in build(text).llvm_ir


@pytest.mark.parametrize("columns", [1, 2])
def test_lanes_whose_numbers_cancel_in_an_index_run_one_by_one(columns: int) -> None:
    """A skewed loop of one column: under its condition, j - i + i is one element at each j."""
    text = f"""
@T.prim_func
def main(A: T.Buffer((3, {columns}), "float32"), C: T.Buffer((3, {columns}), "float32")):
    for i in T.vectorized(3):
        for j in T.serial({columns + 2}):
            with T.block("C"):
                vi = T.axis.spatial(3, i)
                vj = T.axis.spatial({columns}, j - i)
                T.where(i <= j and j < i + {columns})
                C[vi, vj] = C[vi, vj] * T.float32(3) + A[vi, vj]
"""
    agree(text, integers((3, columns)), integers((3, columns), seed=1))

"""Scheduled programs, lowered and compiled, against the interpreter; what the lowering makes."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, build, call, integers

from metasched.errors import BuildError, LowerError
from metasched.ir.buffer import Buffer
from metasched.ir.expr import as_int
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.ir.stmt import Allocate, For, ForKind, IfThenElse
from metasched.ir.visit import walk_stmts
from metasched.lower.pipeline import lower
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T

N, M, K = 24, 36, 20
PARALLEL = ForKind.PARALLEL
MATMUL = f"""
@T.prim_func
def main(A: T.Buffer(({N}, {K}), "float32"), B: T.Buffer(({K}, {M}), "float32"),
         C: T.Buffer(({N}, {M}), "float32")):
    for i, j, k in T.grid({N}, {M}, {K}):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""


def _func(text: str) -> PrimFunc:
    func = parse(text)
    assert isinstance(func, PrimFunc)
    return func


def _matmul_arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return integers((N, K)), integers((K, M), seed=1), np.full((N, M), np.nan, "float32")


def _tile(s: Schedule, factors: tuple[int, int, int] = (4, 12, 5)) -> list[object]:
    block = s.get_block("C")
    i, j, k = s.get_loops(block)
    i0, i1 = s.split(i, [None, factors[0]])
    j0, j1 = s.split(j, [None, factors[1]])
    k0, k1 = s.split(k, [None, factors[2]])
    s.reorder(i0, j0, k0, k1, i1, j1)
    return [i0, j0, k0, k1, i1, j1]


def _plain(s: Schedule) -> None:
    _tile(s)


def _vectors(s: Schedule) -> None:
    loops = _tile(s)
    s.vectorize(loops[-1])
    s.unroll(loops[-2])
    s.parallel(s.fuse(loops[0], loops[1]))


def _uneven(s: Schedule) -> None:
    loops = _tile(s, (5, 16, 7))
    s.vectorize(loops[-1])
    s.unroll(loops[-2])
    s.parallel(loops[0])


def _write_cache(s: Schedule) -> None:
    block = s.get_block("C")
    loops = _tile(s)
    cache = s.cache_write(block, 0, "local")
    s.reverse_compute_at(cache, loops[1])
    s.decompose_reduction(block, loops[2])
    s.vectorize(loops[-1])
    s.parallel(loops[0])


def _read_caches(s: Schedule) -> None:
    block = s.get_block("C")
    loops = _tile(s)
    for index, loop in ((0, loops[2]), (1, loops[1])):
        s.compute_at(s.cache_read(block, index, "local"), loop)
    s.parallel(loops[0])
    s.vectorize(loops[-1])


@pytest.mark.parametrize("schedule", [_plain, _vectors, _uneven, _write_cache, _read_caches])
def test_scheduled_matmul(schedule: Callable[[Schedule], None]) -> None:
    s = Schedule(_func(MATMUL))
    schedule(s)
    agree(s.func, *_matmul_arrays())


def _allocations(func: PrimFunc) -> list[Buffer]:
    return [s.buffer for s in walk_stmts(func.body) if isinstance(s, Allocate)]


def test_a_cached_tile_is_as_large_as_the_tile() -> None:
    s = Schedule(_func(MATMUL))
    _write_cache(s)
    lowered = lower(s.func, NATIVE)
    assert [as_int(b.shape[0]) for b in _allocations(lowered)] == [4 * 12]
    loops = [n for n in walk_stmts(lowered.body) if isinstance(n, For)]
    inside = [n for n in walk_stmts(loops[0].body) if isinstance(n, Allocate)]
    assert loops[0].kind is ForKind.PARALLEL and len(inside) == 1


def test_read_caches_live_where_they_are_filled() -> None:
    s = Schedule(_func(MATMUL))
    _read_caches(s)
    sizes = {b.name: as_int(b.shape[0]) for b in _allocations(lower(s.func, NATIVE))}
    assert sizes == {"A_local": 4 * 5, "B_local": K * 12}


STENCIL = """
@T.prim_func
def main(A: T.Buffer((66,), "float32"), C: T.Buffer((64,), "float32")):
    B = T.alloc_buffer((66,), "float32")
    for i in T.serial(66):
        with T.block("B"):
            vi = T.axis.spatial(66, i)
            B[vi] = A[vi] * T.float32(2)
    for i in T.serial(64):
        with T.block("C"):
            vi = T.axis.spatial(64, i)
            C[vi] = B[vi] + B[vi + 1] + B[vi + 2]
"""


def test_a_halo_is_part_of_the_box() -> None:
    s = Schedule(_func(STENCIL))
    outer, inner = s.split(s.get_loops(s.get_block("C"))[0], [None, 16])
    s.compute_at(s.get_block("B"), outer)
    s.parallel(outer)
    s.vectorize(inner)
    agree(s.func, integers((66,)), np.zeros(64, "float32"))
    assert [as_int(b.shape[0]) for b in _allocations(lower(s.func, NATIVE))] == [18]


def test_guarded_parallel_iterations_have_private_temporaries() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((3, 5), "float32"), C: T.Buffer((4, 3), "float32")):
    S = T.alloc_buffer((3,), "float32")
    for i in T.parallel(4):
        for j0, j1, k in T.grid(2, 2, 5):
            with T.block("S"):
                vj = T.axis.spatial(3, j0 * 2 + j1)
                vk = T.axis.reduce(5, k)
                T.where(j0 * 2 + j1 < 3)
                with T.init():
                    S[vj] = T.float32(0)
                S[vj] = S[vj] + A[vj, vk]
        for j in range(8):
            with T.block("C"):
                vi = T.axis.spatial(4, i)
                vj = T.axis.spatial(3, j)
                T.where(j < 3)
                C[vi, vj] = S[vj]
"""
    stmts = list(walk_stmts(lower(_func(text), NATIVE).body))
    (loop,) = [s for s in stmts if isinstance(s, For) and s.kind is ForKind.PARALLEL]
    assert any(isinstance(s, Allocate) for s in walk_stmts(loop))
    agree(text, integers((3, 5)), np.zeros((4, 3), "float32"))


def test_values_written_by_earlier_iterations_are_kept() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32")):
    B = T.alloc_buffer((17,), "float32")
    B[0] = T.float32(0)
    for i in T.serial(16):
        with T.block("B"):
            vi = T.axis.spatial(16, i)
            B[vi + 1] = A[vi]
        with T.block("C"):
            vi = T.axis.spatial(16, i)
            C[vi] = B[vi + 1] - B[vi]
"""
    agree(text, integers((16,)), np.zeros(16, "float32"))


def test_loops_without_blocks_carry_what_they_store() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((4, 9), "float32"), C: T.Buffer((4,), "float32")):
    for i in T.serial(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            S = T.alloc_buffer((1,), "float32")
            S[0] = T.float32(0)
            for k in T.serial(9):
                S[0] = S[0] + A[vi, k]
            C[vi] = S[0]
"""
    agree(text, integers((4, 9)), np.zeros(4, "float32"))


def test_views_of_regions() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((8, 12), "float32"), C: T.Buffer((8, 12), "float32")):
    for i, j in T.grid(2, 3):
        with T.block("tile"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.reads(A[vi * 4:vi * 4 + 4, vj * 4:vj * 4 + 4])
            T.writes(C[vi * 4:vi * 4 + 4, vj * 4:vj * 4 + 4])
            s = T.int32()
            X = T.match_buffer(A[vi * 4:vi * 4 + 4, vj * 4:vj * 4 + 4], (4, 4), "float32",
                               strides=[s, 1], offset_factor=1)
            Y = T.match_buffer(C[vi * 4:vi * 4 + 4, vj * 4:vj * 4 + 4], (4, 4), "float32",
                               offset_factor=1)
            for a, b in T.grid(4, 4):
                Y[a, b] = X[b, a] + T.Cast("float32", s)
"""
    agree(text, integers((8, 12)), np.zeros((8, 12), "float32"))


def test_large_temporaries_go_to_the_heap_and_teams_have_their_own() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((8, 40000), "float32"), C: T.Buffer((8,), "float32")):
    for i in T.parallel(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            S = T.alloc_buffer((40000,), "float32")
            for k in T.vectorized(40000):
                S[k] = A[vi, k] * T.float32(2)
            C[vi] = T.float32(0)
            for k in T.serial(40000):
                C[vi] = C[vi] + S[k]
"""
    compiled = build(text)
    a, c = integers((8, 40000)), np.zeros(8, "float32")
    for _ in range(3):
        assert call(compiled, a, c) == 0
    np.testing.assert_array_equal(c, a.sum(1) * 2)
    assert "aligned_alloc" in compiled.externs and "free" in compiled.externs


def test_symbolic_temporaries_and_extents() -> None:
    text = """
@T.prim_func
def main(a: T.handle, c: T.handle):
    n = T.int32()
    m = T.int32()
    A = T.match_buffer(a, (n, m), "float32")
    C = T.match_buffer(c, (n,), "float32")
    B = T.alloc_buffer((n, m), "float32")
    for i, j in T.grid(n, m):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + T.float32(1)
    for i, j in T.grid(n, m):
        with T.block("C"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + B[vi, vj]
"""
    for shape in ((3, 5), (1, 1), (0, 4), (7, 40)):
        agree(text, integers(shape), np.zeros(shape[0], "float32"))


def test_conditions_leave_the_loops_they_do_not_mention() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((45,), "float32")):
    for i, j in T.grid(3, 16):
        for k in T.serial(4):
            with T.block("A"):
                T.where(i * 16 + j < 45)
                vi = T.axis.spatial(45, i * 16 + j)
                vk = T.axis.opaque(4, k)
                A[vi] = A[vi] + T.Cast("float32", vk)
"""
    agree(text, np.zeros(45, "float32"))
    lowered = lower(_func(text), NATIVE)
    for node in walk_stmts(lowered.body):
        if isinstance(node, For) and as_int(node.extent) == 4:
            assert not any(isinstance(s, IfThenElse) for s in walk_stmts(node))


def test_a_loop_is_split_where_its_condition_always_holds() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((40,), "float32")):
    for i in T.serial(3):
        for j in T.vectorized(16):
            with T.block("A"):
                T.where(i * 16 + j < 40)
                vi = T.axis.spatial(40, i * 16 + j)
                A[vi] = A[vi] + T.float32(1)
"""
    compiled = agree(text, np.zeros(40, "float32"))
    assert "masked.store" in compiled.llvm_ir
    assert re.search(r"\bstore <\d+ x float>", compiled.llvm_ir)


def test_register_tiles_are_unrolled() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((8, 6, 32), "float32"), C: T.Buffer((8, 6), "float32")):
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            S = T.alloc_buffer((6,), "float32", scope="local")
            for j in T.serial(6):
                S[j] = T.float32(0)
            for k in T.serial(32):
                for j in T.serial(6):
                    S[j] = S[j] + A[vi, j, k]
            for j in T.serial(6):
                C[vi, j] = S[j]
"""
    agree(text, integers((8, 6, 32)), np.zeros((8, 6), "float32"))
    kinds = [
        s.kind for s in walk_stmts(lower(_func(text), NATIVE).body)
        if isinstance(s, For) and as_int(s.extent) == 6
    ]  # fmt: skip
    assert kinds == [ForKind.UNROLLED] * 3


@pytest.mark.parametrize(("rows", "scope", "kind"), [
    (4, "global", ForKind.UNROLLED), (15, "global", ForKind.SERIAL), (16, "local", ForKind.UNROLLED)
])  # fmt: skip
def test_few_copies_of_loops_around_loops(rows, scope, kind) -> None:
    text = f"""
@T.prim_func
def main(A: T.Buffer((8, {rows}, 32), "float32"), C: T.Buffer((8, {rows}, 32), "float32")):
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            S = T.alloc_buffer(({rows},), "float32", scope="{scope}")
            for j in T.serial({rows}):
                S[j] = A[vi, j, 0] * A[vi, j, 31]
            for j in T.serial({rows}):
                for k in T.serial(32):
                    C[vi, j, k] = A[vi, j, k] - S[j]
"""
    lowered = lower(_func(text), NATIVE)
    loops = [s for s in walk_stmts(lowered.body) if isinstance(s, For)]
    assert [s.kind for s in loops if as_int(s.extent) == rows] == [kind] * 2
    agree(text, integers((8, rows, 32)), np.zeros((8, rows, 32), "float32"))


def test_scopes_without_memory_on_the_target_are_named() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32", scope="shared")
    for i in T.serial(8):
        B[i] = A[i]
    for i in T.serial(8):
        A[i] = B[i] + T.float32(1)
"""
    with pytest.raises(BuildError, match="buffer B: scope shared has no memory on cpu targets"):
        build(text)


def test_a_view_that_does_not_fit_is_refused() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((8, 8), "float32")):
    with T.block("b"):
        T.reads(A[0:4, 0:4])
        T.writes(A[0:4, 0:4])
        X = T.match_buffer(A[0:4, 0:4], (4,), "float32", offset_factor=1)
        X[0] = X[1]
"""
    with pytest.raises(LowerError, match="match_buffer X: its shape does not fit"):
        lower(_func(text), NATIVE)


def test_vectors_over_whole_rows_of_a_temporary_keep_their_rows():
    """A temporary shrinks to what is touched; a vector may touch rows after the one it names."""

    @T.prim_func
    def rows(A: T.Buffer((6, 16, 4), "int32"), C: T.Buffer((6, 16, 4), "int32")):
        B = T.alloc_buffer((6, 16, 4), "int32")
        for n in range(6):
            for h in range(2):
                with T.block("B"):
                    vn, vh = T.axis.remap("SS", [n, h])
                    T.reads(A[vn, vh * 8 : vh * 8 + 8, 0:4])
                    T.writes(B[vn, vh * 8 : vh * 8 + 8, 0:4])
                    S = T.match_buffer(
                        A[vn, vh * 8 : vh * 8 + 8, 0:4], (8, 4), "int32", offset_factor=1
                    )
                    D = T.match_buffer(
                        B[vn, vh * 8 : vh * 8 + 8, 0:4], (8, 4), "int32", offset_factor=1
                    )
                    D[0, T.ramp(0, 1, 32)] = S[0, T.ramp(0, 1, 32)] + T.broadcast(1, 32)
            for h in range(2):
                with T.block("C"):
                    vn, vh = T.axis.remap("SS", [n, h])
                    T.reads(B[vn, vh * 8 : vh * 8 + 8, 0:4])
                    T.writes(C[vn, vh * 8 : vh * 8 + 8, 0:4])
                    S = T.match_buffer(
                        B[vn, vh * 8 : vh * 8 + 8, 0:4], (8, 4), "int32", offset_factor=1
                    )
                    D = T.match_buffer(
                        C[vn, vh * 8 : vh * 8 + 8, 0:4], (8, 4), "int32", offset_factor=1
                    )
                    D[0, T.ramp(0, 1, 32)] = S[0, T.ramp(0, 1, 32)]

    given = np.arange(6 * 16 * 4, dtype="int32").reshape(6, 16, 4)
    wanted, found = np.zeros_like(given), np.zeros_like(given)
    run(rows, given, wanted)
    np.testing.assert_array_equal(wanted, given + 1)
    assert call(build(rows), given, found) == 0
    np.testing.assert_array_equal(found, wanted)


STEPS = """
@T.prim_func
def main(A: T.Buffer((4, 8), "float32"), C: T.Buffer((4, 8), "float32")):
    S = T.alloc_buffer((8,), "float32")
    for t in range(4):
        for j in range(8):
            with T.block("S"):
                vt, vj = T.axis.remap("SS", [t, j])
                T.where({where})
                S[vj] = A[vt, vj]
        for j in range(8):
            with T.block("C"):
                vt, vj = T.axis.remap("SS", [t, j])
                C[vt, vj] = S[vj]
"""


@pytest.mark.parametrize(
    ("where", "inside"), [("t < 8", True), ("t < 1", False), ("t % 2 == 0", False), ("j < 8", True)]
)
def test_what_a_condition_leaves_from_an_earlier_iteration_is_kept(where: str, inside: bool):
    text = STEPS.format(where=where)
    steps = next(s for s in walk_stmts(lower(_func(text), NATIVE).body) if isinstance(s, For))
    assert any(isinstance(s, Allocate) for s in walk_stmts(steps)) == inside
    agree(text, integers((4, 8)), np.zeros((4, 8), "float32"))


def test_threads_keep_what_they_wrote_in_an_earlier_iteration() -> None:
    """In each step a thread fills the row that it reads in the next step."""
    text = """
@T.prim_func
def main(A: T.Buffer((8, 4), "float32"), C: T.Buffer((8, 4), "float32")):
    S = T.alloc_buffer((8, 4), "float32")
    for t in range(5):
        for p in T.parallel(2):
            for j in range(4):
                with T.block("S"):
                    vi, vj = T.axis.spatial(8, p * 4 + t), T.axis.spatial(4, j)
                    T.where(t < 4)
                    S[vi, vj] = A[vi, vj]
            for j in range(4):
                with T.block("C"):
                    vi, vj = T.axis.spatial(8, p * 4 + t - 1), T.axis.spatial(4, j)
                    T.where(t >= 1)
                    C[vi, vj] = S[vi, vj]
"""
    steps = next(s for s in walk_stmts(lower(_func(text), NATIVE).body) if isinstance(s, For))
    assert not any(isinstance(s, Allocate) for s in walk_stmts(steps))
    agree(text, integers((8, 4)), np.zeros((8, 4), "float32"))


PRIVATE = """
@T.prim_func
def main(A: T.Buffer((64, 32), "int32"), B: T.Buffer((3, 64), "int32")):
    s = T.alloc_buffer((32,), "int32")
    for t, i in T.grid(3, 64):
        for j in range(32):
            with T.block("zero"):
                vj = T.axis.spatial(32, j)
                s[vj] = 0
        for r, j in T.grid(4, 32):
            with T.block("s"):
                vi, vj, vr = T.axis.opaque(64, i), T.axis.spatial(32, j), T.axis.opaque(4, r)
                s[vj] = s[vj] + A[vi, vj] * (vr + 1)
        with T.block("B"):
            vt, vi = T.axis.remap("SS", [t, i])
            B[vt, vi] = s[0] + s[31] * vt
"""


def test_a_buffer_of_each_parallel_iteration_is_allocated_inside_the_loop() -> None:
    """An opaque iterator does not say that i carries s: `parallel` has proved that it does not."""
    s = Schedule(_func(PRIVATE))
    t, i, _ = s.get_loops("zero")
    s.parallel(i)
    lowered = lower(s.func, NATIVE)
    (loop,) = [n for n in walk_stmts(lowered.body) if isinstance(n, For) and n.kind is PARALLEL]
    assert [as_int(b.shape[0]) for b in _allocations(lowered)] == [32]
    assert any(isinstance(n, Allocate) for n in walk_stmts(loop.body))
    agree(s.func, integers((64, 32), dtype="int32"), np.full((3, 64), -1, "int32"))

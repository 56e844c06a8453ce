"""Symbolic extents: all steps of a tiled matrix product."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from oracle import check_refused, check_transform

from metasched.errors import ScheduleError
from metasched.ir.interp import run
from metasched.runtime.build import build
from metasched.schedule.handles import LoopRV
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T


@T.prim_func
def product(a: T.handle, b: T.handle, d: T.handle):
    n = T.int32()
    m = T.int32()
    k = T.int32()
    A = T.match_buffer(a, (n, k), "float32")
    B = T.match_buffer(b, (k, m), "float32")
    D = T.match_buffer(d, (n, m), "float32")
    C = T.alloc_buffer((n, m), "float32")
    for i, j, l in T.grid(n, m, k):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, l])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(n, m):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = T.max(C[vi, vj], T.float32(0))


def tiled() -> tuple[Schedule, list[LoopRV]]:
    sch = Schedule(product, seed=0, check=True)
    i, j, l = sch.get_loops("C")
    i0, i1 = sch.split(i, [None, 4])
    j0, j1 = sch.split(j, [None, 8])
    l0, l1 = sch.split(l, [None, 3])
    order = [i0, j0, l0, i1, j1, l1]
    sch.reorder(*order)
    return sch, order


STEPS: dict[str, Callable[[Schedule, list[LoopRV]], object]] = {
    "reverse_compute_at": lambda s, x: s.reverse_compute_at("D", x[1]),
    "cache_read": lambda s, x: s.compute_at(s.cache_read("C", 0, "local"), x[2]),
    "cache_write": lambda s, x: s.reverse_compute_at(s.cache_write("C", 0, "local"), x[1]),
    "decompose_reduction": lambda s, x: s.vectorize(
        s.get_loops(s.decompose_reduction("C", x[2]))[-1]
    ),
    "compute_at": lambda s, x: s.compute_at("C", s.split(s.get_loops("D")[0], [None, 4])[0]),
    "rfactor": lambda s, x: s.rfactor(x[2], 0),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_reduction_with_a_symbolic_guard_covers_its_result(name: str) -> None:
    """The guard of the reduction (`l_0 * 3 + l_1 < k`) does not depend on i and j."""
    sch, loops = tiled()
    STEPS[name](sch, loops)
    check_transform(product, sch)


def test_fused_symbolic_loops_split_again() -> None:
    sch = Schedule(product, seed=0, check=True)
    i, j, _ = sch.get_loops("C")
    outer, _ = sch.split(sch.fuse(i, j), [None, 16])
    sch.parallel(outer)
    check_transform(product, sch)


def test_two_extents_below_zero_fuse_to_no_iteration() -> None:
    """(n - 2) * (m - 2) is 1 for n = m = 1."""

    @T.prim_func
    def inner(a: T.handle, b: T.handle):
        n = T.int32()
        m = T.int32()
        A = T.match_buffer(a, (n, m), "int32")
        B = T.match_buffer(b, (n, m), "int32")
        for i, j in T.grid(n - 2, m - 2):
            with T.block("B"):
                vi = T.axis.spatial(n - 2, i)
                vj = T.axis.spatial(m - 2, j)
                B[vi + 1, vj + 1] = A[vi, vj + 1] + A[vi + 2, vj + 1]

    sch = Schedule(inner, seed=0, check=True)
    sch.fuse(*sch.get_loops("B"))
    assert "range((n - 2) * T.max(m - 2, 0))" in sch.mod.script()
    check_transform(inner, sch)
    kernel = build(sch, check_bounds=True)
    for n, m in ((5, 6), (1, 1), (0, 1), (1, 0), (2, 1)):
        args = [np.arange(n * m, dtype=np.int32).reshape(n, m), np.full((n, m), 7, np.int32)]
        want, got, found = ([a.copy() for a in args] for _ in range(3))
        run(inner, *want)
        run(sch.mod, *got)
        kernel(*found)
        assert (want[1] == got[1]).all() and (want[1] == found[1]).all()


def test_a_factor_that_a_call_may_make_zero_is_refused() -> None:
    @T.prim_func
    def f(B: T.Buffer((16,), "int32"), n: T.int32):
        for i in range(16):
            with T.block("B"):
                vi = T.axis.spatial(16, i)
                B[vi] = vi + n

    sch, n = Schedule(f, seed=0, check=True), f.params[1]
    loop = sch.get_loops("B")[0]
    for factors, least in (([None, n], 1), ([n, None], 1), ([16, n], 0), ([None, n - 1, 2], 1)):
        error = check_refused(
            sch, lambda factors=factors: sch.split(loop, factors), "bad-factor",
            rf"the factor n( - 1)? is not proved to be at least {least} here",
        )  # fmt: skip
        assert "hint: write T.max(n" in str(error) and "for i in range(16):" in str(error)
    check_refused(
        sch, lambda: sch.cut_loop(loop, n // 2), "bad-count", "not proved to have n // 2 iterations"
    )
    check_refused(
        sch,
        lambda: sch.split(loop, [T.max(n, 1)]),
        "not-covering",
        r"multiply to max\(n, 1\), less",
    )
    sch.split(loop, [None, T.max(n, 1)])
    kernel = build(sch)
    for number in (-3, 0, 1, 5, 40):
        found, got = np.zeros(16, np.int32), np.zeros(16, np.int32)
        kernel(found, number)
        run(sch.mod, got, number)
        assert (found == np.arange(16) + number).all() and (got == found).all()


def test_a_factor_is_zero_where_the_loop_has_no_iteration() -> None:
    sch = Schedule(product, seed=0, check=True)
    n, m = product.buffers[2].shape
    i, j = sch.get_loops("D")
    for factors in ([m, None], [None, n]):
        check_refused(
            sch, lambda factors=factors: sch.split(i, factors), "bad-factor",
            "the factor [nm] is not proved to be at least 1 here",
        )  # fmt: skip
    sch.split(j, [n, None])  # the loop around has n iterations, so n is at least 1
    sch.split(i, [n, None])
    check_transform(product, sch)
    kernel, empty = build(sch), [np.zeros(s, np.float32) for s in ((0, 2), (2, 3), (0, 3))]
    kernel(*empty)
    run(sch.mod, *empty)


def test_the_extents_of_parameters_fuse_as_they_are() -> None:
    sch = Schedule(product, seed=0)
    sch.fuse(*sch.get_loops("D"))
    assert "range(n * m)" in sch.mod.script()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_loop_without_iterations_fuses(order: tuple[int, int]) -> None:
    @T.prim_func
    def none(A: T.Buffer((4, 0), "int32"), B: T.Buffer((4,), "int32")):
        for i, k in T.grid(4, 0):
            with T.block("B"):
                vi, vk = T.axis.remap("SR", [i, k])
                B[vi] = B[vi] + A[vi, vk]

    sch = Schedule(none, seed=0, check=True)
    loops = sch.get_loops("B")
    sch.reorder(*(loops[n] for n in order))
    sch.fuse(*(loops[n] for n in order))
    check_transform(none, sch)


def test_a_part_that_may_have_no_update_has_no_partial_result() -> None:
    sch, loops = tiled()
    step = lambda: sch.rfactor(loops[5], 0)  # noqa: E731
    check_refused(sch, step, "hidden-init", "may leave a partial result without its first update")


REPEATED = """
@T.prim_func
def f(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32"),
      C: T.Buffer((16,), "float32"), times: T.int32, P: T.Buffer((1,), "int32")):
    for {loops}:
        with T.block("B"):
            vi = T.axis.spatial(16, i)
            {inner}B[vi] = A[vi] * 2.0
    for i in range(16):
        with T.block("C"):
            vi = T.axis.spatial(16, i)
            C[vi] = B[vi] + 1.0
"""
MOVES: dict[str, Callable[[Schedule], object]] = {
    "cache_write": lambda s: s.cache_write("B", 0, "global"),
    "reindex": lambda s: s.reindex("B", ("write", 0)),
    "reindex_cache_write": lambda s: s.reindex_cache_write("B", 0, "global", lambda *i: i[-1:]),
    "reverse_compute_at": lambda s: s.reverse_compute_at("C", s.get_loops("B")[-1]),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize(
    ("times", "legal"), [("3", True), ("T.max(times, 1)", True), ("times", False)]
)
def test_a_block_that_a_call_may_never_run_has_no_copy(move: str, times: str, legal: bool) -> None:
    """With `times` = 0 the program leaves B as it was; a copy would overwrite B with garbage."""
    func = parse(REPEATED.format(loops=f"t, i in T.grid({times}, 16)", inner=""))
    sch = Schedule(func, seed=0)
    if legal:
        MOVES[move](sch)
        return
    with pytest.raises(ScheduleError, match="region-cover|partial-domain") as caught:
        MOVES[move](sch)
    if caught.value.reason == "region-cover":
        assert "by B; the loop t may have no iteration (region cover)" in str(caught.value)


@pytest.mark.parametrize("loops, inner", [
    ("i in range(16)", "for t in range(times):\n                "),
    ("t, i in T.grid(P[0], 16)", ""),
])  # fmt: skip
def test_a_copy_needs_loops_that_run(loops: str, inner: str) -> None:
    func = parse(REPEATED.format(loops=loops, inner=inner))
    for move in ("cache_write", "reindex_cache_write"):
        with pytest.raises(ScheduleError, match="region-cover|partial-domain|conditional-store"):
            MOVES[move](Schedule(func, seed=0))


def test_a_loop_over_the_elements_repeats_for_each_of_them() -> None:
    """B has elements, so the loop t over as many runs."""

    @T.prim_func
    def f(a: T.handle, b: T.handle):
        n = T.int32()
        A = T.match_buffer(a, (n, n), "float32")
        B = T.match_buffer(b, (n,), "float32")
        for t, i in T.grid(n, n):
            with T.block("B"):
                vt, vi = T.axis.remap("SS", [t, i])
                B[vi] = A[vt, vi]

    sch = Schedule(f, seed=0)
    sch.cache_write("B", 0, "global")
    check_transform(f, sch)

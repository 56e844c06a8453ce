"""Loops of a reduction fused and split by factors that do not line up with their extents, as every
GPU schedule does: distinct iterations still have distinct elements."""

from __future__ import annotations

import pytest
from oracle import check_numbers, check_refused, check_transform
from schedule.programs import matmul_relu

from metasched.ir.func import PrimFunc
from metasched.schedule.handles import LoopRV
from metasched.schedule.schedule import Schedule
from metasched.script import parse

SUM = """
@T.prim_func
def f(A: T.Buffer(({n}, {m}, 5), "float32"), C: T.Buffer(({n}, {m}), "float32")):
    for i, j, k in T.grid({n}, {m}, 5):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vj, vk]
"""
KINDS = {
    "parallel": lambda s, loop: s.parallel(loop),
    "vectorize": lambda s, loop: s.vectorize(loop),
    "threads": lambda s, loop: s.bind(loop, "threadIdx.x"),
    "blocks": lambda s, loop: s.bind(loop, "blockIdx.x"),
}


def fused(n: int, m: int, by: int) -> tuple[PrimFunc, Schedule, list[LoopRV]]:
    func = parse(SUM.format(n=n, m=m))
    sch = Schedule(func, seed=0)
    i, j, _ = sch.get_loops("C")
    return func, sch, sch.split(sch.fuse(i, j), [None, by])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(4, 6, 8), (6, 4, 16), (5, 7, 8), (3, 16, 24), (4, 6, 7)])
def test_both_halves_may_run_at_once(sizes: tuple[int, int, int], kind: str) -> None:
    for half in (0, 1):
        func, sch, loops = fused(*sizes)
        KINDS[kind](sch, loops[half])
        check_numbers(func, sch.mod)


def test_the_bindings_stay_digits_of_one_number() -> None:
    func, sch, (outer, inner) = fused(4, 6, 8)
    text = sch.script()
    assert "vi = T.axis.spatial(4, (i_j_fused_0 * 8 + i_j_fused_1) // 6)" in text
    assert "vj = T.axis.spatial(6, (i_j_fused_0 * 8 + i_j_fused_1) % 6)" in text
    sch.split(inner, [None, 5])
    assert "(i_j_fused_0 * 8 + i_j_fused_1_0 * 5 + i_j_fused_1_1) % 6" in sch.script()
    sch.bind(outer, "blockIdx.x")
    check_transform(func, sch, compiled=False)


def test_other_steps_follow_the_digits() -> None:
    func, sch, (outer, inner) = fused(5, 7, 8)
    sch.reorder(sch.get_loops("C")[2], inner, outer)
    check_transform(func, sch)
    func, sch, (outer, inner) = fused(4, 6, 9)
    sch.bind(inner, "threadIdx.x")
    sch.decompose_reduction("C", inner)
    sch.parallel(sch.get_loops("C_init")[0])
    check_transform(func, sch, compiled=False)
    func, sch, (outer, inner) = fused(4, 6, 8)
    sch.parallel(sch.get_loops(sch.rfactor(sch.get_loops("C")[2], 0))[1])
    check_transform(func, sch)


def test_an_epilogue_moves_below_the_halves() -> None:
    sch = Schedule(matmul_relu, seed=0)
    i, j = sch.get_loops("D")
    outer, inner = sch.split(sch.fuse(i, j), [None, 10])
    sch.compute_at("C", inner)
    sch.bind(outer, "blockIdx.x")
    sch.bind(inner, "threadIdx.x")
    check_transform(matmul_relu, sch, compiled=False)


THREE = """
@T.prim_func
def f(A: T.Buffer((4, 6, 5, 3), "float32"), C: T.Buffer((4, 6, 5), "float32")):
    for i, j, l, k in T.grid(4, 6, 5, 3):
        with T.block("C"):
            vi, vj, vl, vk = T.axis.remap("SSSR", [i, j, l, k])
            with T.init():
                C[vi, vj, vl] = T.float32(0)
            C[vi, vj, vl] = C[vi, vj, vl] + A[vi, vj, vl, vk]
"""


@pytest.mark.parametrize("factors", [[None, 8], [2, None, 7], [None, 8, 5], [None, 3, 16]])
def test_three_fused_loops_with_the_reduction_between(factors: list[int | None]) -> None:
    func = parse(THREE)
    sch = Schedule(func, seed=0)
    *spatial, k = sch.get_loops("C")
    outer, *rest = sch.split(sch.fuse(*spatial), factors)
    sch.reorder(outer, k, *rest)
    sch.parallel(outer)
    sch.vectorize(rest[-1])
    check_transform(func, sch, compiled=factors == [None, 8])


BY_HAND = """
@T.prim_func
def f(A: T.Buffer((24, 5), "float32"), C: T.Buffer((4, 6), "float32")):
    for x, y, k in T.grid(3, 8, 5):
        with T.block("C"):
            vi = T.axis.spatial(4, x + (x * 2 + y) // 6)
            vj = T.axis.spatial(6, ({rest}) % 6)
            vk = T.axis.reduce(5, k)
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi * 6 + vj, vk]
"""


def test_simplified_digits_are_told_apart_too() -> None:
    for kind in KINDS.values():
        func = parse(BY_HAND.format(rest="x * 2 + y"))
        sch = Schedule(func, seed=0)
        kind(sch, sch.get_loops("C")[0])
        check_numbers(func, sch.mod)


def test_sums_that_are_no_digits_are_refused() -> None:
    sch = Schedule(parse(BY_HAND.format(rest="x * 3 + y")), seed=0)
    loop = sch.get_loops("C")[0]
    for kind in KINDS.values():
        check_refused(sch, lambda: kind(sch, loop), "carried-dependence", "block C writes C")  # noqa: B023


def test_the_reduction_among_the_fused_loops_stays_a_dependence() -> None:
    func = parse(SUM.format(n=4, m=6))
    sch = Schedule(func, seed=0)
    i, j, k = sch.get_loops("C")
    outer, inner = sch.split(sch.fuse(j, k), [None, 8])
    check_refused(sch, lambda: sch.parallel(outer), "carried-dependence", "block C writes C")
    check_refused(sch, lambda: sch.vectorize(inner), "carried-dependence", "block C writes C")
    sch.parallel(i)
    check_numbers(func, sch.mod)

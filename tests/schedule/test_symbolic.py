"""Symbolic extents: all steps of a tiled matrix product."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from oracle import check_refused, check_transform

from metasched.schedule.handles import LoopRV
from metasched.schedule.schedule import Schedule
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


def test_a_part_that_may_have_no_update_has_no_partial_result() -> None:
    sch, loops = tiled()
    step = lambda: sch.rfactor(loops[5], 0)  # noqa: E731
    check_refused(sch, step, "hidden-init", "may leave a partial result without its first update")

"""Inlining through layouts, strides and inits; whole domains under a predicate."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform
from schedule.stages import two_stages

from metasched.ir.func import PrimFunc
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T


@T.prim_func
def started(
    X: T.Buffer((6,), "float32"), Y: T.Buffer((6, 8), "float32"), O: T.Buffer((8, 6), "float32")
):
    B = T.alloc_buffer((6, 8), "float32")
    for i, j in T.grid(6, 8):
        with T.block("P"):
            vi, vj = T.axis.remap("SS", [i, j])
            with T.init():
                B[vi, vj] = T.float32(3)
            B[vi, vj] = B[vi, vj] + X[vi] * Y[vi, vj]
    for i, j in T.grid(6, 8):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            O[vj, vi] = B[vi, vj]


tiled_smaller = two_stages(
    "tiled_smaller", (16, 16), (2, 2, 8, 8), (15, 14),
    ((2, 2, 8, 8), "B[v0, v1, v2, v3] = A[v0 * 8 + v2, v1 * 8 + v3] * T.float32(2)"),
    ((15, 14), "C[v0, v1] = B[v0 // 8, v1 // 8, v0 % 8, v1 % 8] + T.float32(1)"),
)  # fmt: skip

tiled_uneven = two_stages(
    "tiled_uneven", (15, 14), (4, 4, 4, 4), (15, 14),
    ((15, 14), "B[v0 // 4, v1 // 4, v0 % 4, v1 % 4] = A[v0, v1] * T.float32(2)"),
    ((15, 14), "C[v0, v1] = B[v0 // 4, v1 // 4, v0 % 4, v1 % 4] + T.float32(1)"),
)  # fmt: skip

sliced = two_stages(
    "sliced", (12, 8), (12, 8), (5, 3),
    ((12, 8), "B[v0, v1] = A[v0, v1] + T.float32(1)"),
    ((5, 3), "C[v0, v1] = B[11 - v0 * 2, v1 + 4] * T.float32(2)"),
)  # fmt: skip

rows_with_gaps = two_stages(
    "rows_with_gaps", (4, 5), (32,), (4, 5),
    ((4, 5), "B[v0 * 8 + v1] = A[v0, v1] + T.float32(1)"),
    ((4, 5), "C[v0, v1] = B[v0 * 8 + v1] * T.float32(2)"),
)  # fmt: skip


@T.prim_func
def tiles_of_any_length(a: T.handle, c: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n,), "float32")
    C = T.match_buffer(c, (n,), "float32")
    B = T.alloc_buffer((n,), "float32")
    for o, i in T.grid((n + 7) // 8, 8):
        with T.block("P"):
            T.where(o * 8 + i < n)
            v = T.axis.spatial(n, o * 8 + i)
            B[v] = A[v] + T.float32(1)
    for o, i in T.grid((n + 3) // 4, 4):
        with T.block("C"):
            T.where(o * 4 + i < n)
            v = T.axis.spatial(n, o * 4 + i)
            C[v] = B[v] * T.float32(2)


PROGRAMS: dict[str, PrimFunc] = {
    f.attrs["global_symbol"]: f
    for f in (started, tiled_smaller, tiled_uneven, sliced, rows_with_gaps, tiles_of_any_length)
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_producer_is_inlined(name: str) -> None:
    sch = Schedule(PROGRAMS[name], check=True)
    sch.compute_inline("P")
    check_transform(PROGRAMS[name], sch)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_consumer_is_inlined(name: str) -> None:
    sch = Schedule(PROGRAMS[name], check=True)
    sch.reverse_compute_inline("C")
    assert "B[" not in sch.script()
    check_transform(PROGRAMS[name], sch)


@T.prim_func
def chosen(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8, 8), "float32")):
    B = T.alloc_buffer((8, 8), "float32")
    for i, j in T.grid(8, 8):
        with T.block("P"):
            vi, vj = T.axis.remap("SS", [i, j])
            if vi < 4:
                B[vi, vj] = A[vi, vj] + T.float32(1)
            else:
                B[vi, vj] = A[vi, vj] - T.float32(1)
    for i, j in T.grid(8, 8):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vj, vi]


def test_a_block_that_writes_on_both_sides_of_a_condition_writes_all() -> None:
    for at in range(2):
        sch = Schedule(chosen, check=True)
        sch.compute_at("P", sch.get_loops("C")[at])
        check_transform(chosen, sch)


@T.prim_func
def updated(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in range(8):
        with T.block("P"):
            vi = T.axis.spatial(8, i)
            with T.init():
                B[vi] = T.float32(1)
            if vi < 4:
                B[vi] = B[vi] + A[vi]
    for i in range(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi]


def test_an_update_under_a_condition_is_not_inlined_with_its_init() -> None:
    sch = Schedule(updated, check=True)
    message = "P updates its init under a condition"
    check_refused(sch, lambda: sch.reverse_compute_inline("C"), "has-init", message)
    sch.compute_at("P", sch.get_loops("C")[0])
    check_transform(updated, sch)

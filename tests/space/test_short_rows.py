"""Batches of small matrices: lanes along the batch, which lie in rows of memory."""

from __future__ import annotations

import pytest
from oracle import check_numbers
from space.candidates import TARGET

from metasched.ir.func import PrimFunc
from metasched.ir.stmt import For, ForKind
from metasched.ir.visit import walk_stmts
from metasched.kinds import default_trace
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T

N = 150


@T.prim_func
def triangles(A: T.Buffer((N, 4, 4)), L: T.Buffer((N, 4, 4))):
    """The loops of a Cholesky factorization, with operations that round nothing."""
    for n in range(N):
        for j in range(4):
            L[n, j, j] = A[n, j, j]
            for k in range(j):
                L[n, j, j] -= L[n, j, k] * L[n, j, k]
            L[n, j, j] = T.min(T.abs(L[n, j, j]), T.float32(5))
            for i in range(j + 1, 4):
                L[n, i, j] = A[n, i, j]
                for k in range(j):
                    L[n, i, j] -= L[n, i, k] * L[n, j, k]
                L[n, i, j] = T.min(L[n, i, j], L[n, j, j])


@T.prim_func
def rows_of_triangles(A: T.Buffer((N, 4, 4)), L: T.Buffer((N, 4, 4))):
    """The same by rows: the end of the innermost loop depends on one that depends on another."""
    for n in range(N):
        for i in range(4):
            for j in range(i + 1):
                s = T.float32(0)
                for k in range(j):
                    s += L[n, i, k] * L[n, j, k]
                if i == j:
                    L[n, i, j] = T.min(T.abs(A[n, i, j] - s), T.float32(5))
                else:
                    L[n, i, j] = T.min(A[n, i, j] - s, L[n, j, j])


@T.prim_func
def adjugates(A: T.Buffer((N, 3, 3)), B: T.Buffer((N, 3, 3)), D: T.Buffer((N,))):
    for n in range(N):
        D[n] = (
            A[n, 0, 0] * (A[n, 1, 1] * A[n, 2, 2] - A[n, 1, 2] * A[n, 2, 1])
            + A[n, 0, 1] * (A[n, 1, 2] * A[n, 2, 0] - A[n, 1, 0] * A[n, 2, 2])
            + A[n, 0, 2] * (A[n, 1, 0] * A[n, 2, 1] - A[n, 1, 1] * A[n, 2, 0])
        )
    for n, i, j in T.grid(N, 3, 3):
        B[n, i, j] = (
            A[n, (j + 1) % 3, (i + 1) % 3] * A[n, (j + 2) % 3, (i + 2) % 3]
            - A[n, (j + 1) % 3, (i + 2) % 3] * A[n, (j + 2) % 3, (i + 1) % 3]
        ) * D[n]


@T.prim_func
def determinants(A: T.Buffer((N, 2, 3), "float64"), D: T.Buffer((N,), "float64")):
    for n in range(N):
        D[n] = (
            A[n, 0, 1] * A[n, 1, 2] - A[n, 0, 2] * A[n, 1, 1]
            + A[n, 0, 2] * A[n, 1, 0] - A[n, 0, 0] * A[n, 1, 2]
        )  # fmt: skip


@T.prim_func
def copies(A: T.Buffer((N, 9)), B: T.Buffer((N,))):
    """No operation for the element: loads of lanes are as fast."""
    for n in range(N):
        B[n] = A[n, 3]


@T.prim_func
def far(A: T.Buffer((N, 500)), B: T.Buffer((N,))):
    for n in range(N):
        B[n] = A[n, 3] * A[n, 4] + A[n, 5] * A[n, 6] * A[n, 7]


@T.prim_func
def bytes_of_rows(A: T.Buffer((N, 6), "uint8"), B: T.Buffer((N,), "uint8")):
    for n in range(N):
        B[n] = A[n, 0] * A[n, 4] + A[n, 5] * A[n, 2] * A[n, 3]


@T.prim_func
def long_iterations(A: T.Buffer((N, 20)), B: T.Buffer((N, 20))):
    """More stores than copies pay for."""
    for n in range(N):
        for i in range(20):
            B[n, i] = T.float32(0)
            for j in range(20):
                B[n, i] = T.max(B[n, i], A[n, j] - A[n, i]) * T.min(A[n, j], T.float32(1))


@T.prim_func
def running(A: T.Buffer((N, 9)), B: T.Buffer((N,))):
    """Each iteration reads the result of the one before."""
    for n in range(1, N):
        B[n] = B[n - 1] * A[n, 0] + A[n, 1] * A[n, 2] + A[n, 3] * A[n, 4]


def scheduled(func: PrimFunc) -> Schedule:
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    check_numbers(func, sch.mod, compiled=True)
    return sch


def vectors(sch: Schedule) -> list[For]:
    loops = (s for s in walk_stmts(sch.func.body) if isinstance(s, For))
    return [s for s in loops if s.kind is ForKind.VECTORIZED]


@pytest.mark.parametrize("func", [triangles, rows_of_triangles, determinants])
def test_lanes_run_along_the_batch(func):
    (lanes,) = vectors(scheduled(func))
    inner = [s for s in walk_stmts(lanes.body) if isinstance(s, For)]
    assert all(s.kind is ForKind.UNROLLED for s in inner)


def test_two_loops_over_a_batch_are_merged():
    """The second loop finds the rows in registers."""
    sch = scheduled(adjugates)
    first, second = vectors(sch)
    around = [sch.get_loops(sch.get_block(name))[0] for name in ("D", "B")]
    assert sch.get(around[0]) is sch.get(around[1])


@pytest.mark.parametrize("func", [copies, far, bytes_of_rows, long_iterations, running])
def test_other_rows_are_not_exchanged(func):
    assert not [s for s in vectors(scheduled(func)) if s.var.name.startswith("n")]

"""delay: refusals, and loops merged one behind the other."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform

from metasched.schedule.schedule import Schedule
from metasched.script import tir as T


@T.prim_func
def chain(A: T.Buffer((10, 4), "int32"), C: T.Buffer((10, 4), "int32")):
    B = T.alloc_buffer((10, 4), "int32")
    for i, j in T.grid(10, 4):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2
    for i, j in T.grid((2, 8), 4):
        with T.block("C"):
            vi = T.axis.spatial((2, 8), i)
            vj = T.axis.spatial(4, j)
            C[vi, vj] = B[vi - 2, vj] + B[vi + 2, vj]


def rows(sch: Schedule) -> list:
    return [sch.get_loops(name)[0] for name in "BC"]


def test_the_order_of_the_iterations_stays() -> None:
    sch = Schedule(chain)
    _, second = rows(sch)
    second = sch.delay(second, 3, 1)
    assert (sch.get(second).min, sch.get(second).extent) == (0, 10)
    check_transform(chain, sch)


def test_a_range_counts_from_zero_without_a_delay() -> None:
    sch = Schedule(chain)
    _, second = rows(sch)
    second = sch.delay(second, 0)
    assert (sch.get(second).min, sch.get(second).extent) == (0, 6)
    assert "T.where" not in sch.script()
    check_transform(chain, sch)


def test_merged_behind_the_rows_that_are_read() -> None:
    """Row i of C reads rows to i + 2 of B: it runs with row i + 2."""
    sch = Schedule(chain)
    first, second = rows(sch)
    early = sch.copy()
    shifted = early.delay(second, 3, 1)
    message = "in one nest block C reads B.* before block B writes B"
    check_refused(early, lambda: early.merge(first, shifted), "backward-dependence", message)
    sch.parallel(sch.get_loops("B")[1])
    sch.merge(first, sch.delay(second, 4))
    check_transform(chain, sch, "delay_merged")


@pytest.mark.parametrize(
    ("before", "after", "shown"), [(-1, 0, "-1"), (0, -2, "-2"), (T.Var("n", "int32"), 0, "n")]
)
def test_refused_counts(before: object, after: object, shown: str) -> None:
    sch = Schedule(chain)
    first, _ = rows(sch)
    message = f"{shown} is no number of iterations to add"
    check_refused(sch, lambda: sch.delay(first, before, after), "bad-count", message)


def test_refused_loops() -> None:
    sch = Schedule(chain)
    first, _ = rows(sch)
    check_refused(sch, lambda: sch.delay(first, 1 << 63), "too-many-iterations", "int64 counts")
    sch.parallel(first)
    check_refused(sch, lambda: sch.delay(first, 1), "loop-has-kind", "parallel")

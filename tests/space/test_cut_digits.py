"""cut_digits: quotients and remainders along the lanes become iterators."""

from __future__ import annotations

import pytest
from oracle import check_numbers
from space.candidates import TARGET

import metasched as ms
from metasched.ir.expr import as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import ForKind
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.default_schedule import vectors_and_threads
from metasched.space.modules.cut_digits import CutDigits

PROGRAM = """
@T.prim_func
def main(A: T.Buffer((9, 99)), B: T.Buffer((9, 99)), C: T.Buffer((9, {columns}))):
    for i, j in T.grid(9, {columns}):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = {value}
"""
KRONECKER = "A[vi // 3, vj // 11] * B[vi % 3, vj % 11]"
TURNED = "A[vi, vj % 12] + T.if_then_else(vj % 24 < 12, A[vi, vj // 24], B[vi, vj % 24])"


def program(value: str, columns: int = 99) -> PrimFunc:
    return parse(PROGRAM.format(value=value, columns=columns))


def extents(func: PrimFunc) -> list[int | None]:
    """The extents of the iterators after the module."""
    sch = Schedule(func)
    (result,) = CutDigits()(sch, sch.get_block("C"))
    check_numbers(func, result.mod, compiled=True)
    return [as_int(v.dom.extent) for v in result.get(result.get_block("C")).iter_vars]


@pytest.mark.parametrize(
    ("value", "columns", "cut"),
    [
        (KRONECKER, 99, [9, 9, 11]),
        ("A[vi, vj // 12]", 96, [9, 8, 12]),
        ("A[vi, vj % 12] * B[vi, 0]", 96, [9, 8, 12]),
        ("A[vi, vj % 12] * B[vi, vj // 24]", 96, [9, 8, 12]),  # one digit for both
        ("A[vi, 2 * vj // 24]", 96, [9, 8, 12]),
        (TURNED, 96, [9, 8, 12]),
        ("A[vi, vj // 12]", 95, [9, 95]),  # the last digit is cut short
        ("A[vi, vj // 12] * B[vi, vj % 18]", 72, [9, 72]),  # a common digit has 6 lanes
        ("A[vi, vj // 3]", 96, [9, 96]),
        ("A[vi // 3, vj]", 96, [9, 96]),  # vectors along j as it is
        ("A[vi, vj // 16]", 96, [9, 96]),
        ("A[vi, vj % 96]", 96, [9, 96]),
    ],
)
def test_a_block_is_cut_by_the_largest_common_digit_of_its_lanes(value, columns, cut):
    assert extents(program(value, columns)) == cut


def test_a_comparison_of_digits_is_the_same_for_all_lanes():
    sch = Schedule(program(TURNED, 96))
    CutDigits()(sch, sch.get_block("C"))
    assert "T.if_then_else(v1 % 2 < 1" in sch.mod.script()


def vectors(sch: Schedule) -> list[int | None]:
    loops = sch.get_loops("C")
    return [as_int(sch.get(n).extent) for n in loops if sch.get(n).kind is ForKind.VECTORIZED]


def test_default_and_autoscheduled_programs_have_vectors_along_a_digit():
    func = program(KRONECKER)
    default = Schedule(func)
    vectors_and_threads(func, TARGET).apply(default)
    for sch in (default, ms.autoschedule(func, TARGET)):
        assert vectors(sch) == [11]
        check_numbers(func, sch.mod, compiled=True)


def test_a_block_that_shares_its_loop_with_another_is_left_alone():
    func = parse("""
@T.prim_func
def main(A: T.Buffer((96,)), B: T.Buffer((12,)), C: T.Buffer((96,)), D: T.Buffer((96,))):
    for i in range(96):
        with T.block("C"):
            vi = T.axis.spatial(96, i)
            C[vi] = A[vi // 12] * B[vi % 12]
        with T.block("D"):
            vi = T.axis.spatial(96, i)
            D[vi] = C[vi] + A[vi]
""")
    sch = Schedule(func)
    assert CutDigits()(sch, sch.get_block("C")) == [sch]
    assert len(sch.trace) == 1  # get_block
    assert [error.primitive for error in sch.refused] == ["transform_block_layout"]

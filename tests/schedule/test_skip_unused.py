"""skip_unused: tiles outside of a triangle are left out; the same results, and every refusal."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform

from metasched.ir.describe import show_expr
from metasched.kinds.cpu import cpu_modules
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.generate import SpaceGenerator
from metasched.target import Target

TEXT = """
@T.prim_func
def f(A: T.Buffer((12, 5), "int32"), C: T.Buffer((12, 12), "int32")):
    X = T.alloc_buffer((12, 12), "int32")
    for i, j, k in T.grid(12, 12, 5):
        with T.block("X"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                X[vi, vj] = 0
            X[vi, vj] = X[vi, vj] + A[vi, vk] * A[vj, vk]
    for i in range(12):
        for j in {span}:
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                {where}
                C[vi, vj] = X[{at}] * 2
"""


def square(span: str = "range(i + 1)", where: str = "", at: str = "vi, vj") -> Schedule:
    return Schedule(parse(TEXT.format(span=span, where=where, at=at)), check=True)


def tiled(sch: Schedule, rows: int, columns: int):
    i, j, k = sch.get_loops("X")
    (io, ii), (jo, ji) = sch.split(i, [None, rows]), sch.split(j, [None, columns])
    sch.reorder(io, jo, k, ii, ji)
    return io, jo


@pytest.mark.parametrize("rows_first", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"span": "range(i, 12)"},
        {"span": "range(i)"},
        {"at": "vj, vi"},
        {"span": "range(12)", "where": "T.where(j < i + 3)"},
        {"span": "range(T.max(i - 1, 0), T.min(i + 2, 12))"},
    ],
)
def test_tiles_outside_of_a_triangle_are_left_out(change, rows_first):
    sch = square(**change)
    before = sch.mod["main"]
    loops = tiled(sch, 3, 4)
    if not rows_first:
        sch.reorder(*reversed(loops))
    inner = loops[1] if rows_first else loops[0]
    sch.skip_unused(inner)
    assert not show_expr(sch.get(inner).extent).isdigit()
    check_transform(before, sch)


def test_rows_that_one_tile_holds_are_shortened_once():
    sch = square()
    before = sch.mod["main"]
    i, j, _ = sch.get_loops("X")
    sch.skip_unused(j)
    assert show_expr(sch.get(j).extent) == "i + 1"
    check_refused(sch, lambda: sch.skip_unused(j), "all-used", "no iteration at an end of j")
    check_refused(sch, lambda: sch.skip_unused(i), "all-used", "no iteration at an end of i")
    check_transform(before, sch)


def test_all_results_are_used():
    sch = square("range(12)")
    loop = sch.get_loops("X")[1]
    check_refused(sch, lambda: sch.skip_unused(loop), "all-used", "whose|no block reads")


def test_a_second_reader_of_the_square_keeps_it_whole():
    text = TEXT.format(span="range(i + 1)", where="", at="vi, vj").replace(
        "C[vi, vj] = X[vi, vj] * 2", "C[vi, vj] = X[vi, vj] * X[0, 11]"
    )
    sch = Schedule(parse(text))
    loop = sch.get_loops("X")[1]
    check_refused(sch, lambda: sch.skip_unused(loop), "all-used", "no iteration at an end of j")


def test_a_result_that_the_caller_sees_is_computed():
    sch = square()
    loop = sch.get_loops("C")[1]
    message = "C is not allocated by the block around j"
    check_refused(sch, lambda: sch.skip_unused(loop), "not-allocated", message)


BELOW = """
@T.prim_func
def f(A: T.Buffer((8, 8), "int32"), C: T.Buffer((8, 8), "int32")):
    X = T.alloc_buffer((8, 8), "int32")
    for i, j in T.grid(8, 8):
        with T.block("X"):
            X[i, j] = A[i, j]{more}
        {loose}
    for i in range(8):
        for j in range(i + 1):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = X[vi, vj]
"""


@pytest.mark.parametrize(
    ("more", "loose", "reason", "message"),
    [
        (" + X[j, i]", "pass", "read-below", "below j, where it is not the element written"),
        ("", "A[i, j] = 1", "not-structured", "the loop j holds more than loops and blocks"),
    ],
)
def test_loops_that_stay(more, loose, reason, message):
    text = BELOW.format(more=more, loose="" if loose == "pass" else loose)
    sch = Schedule(parse(text))
    loop = sch.get_loops("X")[1]
    check_refused(sch, lambda: sch.skip_unused(loop), reason, message)


def test_the_space_computes_no_tile_outside_of_a_triangle():
    func = parse(TEXT.replace("12", "48").format(span="range(i + 1)", where="", at="vi, vj"))
    target = Target.of("llvm -mcpu=x86-64-v3 -num-cores 2")
    traces = SpaceGenerator(cpu_modules(target)).generate(func, target)
    assert any("skip_unused" in str(trace) for trace in traces)

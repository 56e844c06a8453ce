"""separate_window: windows of several types, steps and dimensions, and every refusal."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform

from metasched.schedule.schedule import Schedule
from metasched.script import parse

PROGRAM = """
@T.prim_func
def f(A: T.Buffer((16, 24), "{dtype}"), I: T.Buffer((20,), "int32"), W: T.Buffer((3, 4)),
      C: T.Buffer((5, 6), "{dtype}")):
    for y, x, i, j in T.grid(5, 6, 3, 4):
        with T.block("C"):
            vy, vx, vi, vj = T.axis.remap("SSRR", [y, x, i, j])
            with T.init():
                C[vy, vx] = {start}
            C[vy, vx] = {update}
"""


def program(value: str, dtype: str = "float32", start: str = "0", update: str = "C[vy, vx] + {}"):
    text = PROGRAM.format(dtype=dtype, start=start, update=update.format(value))
    return parse(text)


SHARED = "A[vy + vi, vx + vj]"
WINDOWS = {
    "sum": (program(SHARED), [(5, 9)]),
    "steps": (program("A[3 * vy + vi, vx * 2 + vj]"), [(5, 14)]),
    "backwards": (program("A[vy + vi, 8 - vx - vj]"), [(5, 9)]),
    "multiples": (program("A[vy + vi, vx * 2 + vj * 2]"), [(5, 9)]),
    "bytes": (
        program(SHARED, "uint8", "T.uint8(0)", "T.max(C[vy, vx], {})"),
        [(5, 9)],
    ),
    "wrapping": (program(f"{SHARED} * {SHARED}", "int8", "T.int8(0)"), [(5, 9)]),
    "padded": (
        program("T.if_then_else(1 <= vx + vj and vy + vi < 6, A[vy + vi, vx + vj - 1], 0.0)"),
        [(5, 9)],
    ),
    "quotients": (program("A[(vy + vi) // 2, (vx + vj) % 4]"), [(5, 9)]),
    "gathered": (program("A[vy + vi, T.max(T.min(I[vx + vj], 19), 0)]"), [(5, 9)]),
    "one row": (program("A[vi, vx + vj]"), [(5, 9)]),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_the_results_are_the_same(name: str) -> None:
    func, shapes = WINDOWS[name]
    sch = Schedule(func, check=True)
    y, x, i, j = sch.get_loops("C")
    rest = sch.separate_window(j)
    assert [tuple(map(int, b.constant_shape())) for b in _new_buffers(sch)] == shapes
    assert sch.get(rest).name == "C_window" and len(sch.get_loops(rest)) == 3
    assert [sch.get(n) for n in sch.get_loops("C")] == [sch.get(n) for n in (y, x, j)]
    check_transform(func, sch)


def _new_buffers(sch: Schedule):
    return sch.get(sch.get_block("root")).alloc_buffers


def test_three_sides_one_after_another() -> None:
    func = parse("""
@T.prim_func
def f(A: T.Buffer((6, 7, 8), "int16"), C: T.Buffer((4, 5, 6), "int16")):
    for z, y, x, i, j, k in T.grid(4, 5, 6, 3, 3, 3):
        with T.block("C"):
            vz, vy, vx, vi, vj, vk = T.axis.remap("SSSRRR", [z, y, x, i, j, k])
            with T.init():
                C[vz, vy, vx] = T.int16(32767)
            C[vz, vy, vx] = T.min(C[vz, vy, vx], A[vz + vi, vy + vj, vx + vk])
""")
    sch = Schedule(func, check=True)
    planes = sch.separate_window(sch.get_loops("C")[5])
    rows = sch.separate_window(sch.get_loops(planes)[4])
    assert [b.constant_shape() for b in _new_buffers(sch)] == [(4, 5, 8), (4, 7, 8)]
    assert [len(sch.get_loops(b)) for b in (rows, planes, sch.get_block("C"))] == [4, 4, 4]
    check_transform(func, sch)


PLAIN = program(SHARED)
REFUSED = {
    "weights": (program(SHARED + " * W[vi, vj]"), 3, "no-window", r"only in sums s \* x \+ vj"),
    "spatial": (PLAIN, 1, "not-a-side", "vx is not one of several reduce iterators"),
    "gaps": (program("A[0, vy * 4 + vi]"), 2, "no-window", "from 1 to 3"),
    "two steps": (
        program("A[vy + vi, vx + vj] * A[vy, vx * 2 + vj]"),
        3,
        "no-window",
        "no spatial iterator x of C",
    ),
    "value": (
        program("A[vy + vi, vx + vj] + T.Cast('float32', vx)"),
        3,
        "no-window",
        "no spatial iterator x of C",
    ),
    "product": (
        program("A[vy + vi, 0] * T.Cast('float32', vx * vj)"),
        3,
        "no-window",
        "no spatial iterator x of C",
    ),
    "start": (program(SHARED, start="T.float32(1)"), 3, "no-reducer", "starts from its identity"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    func, at, reason, text = REFUSED[name]
    sch = Schedule(func)
    loop = sch.get_loops("C")[at]
    check_refused(sch, lambda: sch.separate_window(loop), reason, text)


def test_refusals_of_shape() -> None:
    sch = Schedule(PLAIN)
    sch.separate_window(sch.get_loops("C")[3])
    last = sch.get_loops("C")[2]
    check_refused(sch, lambda: sch.separate_window(last), "not-a-side", "vj is not one of several")
    sch = Schedule(PLAIN)
    y, x, _, j = sch.get_loops("C")
    sch.parallel(y)
    check_refused(sch, lambda: sch.separate_window(j), "loop-has-kind", "parallel")
    sch = Schedule(PLAIN)
    _, x, _, j = sch.get_loops("C")
    sch.split(x, [2, 3])
    check_refused(
        sch, lambda: sch.separate_window(j), "not-trivial-binding", "iterators of block C"
    )
    func = parse("""
@T.prim_func
def f(a: T.handle, c: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n + 2, 8))
    C = T.match_buffer(c, (n,))
    for y, i, j in T.grid(n, 3, 8):
        with T.block("C"):
            vy, vi, vj = T.axis.remap("SRR", [y, i, j])
            with T.init():
                C[vy] = 0
            C[vy] = C[vy] + A[vy + vi, vj]
""")
    sch = Schedule(func)
    i = sch.get_loops("C")[1]
    check_refused(sch, lambda: sch.separate_window(i), "no-limit", "vy of C is no constant")


def test_a_loop_around_two_blocks_is_refused() -> None:
    func = parse("""
@T.prim_func
def f(A: T.Buffer((6, 3)), C: T.Buffer((6,)), D: T.Buffer((6,))):
    for y in range(6):
        for i in range(3):
            with T.block("C"):
                vy, vi = T.axis.remap("SR", [y, i])
                with T.init():
                    C[vy] = 0
                C[vy] = C[vy] + A[vy, vi]
        with T.block("D"):
            v = T.axis.spatial(6, y)
            D[v] = A[v, 0]
""")
    sch = Schedule(func)
    y = sch.get_loops("D")[0]
    check_refused(sch, lambda: sch.separate_window(y), "not-one-block", "2 blocks are below y")

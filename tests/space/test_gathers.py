"""Blocks that load elements one by one get vectors where they compute much with them."""

from __future__ import annotations

import pytest
from oracle import check_numbers
from space.candidates import TARGET, draw

from metasched.ir.stmt import For, ForKind
from metasched.ir.visit import walk_stmts
from metasched.kinds import default_modules, default_trace
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.generate import SpaceGenerator

RESIZE = """
@T.prim_func
def f(A: T.Buffer((5, 9), "float32"), B: T.Buffer((11, 37), "float32")):
    for y, x in T.grid(11, 37):
        v = T.max((T.float32(x) + 0.5) * 0.25 - 0.5, 0.0)
        left = T.int32(T.floor(v))
        part = v - T.float32(left)
        B[y, x] = A[y // 3, left] * (1.0 - part) + A[y // 3, T.min(left + 1, 8)] * part
"""
TABLE = """
@T.prim_func
def f(A: T.Buffer((50,), "float32"), I: T.Buffer((75,), "int32"), B: T.Buffer((75,), "float32")):
    for i in range(75):
        with T.block("B"):
            vi = T.axis.spatial(75, i)
            B[vi] = {}
"""
BODIES = {
    "resize": (RESIZE, True),
    "function": (TABLE.format("T.sqrt(A[I[vi] % 50] * 0.5)"), True),
    "guarded": (
        TABLE.format("T.if_then_else(I[vi] % 3 == 0, T.sqrt(A[I[vi] % 50 // 2 * 2]), 0.0)"), True,
    ),
    "copy": (TABLE.format("A[I[vi] % 50]"), False),
    "little": (TABLE.format("A[I[vi] % 50] * 2.0 + 1.0"), False),
}  # fmt: skip


def vectorized(sch):
    loops = (s for s in walk_stmts(sch.func.body) if isinstance(s, For))
    return any(loop.kind is ForKind.VECTORIZED for loop in loops)


@pytest.mark.parametrize("case", BODIES)
def test_default_schedules_load_lanes_one_by_one_where_it_pays(case):
    text, pays = BODIES[case]
    func = parse(text)
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    assert vectorized(sch) == pays
    check_numbers(func, sch.mod, compiled=True)


def test_the_search_may_leave_such_a_block_without_vectors():
    func = parse(RESIZE)
    generator = SpaceGenerator(default_modules(TARGET))
    (space,) = generator.generate(func, TARGET)
    assert not generator.failures
    choices = [list(e.values[0]) for _, e in space.sampling()]
    assert any(c[0] == 1 and c[1] >= 4 and c[1:] == [c[1], 2 * c[1], 4 * c[1]] for c in choices)
    kinds = {vectorized(sch) for seed in range(12) if (sch := draw(func, space, seed)) is not None}
    assert kinds == {False, True}

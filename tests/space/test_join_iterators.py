"""join_iterators: iterators that make up an index become one, where that gives vectors."""

from __future__ import annotations

import pytest
from oracle import check_numbers
from space.candidates import TARGET, draw

from metasched.ir.expr import as_int
from metasched.ir.stmt import ForKind
from metasched.kinds import default_modules, default_trace
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.join_iterators import JoinIterators

NEST = """
@T.prim_func
def f(A: T.Buffer((3, 12), "int32"), M: T.Buffer((6, 36), "int32"), D: T.Buffer((6, 36), "int32")):
    for {loops} in T.grid({extents}):
        with T.block("D"):
            {axes}
            {body}
"""
SCALED = {
    "test": "if M[vy * 2 + vi, vx * 2 + vj] > 0: D[vy * 2 + vi, vx * 2 + vj] = A[vy, vx]",
    "update": "D[vi + vy * 2, vx * 2 + vj] = D[vi + vy * 2, vx * 2 + vj] + A[vy, vx] * vj",
    "order": "D[vi + vy * 2, vj + vx * 2] = M[vi + vy * 2, vj + vx * 2] * A[vy, vx]",
}
STAYS = {
    "gap": "D[vy * 2 + vi, vx * 2 + vj * 0] = A[vy, vx]",
    "other digits": "D[vy + vi * 3, vj * 11 + vx] = A[vy, vx]",
    "one line": "D[vy * 2 + vi, vx * 2 + vj] = M[vj + vi * 3, vx]",
}


def program(body: str, loops: str = "y, i, x, j"):
    extents = {"y": 3, "i": 2, "x": 12, "j": 2}
    names = loops.split(", ")
    axes = ", ".join(f"v{n}" for n in names) + f' = T.axis.remap("SSSS", [{loops}])'
    sizes = ", ".join(str(extents[n]) for n in names)
    return parse(NEST.format(loops=loops, extents=sizes, axes=axes, body=body))


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("loops", ["y, i, x, j", "y, x, i, j", "j, x, i, y"])
def test_digits_of_an_index_are_one_iterator(name: str, loops: str) -> None:
    func = program(SCALED[name], loops)
    written = Schedule(func)
    (sch,) = JoinIterators()(written, written.get_block("D"))
    assert len(sch.get_loops("D")) == 2
    check_numbers(func, sch.mod, compiled=True)


@pytest.mark.parametrize("name", STAYS)
def test_other_indices_stay(name: str) -> None:
    sch = Schedule(program(STAYS[name]))
    assert JoinIterators()(sch, sch.get_block("D")) == [sch]


def test_a_pooling_s_gradient_in_plain_loops_has_vectors_along_rows() -> None:
    func = parse("""
@T.prim_func
def f(X: T.Buffer((9, 64)), M: T.Buffer((3, 32)), G: T.Buffer((3, 32)), D: T.Buffer((9, 64))):
    for i, j in T.grid(9, 64):
        D[i, j] = T.float32(0)
    for h, w, y, x in T.grid(3, 32, 3, 2):
        if X[h * 3 + y, w * 2 + x] == M[h, w]:
            D[h * 3 + y, w * 2 + x] += G[h, w]
""")
    spaces = SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)
    assert all(".transform_block_layout(" in str(space.as_python()) for space in spaces)
    for seed, space in enumerate(spaces):
        made = draw(func, space, seed)
        check_numbers(func, made.mod, compiled=True)


MOSAIC = """
@T.prim_func
def f(X: T.Buffer((18, 66), "uint16"), C: T.Buffer((16, 64, 3), "uint16")):
    for y, x in T.grid(8, 32):
        for a, b in T.grid(2, 2):
            i = 2 * y + a + 1
            j = 2 * x + b + 1
            h = (T.int32(X[i, j - 1]) + T.int32(X[i, j + 1])) // 2
            s = T.int32(X[i, j])
            C[2 * y + a, 2 * x + b, 0] = T.uint16(T.if_then_else(b == 0, s, h))
            C[2 * y + a, 2 * x + b, 1] = T.uint16(T.if_then_else((a + b) % 2 == 0, s, h))
            C[2 * y + a, 2 * x + b, 2] = T.uint16(T.if_then_else(a == 1, s, h))
"""


def test_the_colours_of_a_pixel_do_not_hide_its_digits() -> None:
    func = parse(MOSAIC)
    generator = SpaceGenerator(default_modules(TARGET))
    spaces = generator.generate(func, TARGET)
    assert spaces and not generator.failures
    for space in spaces:
        sch = next(s for seed in range(9) if (s := draw(func, space, seed)) is not None)
        assert not any(as_int(sch.get(loop).extent) == 2 for loop in sch.get_loops("C"))
        check_numbers(func, sch.mod, compiled=True)


def test_the_default_schedule_joins_digits_that_are_shorter_than_vectors() -> None:
    """Two lanes along `b` made a demosaic slower than as written."""
    func = parse(MOSAIC)
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    lanes = [x for x in map(sch.get, sch.get_loops("C")) if x.kind is ForKind.VECTORIZED]
    assert [as_int(x.extent) for x in lanes] == [TARGET.vector_bits // 16]
    check_numbers(func, sch.mod, compiled=True)

"""join_iterators: iterators that make up an index become one, where that gives vectors."""

from __future__ import annotations

import pytest
from oracle import check_numbers
from space.candidates import TARGET, draw

from metasched.kinds import default_modules
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

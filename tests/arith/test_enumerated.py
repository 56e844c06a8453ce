"""All values of a sum over nested loops, against a run of the loops in Python."""

from __future__ import annotations

import pytest

from metasched.arith.affine import linear_address
from metasched.arith.enumerated import MOST, values
from metasched.ir.stmt import BufferStore, For
from metasched.ir.visit import walk_stmts
from metasched.script import parse

PROGRAM = """
@T.prim_func
def main(n: T.int32, I: T.Buffer((64,), "int64"), A: T.Buffer((4096,))):
    for p in range({p}):
        for i in range({i}):
            A[{index}] = 1.0
"""


def found(p: str, i: str, index: str) -> set[int] | None:
    body = parse(PROGRAM.format(p=p, i=i, index=index)).body
    loops = {s.var: s for s in walk_stmts(body) if isinstance(s, For)}
    (store,) = (s for s in walk_stmts(body) if isinstance(s, BufferStore))
    first, second = loops
    ranges = {first: (0, int(p) - 1 if p.isdigit() else MOST), second: (0, 63)}
    return values(linear_address(store.indices[0]), loops, ranges)


@pytest.mark.parametrize(
    ("p", "i", "index"),
    [
        ("16", "7 + (p + 1) % 2", "2 * i + p % 2"),
        ("16", "7 + (p + 1) % 2", "2 * i + 1 + p % 2"),
        ("9", "p", "i * 3 + p // 2 + 5"),
        ("5", "4 - p", "(p * 7 + i) % 6 * 2"),
        ("3", "6", "7"),
        ("1", "p", "i"),
    ],
)
def test_the_values_are_those_of_the_loops(p: str, i: str, index: str) -> None:
    wanted = {
        eval(index, {"p": a, "i": b}) for a in range(eval(p)) for b in range(eval(i, {"p": a}))
    }
    assert found(p, i, index) == wanted


def test_a_loop_on_which_the_sum_does_not_depend_is_not_run() -> None:
    assert found(str(50 * MOST), "8", "i") == set(range(8))


@pytest.mark.parametrize(
    ("p", "i", "index"), [("n", "8", "p % 9"), ("4", "n", "i % 9"), ("8", "8", "I[i] % 9")]
)
def test_what_other_values_decide_is_not_known(p: str, i: str, index: str) -> None:
    assert found(p, i, index) is None


def test_many_iterations_are_not_run() -> None:
    assert found("32", "64", "p + i") is None

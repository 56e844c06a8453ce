"""Updates whose order does not matter: decided by their form, compared with all orders."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from oracle import check_refused

from metasched.analysis.any_order import depends_on_order
from metasched.analysis.commuting import commutes
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.ir.stmt import Block, BlockRealize
from metasched.ir.visit import walk_stmts
from metasched.schedule.schedule import Schedule
from metasched.script import parse

FREE = {
    "sum": "B[vi] + A[vi, vk]",
    "difference": "B[vi] - A[vi, vk] * T.int8(3)",
    "sum-of-three": "(A[vi, vk] + B[vi]) - T.int8(2)",
    "product": "A[vi, vk] * B[vi]",
    "minimum": "T.min(A[vi, vk] * T.int8(2), T.min(T.int8(50), B[vi]))",
    "xor": "B[vi] ^ (A[vi, vk] << T.int8(1))",
    "and": "A[vi, vk] & B[vi]",
    "choice": "T.Select(A[vi, vk] > T.int8(0), B[vi] + A[vi, vk], B[vi])",
    "choice-of-sums": "T.if_then_else(vk % 2 == 0, B[vi] + A[vi, vk], B[vi] - T.int8(7))",
    "maximum-by-choice": "T.Select(B[vi] < A[vi, vk], A[vi, vk], B[vi])",
    "minimum-by-choice": "T.Select(B[vi] < A[vi, vk], B[vi], A[vi, vk])",
    "wider-sum": 'T.Cast("int8", T.Cast("int32", B[vi]) + T.Cast("int32", A[vi, vk]) * 77)',
    "wider-maximum": 'T.Cast("int8", T.max(T.Cast("int32", B[vi]), T.Cast("int32", A[vi, vk])))',
    "same-value": "C[vi] + T.int8(1)",
    "kept": "B[vi]",
}
ORDERED = {
    "horner": "B[vi] * T.int8(2) + A[vi, vk]",
    "last": "A[vi, vk]",
    "saturated": "T.max(T.min(B[vi] + A[vi, vk], T.int8(9)), T.int8(-9))",
    "difference-from": "A[vi, vk] - B[vi]",
    "mean": "(B[vi] + A[vi, vk]) // T.int8(2)",
    "hash": "(B[vi] << T.int8(1)) ^ A[vi, vk]",
    "two-operations": "T.Select(A[vi, vk] > T.int8(0), B[vi] + A[vi, vk], B[vi] * T.int8(2))",
    "and-or": "(B[vi] & A[vi, vk]) | (A[vi, vk] >> T.int8(2))",
    "own-test": "T.Select(B[vi] > T.int8(9), B[vi], B[vi] + A[vi, vk])",
    "steps": "T.min(B[vi] + T.int8(1), A[vi, vk])",
    "wrapped-maximum": 'T.Cast("int8", T.max(T.Cast("int32", B[vi]), T.int32(A[vi, vk]) * 77))',
    "rounded": 'T.Cast("int8", T.Cast("float32", B[vi]) * T.float32(0.5))',
    "square": "B[vi] * B[vi] + A[vi, vk]",
    "remainder": "A[vi, vk] - T.int8(3) * B[vi]",
}


def program(value: str, lines: str = "", extent: int = 4) -> PrimFunc:
    """The same update in every iteration of a reduction."""
    return parse(f"""
@T.prim_func
def f(A: T.Buffer((64, {extent}), "int8"), C: T.Buffer((64,), "int8"), B: T.Buffer((64,), "int8")):
    for i, k in T.grid(64, {extent}):
        with T.block("b"):
            vi, vk = T.axis.remap("SR", [i, k])
            {lines or f"B[vi] = {value}"}
""")  # type: ignore[return-value]


def block_of(func: PrimFunc) -> Block:
    blocks = [s.block for s in walk_stmts(func.body) if isinstance(s, BlockRealize)]
    return next(b for b in blocks if b.name == "b")


def differs(func: PrimFunc) -> bool:
    """Whether the order of the iterations shows in the results, for random numbers."""
    draw = np.random.default_rng(0)
    a, c, b = (draw.integers(-128, 127, s, "int8", endpoint=True) for s in ((64, 4), 64, 64))
    found = set()
    for order in itertools.permutations(range(4)):
        got = b.copy()
        run(func, a[:, order].copy(), c, got)
        found.add(got.tobytes())
    return len(found) > 1


@pytest.mark.parametrize("value", FREE.values(), ids=FREE)
def test_an_update_by_one_operation_has_no_order(value: str) -> None:
    func = program(value)
    assert not depends_on_order(block_of(func), func.params[2])
    if "vk %" not in value:  # the permutation of A leaves vk as it is
        assert not differs(func)


@pytest.mark.parametrize("value", ORDERED.values(), ids=ORDERED)
def test_other_updates_have_an_order(value: str) -> None:
    func = program(value)
    block = block_of(func)
    assert depends_on_order(block, func.params[2]) and not commutes(block, func.params[2])
    assert differs(func) or "0.5" in value


STATEMENTS = {
    "condition": ("if A[vi, vk] > T.int8(0): B[vi] = B[vi] + T.int8(1)", False),
    "maximum": ("if A[vi, vk] > B[vi]: B[vi] = A[vi, vk]", False),
    "test-of-own": ("if A[vi, vk] > B[vi]: B[vi] = B[vi] + T.int8(1)", True),
    "let": ("x = B[vi] * T.int8(2); B[vi] = x + A[vi, vk]", True),
    "two-stores": ("B[vi] = B[vi] * T.int8(3); B[vi] = B[vi] + A[vi, vk]", True),
    "two-sums": ("B[vi] = B[vi] + T.int8(3); B[vi] = B[vi] - A[vi, vk]", False),
    "foreign": ('B[vi] = T.call_pure_extern("int8", "f", B[vi], A[vi, vk])', False),
    "loop": ("for n in range(3): B[vi] = T.min(B[vi], A[vi, vk] + T.Cast('int8', n))", False),
}


@pytest.mark.parametrize(("lines", "ordered"), STATEMENTS.values(), ids=STATEMENTS)
def test_statements_around_an_update(lines: str, ordered: bool) -> None:
    func = program("", lines)
    assert depends_on_order(block_of(func), func.params[2]) is ordered


@pytest.mark.parametrize("name", ["horner", "last", "saturated"])
def test_a_reduction_whose_order_matters_keeps_its_order(name: str) -> None:
    sch = Schedule(program(ORDERED[name], extent=7))
    k0, k1 = sch.split(sch.get_loops("b")[1], [None, 4])
    error = check_refused(
        sch, lambda: sch.reorder(k1, k0), "reversed-dependence",
        "exchange accesses to one element of B: .*; the order of its updates matters, as no sum",
    )  # fmt: skip
    assert "B[vi] = " in str(error)
    free = Schedule(program(FREE["sum"], extent=7))
    k0, k1 = free.split(free.get_loops("b")[1], [None, 4])
    free.reorder(k1, k0)

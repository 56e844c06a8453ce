"""Samples of programs: rows exactly as the whole gives them, and nothing where that is not sure."""

from __future__ import annotations

import numpy as np
import pytest

from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.ir.visit import blocks_of
from metasched.measure import sampling
from metasched.measure.sampling import sampled, why_whole
from metasched.script import parse
from metasched.workloads import get

PRODUCT = """
@T.prim_func
def f(A: T.Buffer((40, 6), "int32"), C: T.Buffer((40, 9), "int32")):
    {before}
    for i, j, k in T.grid(40, 9, 6):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            {where}
            with T.init():
                {init}
            C[vi, vj] = C[{again}, vj] * 3 + A[{read}] * (vj + 1)
    {after}
"""
GOOD = {
    "before": "T.evaluate(0)", "where": "T.where(True)", "init": "C[vi, vj] = 1", "again": "vi",
    "read": "vi, vk", "after": "T.evaluate(0)",
}  # fmt: skip


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(sampling, "_ENOUGH", 2000.0)


def program(**parts: str) -> PrimFunc:
    found = parse(PRODUCT.format(**{**GOOD, **parts}))
    assert isinstance(found, PrimFunc)
    return found


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"init": "T.evaluate(0)"},  # adds to what is there
        {"where": "T.where(k < 5)"},
        {"read": "(vi * 7 + vk) % 40, vk"},
        {"before": "for i, k in T.grid(40, 6):\n        A[i, k] = A[39 - i, k] + k"},
    ],
)
def test_rows_are_those_of_the_whole_program(parts: dict[str, str]):
    func = program(**parts)
    part = sampled(func)
    assert part is not None and (part.output, part.axis) == (1, 0)
    assert part.rows[0] == 0 and part.rows[-1] == 39 and part.share < 0.5
    rng = np.random.default_rng(0)
    given = [rng.integers(-4, 5, (40, n), "int32") for n in (6, 9)]
    want, got = ([a.copy() for a in given] for _ in range(2))
    run(func, *want)
    run(part.func, *got)
    rows = list(part.rows)
    np.testing.assert_array_equal(got[1][rows], want[1][rows])
    left = [r for r in range(40) if r not in rows]
    np.testing.assert_array_equal(got[1][left], given[1][left])
    np.testing.assert_array_equal(got[0], want[0])


@pytest.mark.parametrize(
    "parts",
    [
        {"again": "T.max(vi - 1, 0)"},  # a row needs the one before
        {"where": "T.where(i < 30)"},
        {"before": "C[0, 0] = 5"},
        {"after": "for j in range(9):\n        A[0, 0] = A[0, 0] + C[3, j]"},
        {"after": "T.evaluate(T.call_extern('f', C.data, dtype='int32'))"},
    ],
)
def test_programs_whose_samples_are_not_provably_right_run_whole(parts: dict[str, str]):
    assert sampled(program(**parts)) is None


CHAIN = """
@T.prim_func
def f(A: T.Buffer((40, 6), "int32"), C: T.Buffer((40, 9), "int32"){more}):
    P = T.alloc_buffer((40, 9), "int32")
    M = T.alloc_buffer((40,), "int32")
    for i, j, k in T.grid(40, 9, 6):
        with T.block("P"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                P[vi, vj] = 0
            P[vi, vj] = P[vi, vj] + A[vi, vk] * (vj - 4)
    for i, j in T.grid(40, 9):
        with T.block("M"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                M[vi] = -999
            M[vi] = T.max(M[vi], P[vi, vj])
    {between}
    for i, j in T.grid(40, 9):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = {value}
"""


@pytest.mark.parametrize(
    ("between", "value", "stages"),
    [
        ("", "P[vi, vj] - M[vi]", {"P", "M", "C"}),
        ("", "P[vi, vj] - M[39 - vi]", {"C"}),  # M is needed whole, and so is P
        ("", "P[39 - vi, vj] - M[vi]", {"M", "C"}),
        ("for j in range(9):\n        D[j] = P[3, j]", "P[vi, vj] - M[vi]", {"M", "C"}),
        ("for i in range(40):\n        M[i] = M[i] + i", "P[vi, vj] - M[vi]", {"C"}),
    ],
)
def test_stages_before_the_output_run_for_the_same_rows(between, value, stages):
    more = ', D: T.Buffer((9,), "int32")' if "D[" in between else ""
    func = parse(CHAIN.format(more=more, between=between or "T.evaluate(0)", value=value))
    assert isinstance(func, PrimFunc)
    (found,) = [row for s in blocks_of(func.body) for _, axis, row in sampling._candidates(func, s)
                if axis == 0]  # fmt: skip
    assert {row.realize.block.name for row in sampling._with_producers(func, found)} == stages
    part = sampled(func)
    if part is None:
        assert "P" not in stages
        return
    rng = np.random.default_rng(0)
    given = [rng.integers(-4, 5, shape, "int32") for shape in [(40, 6), (40, 9)]]
    given += [np.zeros(9, "int32")] if more else []
    want, got = ([a.copy() for a in given] for _ in range(2))
    run(func, *want)
    run(part.func, *got)
    rows = list(part.rows)
    taken = [np.take(a[1], rows, axis=part.axis) for a in (got, want)]
    np.testing.assert_array_equal(*taken)
    for a, b in zip(got[2:], want[2:], strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_short_program_is_run_whole(monkeypatch):
    monkeypatch.setattr(sampling, "_ENOUGH", 1e9)
    assert sampled(program()) is None and why_whole(program()) == ""


def test_why_a_long_program_is_run_whole_is_said():
    assert why_whole(program(where="T.where(i < 30)")) == (
        "no loop of block C, 100 % of its operations, surely computes rows of an output by itself"
    )
    func = get("cbr").func((1, 8, 8, 4, 4, 3, 1, 1))
    assert sampled(func) is None
    said = why_whole(func)
    assert said.startswith("block ") and "writes the intermediate buffer " in said

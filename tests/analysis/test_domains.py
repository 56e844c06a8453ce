"""The domains that closing gives to the iterators of loops whose ends memory says."""

from __future__ import annotations

import numpy as np
import pytest

import metasched as ms
from metasched.ir.interp import run
from metasched.ir.stmt import Block
from metasched.ir.visit import walk_stmts
from metasched.kinds import default_trace
from metasched.script import parse
from metasched.target import Target

HALF, MOST = 1 << 30, (1 << 31) - 1


def domain(func, name):
    """The first and last value of an iterator, after `enclose`."""
    sch = ms.Schedule(func)
    sch.enclose("root")
    found = [
        v.dom
        for block in walk_stmts(sch.func.body)
        if isinstance(block, Block)
        for v in block.iter_vars
        if v.var.name == name
    ]
    return {(int(d.min), int(d.min + d.extent) - 1) for d in found}


@pytest.mark.parametrize(
    ("low", "store", "first"),
    [
        ("b[i]", "C[i] += j // 2 + T.max(j, 0)", -HALF),
        ("b[i]", "C[i] += x[j] if j >= 0 else 1", -HALF),
        ("b[i]", "C[i] += x[j]", 0),  # a negative index lies outside
        ("T.max(b[i], 0)", "C[i] += j // 2", 0),
        ("T.int32(u[i])", "C[i] += j // 2", 0),
    ],
)
def test_a_loop_that_memory_starts_may_count_from_below_zero(low, store, first):
    func = parse(f"""
@T.prim_func
def f(b: T.Buffer((8,), "int32"), u: T.Buffer((8,), "uint8"), x: T.Buffer((40,), "int32"),
      C: T.Buffer((8,), "int32")):
    for i in range(8):
        for j in range({low}, {low} + 5):
            {store}
""")
    assert {low for low, _ in domain(func, "v_j")} == {first}
    b = np.arange(-20, 20, 5, dtype="int32") * (first < 0) + np.arange(8, dtype="int32")
    given = b, np.arange(8, dtype="uint8"), np.arange(40, dtype="int32"), np.zeros(8, "int32")
    want, scheduled, enclosed = ([a.copy() for a in given] for _ in range(3))
    run(func, *want)
    sch = ms.Schedule(func)
    sch.enclose("root")
    run(sch.mod, *enclosed, check_regions=True)
    sch = ms.Schedule(func)
    default_trace(func, Target.native()).apply(sch)
    ms.build(sch)(*scheduled)
    for got in (enclosed, scheduled):
        np.testing.assert_array_equal(got[-1], want[-1])


def test_a_loop_that_changes_what_says_its_length():
    """Python asks for the length once, before the first iteration."""
    func = parse("""
@T.prim_func
def f(A: T.Buffer((16, 64), "int32"), s: T.Buffer((16,), "int32")):
    for k in range(s[0]):
        for j in range(16):
            s[j] += A[j, k]
""")
    assert domain(func, "v_k") == {(0, MOST - 1)}
    A, s = -np.ones((16, 64), "int32"), np.full(16, 20, "int32")
    sch = ms.Schedule(func)
    sch.enclose("root")
    run(sch.mod, A, s, check_regions=True)
    assert (s == 0).all()

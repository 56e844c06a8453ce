"""scatter: histograms get copies, scatter-adds columns; other blocks are left alone."""

from __future__ import annotations

import numpy as np
import pytest
from space.candidates import TARGET, draw

from metasched.ir.stmt import For, ForKind
from metasched.ir.visit import walk_stmts
from metasched.kinds import default_modules
from metasched.runtime.build import build
from metasched.script import parse
from metasched.space.generate import SpaceGenerator

HISTOGRAM = """
@T.prim_func
def f(A: T.Buffer((20000,), "uint8"), H: T.Buffer((256,), "int32")):
    for i in range(20000):
        with T.block("H"):
            vi = T.axis.reduce(20000, i)
            H[T.int32(A[vi])] = H[T.int32(A[vi])] + 1
"""
ADD = """
@T.prim_func
def f(N: T.Buffer((300,), "int32"), X: T.Buffer((300, 40), "float32"),
      O: T.Buffer((100, 40), "float32")):
    for i, j in T.grid(300, 40):
        with T.block("O"):
            vi, vj = T.axis.{kind}(300, i), T.axis.spatial(40, j)
            O[N[vi], vj] = O[N[vi], vj] + X[vi, vj]
"""


def spaces(text):
    generator = SpaceGenerator(default_modules(TARGET))
    func = parse(text)
    found = generator.generate(func, TARGET)
    assert not generator.failures
    return func, found


def steps(space):
    return [entry.kind.name for entry in space.entries]


def parallel(sch):
    loops = [s for s in walk_stmts(sch.func.body) if isinstance(s, For)]
    return any(loop.kind is ForKind.PARALLEL for loop in loops)


def test_a_histogram_is_counted_in_copies():
    func, found = spaces(HISTOGRAM)
    space = next(s for s in found if "privatize_update" in steps(s))
    a = np.random.default_rng(0).integers(0, 256, 20000).astype("uint8")
    spread = False
    for seed in range(4):
        sch, out = draw(func, space, seed), np.ones(256, "int32")
        build(sch, target="native")(a, out)
        np.testing.assert_array_equal(out, np.bincount(a, minlength=256) + 1)
        spread |= parallel(sch)
    assert spread


@pytest.mark.parametrize("kind", ["reduce", "opaque"])
def test_columns_of_a_scatter_add_run_beside_each_other(kind):
    func, found = spaces(ADD.format(kind=kind))
    space = next(s for s in found if "vectorize" in steps(s) and "reorder" in steps(s))
    rng = np.random.default_rng(0)
    n, x = rng.integers(0, 100, 300).astype("int32"), rng.integers(-4, 5, (300, 40))
    want = np.zeros((100, 40), "float32")
    np.add.at(want, n, x)
    for seed in range(4):
        sch, out = draw(func, space, seed), np.zeros((100, 40), "float32")
        build(sch, target="native")(n, x.astype("float32"), out)
        np.testing.assert_array_equal(out, want)


def test_other_updates_are_left_alone():
    plain = ADD.format(kind="reduce").replace("O[N[vi], vj]", "O[vi % 100, vj]")
    _, found = spaces(plain)
    assert not any("privatize_update" in steps(space) for space in found)
    few = HISTOGRAM.replace("20000", "300")
    _, found = spaces(few)
    assert not any("privatize_update" in steps(space) for space in found)

"""vector_rows: running values that need their order, with neighbouring rows in vector lanes."""

from __future__ import annotations

import numpy as np
import pytest
from space.candidates import TARGET, draw

from metasched import workloads
from metasched.ir.stmt import For, ForKind
from metasched.ir.visit import walk_stmts
from metasched.kinds import default_modules
from metasched.runtime.build import build
from metasched.script import parse
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.vector_rows import VectorRows

HEAD = """
@T.prim_func
def f(X: T.Buffer(({n}, {m}), "float64"), mean: T.Buffer(({n},), "float64"),
      m2: T.Buffer(({n},), "float64")):
    for i, j in T.grid({n}, {m}):
        with T.block("W"):
            vi, vj = T.axis.spatial({n}, i), T.axis.{kind}({m}, j)
"""
INIT = """            with T.init():
                mean[vi] = T.float64(0)
                m2[vi] = T.float64(0)
"""
NAMED = """            delta: T.let = X[vi, vj] - mean[vi]
            mean[vi] = mean[vi] + delta / T.cast(vj + 1, "float64")
            m2[vi] = m2[vi] + delta * (X[vi, vj] - mean[vi])
"""
SCRATCH = """            d = T.alloc_buffer((1,), "float64")
            d[0] = X[vi, vj] - mean[vi]
            mean[vi] = mean[vi] + d[0] / T.cast(vj + 1, "float64")
            m2[vi] = m2[vi] + d[0] * (X[vi, vj] - mean[vi])
"""
FORMS = {
    "init": ("reduce", INIT + NAMED),
    "scratch": ("reduce", INIT + SCRATCH),
    "reduce": ("reduce", NAMED),
    "opaque": ("opaque", NAMED),
}


def moments(form, n=257, m=200):
    kind, body = FORMS[form]
    return parse(HEAD.format(n=n, m=m, kind=kind) + body)


def offered(func):
    """The spaces that the module makes of a function, without the unchanged one."""
    space = SpaceGenerator(default_modules(TARGET))
    found = space.generate(func, TARGET)
    assert not space.failures
    rows = [s for s in found if any("vector_rows" in e.values for e in s.entries)]
    return rows, space.refusals


@pytest.mark.parametrize("form", FORMS)
def test_means_and_variances_of_rows(form):
    func = moments(form)
    (space,), _ = offered(func)
    x = np.random.default_rng(0).normal(3, 2, (257, 200))
    kinds: set[ForKind] = set()
    for seed in range(4):
        mean, m2 = np.zeros(257), np.zeros(257)
        sch = draw(func, space, seed)
        kinds |= {s.kind for s in walk_stmts(sch.func.body) if isinstance(s, For)}
        build(sch, target="native")(x, mean, m2)
        np.testing.assert_allclose(mean, x.mean(axis=1), rtol=1e-12)
        np.testing.assert_allclose(m2 / 200, x.var(axis=1), rtol=1e-12)
    assert ForKind.VECTORIZED in kinds
    assert ForKind.PARALLEL in kinds or "T.init" not in FORMS[form][1]


@pytest.mark.parametrize(
    ("name", "shape"),
    [("gmm", (1, 64, 64, 64)), ("sfm", (64, 512)), ("argmax", (64, 512)), ("nrm", (8, 64, 64))],
)
def test_reductions_with_partial_results_are_left_to_others(name, shape):
    rows, _ = offered(workloads.get(name).func(shape))
    assert not rows


def sums(dtype, n, m, body="A[i, k]"):
    return parse(
        f'@T.prim_func\ndef f(A: T.Buffer(({n}, {m}), "{dtype}"), S: T.Buffer({n}, "{dtype}")):\n'
        f"    for i in range({n}):\n        S[i] = 0\n        for k in range({m}):\n"
        f"            S[i] += {body}\n"
    )


@pytest.mark.parametrize("n", [6, 100])
def test_sums_of_floats_in_plain_loops_keep_their_order(n):
    func = sums("float32", n, 999, "T.exp(A[i, k])")
    (space, *_), _ = offered(func)
    a = np.random.default_rng(0).normal(0, 3, (n, 999)).astype(np.float32)
    expected, found = np.zeros(n, np.float32), np.zeros(n, np.float32)
    build(func)(a, expected)
    sch = draw(func, space, 0)
    assert any(
        s.kind is ForKind.VECTORIZED for s in walk_stmts(sch.func.body) if isinstance(s, For)
    )
    build(sch, target="native")(a, found)
    # exp of a vector may differ from exp of a number in the last place
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    func = sums("float32", n, 999)
    build(func)(a, expected)
    build(draw(func, offered(func)[0][0], 0), target="native")(a, found)
    assert found.tolist() == expected.tolist()


def test_sums_of_integers_and_rows_a_page_apart_are_left_alone():
    assert not offered(sums("int32", 100, 999))[0]
    assert not offered(sums("float32", 100, 1024))[0]


def test_few_rows_and_rows_that_need_each_other_are_left_alone():
    rows, _ = offered(moments("init", 3, 20000))
    assert not rows
    chained = NAMED.replace("X[vi, vj] - mean[vi]\n", "X[vi, vj] - mean[T.max(vi - 1, 0)]\n", 1)
    rows, _ = offered(parse(HEAD.format(n=256, m=256, kind="opaque") + chained))
    assert not rows


@pytest.mark.parametrize(
    ("rows", "length", "sizes"),
    [
        (8, 5000, [8]),
        (16, 5000, [8, 16]),
        (1000, 5000, [8, 16, 32]),
        (1000, 128, [8, 16]),  # rows of 1 KiB: the cache keeps 32 of their lines
        (1000, 256, [8]),
    ],
)
def test_tiles_are_no_wider_than_the_rows_and_the_cache(rows, length, sizes):
    (found, plain) = SpaceGenerator((VectorRows(512),)).generate(moments("init", rows, length))
    assert [entry.values[0] for _, entry in found.sampling()] == [sizes]
    assert not plain.entries

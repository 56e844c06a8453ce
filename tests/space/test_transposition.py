"""tile_transposition: rows that become columns go there in squares; nothing else is touched."""

from __future__ import annotations

import numpy as np
import pytest
from space.candidates import TARGET, draw

from metasched.ir.stmt import For, ForKind
from metasched.ir.visit import walk_stmts
from metasched.kinds import default_modules
from metasched.runtime.build import build
from metasched.script import tir as T
from metasched.space.generate import SpaceGenerator


def crossing(n, m):
    @T.prim_func
    def crossing(A: T.Buffer((m, n), "float32"), B: T.Buffer((m,), "float32"),
                 C: T.Buffer((n, m), "float32")):  # fmt: skip
        for i, j in T.grid(n, m):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vj, vi] + B[vj]

    return crossing


@T.prim_func
def scaled(A: T.Buffer((64, 64), "float32"), B: T.Buffer((64,), "float32"),
           C: T.Buffer((64, 64), "float32")):  # fmt: skip
    for i, j in T.grid(64, 64):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] * B[vi]


def generated(func):
    return SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)


def kinds(sch):
    loops = [s for s in walk_stmts(sch.func.body) if isinstance(s, For)]
    return {(loop.kind, loop.extent.value) for loop in loops}


@pytest.mark.parametrize("n, m", [(64, 48), (37, 51)])
def test_squares_are_offered_and_compute_the_same(n, m):
    func, seen = crossing(n, m), set()
    tiled, plain = generated(func)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, n), np.float32), rng.standard_normal(m, np.float32)
    for seed in range(6):
        sch = draw(func, tiled, seed)
        assert {(ForKind.UNROLLED, 16), (ForKind.VECTORIZED, 16)} <= kinds(sch)
        seen |= {entry.decision for _, entry in sch.trace.sampling()}
        c = np.zeros((n, m), np.float32)
        build(sch, target="native")(a, b, c)
        np.testing.assert_array_equal(c, a.T + b)
    assert len(seen) > 1
    assert ForKind.VECTORIZED not in {kind for kind, _ in kinds(draw(func, plain, 0))}


def test_only_full_squares_of_loads_and_stores_are_transposed():
    assert len(generated(crossing(15, 64))) == len(generated(crossing(64, 15))) == 1
    assert len(generated(scaled)) == 1

"""Blocks in Python: what the builder makes is what a script would say."""

from __future__ import annotations

import numpy as np

import metasched as ms
from metasched.frontend.blocks import block, function, grid, reduce, spatial, stage, store
from metasched.ir.buffer import Buffer
from metasched.ir.equal import assert_structural_equal
from metasched.ir.verify import verify
from metasched.script import parse


def test_the_example_of_the_page():
    A, B, C = (Buffer.of(n, s) for n, s in (("A", (64, 32)), ("B", (32, 48)), ("C", (64, 48))))
    vi, vj, vk = spatial("vi", 64), spatial("vj", 48), reduce("vk", 32)
    i, j, k = vi.var, vj.var, vk.var
    update = store(C, (i, j), C[i, j] + A[i, k] * B[k, j])
    init = store(C, (i, j), 0)
    func = function("matmul", [A, B, C], [stage("C", [vi, vj, vk], update, init=init)])
    verify(func)
    assert_structural_equal(parse(func.script()), func)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, s).astype("float32") for s in ((64, 32), (32, 48)))
    c = np.zeros((64, 48), "float32")
    ms.build(func)(a, b, c)
    np.testing.assert_array_equal(c, a @ b)


def test_nests_by_hand_with_a_predicate_and_a_temporary():
    A, B, T = (Buffer.of(name, (10,), "int32") for name in "ABT")
    v, w = spatial("v", 10), spatial("w", 10)

    def tiled(outer, inner):
        i = outer * 4 + inner
        return block("T", {v: i}, store(T, (v.var,), A[v.var] * 2), predicate=i < 10)

    nests = [grid({"o": 3, "i": 4}, tiled), stage("B", [w], store(B, (w.var,), T[w.var] + 1))]
    func = function("twice", [A, B], nests)
    verify(func)
    assert_structural_equal(parse(func.script()), func)
    assert "T.where(" in func.script() and "T_1 = T.alloc_buffer" in func.script().replace(
        "    T = ", "    T_1 = "
    )
    sch = ms.Schedule(func)
    sch.compute_inline("T")
    b = np.zeros(10, "int32")
    ms.build(sch.mod)(np.arange(10, dtype="int32"), b)
    assert b.tolist() == [2 * i + 1 for i in range(10)]

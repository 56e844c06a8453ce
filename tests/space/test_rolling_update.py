"""Chains with a softmax run in one pass over blocks of their axis, and hold one block at a time."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from space.candidates import TARGET, draw
from space.chains import attention, attention_reference, layer_norm, two_products

from metasched.ir.expr import as_int
from metasched.ir.interp import run
from metasched.ir.stmt import Allocate
from metasched.ir.visit import walk_stmts
from metasched.kinds import default_modules
from metasched.runtime.build import build, lower
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.auto_inline import AutoInline
from metasched.space.modules.rolling_update import RollingUpdate
from metasched.space.modules.row_blocks import FuseRowBlocks

LOG_SUM_EXP = """
@T.prim_func
def main(X: T.Buffer(({m}, {n}), "float32"), Y: T.Buffer(({m},), "float32")):
    M = T.alloc_buffer(({m},), "float32")
    S = T.alloc_buffer(({m},), "float32")
    for i, j in T.grid({m}, {n}):
        with T.block("M"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                M[vi] = T.float32("-inf")
            M[vi] = T.max(M[vi], X[vi, vj])
    for i, j in T.grid({m}, {n}):
        with T.block("S"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + T.exp(X[vi, vj] - M[vi])
    for i in range({m}):
        with T.block("Y"):
            vi = T.axis.spatial({m}, i)
            Y[vi] = M[vi] + T.log(S[vi])
"""


ATTENTION = """
@T.prim_func
def main(Q: T.Buffer((4, {s}, 8), "{dtype}"), K: T.Buffer((2, {s}, 8), "{dtype}"),
         V: T.Buffer((2, {s}, 8), "{dtype}"), O: T.Buffer((4, {s}, 8), "float32")):
    S = T.alloc_buffer((4, {s}, {s}), "float32")
    P = T.alloc_buffer((4, {s}, {s}), "float32")
    M = T.alloc_buffer((4, {s}), "float32")
    E = T.alloc_buffer((4, {s}, {s}), "float32")
    N = T.alloc_buffer((4, {s}), "float32")
    for h, i, j, d in T.grid(4, {s}, {s}, 8):
        with T.block("S"):
            vh, vi, vj, vd = T.axis.remap("SSSR", [h, i, j, d])
            with T.init():
                S[vh, vi, vj] = T.float32(0)
            S[vh, vi, vj] += T.float32(Q[vh, vi, vd]) * T.float32(K[vh // 2, vj, vd])
    for h, i, j in T.grid(4, {s}, {s}):
        with T.block("P"):
            vh, vi, vj = T.axis.remap("SSS", [h, i, j])
            P[vh, vi, vj] = T.if_then_else({kept}, S[vh, vi, vj] * 0.5, T.float32("-inf"))
    for h, i, j in T.grid(4, {s}, {s}):
        with T.block("M"):
            vh, vi, vj = T.axis.remap("SSR", [h, i, j])
            with T.init():
                M[vh, vi] = T.float32("-inf")
            M[vh, vi] = T.max(M[vh, vi], P[vh, vi, vj])
    for h, i, j in T.grid(4, {s}, {s}):
        with T.block("E"):
            vh, vi, vj = T.axis.remap("SSS", [h, i, j])
            E[vh, vi, vj] = T.exp(P[vh, vi, vj] - M[vh, vi])
    for h, i, j in T.grid(4, {s}, {s}):
        with T.block("N"):
            vh, vi, vj = T.axis.remap("SSR", [h, i, j])
            with T.init():
                N[vh, vi] = T.float32(0)
            N[vh, vi] += E[vh, vi, vj]
    for h, i, d, j in T.grid(4, {s}, 8, {s}):
        with T.block("O"):
            vh, vi, vd, vj = T.axis.remap("SSSR", [h, i, d, j])
            with T.init():
                O[vh, vi, vd] = T.float32(0)
            O[vh, vi, vd] += E[vh, vi, vj] / N[vh, vi] * T.float32(V[vh // 2, vj, vd])
"""
KEPT = {"causal": "vj <= vi", "window": "vj <= vi and vi < vj + 5", "nothing in row 3": "vi != 3"}


def masked_attention(q, k, v, mask):
    """The results in float64."""
    q, k, v = (x.astype("float64") for x in (q, k, v))
    scores = np.where(mask, q @ np.repeat(k, 2, 0).transpose(0, 2, 1) * 0.5, -np.inf)
    with np.errstate(all="ignore"):
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True) @ np.repeat(v, 2, 0)


def passes(func, *before):
    """The variants of a function with one pass over blocks."""
    generator = SpaceGenerator((*before, RollingUpdate(FuseRowBlocks(2, 1 << 20))))
    return [s for s in generator.generate(func) if "rolling_update" in s.as_python()]


def drawn(func, space, seed):
    sch = Schedule(func, seed=seed)
    space.apply(sch)
    return sch


def held(func) -> int:
    """Bytes of all memory that a lowered function allocates."""
    allocated = [s.buffer for s in walk_stmts(func.body) if isinstance(s, Allocate)]
    return sum(math.prod(as_int(e) or 1 for e in b.shape) * b.dtype.bytes for b in allocated)


@pytest.mark.parametrize("length", [128, 4096])
def test_memory_does_not_grow_with_the_square_of_the_length(length):
    heads, dim = 2, 16
    func = attention((1, length, heads, dim))
    (space,) = passes(func, AutoInline())
    sch = drawn(func, space, 0)
    decisions = {e.kind.name: e.decision for e in sch.trace.entries if e.decision is not None}
    rows = decisions["sample_perfect_tile"][1]
    most = 1024 if length > 1024 else 64
    transposed = (length + 16) * heads * dim * 4
    block = 2 * heads * rows * (most + 4 * dim) * 4
    assert held(lower(sch.mod, target="native")) <= transposed + block
    assert block < heads * length * length * 4 or length == 128


@pytest.mark.parametrize("shape", [(1, 128, 2, 16), (1, 128, 1, 8)])
def test_attention_from_the_default_modules_computes_the_same(shape):
    func = attention(shape)
    spaces = SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)
    spaces = [space for space in spaces if "rolling_update" in space.as_python()]
    rng = np.random.default_rng(0)
    b, s, h, d = shape
    inputs = [rng.normal(size=(b, s, h, d)).astype("float32") for _ in range(3)]
    wanted = attention_reference(shape, *inputs)
    made = (draw(func, spaces[0], seed, check=False) for seed in range(20))
    sch = next(s for s in made if s is not None)
    found = np.zeros_like(wanted)
    build(sch, target="native")(*inputs, found)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kept", "dtype", "factor", "s"),
    [
        ("causal", "bfloat16", 1.0, 80),
        ("causal", "float32", 100.0, 80),
        ("window", "float32", 0.0, 80),
        ("nothing in row 3", "float32", 1.0, 80),
        ("causal", "float32", 1.0, 131),
        ("nothing in row 3", "float32", 1.0, 139),
    ],
)
def test_masks_and_heads_that_share_keys(kept, dtype, factor, s):
    func = parse(ATTENTION.format(s=s, kept=KEPT[kept], dtype=dtype))
    (space, *_) = passes(func, AutoInline())
    rng = np.random.default_rng(0)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    q, k, v = (rng.normal(size=(n, s, 8)) for n in (4, 2, 2))
    q, k, v = (q * factor).astype(kind), k.astype(kind), v.astype(kind)
    i, j = np.indices((s, s))
    mask = {"causal": j <= i, "window": (j <= i) & (i < j + 5), "nothing in row 3": i != 3}[kept]
    found = np.zeros((4, s, 8), "float32")
    build(drawn(func, space, 0), target="native")(q, k, v, found)
    wanted = masked_attention(q, k, v, mask)
    assert np.isnan(wanted).any() == (kept == "nothing in row 3")
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-4)


def test_log_sum_exp_in_one_pass():
    func = parse(LOG_SUM_EXP.format(m=16, n=200))
    (space,) = passes(func)
    x = np.random.default_rng(0).normal(size=(16, 200)).astype("float32") * 100
    x[1], x[2, :150] = -np.inf, -np.inf
    wanted, found = np.zeros(16, "float32"), np.zeros(16, "float32")
    with np.errstate(all="ignore"):
        run(func, x, wanted)
    build(drawn(func, space, 0), target="native")(x, found)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("func", [two_products((16, 16, 16, 16)), layer_norm((8, 32))])
def test_chains_without_a_softmax_are_left_alone(func):
    assert not passes(func, AutoInline())

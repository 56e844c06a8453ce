"""Chains with a softmax run in one pass over blocks of their axis, and hold one block at a time."""

from __future__ import annotations

import math

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
    transposed = length * heads * dim * 4
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

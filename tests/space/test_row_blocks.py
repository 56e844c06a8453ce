"""Chains of products and normalisations are computed in blocks of rows, and compute the same."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from space.candidates import TARGET, draw
from space.chains import attention, attention_reference, two_products

from metasched.ir.interp import run
from metasched.ir.stmt import For, ForKind
from metasched.ir.visit import blocks_of, walk_stmts
from metasched.kinds import default_modules
from metasched.runtime.build import build, lower
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.auto_inline import AutoInline
from metasched.space.modules.row_blocks import FuseRowBlocks
from metasched.workloads import get

SHAPE = (1, 24, 2, 16)


def fused(func):
    """The variants of a function in which blocks of rows stand around other blocks."""
    spaces = SpaceGenerator((AutoInline(), FuseRowBlocks(2, 1 << 20))).generate(func)
    return [space for space in spaces if "blockize" in space.as_python()]


@functools.cache
def default_spaces():
    """The design spaces of attention."""
    return tuple(SpaceGenerator(default_modules(TARGET)).generate(attention(SHAPE), TARGET))


def test_attention_in_blocks_of_rows_computes_the_same():
    func = attention(SHAPE)
    rng = np.random.default_rng(0)
    b, s, h, d = SHAPE
    inputs = [rng.normal(size=(b, s, h, d)).astype("float32") for _ in range(3)]
    wanted = attention_reference(SHAPE, *inputs)
    spaces = default_spaces()
    chains = [space for space in spaces if "blockize" in space.as_python()]
    assert chains and len(chains) < len(spaces)
    drawn = 0
    for seed, space in enumerate(chains[::4]):
        sch = draw(func, space, seed, check=False)
        if sch is None:
            continue
        drawn += 1
        outputs = [np.zeros_like(wanted)]
        build(sch, target="native")(*inputs, outputs[0])
        if drawn <= 3:
            outputs.append(np.zeros_like(wanted))
            run(sch.mod, *inputs, outputs[1])
        for output in outputs:
            np.testing.assert_allclose(output, wanted, rtol=1e-4, atol=1e-5)
    assert drawn >= 2


def test_scores_of_all_rows_are_never_held():
    (space,) = fused(attention(SHAPE))
    sch = Schedule(attention(SHAPE), seed=3)
    space.apply(sch)
    (rows,) = (e.decision[1] for e in sch.trace.entries if e.kind.name == "sample_perfect_tile")
    text = lower(sch.mod, target="native").script()
    b, s, h, d = SHAPE
    assert rows < s
    assert f"(T.int64({b * h * s * s}),)" not in text
    assert f"(T.int64({h * rows * s}),)" in text


@pytest.mark.parametrize(("length", "row"), [(128, 144), (120, 120), (136, 136), (256, 272)])
def test_rows_of_a_transposed_operand_share_few_sets_of_the_cache(length, row):
    """Rows of 512 bytes, or of a multiple, take one line of 64 bytes more."""
    func = attention((1, length, 2, 16))
    (space,) = fused(func)
    sch = Schedule(func, seed=3)
    space.apply(sch)
    assert f"(T.int64({2 * 16 * row}),)" in lower(sch.mod, target="native").script()


@pytest.mark.parametrize("shape", [(24, 16, 16, 16), (40, 16, 32, 8), (131, 8, 16, 4)])
def test_two_products_in_blocks_of_rows(shape):
    func = two_products(shape)
    (space,) = fused(func)
    sch = Schedule(func, seed=0, check=True)
    space.apply(sch)
    assert ("overcompute" in sch.trace.as_python()) == (shape[0] == 131)
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-4, 5, b.constant_shape()).astype("float32") for b in func.buffers[:3])
    output = np.zeros((shape[0], shape[3]), "float32")
    run(sch.mod, a, b, c, output)
    np.testing.assert_array_equal(output, a @ b @ c)


@pytest.mark.parametrize("name", ["gmm", "cbr", "sfm", "nrm"])
def test_programs_without_a_second_reduction_of_a_product_are_left_alone(name):
    work = get(name)
    assert not fused(work.func(work.shapes[0]))


PRODUCT = """
@T.prim_func
def main(A: T.Buffer((16, 32), "float32"), N: T.Buffer((16,), "float32"),
         B: T.Buffer((32, 16), "float32"), C: T.Buffer((16, 16), "float32")):
    P = T.alloc_buffer((16, 32), "float32")
    for i, k in T.grid(16, 32):
        with T.block("P"):
            vi, vk = T.axis.remap("SS", [i, k])
            P[vi, vk] = {value}
    for i, j, k in T.grid(16, 16, 32):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + P[vi, vk] * B[vk, vj]
"""


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("A[vi, vk] / N[vi]", True),
        ("T.tanh(A[vi, vk])", True),
        ("A[vi, vk] / T.float32(3)", False),
        ("A[vi, vk] * T.float32(3)", False),
        ("A[vi, vk] * N[vi]", True),
    ],
)
def test_slow_operations_stay_out_of_products(value, kept):
    (space,) = SpaceGenerator((AutoInline(),)).generate(parse(PRODUCT.format(value=value)))
    assert ("compute_inline" not in space.as_python()) == kept


def test_leaves_of_a_block_around_blocks_get_vectors():
    func = attention(SHAPE)
    space = next(s for s in default_spaces() if "blockize" in s.as_python())
    sch = next(s for s in (draw(func, space, seed, check=False) for seed in range(20)) if s)
    (outer,) = (r for r in blocks_of(sch.func.body) if r.block.name.startswith("outer"))
    loops = [s for s in walk_stmts(outer.block.body) if isinstance(s, For)]
    kinds = {r.block.name: {x.kind for x in sch.state.loops_above(r)} for r in blocks_of(outer)}
    assert ForKind.VECTORIZED in kinds["E"]
    assert all(loop.kind is not ForKind.PARALLEL for loop in loops)

"""rewrite_layout: constant weights lie in the order in which the kernel reads them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from space.candidates import TARGET, draw

from metasched.ir.equal import structural_equal
from metasched.ir.interp import run
from metasched.kinds import default_modules
from metasched.kinds.cpu import reference_modules
from metasched.lower.packing import PREPROC, split_packing
from metasched.postproc.rewrite_layout import RewriteLayout
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.script.parser import parse
from metasched.script.printer import script
from metasched.space.generate import SpaceGenerator
from metasched.workloads import get

SHAPES = {
    "gmm": (2, 3, 37, 5),
    "c1d": (1, 4, 3, 24, 3, 2, 1),
    "c2d": (1, 2, 3, 3, 24, 2, 1, 1),
    "c3d": (1, 2, 1, 2, 2, 24, 2, 1, 1),
    "cbr": (1, 3, 3, 2, 24, 3, 2, 1),
    "dil": (1, 3, 2, 3, 24, 2, 1, 1, 2),
    "dep": (1, 3, 3, 24, 3, 1, 1),
    "grp": (1, 3, 2, 6, 24, 2, 1, 1, 1, 3),
    "t2d": (1, 2, 1, 3, 24, 4, 2, 1),
    "cap": (1, 1, 2, 3, 6, 2, 1, 1),
}


def checked(name, sch):
    """The program on the weights as they are, and kernel(pack(weights)), against NumPy."""
    work, shape = get(name), SHAPES[name]
    inputs = work.inputs(shape)
    want = work.reference(shape, *inputs)
    kernel = build(sch)
    packed = kernel.pack(inputs[1])
    got = work.output(shape)
    kernel(inputs[0], packed, *inputs[2:], got)
    assert np.array_equal(got, want)
    got = work.output(shape)
    run(sch.func, *inputs, got)
    assert np.array_equal(got, want)
    return packed


CASES = [(name, default_modules) for name in SHAPES] + [("c2d", reference_modules)]


@pytest.mark.parametrize(("name", "modules"), CASES)
def test_candidates_compute_what_numpy_does(name, modules):
    func = get(name).func(SHAPES[name], constant_weights=True)
    generator = SpaceGenerator(modules(TARGET))
    (space, *_) = generator.generate(func, TARGET)
    assert not generator.failures
    sch = next(filter(None, (draw(func, space, seed, check=False) for seed in range(9))))
    packed = checked(name, sch)
    # The layout is part of the recorded steps.
    again = Schedule(func)
    Trace.from_json(sch.trace.to_json()).apply(again)
    assert structural_equal(again.mod, sch.mod)
    assert packed.size >= get(name).inputs(SHAPES[name])[1].size


@st.composite
def tilings(draw_):
    """A product's loops cut and put in some order."""
    cuts = [draw_(st.sampled_from([1, 2, 3, 4])) for _ in range(3)]
    return cuts, draw_(st.permutations(range(6)))


def ordered(cuts, order, func):
    sch = Schedule(func)
    block = sch.get_block("Z")
    _, *loops = sch.get_loops(block)
    parts = [p for loop, cut in zip(loops, cuts, strict=True) for p in sch.split(loop, [None, cut])]
    sch.reorder(*(parts[n] for n in order))
    sch.enter_postproc()
    RewriteLayout()(sch, TARGET)
    return sch


@settings(max_examples=20, deadline=None)
@given(tilings())
def test_any_order_of_loops(tiling):
    """Odd sizes, cuts that leave a rest: the sums stay, and memory is read front to back."""
    shape = (1, 3, 6, 5)
    func = get("gmm").func(shape, constant_weights=True)
    sch = ordered(*tiling, func)
    x, y = get("gmm").inputs(shape)
    want, got, parts = x @ y, np.zeros((1, 3, 6), np.float32), split_packing(sch.func)
    run(sch.func, x, y, got, check_regions=True)
    assert np.array_equal(got, want)
    packed = np.zeros([int(n) for n in parts.pack.params[-1].shape], np.float32)
    run(parts.pack, y, packed)
    got[...] = 0
    run(parts.main, x, packed, got, check_regions=True)
    assert np.array_equal(got, want)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(6)))
def test_the_layout_is_the_order_of_the_loops(order):
    shape = (1, 2, 12, 10)
    func = get("gmm").func(shape, constant_weights=True)
    cuts = (1, 4, 5)
    pack = split_packing(ordered(cuts, order, func).func).pack
    packed = np.zeros([int(n) for n in pack.params[-1].shape], np.float32)
    run(pack, np.arange(120, dtype=np.float32).reshape(1, 10, 12), packed)
    extents = {2: (4, 3), 3: (1, 4), 4: (5, 2), 5: (1, 5)}  # part -> (scale, extent): j, j, k, k
    parts = [n for n in order if n in extents]
    read = np.zeros([extents[n][1] for n in parts])
    for point in np.ndindex(read.shape):
        of = {n: extents[n][0] * v for n, v in zip(parts, point, strict=True)}
        read[point] = (of[4] + of[5]) * 12 + of[2] + of[3]
    assert np.array_equal(packed.ravel(), read.ravel())


SEVERAL = """
@T.prim_func
def several(A: T.Buffer((4, 8), "float32"), W: T.Buffer((8, 6), "float32"),
            B: T.Buffer((4, 6), "float32"), C: T.Buffer((4, 6), "float32")):
    T.func_attr({"layout_free_buffers": [1]})
    for i, j, k in T.grid(4, 6, 8):
        with T.block("B"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                B[vi, vj] = T.float32(0)
            B[vi, vj] = B[vi, vj] + A[vi, vk] * W[vk, vj]
    for i, j in T.grid(4, 6):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] * W[vi, vj]
"""
WINDOWS = """
@T.prim_func
def windows(A: T.Buffer((6,), "float32"), W: T.Buffer((8,), "float32"),
            B: T.Buffer((6,), "float32")):
    T.func_attr({"layout_free_buffers": [1]})
    for i, k in T.grid(6, 3):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vi] * W[vi + vk]
"""
TWICE = WINDOWS.replace("A[vi] * W[vi + vk]", "W[vi] * W[vk]")
PLAIN = WINDOWS.replace("W[vi + vk]", "A[vk]").replace("A[vi] *", "W[vi] *")


@pytest.mark.parametrize("source", [SEVERAL, WINDOWS, TWICE, PLAIN])
def test_a_weight_that_has_no_better_layout_stays(source):
    func = parse(source)
    sch = Schedule(func)
    sch.enter_postproc()
    RewriteLayout()(sch, TARGET)
    assert script(sch.func) == script(func)
    assert build(sch).pack(np.ones([int(n) for n in func.params[1].shape], np.float32)).ndim


def test_a_function_without_constant_weights_is_left_alone():
    func = get("gmm").func((1, 4, 4, 4))
    sch = Schedule(func)
    sch.enter_postproc()
    RewriteLayout()(sch, TARGET)
    assert sch.func is func


PREPARED = """
@T.prim_func
def dense(X: T.Buffer((4, 8), "float32"), W: T.Buffer((12, 8), "float32"),
          Z: T.Buffer((4, 12), "float32")):
    T.func_attr({"layout_free_buffers": [1]})
    WT = T.alloc_buffer((8, 12), "float32")
    for i, j in T.grid(8, 12):
        with T.block("WT"):
            vi, vj = T.axis.remap("SS", [i, j])
            WT[vi, vj] = W[vj, vi] * T.float32(2)
    for i, j, k in T.grid(4, 12, 8):
        with T.block("Z"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Z[vi, vj] = T.float32(0)
            Z[vi, vj] = Z[vi, vj] + X[vi, vk] * WT[vk, vj]
"""


def test_a_stage_that_prepares_the_weight_runs_ahead_with_it():
    sch = Schedule(parse(PREPARED))
    block = sch.get_block("Z")
    i, j, k = sch.get_loops(block)
    sch.reorder(*sch.split(j, [None, 4])[:1], k, i)
    sch.enter_postproc()
    RewriteLayout()(sch, TARGET)
    ahead = [
        r.block.name for r in sch.state.index.blocks.values() if PREPROC in r.block.annotations
    ]
    assert ahead == ["WT", "WT_global"]
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    w = np.arange(96, dtype=np.float32).reshape(12, 8)
    kernel, z = build(sch), np.zeros((4, 12), np.float32)
    packed = kernel.pack(w)
    assert packed.shape == (3, 8, 4)
    kernel(x, packed, z)
    assert np.array_equal(z, x @ (2 * w.T))


def test_two_weights_in_one_function():
    func = get("gmm").func((1, 6, 8, 4)).with_attr("layout_free_buffers", [1, 0])
    sch = ordered((2, 4, 2), (0, 2, 4, 1, 5, 3), func)
    kernel, (x, y), z = build(sch), get("gmm").inputs((1, 6, 8, 4)), np.zeros((1, 6, 8), np.float32)
    py, px = kernel.pack(y, x)
    assert py.shape == (2, 4, 4) and px.shape == (3, 2, 2, 2)
    kernel(px, py, z)
    assert np.array_equal(z, x @ y)


def test_a_reader_that_declares_no_write_stays_as_it_is():
    """A block that hands the weights to foreign code, say."""
    func = parse(
        """
        @T.prim_func
        def main(W: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
            T.func_attr({"layout_free_buffers": [0]})
            for i in range(8):
                with T.block("tell"):
                    vi = T.axis.spatial(8, i)
                    T.reads(W[vi])
                    T.writes()
                    T.evaluate(T.call_extern("int32", "putchar", T.int32(65)))
            for i in range(8):
                with T.block("B"):
                    vi = T.axis.spatial(8, i)
                    B[vi] = T.float32(1)
        """
    )
    sch = Schedule(func, seed=0)
    before = script(sch.mod)
    RewriteLayout()(sch, TARGET)
    assert script(sch.mod) == before

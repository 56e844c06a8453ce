"""Quantized operators and results in bfloat16: candidates equal NumPy, and epilogues are fused."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from metasched import Schedule, build
from metasched.analysis.block import AUTO_TENSORIZE
from metasched.errors import ScheduleError
from metasched.ir.interp import run
from metasched.ir.stmt import Block
from metasched.ir.visit import walk_stmts
from metasched.kinds import default_modules, default_postprocs
from metasched.postproc import run_postprocs
from metasched.space.generate import SpaceGenerator
from metasched.target import Target
from metasched.workloads import get
from metasched.workloads.quantized import ZEROS, folded_bias

VNNI = Target.of("llvm -mcpu=znver4 -num-cores=2")
HERE = Target.native()
COMPILES = HERE.supports(VNNI) is None
CASES = [
    ("qgmm", (1, 12, 32, 16)), ("qgmm", (2, 5, 24, 12)), ("qgmm_s8", (1, 12, 32, 16)),
    ("qc2d", (1, 5, 5, 4, 32, 3, 1, 1)), ("qc2d_s8", (1, 4, 4, 8, 16, 1, 1, 0)),
    ("qdep", (1, 6, 6, 32, 3, 1, 1)), ("gmm_bf16io", (1, 12, 32, 16)),
    ("c2d_f16io", (1, 4, 4, 8, 16, 3, 1, 1)),
]  # fmt: skip


@functools.cache
def candidates(name, shape):
    """A candidate of every design space that gives one."""
    func = get(name).func(shape)
    generator = SpaceGenerator(default_modules(VNNI))
    found = []
    for trace in generator.generate(func, VNNI):
        sch = Schedule(func, seed=0)
        try:
            trace.apply(sch, decisions="fresh")
            run_postprocs(sch, VNNI, default_postprocs(VNNI))
        except ScheduleError:
            continue
        found.append(sch)
    assert not generator.failures
    return found


def extremes(work, shape):
    """All bytes at their ends, in two ways: the largest sums and the smallest; scales for ties."""
    x, w, b, s = work.inputs(shape)
    least, most = np.iinfo(x.dtype).min, np.iinfo(x.dtype).max
    for weight in (-128, 127):
        yield np.full_like(x, most), np.full_like(w, weight), b, np.full_like(s, 2.0**-9)
        yield np.full_like(x, least), np.full_like(w, weight), b, np.full_like(s, -1e30)
    yield x, w, np.full_like(b, 1), np.full_like(s, 0.5)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_candidates_equal_the_reference(name, shape):
    work = get(name)
    inputs = [work.inputs(shape, seed=3)]
    if name.startswith("q"):
        inputs += extremes(work, shape)
    assert len(candidates(name, shape)) >= 2
    for sch in candidates(name, shape):
        kernel = build(sch.mod, target=VNNI) if COMPILES else None
        for arrays in inputs if kernel else inputs[:1]:
            out = work.output(shape)
            if kernel:
                kernel(*arrays, out)
            else:
                run(sch.mod, *arrays, out)
            np.testing.assert_array_equal(out, work.reference(shape, *arrays))


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_no_sum_leaves_its_tile(name, shape):
    """What is not local holds bytes: padded data or packed weights. Sums stay in registers."""
    for sch in candidates(name, shape):
        if "rfactor" in str(sch.trace):
            continue  # slices of a long reduction are added up in memory
        given = {buffer.dtype for buffer in sch.func.buffers[:2]}
        for node in walk_stmts(sch.func.body):
            for buffer in node.alloc_buffers if isinstance(node, Block) else ():
                assert buffer.scope == "local" or buffer.dtype in given, buffer


def test_an_instruction_is_offered_with_every_epilogue():
    for name, shape in CASES:
        offered = [sch for sch in candidates(name, shape) if AUTO_TENSORIZE in str(sch.trace)]
        assert bool(offered) == (name not in ("qdep", "c2d_f16io")), name


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [("qgmm", (1, 3, 4, 300)), ("qc2d", (1, 4, 5, 3, 2, 3, 1, 1)), ("qdep", (1, 4, 5, 3, 3, 2, 1))],
)
def test_the_folded_bias_is_the_zero_point_of_the_activations(name, shape, kind):
    """The formula of ONNX: (X - zero) * W + bias, where the border of the image counts as zero."""
    work = get(name if kind == "uint8" else f"{name}_s8")
    x, w, _, s = work.inputs(shape)
    x_zero, y_zero = ZEROS[kind]
    if name == "qgmm":
        bias = np.arange(8, dtype="int32").reshape(2, 4)[:1]
        sums = (x.astype(int) - x_zero) @ w.astype(int) + bias[:, None]
        s_of = s[:, None]
    else:
        bias = np.arange(len(s), dtype="int32")
        plain = "c2d" if name == "qc2d" else "dep"
        moved = (x.astype(int) - x_zero).astype("float64")
        sums = get(plain).reference(shape, moved, w.astype("float64")).astype(int) + bias
        s_of = s
    expected = np.rint(sums.astype("float32") * s_of) + y_zero
    expected = np.clip(expected, np.iinfo(kind).min, np.iinfo(kind).max)
    found = work.output(shape)
    build(work.func(shape))(x, w, folded_bias(bias, w, x_zero), s, found)
    np.testing.assert_array_equal(found, expected)

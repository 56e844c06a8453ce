"""Programs with indices from memory: what runs in parallel, and that every candidate is right.

The rows of a gather and the columns of a scatter-add are independent whatever the indices are. The
rows of a scatter-add and the items of a histogram are not: two of them may have the same index.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from space.candidates import TARGET, draw

from metasched.errors import ScheduleError
from metasched.ir.interp import run
from metasched.kinds import default_modules, default_trace
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.generate import SpaceGenerator

GATHER = """
@T.prim_func
def gather(X: T.Buffer((20, 32), "float32"), I: T.Buffer((12,), "int32"),
           Y: T.Buffer((12, 32), "float32")):
    for i, j in T.grid(12, 32):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = X[I[vi], vj]
"""

BAG = """
@T.prim_func
def bag(X: T.Buffer((20, 32), "float32"), I: T.Buffer((8, 4), "int32"),
        Y: T.Buffer((8, 32), "float32")):
    for i, j, k in T.grid(8, 32, 4):
        with T.block("Y"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Y[vi, vj] = T.float32(0)
            Y[vi, vj] = Y[vi, vj] + X[I[vi, vk], vj]
"""

ONE_HOT = """
@T.prim_func
def one_hot(I: T.Buffer((12,), "int32"), Y: T.Buffer((12, 20), "float32")):
    for i, j in T.grid(12, 20):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = T.if_then_else(I[vi] == vj, T.float32(1), T.float32(0))
"""

HISTOGRAM = """
@T.prim_func
def histogram(I: T.Buffer((64,), "int32"), H: T.Buffer((20,), "int32")):
    for b in range(20):
        with T.block("zero"):
            vb = T.axis.spatial(20, b)
            H[vb] = 0
    for i in range(64):
        with T.block("count"):
            vi = T.axis.opaque(64, i)
            H[I[vi]] = H[I[vi]] + 1
"""

SCATTER_ADD = """
@T.prim_func
def scatter_add(U: T.Buffer((12, 32), "float32"), I: T.Buffer((12,), "int32"),
                Y: T.Buffer((20, 32), "float32")):
    for i, j in T.grid(20, 32):
        with T.block("zero"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = T.float32(0)
    for i, j in T.grid(12, 32):
        with T.block("add"):
            vi = T.axis.opaque(12, i)
            vj = T.axis.spatial(32, j)
            Y[I[vi], vj] = Y[I[vi], vj] + U[vi, vj]
"""


def data(func):
    """Arguments with repeated indices and small whole numbers, whose sums are exact."""
    rng = np.random.default_rng(0)
    return [
        rng.integers(0, 20, [n.value for n in b.shape]).astype(str(b.dtype)) for b in func.buffers
    ]


def outcome(func, args):
    """The arguments after a run of the function in the interpreter."""
    copies = [a.copy() for a in args]
    run(func, *copies)
    return copies


@pytest.mark.parametrize("text", [GATHER, BAG, ONE_HOT, HISTOGRAM, SCATTER_ADD])
def test_candidates_with_indices_from_memory_compute_the_same(text):
    func = parse(text)
    args = data(func)
    wanted = outcome(func, args)
    default = Schedule(func, seed=0)
    default_trace(func, TARGET).apply(default)
    generator = SpaceGenerator(default_modules(TARGET))
    drawn = [draw(func, s, seed) for s in generator.generate(func, TARGET) for seed in range(2)]
    assert not generator.failures
    found = [default, *(sch for sch in drawn if sch is not None)]
    assert len(found) > 1
    for sch in found:
        for got, want in zip(outcome(sch.mod, args), wanted, strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("text", "block", "free"), [
    (GATHER, "Y", [True, True]),
    (BAG, "Y", [True, True, False]),
    (ONE_HOT, "Y", [True, True]),
    (HISTOGRAM, "count", [False]),
    (SCATTER_ADD, "add", [False, True]),
])  # fmt: skip
def test_loops_run_in_parallel_where_no_index_can_repeat(text, block, free):
    """Loops that are not `free` run neither in parallel nor as vectors."""
    sch = Schedule(parse(text))
    for loop, may in zip(sch.get_loops(block), free, strict=True):
        for step in (sch.copy().parallel, sch.copy().vectorize):
            refused = pytest.raises(ScheduleError, match="may touch the same element of [YH]")
            with nullcontext() if may else refused:
                step(loop)


@pytest.mark.parametrize(("text", "block"), [
    (GATHER, "Y"), (BAG, "Y_update"), (SCATTER_ADD, "add"),
])  # fmt: skip
def test_the_default_schedule_has_vectors_along_the_row(text, block):
    func = parse(text)
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    assert sch.get(sch.get_loops(block)[-1]).kind.value == "vectorized"

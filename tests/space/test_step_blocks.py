"""step_blocks: the nests of one iteration of a loop over time are scheduled like a program."""

from __future__ import annotations

import pytest
from oracle import check_numbers, check_transform
from space.candidates import TARGET, draw

from metasched.analysis.block import TILED
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import For, ForKind
from metasched.ir.visit import walk_stmts
from metasched.kinds import default_modules
from metasched.postproc.parallel_vectorize_unroll import RewriteParallelVectorizeUnroll
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.script import tir as T
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.parallel_vectorize_unroll import PARALLEL
from metasched.space.modules.step_blocks import StepBlocks


@T.prim_func
def recurrent(
    X: T.Buffer((3, 8, 12)), W: T.Buffer((12, 32)), U: T.Buffer((32, 32)), H: T.Buffer((4, 8, 32))
):
    G = T.alloc_buffer((8, 32))
    for t in range(3):
        for i, j in T.grid(8, 32):
            G[i, j] = T.float32(0)
            for k in range(12):
                G[i, j] += X[t, i, k] * W[k, j]
            for k in range(32):
                G[i, j] += H[t, i, k] * U[k, j]
        for i, j in T.grid(8, 32):
            H[t + 1, i, j] = T.max(G[i, j], T.float32(0))


@T.prim_func
def smoothed(A: T.Buffer((8, 64)), B: T.Buffer((8, 64))):
    for t in range(3):
        for i, j in T.grid(8, 62):
            B[i, j + 1] = (A[i, j] + A[i, j + 1] + A[i, j + 2]) / T.float32(3)
        for i, j in T.grid(8, 62):
            A[i, j + 1] = B[i, j + 1]


def power(rows: int) -> PrimFunc:
    @T.prim_func
    def func(A: T.Buffer((16, 16)), X: T.Buffer((rows, 16)), Y: T.Buffer((rows, 16))):
        for t in range(3):
            for i, j, k in T.grid(rows, 16, 16):
                Y[i, j] += X[i, k] * A[k, j]
            for i, j in T.grid(rows, 16):
                X[i, j] = Y[i, j] * T.float32(0.125)

    return func


def spaces() -> list[Trace]:
    generator = SpaceGenerator(default_modules(TARGET))
    found = generator.generate(recurrent)
    assert not generator.failures
    return found


def tiled(trace: Trace) -> bool:
    return "blockize" in {entry.kind.name for entry in trace.entries} and any(
        TILED in entry.values for entry in trace.entries
    )


def test_products_in_a_loop_over_time_are_tiled_and_right() -> None:
    offered = [trace for trace in spaces() if tiled(trace)]
    assert offered
    for number, trace in enumerate(offered):
        for seed in range(3):
            sch = draw(recurrent, trace, 10 * number + seed)
            if sch is not None:
                check_numbers(recurrent, sch.mod, compiled=True)


def test_a_loop_over_nests_without_reuse_stays() -> None:
    sch = Schedule(smoothed)
    sch.enclose(sch.get_block("root"))
    assert StepBlocks()(sch, sch.get_block("root")) == [sch]


def test_a_short_step_stays() -> None:
    func = power(8)
    sch = Schedule(func)
    sch.enclose(sch.get_block("root"))
    root = sch.get_block("root")
    assert StepBlocks(least=8 * 16 * 16 + 1)(sch, root) == [sch]
    apart, written = StepBlocks(least=8 * 16 * 16)(sch, root)
    assert written is sch
    check_transform(func, apart)


@pytest.mark.parametrize(("rows", "threads"), [(2, 0), (8, 1), (64, 2)])
def test_nests_of_a_step_get_threads(rows: int, threads: int) -> None:
    """A nest below 1024 iterations has none, since all threads wait for each other in each step."""
    sch = Schedule(power(rows))
    sch.enclose(sch.get_block("root"))
    apart, _ = StepBlocks(least=1)(sch, sch.get_block("root"))
    apart.annotate(apart.get_block("root"), PARALLEL, 2)
    apart.enter_postproc()
    RewriteParallelVectorizeUnroll()(apart, TARGET)
    loops = [s for s in walk_stmts(apart.func.body) if isinstance(s, For)]
    assert [loop.kind for loop in loops].count(ForKind.PARALLEL) == threads
    check_numbers(sch.func, apart.mod)

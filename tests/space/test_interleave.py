"""interleave: independent rows side by side around a loop of dependent steps."""

from __future__ import annotations

import pytest
from oracle import check_numbers

from metasched.ir.func import PrimFunc
from metasched.ir.stmt import ForKind
from metasched.kinds.cpu import vectors_and_threads
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T
from metasched.space.modules.interleave import Interleave
from metasched.space.modules.loop_distribution import LoopDistribution
from metasched.space.modules.wavefront import Wavefront
from metasched.target import Target


@T.prim_func
def rows(X: T.Buffer((50, 48), "int32"), A: T.Buffer((50, 48), "int32")):
    for i, j in T.grid(50, (2, 48)):
        with T.block("A"):
            A[i, j] = X[i, j] - A[i, j - 1] * 2 + A[i, j - 2]


@T.prim_func
def planes(A: T.Buffer((4, 30, 20), "int32")):
    for i, j, k in T.grid(4, (1, 30), (1, 20)):
        with T.block("A"):
            A[i, j, k] = A[i, j - 1, k] - A[i, j, k - 1] * 2


@T.prim_func
def columns(A: T.Buffer((50, 48), "int32")):
    for i, j in T.grid(48, (1, 50)):
        with T.block("A"):
            A[j, i] = A[j, i] - A[j - 1, i] * 2


@T.prim_func
def sums(A: T.Buffer((50, 48), "int32"), B: T.Buffer((50,), "int32")):
    for i, j in T.grid(50, 48):
        with T.block("A"):
            vi, vj = T.axis.remap("SR", [i, j])
            B[vi] = B[vi] + A[vi, vj]


@T.prim_func
def sweep(A: T.Buffer((50, 48), "int32")):
    for i, j in T.grid((1, 50), (1, 48)):
        with T.block("A"):
            A[i, j] = A[i - 1, j] * 3 + A[i, j - 1]


@T.prim_func
def solver(X: T.Buffer((60, 60), "int32"), U: T.Buffer((60, 60), "int32")):
    P = T.alloc_buffer((60, 60), "int32")
    Q = T.alloc_buffer((60, 60), "int32")
    for t in range(3):
        for i in range(60):
            with T.block("start"):
                P[i, 0] = 1
                Q[i, 0] = t
            for j in range(1, 60):
                with T.block("forward"):
                    P[i, j] = P[i, j - 1] * 3 + 1
                    Q[i, j] = X[j, 59 - i] - Q[i, j - 1] * P[i, j - 1]
            for j in range(1, 60):
                with T.block("backward"):
                    U[i, 60 - j] = P[i, 60 - j] - Q[i, 60 - j]


@pytest.mark.parametrize("func, around", [(rows, 0), (planes, 0)])
@pytest.mark.parametrize("seed", range(3))
def test_rows_side_by_side_compute_the_same(func: PrimFunc, around: int, seed: int) -> None:
    sch = Schedule(func, seed=seed, check=True)
    [found] = Interleave()(sch, sch.get_block("A"))
    loops = [found.get(loop) for loop in found.get_loops(found.get_block("A"))]
    assert [n.kind for n in loops[:-1]] == [ForKind.SERIAL] * (len(loops) - 1)
    assert loops[-1].kind is ForKind.UNROLLED and loops[-1].var.name == "i_1"
    check_numbers(func, found.mod, compiled=True)


@pytest.mark.parametrize("func", [columns, sums, sweep])
def test_lanes_sums_and_sweeps_are_left_to_other_modules(func: PrimFunc) -> None:
    sch = Schedule(func, seed=0)
    assert Interleave()(sch, sch.get_block("A")) == [sch]
    assert len(sch.trace.entries) == 1


def test_rows_of_a_solver_are_distributed_whole_and_interleaved() -> None:
    sch = Schedule(solver, seed=1, check=True)
    distributed = LoopDistribution()(sch, sch.get_block("root"))[0]
    assert len(distributed.get(distributed.get_block("forward")).writes) == 2
    time, i, j = map(distributed.get, distributed.get_loops(distributed.get_block("forward")))
    assert (i.body, j.body.block.name) == (j, "forward")
    for name in ("forward", "backward"):
        [distributed] = Interleave()(distributed, distributed.get_block(name))
    assert distributed.script().count("T.unroll") == 1  # `backward` has independent steps
    check_numbers(solver, distributed.mod, compiled=True)


def test_rows_of_opaque_iterators_share_the_cores() -> None:
    sch = Schedule(rows, check=True)
    target = Target.of({"kind": "cpu", "mcpu": "x86-64-v3", "num_cores": 2})
    vectors_and_threads(rows, target).apply(sch)
    outer, *_ = (sch.get(loop) for loop in sch.get_loops(sch.get_block("A")))
    assert outer.kind is ForKind.PARALLEL


@T.prim_func
def long_rows(A: T.Buffer((64, 256), "int32")):
    for i, j in T.grid(64, (1, 256)):
        with T.block("A"):
            A[i, j] = A[i, j] - A[i, j - 1] * 2


@T.prim_func
def sweeps(A: T.Buffer((40, 128), "int32")):
    for t, i, j in T.grid(20, (1, 39), (1, 127)):
        with T.block("A"):
            A[i, j] = A[i - 1, j] + A[i, j - 1] + A[i, j + 1] + A[i + 1, j]


@pytest.mark.parametrize(
    "func, module, sizes", [(long_rows, Interleave(), "[1, 2, 4]"), (sweeps, Wavefront(), "[2, 4]")]
)
def test_rows_whole_pages_apart_do_not_run_side_by_side(func, module, sizes) -> None:
    sch = Schedule(func)
    first, *_ = module(sch, sch.get_block("A"))
    assert f"candidates={sizes}" in first.trace.as_python()

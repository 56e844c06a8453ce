"""pivot: eliminations in place, cut at the row and the column that all iterations read."""

from __future__ import annotations

import pytest
from oracle import check_numbers
from space.candidates import TARGET

from metasched.ir.func import PrimFunc
from metasched.kinds import default_modules
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.pivot import Pivot
from metasched.workloads import get


@T.prim_func
def closure(A: T.Buffer((150, 150), "int32")):
    for k, i, j in T.grid(150, 150, 150):
        with T.block("A"):
            A[i, j] = A[i, j] | (A[i, k] & A[k, j])


@T.prim_func
def elimination(A: T.Buffer((16, 17), "int32")):
    for k, i, j in T.grid(15, 16, 17):
        with T.block("A"):
            T.where(i != k + 1)
            A[i, j] = A[i, j] * A[k + 1, k] - A[i, k] * A[k + 1, j]


@T.prim_func
def stencil(A: T.Buffer((40, 40), "int32")):
    for k, i, j in T.grid(40, (1, 39), (1, 39)):
        with T.block("A"):
            A[i, j] = A[i - 1, j] + A[i, j + 1] * 3


def pivoted(func: PrimFunc, cores: int = 2, check: bool = True) -> Schedule:
    sch = Schedule(func, seed=2, check=check)
    [found] = Pivot(cores, 256)(sch, sch.get_block("A"))
    return found


@pytest.mark.parametrize("func, parallel, vectors", [(closure, 2, 6), (elimination, 0, 4)])
def test_parts_compute_the_same(func: PrimFunc, parallel: int, vectors: int) -> None:
    checked = func is elimination  # each step on `closure` is checked in test_partition_at.py
    sch = pivoted(func, check=checked)
    script = sch.script()
    assert script.count("T.parallel") == parallel and script.count("T.vectorized") >= vectors
    assert pivoted(func, cores=1, check=False).script().count("T.parallel") == 0
    if checked:
        check_numbers(func, sch.mod, compiled=True)


def test_a_stencil_is_left_to_other_modules() -> None:
    assert "partition_at" not in pivoted(stencil).trace.as_python()


def test_shortest_paths_have_one_space() -> None:
    func = get("poly.floyd-warshall").func((12,))
    [space] = SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)
    sch = Schedule(func, seed=0, check=True)
    space.apply(sch)
    assert sch.script().count("T.vectorized") == 6
    check_numbers(func, sch.mod, compiled=True)

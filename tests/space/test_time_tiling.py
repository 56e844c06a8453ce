"""time_tiling: steps of stencils in tiles of rows, against the program as written."""

from __future__ import annotations

import itertools
import random
import re

import pytest
from oracle import check_numbers
from space.random_kinds import Draw
from space.random_kinds_more import time_loops

from metasched.ir.func import PrimFunc
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T
from metasched.space.modules.time_tiling import TimeTiling


@T.prim_func
def jacobi(A: T.Buffer((20, 12), "int32"), B: T.Buffer((20, 12), "int32")):
    for t in range(9):
        for i, j in T.grid((1, 19), (1, 11)):
            with T.block("B"):
                B[i, j] = A[i - 1, j] + A[i + 1, j] + A[i, j - 1] * 3 + A[i, j + 1]
        for i, j in T.grid((1, 19), (1, 11)):
            with T.block("A"):
                A[i, j] = B[i - 1, j] + B[i + 1, j] * 2 + B[i, j]


@T.prim_func
def by_parity(U: T.Buffer((2, 20, 12), "int32")):
    for t in range(9):
        for i, j in T.grid((1, 19), 12):
            with T.block("U"):
                U[(t + 1) % 2, i, j] = U[t % 2, i - 1, j] + U[t % 2, i + 1, j]


@T.prim_func
def fields(
    E: T.Buffer((20, 12), "int32"), F: T.Buffer((9,), "int32"), H: T.Buffer((20, 12), "int32")
):
    for t in range(9):
        for j in range(12):
            with T.block("first"):
                E[0, j] = F[t]
        for i, j in T.grid((1, 20), 12):
            with T.block("E"):
                E[i, j] = E[i, j] - (H[i, j] - H[i - 1, j])
        for i, j in T.grid(19, 12):
            with T.block("H"):
                H[i, j] = H[i, j] - 3 * (E[i + 1, j] - E[i, j])


@T.prim_func
def in_place(A: T.Buffer((20, 12), "int32")):
    for t in range(9):
        for i, j in T.grid((1, 19), 12):
            with T.block("A"):
                A[i, j] = A[i - 1, j] + A[i + 1, j]


@T.prim_func
def far(A: T.Buffer((20, 12), "int32"), B: T.Buffer((20, 12), "int32")):
    for t in range(9):
        for i, j in T.grid(20, 12):
            with T.block("B"):
                B[i, j] = A[19 - i, j]
        for i, j in T.grid(20, 12):
            with T.block("A"):
                A[i, j] = B[i, j] + 1


@T.prim_func
def independent(A: T.Buffer((9, 20, 12), "int32")):
    for t in range(9):
        for i, j in T.grid(20, 12):
            with T.block("A"):
                A[t, i, j] = A[t, i, j] * 2


def offered(func: PrimFunc, name: str, cores: int = 2, cache: int = 0) -> list[Schedule]:
    sch = Schedule(func, seed=5)
    return TimeTiling(cores, cache, (4, 3), (2, 4))(sch, sch.get_block(name))


def delays_of(sch: Schedule) -> list[int]:
    steps = (entry for entry in sch.trace.entries if entry.kind.name == "delay")
    return [entry.values[1] for entry in steps]


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(
    ("func", "name", "delays", "factor"),
    [(jacobi, "B", [0, 1], 2), (by_parity, "U", [0], 1), (fields, "first", [0, 1, 1], 1)],
)
def test_tiles_of_steps_and_rows(
    func: PrimFunc, name: str, delays: list[int], factor: int, cores: int
) -> None:
    tiled, same = offered(func, name, cores)
    assert same.script() == Schedule(func).script()
    assert delays_of(tiled) == delays
    skews = [e.values[2] for e in tiled.trace.entries if e.kind.name == "skew"]
    assert skews == [factor, 1][:cores]
    assert ("T.parallel" in tiled.script()) == (cores > 1)
    check_numbers(func, tiled.mod, compiled=True)


def test_grids_in_the_cache_stay_as_written() -> None:
    used = 2 * 20 * 12 * 4
    assert len(offered(jacobi, "B", cache=used)) == 1
    assert len(offered(jacobi, "B", cache=used - 1)) == 2


def test_rows_that_are_read_once_need_no_cache() -> None:
    """Each iteration reads another row of X: only the small results are used again."""
    text = """
@T.prim_func
def sums(X: T.Buffer((90, 12), "int32"), S: T.Buffer((13,), "int32")):
    for t in range(90):
        for j in range(12):
            with T.block("S"):
                vt = T.axis.opaque(90, t)
                vj = T.axis.opaque(12, j)
                S[vj] = S[vj] + S[vj + 1] + X[vt, vj]
"""
    module = TimeTiling(cache=4 * 13)
    sch = Schedule(parse(text))
    assert module(sch, sch.get_block("S")) == [sch]
    again = Schedule(parse(text.replace("90, 12", "1, 12").replace("X[vt, ", "X[0, ")))
    assert len(module(again, again.get_block("S"))) == 2


def test_rows_that_no_other_step_touches_need_no_tiles() -> None:
    """Each row can run all its steps in parallel with the other rows; a skew would make waves."""
    text = """
@T.prim_func
def sums(X: T.Buffer((1, 12), "int32"), S: T.Buffer((12,), "int32")):
    for t in range(90):
        for j in range(12):
            with T.block("S"):
                vt = T.axis.opaque(90, t)
                vj = T.axis.spatial(12, j)
                S[vj] = S[vj] * 3 + X[0, vj]
"""
    sch = Schedule(parse(text))
    assert TimeTiling(cache=0)(sch, sch.get_block("S")) == [sch]


def test_the_second_statement_offers_nothing_itself() -> None:
    assert len(offered(jacobi, "A")) == 1


@pytest.mark.parametrize(("func", "name"), [(far, "B"), (independent, "A")])
def test_nothing_without_a_legal_tile(func: PrimFunc, name: str) -> None:
    assert len(offered(func, name)) == 1


def test_a_sweep_in_place_is_right() -> None:
    for sch in offered(in_place, "A"):
        check_numbers(in_place, sch.mod, compiled=True)


def in_blocks(text: str) -> str:
    """A script with each store in a block of its own."""
    store = re.compile(r"^( *)(\w+\[.*\] = .*)$", re.M)
    blocks = itertools.count()
    return store.sub(lambda m: f'{m[1]}with T.block("S{next(blocks)}"):\n{m[1]}    {m[2]}', text)


@pytest.mark.parametrize("part", range(3))
def test_random_time_loops(part: int) -> None:
    tiled = 0
    for seed in range(part * 20, part * 20 + 20):
        text = in_blocks(time_loops(Draw(random.Random(seed), 12)))
        func = parse(re.sub(r"for t in range\(\d+\)", "for t in range(5)", text))
        sch = Schedule(func, seed=seed)
        block = sch.get_child_blocks("root")[0]
        for way in TimeTiling(2, 0, (2, 3), (2, 4))(sch, block)[:-1]:
            tiled += 1
            check_numbers(func, way.mod, compiled=True)
    assert tiled > 3

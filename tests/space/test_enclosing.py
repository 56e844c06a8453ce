"""Blocks with loops of their own are divided like plain loops."""

from __future__ import annotations

from oracle import check_numbers
from space.candidates import TARGET, draw

from metasched.ir.func import PrimFunc
from metasched.kinds import default_modules, default_trace
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T
from metasched.space.generate import SpaceGenerator


@T.prim_func
def norm(X: T.Buffer((64, 128), "float32"), Y: T.Buffer((64, 128), "float32")):
    for n in range(64):
        with T.block("row"):
            vn = T.axis.spatial(64, n)
            s = T.float32(0)
            for k in range(128):
                s += X[vn, k] * X[vn, k]
            r: T.float32 = T.rsqrt(s / T.float32(128))
            for k in range(128):
                Y[vn, k] = X[vn, k] * r


@T.prim_func
def sums(X: T.Buffer((64, 128), "float32"), Y: T.Buffer((128,), "float32")):
    for n in range(64):
        with T.block("row"):
            vn = T.axis.reduce(64, n)
            for k in range(128):
                Y[k] = Y[k] + X[vn, k]


def opened(func: PrimFunc) -> bool:
    sch = Schedule(func, seed=0)
    default_trace(func, TARGET).apply(sch)
    check_numbers(func, sch.mod, compiled=True)
    return "unblockize" in str(sch.trace)


def test_the_default_schedule_divides_a_block_of_spatial_iterators_alone() -> None:
    """The iterator of a reduction tells that its sums may run in any order."""
    assert opened(norm)
    assert not opened(sums)


def test_the_space_holds_the_block_whole_and_divided() -> None:
    generator = SpaceGenerator(default_modules(TARGET))
    spaces = generator.generate(norm, TARGET)
    assert not generator.failures
    assert {"unblockize" in str(space) for space in spaces} == {True, False}
    for space in spaces:
        sch = next(s for seed in range(9) if (s := draw(norm, space, seed)) is not None)
        check_numbers(norm, sch.mod, compiled=True)

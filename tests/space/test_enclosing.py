"""Blocks with loops of their own are divided like plain loops."""

from __future__ import annotations

import pytest
from oracle import check_numbers
from space.candidates import TARGET, draw

from metasched.ir.func import PrimFunc
from metasched.ir.stmt import ForKind
from metasched.ir.visit import blocks_of
from metasched.kinds import default_modules, default_trace
from metasched.schedule.schedule import Schedule
from metasched.script import parse
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


@T.prim_func
def queue(X: T.Buffer((64, 90), "float32"), Y: T.Buffer((64, 90), "float32")):
    """The largest of the last nine elements: candidates stand in a queue."""
    for n in range(64):
        with T.block("row"):
            vn = T.axis.spatial(64, n)
            q = T.alloc_buffer((90,), "int32")
            h = 0
            t = 0
            for i in range(90):
                while t > h and X[vn, q[T.max(t - 1, 0)]] <= X[vn, i]:
                    t -= 1
                q[t] = i
                t += 1
                if q[h] <= i - 9:
                    h += 1
                Y[vn, i] = X[vn, q[h]]


@T.prim_func
def counts(X: T.Buffer((64, 90), "float32"), Y: T.Buffer((64, 8), "int32")):
    for n in range(64):
        with T.block("row"):
            vn = T.axis.spatial(64, n)
            c = T.alloc_buffer((8,), "int32")
            for k in range(8):
                c[k] = 0
            for i in range(90):
                c[T.int32(T.abs(X[vn, i])) & 7] += 1
            for k in range(8):
                Y[vn, k] = c[k]


def test_a_row_with_a_queue_of_its_own_stays_whole_and_runs_beside_others() -> None:
    """Nothing proves which elements of the queue an iteration stored, if the rows share it."""
    assert not opened(queue)
    sch = Schedule(queue, seed=0)
    default_trace(queue, TARGET).apply(sch)
    assert [sch.get(loop).kind for loop in sch.get_loops("row")] == [ForKind.PARALLEL]
    assert opened(counts)  # the zeros tell


QUEUE = """
@T.prim_func
def queue(X: T.Buffer((64, 90), "float32"), Y: T.Buffer((64, 90), "float32")):
    for n in range(64):
        h = 0
        q = T.WORD((90,), "int32")
        t = 0
        for i in range(90):
            while t > h and X[n, q[T.max(t - 1, 0)]] <= X[n, i]:
                t -= 1
            q[t] = i
            t += 1
            if q[h] <= i - 9:
                h += 1
            Y[n, i] = X[n, q[h]]
"""


@pytest.mark.parametrize("word", ["decl_buffer", "allocate"])
def test_a_plain_loop_that_allocates_a_queue_runs_in_parallel(word: str) -> None:
    """A row becomes one block; if the queue belonged to the root, the rows would share it."""
    func = parse(QUEUE.replace("WORD", word))
    sch = Schedule(func, seed=0)
    default_trace(func, TARGET).apply(sch)
    assert [sch.get(loop).kind for loop in sch.get_loops("Y")] == [ForKind.PARALLEL]
    assert [b.name for b in sch.get(sch.get_block("Y")).alloc_buffers] == ["h", "t", "q"]
    check_numbers(func, sch.mod, compiled=True)
    generator = SpaceGenerator(default_modules(TARGET))
    spaces = generator.generate(func, TARGET)
    assert {"own_memory=True" in str(space) for space in spaces} == {True, False}
    for space in spaces:
        check_numbers(func, next(filter(None, (draw(func, space, n) for n in range(9)))).mod)


def test_a_buffer_of_the_block_around_a_loop_keeps_its_contents() -> None:
    """`T.alloc_buffer` in a loop declares memory of the block around, as in TVM."""
    func = parse(QUEUE.replace("WORD", "alloc_buffer"))
    sch = Schedule(func, seed=0)
    default_trace(func, TARGET).apply(sch)
    assert "own_memory" not in str(sch.trace).replace("own_memory=False", "")


ROWS = """
@T.prim_func
def rows(X: T.Buffer((6, 9)), J: T.Buffer((9,), "int32"), Y: T.Buffer((6, 9))):
    for n in range(6):
        for b in range(2):
            q = T.decl_buffer((9,), "float32")
            for i in range(9):
                q[i] = FIRST
            for i in range(9):
                q[J[i] % 9] += X[n, i]
                JUMP
            for i in range(9):
                Y[n, i] = Y[n, i] + q[8 - i]
"""


@pytest.mark.parametrize(
    ("first", "jump", "whole"),
    [
        ("X[n, i]", "pass", False),  # each iteration sets all elements first
        ("q[J[i]]", "pass", True),
        ("q[J[i]]", "if X[n, i] > 3.0:\n                    break", True),
        ("q[J[i]]", "T.evaluate(T.call_extern('int32', 'getpid'))", False),
    ],
)
def test_rows_stay_whole_where_nothing_proves_that_they_store_first(
    first: str, jump: str, whole: bool
) -> None:
    func = parse(ROWS.replace("FIRST", first).replace("JUMP", jump))
    sch = Schedule(func, check=True)
    sch.enclose("root", own_memory=True)
    assert whole is ("q" in [b.name for c in blocks_of(sch.func.body) for b in c.block.alloc_buffers
                             if c.block.name != "root"])  # fmt: skip

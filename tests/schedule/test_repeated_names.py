"""Blocks that share a name in a script: a schedule numbers them, so every step finds its block."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_trace, check_transform

import metasched as ms
from metasched.ir.stmt import evolve
from metasched.ir.visit import blocks_of
from metasched.registry import taken_back
from metasched.schedule import edit, ways
from metasched.schedule.handles import BlockLike, BlockRV  # noqa: F401  BlockLike names it
from metasched.schedule.schedule import Schedule
from metasched.schedule.state import State
from metasched.script import tir as T
from metasched.space.default_schedule import vectors_and_threads
from metasched.target import Target


@T.prim_func
def update_twice(
    A: T.Buffer((12, 8), "int32"),
    B: T.Buffer((8, 8), "int32"),
    C: T.Buffer((12, 8), "int32"),
    D: T.Buffer((12, 8), "int32"),
):
    for i, j, k in T.grid(12, 8, 8):
        with T.block("update"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0
            C[vi, vj] += A[vi, vk] * B[vk, vj]
    for i, j in T.grid(12, 8):
        with T.block("update_1"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = C[vi, vj] + 1
    for i, j, k in T.grid(12, 8, 8):
        with T.block("update"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                D[vi, vj] = 0
            D[vi, vj] += C[vi, vk] * B[vk, vj]


@T.prim_func
def root_below_root(A: T.Buffer((64, 64), "int32"), B: T.Buffer((64,), "int32")):
    for i, j in T.grid(64, 64):
        with T.block("root"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                B[vi] = 0
            B[vi] += A[vi, vj]


@T.prim_func
def same_name_inside(A: T.Buffer((64, 64), "int32"), B: T.Buffer((64, 64), "int32")):
    for i in range(64):
        with T.block("X"):
            vi = T.axis.spatial(64, i)
            t = T.alloc_buffer((64,), "int32")
            for j in range(64):
                with T.block("X"):
                    vj = T.axis.spatial(64, j)
                    t[vj] = A[vi, vj] * 3
            for j in range(64):
                with T.block("X"):
                    vj = T.axis.spatial(64, j)
                    B[vi, vj] = t[63 - vj]


NAMES = {
    update_twice: ["root", "update_2", "update_1", "update_3"],
    root_below_root: ["root", "root_1"],
    same_name_inside: ["root", "X_1", "X_2", "X_3"],
}
every_program = pytest.mark.parametrize("func", NAMES, ids=["twice", "root", "inside"])


@every_program
def test_blocks_of_one_name_are_numbered_the_root_is_not(func):
    sch = Schedule(func, seed=0, check=True)
    assert [r.block.name for r in blocks_of(sch.func.body)] == NAMES[func]
    for name in NAMES[func]:
        assert sch.get(sch.get_block(name)).name == name
    check_trace(func, sch)
    again = Schedule(sch.mod, seed=0)
    assert again.mod["main"].body is sch.mod["main"].body  # nothing is left to number


def test_an_ambiguous_name_is_refused_and_the_numbered_names_are_given():
    sch = Schedule(update_twice, seed=0)
    check_refused(
        sch, lambda: sch.get_block("update"), "no-such-block", "update_2, update_1, update_3"
    )
    with pytest.raises(
        ms.ScheduleError, match="numbers the blocks that share a name in the script"
    ):
        sch.get_block("update")
    with pytest.raises(ms.ScheduleError) as other:
        sch.get_block("nowhere")
    assert other.value.hint == "give one of these names, as the script shows them"


@every_program
def test_the_default_schedule_finds_each_block(func):
    sch = Schedule(func, seed=0)
    vectors_and_threads(func, Target.native()).apply(sch)
    assert {e.kind.name for e in sch.trace} & {"vectorize", "annotate", "parallel"}
    check_transform(func, sch)


def test_an_automatic_schedule_of_a_block_called_root():
    sch = ms.autoschedule(root_below_root)
    assert 'get_block(name="root_1"' in sch.trace.as_python()
    check_transform(root_below_root, sch)


def test_a_plugin_that_repeats_a_name_is_told_how_to_name_blocks():
    with taken_back(always=True):

        @ms.primitive(of_block=ways.plain())
        def rename(state: State, block: BlockLike) -> None:
            """Give a block the name of another block."""
            old = state.block(block).block
            state.commit(edit.replace(old, evolve(old, name="update_1")))

        sch = Schedule(update_twice, seed=0)
        sch.rename("update_2")
        check_refused(
            sch,
            lambda: sch.get_block("update_1"),
            "ambiguous-block",
            "2 blocks are called 'update_1'",
        )

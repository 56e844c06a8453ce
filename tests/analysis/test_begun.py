"""Reductions that begin behind the minimum of their domain: the init is part of their body."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import check_refused, check_transform

from metasched.analysis.begun import begin_reductions
from metasched.autoschedule import autoschedule
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.ir.stmt import Block, IfThenElse
from metasched.ir.visit import blocks_of, walk_stmts
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script.parser import parse


def sums(loop: str, value: str = "k", *, domain: str = "6", where: str = "True") -> PrimFunc:
    """Sums of B by a loop over k, of which the block takes `value`."""
    func = parse(
        f"""
@T.prim_func
def sums(B: T.Buffer((6,), "float32"), C: T.Buffer((6,), "float32")):
    for i in range(6):
        for k in range({loop}):
            with T.block("C"):
                vi = T.axis.spatial(6, i)
                vk = T.axis.reduce({domain}, {value})
                T.where({where})
                with T.init():
                    C[vi] = T.float32(0)
                C[vi] = C[vi] + B[vk]
"""
    )
    assert isinstance(func, PrimFunc)
    return func


def block_of(func: PrimFunc) -> Block:
    return next(r.block for r in blocks_of(func.body) if r.block.name == "C")


@pytest.mark.parametrize(
    "func",
    [
        sums("6"),
        sums("2, 6", domain="(2, 6)"),
        sums("6", "5 - k"),
        sums("i, 6", domain="(i, 6)"),
        sums("1, 4", "k - 1"),
        sums("6", where="k < 4"),
        sums("i + 1"),
        sums("8", "k - 2", where="k >= 2"),
    ],
)
def test_a_reduction_that_begins_stays_as_it_is(func: PrimFunc) -> None:
    assert begin_reductions(func) is func


@pytest.mark.parametrize("func", [sums("2, 6"), sums("3", "k * 2 + 1"), sums("3", "5 - k")])
def test_an_init_that_never_runs_is_dropped(func: PrimFunc) -> None:
    block = block_of(begin_reductions(func))
    assert block.init is None
    assert {r.buffer.name for r in block.reads} == {"B", "C"}
    assert not any(isinstance(s, IfThenElse) for s in walk_stmts(block.body))


@pytest.mark.parametrize(
    "func",
    [sums("i, 6"), sums("6", "5 - k", where="k < 4"), sums("T.max(i - 2, 0), T.min(i + 3, 6)")],
)
def test_an_init_that_runs_for_some_results_is_a_condition(func: PrimFunc) -> None:
    block = block_of(begin_reductions(func))
    assert block.init is None
    assert {r.buffer.name for r in block.reads} == {"B", "C"}
    assert any(isinstance(s, IfThenElse) for s in walk_stmts(block.body))


@pytest.mark.parametrize(
    "func", [sums("i, 6"), sums("2, 6"), sums("3", "k * 2 + 1"), sums("T.max(i - 2, 0), 6")]
)
def test_the_result_goes_on_from_what_memory_held(func: PrimFunc) -> None:
    b, want = np.arange(1, 7, dtype=np.float32), np.full(6, 100, np.float32)
    run(func, b, want)
    assert want[5] > 100
    for made in (Schedule(func), autoschedule(func)):
        got = np.full(6, 100, np.float32)
        build(made)(b, got)
        assert got.tolist() == want.tolist()


def test_steps_that_need_the_init_are_refused() -> None:
    func = sums("i, 6")
    sch = Schedule(func)
    outer, inner = sch.get_loops("C")
    text = "block C has no init that runs for each result"
    check_refused(sch, lambda: sch.decompose_reduction("C", inner), "no-init", text)
    check_refused(sch, lambda: sch.cache_write("C", 0, "global"), "reads-own-output", "C")
    check_refused(sch, lambda: sch.write_at(outer, "C", 0, "global"), "not-started", "C")


def test_a_reduction_that_never_runs_its_init_becomes_a_block_in_a_block() -> None:
    func = sums("2, 6")
    sch = Schedule(func)
    sch.blockize(sch.get_loops("C")[1])
    check_transform(func, sch)


def test_the_domain_of_a_reduction_over_two_blocks_is_that_of_both() -> None:
    func = parse(
        """
@T.prim_func
def nested(B: T.Buffer((6, 8), "float32"), C: T.Buffer((6,), "float32")):
    for i, o in T.grid(6, 2):
        with T.block("outer"):
            vi, vo = T.axis.remap("SR", [i, o])
            for k in range(4):
                with T.block("C"):
                    vk = T.axis.reduce(8, vo * 4 + k)
                    with T.init():
                        C[vi] = T.float32(0)
                    C[vi] = C[vi] + B[vi, vk]
"""
    )
    assert isinstance(func, PrimFunc)
    assert begin_reductions(func) is func


def test_digits_of_one_loop_begin() -> None:
    sch = Schedule(sums("6"))
    sch.fuse(*sch.get_loops("C"))
    assert begin_reductions(sch.func) is sch.func


def test_the_order_of_a_reduction_with_a_condition_is_kept() -> None:
    text = """
@T.prim_func
def again(C: T.Buffer((1,), "float32")):
    for t in range(3):
        for u in range(2):
            for k in range(T.max(t - 1, 0), 3):
                with T.block("C"):
                    vk = T.axis.reduce(3, k)
                    with T.init():
                        C[0] = T.float32(0)
                    C[0] = C[0] + T.float32(1)
"""
    func = parse(text)
    assert isinstance(func, PrimFunc)
    sch = Schedule(func)
    t, u, _ = sch.get_loops("C")
    check_refused(sch, lambda: sch.reorder(u, t), "reversed-dependence", "t")


BAND = """
@T.prim_func
def band(B: T.Buffer((5, 5), "int32"), C: T.Buffer((5,), "int32")):
    for k in range(5):
        for i in range({ends}):
            with T.block("C"):
                vk, vi = T.axis.remap("RS", [k, i])
                with T.init():
                    C[vi] = 0
                C[vi] = C[vi] + B[vk, vi]
"""


def test_results_that_the_first_iteration_leaves_out_do_not_begin() -> None:
    shrinking, growing = parse(BAND.format(ends="k, 5")), parse(BAND.format(ends="k + 1"))
    assert isinstance(shrinking, PrimFunc) and isinstance(growing, PrimFunc)
    assert begin_reductions(shrinking) is shrinking
    assert block_of(begin_reductions(growing)).init is None
    b, want, got = np.ones((5, 5), np.int32), np.full(5, 9, np.int32), np.full(5, 9, np.int32)
    run(growing, b, want)
    build(autoschedule(growing))(b, got)
    assert got.tolist() == want.tolist() == [5, 13, 12, 11, 10]


def test_an_init_whose_loop_depends_on_the_reduction_stays() -> None:
    func = parse(BAND.format(ends="k, 5"))
    assert isinstance(func, PrimFunc)
    sch = Schedule(func)
    text = "the ends of the loop i over results depend on k"
    outer = sch.get_loops("C")[0]
    check_refused(sch, lambda: sch.decompose_reduction("C", outer), "dependent-bound", text)


def test_results_in_a_loop_that_ends_by_a_result_do_not_begin() -> None:
    func = parse(
        """
@T.prim_func
def grown(P: T.Buffer((4,), "int32")):
    for k in range(2):
        for i in range(T.min(P[0], 4)):
            with T.block("C"):
                vk = T.axis.reduce(2, k)
                vi = T.axis.spatial(4, i)
                with T.init():
                    P[vi] = 3
                P[vi] = P[vi] + 1
"""
    )
    assert isinstance(func, PrimFunc)
    assert block_of(begin_reductions(func)).init is None
    want, got = np.array([1, 9, 9, 9], np.int32), np.array([1, 9, 9, 9], np.int32)
    run(func, want)
    build(autoschedule(func))(got)
    assert got.tolist() == want.tolist()

"""Declaring the result of a reduction in `T.reads` does not change which steps are legal."""

from __future__ import annotations

import pytest
from oracle import check_numbers, check_refused
from schedule.declared_accumulators import with_accumulators, without_accumulators
from schedule.machine import ALL, Player, _Nothing, program, recipe
from schedule.programs import matmul, matmul_relu

from metasched.arith.regions import inputs
from metasched.errors import ScheduleError
from metasched.ir.equal import assert_structural_equal, structural_equal
from metasched.ir.func import IRModule, PrimFunc
from metasched.schedule.schedule import Schedule
from metasched.script import parse

STEPS = {
    "cache_write": lambda s: s.cache_write("C", 0, "local"),
    "cache_write to a reader": lambda s: s.cache_write("C", 0, "local", ["D"]),
    "cache_read": lambda s: s.cache_read("C", "A", "shared"),
    "reindex": lambda s: s.reindex("C", ("write", 0)),
    "reindex by name": lambda s: s.reindex("C", "C"),
    "reindex_cache_write": lambda s: s.reindex_cache_write("C", 0, "local", lambda i, j, k: (j, i)),
    "transform_layout": lambda s: s.transform_layout("C", "C", lambda i, j: (j, i)),
    "write_at": lambda s: s.write_at(s.get_loops("C")[0], "C", 0, "local"),
    "read_at": lambda s: s.read_at(s.get_loops("D")[0], "D", 0, "local"),
    "rfactor": lambda s: s.rfactor(s.get_loops("C")[2], 0),
    "decompose_reduction": lambda s: s.decompose_reduction("C", s.get_loops("C")[1]),
    "reorder": lambda s: s.reorder(*reversed(s.get_loops("C"))),
    "parallel": lambda s: s.parallel(s.get_loops("C")[0]),
    "bind": lambda s: s.bind(s.get_loops("C")[2], "threadIdx.x"),
    "reverse_compute_at": lambda s: s.reverse_compute_at("D", s.get_loops("C")[0]),
    "compute_at": lambda s: s.compute_at("C", s.get_loops("D")[1]),
    "reverse_compute_inline": lambda s: s.reverse_compute_inline("D"),
    "blockize": lambda s: s.blockize(s.get_loops("C")[1]),
    "loop_partition": lambda s: s.loop_partition(s.get_loops("C")[0], [None, 3]),
    "pad_einsum": lambda s: s.pad_einsum("C", [5, 7, 3]),
}


def equal_but_for_accumulators(a: IRModule, b: IRModule) -> None:
    for name, func in a.functions.items():
        assert_structural_equal(without_accumulators(func), without_accumulators(b[name]))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_steps_treat_declared_and_undeclared_accumulators_alike(name: str, last: bool) -> None:
    made = []
    for func in (matmul_relu, with_accumulators(matmul_relu, last=last)):
        sch = Schedule(func, seed=0)
        try:
            STEPS[name](sch)
            check_numbers(func, sch.mod)
        except ScheduleError as error:
            made.append(error.reason)
            continue
        made.append(sch.mod)
    plain, declared = made
    if isinstance(plain, str):
        assert declared == plain
    else:
        equal_but_for_accumulators(plain, declared)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_traces_of_one_form_replay_on_the_other(first: int) -> None:
    played = 0
    for number in range(first, first + 20):
        func = program(number)
        other = with_accumulators(func, last=True)
        if structural_equal(func, other):
            continue
        sch = Schedule(func, seed=number, check=False)
        player = Player(sch)
        for step, numbers in recipe(number, ops=ALL):
            player.numbers = list(numbers)
            try:
                ALL[step][1](player)
            except (ScheduleError, _Nothing):
                continue
        again = Schedule(other, seed=1)
        sch.trace.apply(again)
        equal_but_for_accumulators(sch.mod, again.mod)
        played += 1
    assert played


SCALED = """
@T.prim_func
def f(A: T.Buffer((6, 4), "float32"), C: T.Buffer((6,), "float32")):
    for i, k in T.grid(6, 4):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            {reads}
            with T.init():
                C[vi] = C[vi] * T.float32(2)
            C[vi] = C[vi] + A[vi, vk]
"""


@pytest.fixture(params=["", "T.reads(A[vi, vk])", "T.reads(C[vi], A[vi, vk])"])
def scaled(request: pytest.FixtureRequest) -> PrimFunc:
    """A reduction whose init reads the old value of the result."""
    return parse(SCALED.format(reads=request.param))


def test_an_init_that_reads_its_result_reads_the_old_value(scaled: PrimFunc) -> None:
    sch = Schedule(scaled, seed=0)
    assert [r.buffer.name for r in inputs(sch.get(sch.get_block("C")))] in (["A", "C"], ["C", "A"])
    loop = sch.get_loops("C")[0]
    for step in (
        lambda: sch.cache_write("C", 0, "local"),
        lambda: sch.reindex("C", ("write", 0)),
        lambda: sch.reindex_cache_write("C", 0, "local", lambda i, k: (i,)),
    ):
        check_refused(sch, step, "reads-own-output", "reads")
    check_refused(sch, lambda: sch.write_at(loop, "C", 0, "local"),
                  "not-started", "updates C")  # fmt: skip
    sch.parallel(loop)
    sch.decompose_reduction("C", sch.get_loops("C")[1])
    check_numbers(scaled, sch.mod, compiled=True)


def test_the_copy_of_an_accumulator_is_refused_as_a_read() -> None:
    sch = Schedule(with_accumulators(matmul), seed=0)
    loop = sch.get_loops("C")[0]
    check_refused(sch, lambda: sch.read_at(loop, "C", 0, "local"), "written-below", "C is written")
    check_refused(sch, lambda: sch.reindex("C", ("read", 0)), "reads-own-output", "C both reads")

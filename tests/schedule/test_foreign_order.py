"""No step changes when a foreign function is called, or how often."""

from collections.abc import Callable

import pytest
from oracle import refusal

from metasched.ir.func import PrimFunc
from metasched.kinds import default_trace
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.target import Target

STAGES = """
@T.prim_func
def stages(B: T.Buffer((8, 4), "int32")):
    A = T.alloc_buffer((8,), "int32")
    for i in range(8):
        with T.block("a"):
            vi = T.axis.spatial(8, i)
            A[vi] = {call}
    for i, j in T.grid(8, 4):
        with T.block("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi] + vj
"""
ONE_NEST = """
@T.prim_func
def one_nest(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32")):
    for i in range(8):
        with T.block("a"):
            vi = T.axis.spatial(8, i)
            A[vi] = {call}
        with T.block("b"):
            vi = T.axis.spatial(8, i)
            B[vi] = {call}
"""
GRID = """
@T.prim_func
def grid(A: T.Buffer((8, 8), "int32")):
    for i, j in T.grid(8, 8):
        with T.block("a"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = {call}
"""


def made(text: str, call: str) -> Schedule:
    func = parse(text.format(call=call))
    assert isinstance(func, PrimFunc)
    return Schedule(func)


def inlined(sch: Schedule) -> None:
    sch.compute_inline("a")


def moved(sch: Schedule) -> None:
    sch.compute_at(sch.get_block("a"), sch.get_loops("b")[0])


def side_by_side(sch: Schedule) -> None:
    sch.parallel(sch.get_loops("a")[0])


def swapped(sch: Schedule) -> None:
    sch.reorder(*reversed(sch.get_loops("a")))


Step = Callable[[Schedule], None]
STEPS: list[tuple[str, Step]] = [
    (STAGES, inlined), (STAGES, moved), (STAGES, side_by_side), (GRID, side_by_side),
    (GRID, swapped),
]  # fmt: skip
RAND = 'T.call_extern("int32", "rand")'


@pytest.mark.parametrize(("text", "step"), STEPS)
def test_calls_stay(text: str, step: Step) -> None:
    sch = made(text, RAND)
    before = sch.script()
    with refusal("foreign-order", "the call of rand in block a.* another order") as found:
        step(sch)
    assert "T.call_pure_extern" in str(found[0])
    assert sch.script() == before


@pytest.mark.parametrize(("text", "step"), STEPS)
@pytest.mark.parametrize(
    "call", ['T.call_pure_extern("int32", "f")', 'T.int32(T.call_extern("float32", "expf", 1.0))']
)
def test_pure_functions_move(text: str, step: Step, call: str) -> None:
    step(made(text, call))


def test_the_regions_of_a_block_bind_a_function_that_gets_pointers() -> None:
    text = """
    @T.prim_func
    def rows(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32")):
        for i in range(8):
            with T.block("a"):
                vi = T.axis.spatial(8, i)
                T.reads(A[vi, 0:8])
                T.writes(B[vi, 0:8])
                T.call_extern("int32", "f", T.address_of(A[vi, 0]), T.address_of(B[vi, 0]))
    """
    func = parse(text)
    assert isinstance(func, PrimFunc)
    side_by_side(Schedule(func))


def test_other_statements_move_around_calls() -> None:
    sch = made(STAGES, RAND)
    _, j = sch.get_loops("b")
    sch.vectorize(j)
    sch.unroll(sch.get_loops("a")[0])
    sch.cache_write("a", 0, "global")


def test_the_default_schedule_keeps_two_calls_in_one_loop() -> None:
    func = parse(ONE_NEST.format(call=RAND))
    assert isinstance(func, PrimFunc)
    sch = Schedule(func)
    default_trace(func, Target.native()).apply(sch)
    text = sch.script()
    assert text.count("for ") == 1 and text.count("rand") == 2 and "parallel" not in text

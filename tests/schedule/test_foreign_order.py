"""No step changes when a foreign function is called, or how often."""

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
from oracle import refusal

from metasched.ir.func import PrimFunc
from metasched.kinds import default_trace
from metasched.runtime.build import build
from metasched.schedule.handles import LoopRV
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


LIBC = ctypes.CDLL(None)


def drawn(sch: Schedule) -> tuple[list[int], int]:
    """What the program stores of numbers that `rand` draws one after the other, and what `rand`
    draws afterwards: the order of the calls and their number."""
    LIBC.srand(1)
    arrays = [np.full(b.constant_shape(), -1, "int32") for b in sch.func.buffers]
    build(sch)(*arrays)
    return np.ravel(arrays).tolist(), LIBC.rand()


LONG = """
@T.prim_func
def long(A: T.Buffer((3, 7), "int32"), B: T.Buffer((3, 7), "int32")):
    for i, j in T.grid(3, 7):
        with T.block("a"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = T.call_extern("int32", "rand")
        with T.block("b"):
            vi = T.axis.spatial(3, i)
            vj = T.axis.spatial(7, j)
            B[vi, vj] = T.call_extern("int32", "rand")
"""
BAND = """
@T.prim_func
def band(B: T.Buffer((5, 7), "int32")):
    for i, j in T.grid(5, 7):
        with T.block("b"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.where(i <= j and j < i + 2)
            B[vi, vj] = T.call_extern("int32", "rand")
"""


def nest(sch: Schedule, number: int) -> LoopRV:
    return sch.get_loops("a")[number]


KEEP_ORDER: dict[str, Step] = {
    "split": lambda sch: sch.split(nest(sch, 1), [None, 7]),
    "split with a condition": lambda sch: sch.split(nest(sch, 1), [None, 4]),
    "split outside": lambda sch: sch.split(nest(sch, 0), [2, None]),
    "fuse": lambda sch: sch.fuse(*sch.get_loops("a")),
    "unit loop": lambda sch: sch.add_unit_loop("b"),
    "partition": lambda sch: sch.loop_partition(nest(sch, 1), [2, 3]),
    "partition at": lambda sch: sch.partition_at(nest(sch, 0), nest(sch, 1), 0),
    "cut": lambda sch: sch.cut_loop(nest(sch, 1), 3),
    "blocks of blocks": lambda sch: sch.blockize(["a", "b"]),
    "no block": lambda sch: sch.unblockize("b"),
    "unroll": lambda sch: sch.unroll(nest(sch, 1)),
    "several": lambda sch: sch.split(sch.fuse(*sch.get_loops("a")), [3, None, 4]),
}


@pytest.mark.parametrize("name", KEEP_ORDER)
def test_steps_that_keep_the_order_are_legal(name: str) -> None:
    sch = Schedule(parse(LONG))
    want = drawn(sch)
    KEEP_ORDER[name](sch)
    assert drawn(sch) == want


@pytest.mark.parametrize(
    "step",
    [lambda sch: sch.narrow_loop(sch.get_loops("b")[1]), lambda sch: sch.unblockize("b"),
     lambda sch: sch.split(sch.get_loops("b")[1], [None, 3])],
)  # fmt: skip
def test_calls_under_conditions_keep_their_order(step: Step) -> None:
    sch = Schedule(parse(BAND))
    want = drawn(sch)
    step(sch)
    assert drawn(sch) == want


def test_a_split_that_runs_more_iterations_is_refused() -> None:
    sch = Schedule(parse(GRID.format(call=RAND).replace("8, 8", "8, 7")))
    with refusal("foreign-order", "the call of rand in block a"):
        sch.split(sch.get_loops("a")[1], [None, 4], disable_predication=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("T.grid(3, 7)", "T.grid(3, {})"),
        ("B[vi, vj] =", "T.where({} < 5)\n            B[vi, vj] ="),
        ("(7, j)", "(7, {})"),
    ],
)
def test_calls_of_ends_conditions_and_bindings_stay_as_many(old: str, new: str) -> None:
    assert old in LONG
    sch = Schedule(parse(LONG.replace(old, new.format('T.call_extern("int32", "abs", -3)'))))
    with refusal("foreign-order", "the call of abs"):
        sch.split(nest(sch, 0), [None, 2])

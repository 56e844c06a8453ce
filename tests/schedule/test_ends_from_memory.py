"""Loop ends, bindings and conditions that read what other blocks of the function compute."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import check_refused, check_transform

from metasched.autoschedule import autoschedule
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script import parse, script

ROWS = """
@T.prim_func
def f(N: T.Buffer((1,), "int32"), V: T.Buffer((35,), "int32"), Y: T.Buffer((5,), "int32")):
    P = T.alloc_buffer((6,), "int32")
    for i in range(6):
        with T.block("P"):
            vi = T.axis.spatial(6, i)
            P[vi] = T.min(T.max(N[0], 1), 7) * vi
    for i in range(5):
        for p in range(P[i], P[i + 1]):
            with T.block("Y"):
                vi, vp = T.axis.remap("SR", [i, p])
                with T.init():
                    Y[vi] = 0
                Y[vi] = Y[vi] + V[vp]
"""
PLACES = """
@T.prim_func
def f(N: T.Buffer((5,), "int32"), V: T.Buffer((5,), "int32"), Y: T.Buffer((5,), "int32")):
    P = T.alloc_buffer((5,), "int32")
    for i in range(5):
        with T.block("P"):
            vi = T.axis.spatial(5, i)
            P[vi] = T.min(T.max(N[vi], 0), 4)
    for i in range(5):
        with T.block("Y"):
            vi = T.axis.opaque(5, {binding})
            T.where({where})
            Y[vi] = V[vi] + 1
"""
PROGRAMS = {
    "end": ROWS,
    "binding": PLACES.format(binding="P[4 - i]", where="i < 5"),
    "condition": PLACES.format(binding="i", where="P[4 - i] > 1"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_stands_outside_of_blocks_needs_the_values_in_memory(name: str) -> None:
    """Inlined values would have no memory; moved into the loop, the next row's would be missing."""
    sch = Schedule(parse(PROGRAMS[name]), check=True)
    check_refused(sch, lambda: sch.compute_inline("P"), "outside-blocks", "uses P")
    if name == "end":
        (loop, _) = sch.get_loops("Y")
        check_refused(sch, lambda: sch.compute_at("P", loop), "outside-blocks", "uses P")


def test_a_kernel_of_rows_whose_ends_a_block_computes() -> None:
    """The search inlined the block of the ends."""
    func = parse(ROWS)
    result = autoschedule(func)
    args = np.array([3], "int32"), np.arange(35, dtype="int32"), np.zeros(5, "int32")
    build(result)(*args)
    assert args[2].tolist() == [3, 12, 21, 30, 39]


def test_a_reduction_that_starts_where_memory_says_declares_the_load() -> None:
    """The iterator counts from zero, so the body adds P[vi] to it."""
    sch = Schedule(parse(ROWS), check=True)
    assert "T.reads(V[vp + P[vi]], P[vi])" in script(sch.mod)
    sch.split(sch.get_loops("Y")[0], [None, 2])
    check_transform(parse(ROWS), sch)


LENGTHS = """
@T.prim_func
def f(N: T.Buffer((6,), "int32"), Y: T.Buffer((6, 8), "int32")):
    M = T.alloc_buffer((6,), "int32")
    for i in range(6):
        with T.block("M"):
            vi = T.axis.spatial(6, i)
            M[vi] = T.min(T.max(N[vi], 0), 4)
    for i in range(6):
        for p in range(M[{row}]):
            with T.block("Y"):
                vi, vp = T.axis.remap("SS", [i, p])
                Y[vi, vp] = Y[vi, vp] + 1
    for i in range(6):
        with T.block("M2"):
            vi = T.axis.spatial(6, i)
            M[vi] = 8 - T.min(T.max(N[vi], 0), 4)
    for i in range(6):
        for p in range(M[i]):
            with T.block("Z"):
                vi, vp = T.axis.remap("SS", [i, p])
                Y[vi, vp] = Y[vi, vp] * 2
"""


def test_nests_are_merged_where_each_row_has_its_length() -> None:
    func = parse(LENGTHS.format(row="i"))
    sch = Schedule(func, check=True)
    sch.merge(*(sch.get_loops(name)[0] for name in ("M", "Y", "M2", "Z")))
    check_transform(func, sch)


def test_a_length_is_neither_read_early_nor_overwritten() -> None:
    sch = Schedule(parse(LENGTHS.format(row="5 - i")), check=True)
    loops = {name: sch.get_loops(name)[0] for name in ("M", "Y", "M2", "Z")}

    def refused(reason: str, message: str, *names: str) -> None:
        nests = [loops[name] for name in names]
        check_refused(sch, lambda: sch.merge(*nests), reason, message)

    refused("backward-dependence", r"reads M\[5 - i", "M", "Y")
    refused("backward-dependence", r"reads M\[5 - i", "Y", "M2")
    refused("in-between", "reads M, which", "M", "M2")


def test_an_output_that_loops_read_is_not_written_among_them() -> None:
    text = LENGTHS[: LENGTHS.index("    for i in range(6):\n        for p in range(M[i])")]
    start = text.index("    M = T"), text.index("    for i in range(6):\n        for p")
    text = (text[: start[0]] + text[start[1] :]).replace("M[", "N[").format(row="5 - i")
    sch = Schedule(parse(text), check=True)
    loop = sch.get_loops("Y")[0]
    move = lambda: sch.reverse_compute_at("M2", loop)  # noqa: E731
    check_refused(sch, move, "outside-blocks", "uses N")
    last = sch.get_loops("M2")[0]
    check_refused(sch, lambda: sch.merge(loop, last), "backward-dependence", "M2 writes N")


def test_loops_below_which_a_length_is_read_and_written_are_not_reordered() -> None:
    """The length is read below i alone, so its instances have no j."""
    text = """
@T.prim_func
def f(N: T.Buffer((3,), "int32"), Y: T.Buffer((2, 3, 8), "int32")):
    for i, j in T.grid(2, 3):
        if i <= j:
            for p in range(N[i] % 8):
                with T.block("Y"):
                    vi, vj, vp = T.axis.remap("SSS", [i, j, p])
                    Y[vi, vj, vp] = Y[vi, vj, vp] + 1
        with T.block("N"):
            vi, vj = T.axis.remap("SS", [i, j])
            N[vi + 1] = vj
"""
    sch = Schedule(parse(text), check=True)
    i, j = sch.get_loops("N")
    check_refused(sch, lambda: sch.reorder(j, i), "reversed-dependence", "reads N")


CHANGED = """
@T.prim_func
def f(N: T.Buffer((1,), "int32"), Y: T.Buffer((8,), "int32")):
    for i in range(T.min(T.max(N[0], 1), 4)):
        with T.block("A"):
            vi = T.axis.opaque(4, i)
            N[0] = vi
    for i in range(T.min(T.max(N[0], 1), 4)):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            Y[vi] = Y[vi] + 1
"""


def test_loops_whose_common_end_the_first_nest_changes_are_not_merged() -> None:
    sch = Schedule(parse(CHANGED), check=True)
    nests = [sch.get_loops(name)[0] for name in "AB"]
    check_refused(sch, lambda: sch.merge(*nests), "changing-end", "writes N, and an end of")

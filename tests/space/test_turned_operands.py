"""turned_operands, lanes_last: independent iterations in lanes, around loops that need order."""

from __future__ import annotations

import pytest
from oracle import check_numbers
from space.candidates import TARGET, draw

from metasched.ir.stmt import ForKind
from metasched.kinds import default_modules
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.enclosing import enclose_statements
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.loop_distribution import LoopDistribution
from metasched.space.modules.turned_operands import TurnedOperands
from metasched.space.strides import has_vectors

WARP = """
@T.prim_func
def warp(X: T.Buffer((32, 20), "int32"), Y: T.Buffer((20,), "int32"), D: T.Buffer((32,), "int32")):
    for b in range(32):
        c = T.alloc_buffer((21, 21), "int32")
        for i, j in T.grid(21, 21):
            c[i, j] = 1 << 20
        c[0, 0] = 0
        for i, j in T.grid(20, 20):
            d = X[b, i] - Y[j]
            c[i + 1, j + 1] = T.abs(d) + T.min(c[i, j], T.min(c[i, j + 1], c[i + 1, j]))
        D[b] = c[20, 20]
"""


def test_a_table_for_each_sequence_has_the_sequences_last() -> None:
    """Rows and columns of a table need their order; sequences lie side by side in all arrays."""
    func = parse(WARP)
    generator = SpaceGenerator(default_modules(TARGET))
    found = 0
    for space in generator.generate(func, TARGET):
        sch = next(s for seed in range(9) if (s := draw(func, space, seed)) is not None)
        shapes = {b.constant_shape() for b in sch.get(sch.get_block("root")).alloc_buffers}
        assert (32, 21, 21) not in shapes
        if {(21, 21, 32), (20, 32)} <= shapes and not found:
            found += 1
            kinds = [sch.get(loop).kind for loop in sch.get_loops("c_2")]
            assert kinds[-1] is ForKind.VECTORIZED
            check_numbers(func, sch.mod, seeds=(0,), compiled=True)
    assert found and not generator.failures


SWEEPS = """
@T.prim_func
def sweeps(X: T.Buffer((20, 24), "int32"), U: T.Buffer((24, 20), "int32")):
    P = T.alloc_buffer((24, 20), "int32")
    for t in range(3):
        for i in range(24):
            P[i, 0] = t
            for j in range(1, 20):
                P[i, j] = X[j, i] - P[i, j - 1] * 3
            for j in range(20):
                U[i, j] = P[i, j]
"""


def test_sweeps_along_rows_of_a_temporary_have_lanes_across_the_rows() -> None:
    func = parse(SWEEPS)
    sch = Schedule(func, check=True)
    enclose_statements(sch, sch.get_block("root"))
    found = LoopDistribution()(sch, sch.get_block("root"))[0]
    shapes = {b.constant_shape() for b in found.get(found.get_block("root")).alloc_buffers}
    assert shapes == {(3, 20, 24)}  # a copy for each t, rows last
    assert has_vectors(found.get(found.get_block("P_1")))
    check_numbers(func, found.mod, compiled=True)


BLOCK = """
@T.prim_func
def f(X: T.Buffer({shape}, "int32"), C: T.Buffer((101, 32), "int32")):
    for b in range({lanes}):
        for t in range(100):
            with T.block("C"):
                vb = T.axis.spatial({lanes}, b)
                vt = T.axis.opaque(100, t)
                C[vt + 1, vb] = C[vt, vb] * 3 + {value}
"""


@pytest.mark.parametrize(
    ("shape", "lanes", "value"),
    [
        ((100, 32), 32, "X[vt, vb]"),  # vectors as they are
        ((32, 100), 32, "X[vb, vt]"),  # a copy would be read once
        ((32, 32), 32, "X[vb, vb]"),
        ((64, 4), 32, "X[vb * 2, 0]"),
    ],
)
def test_operands_that_a_copy_does_not_help_stay(shape, lanes, value) -> None:
    sch = Schedule(parse(BLOCK.format(shape=shape, lanes=lanes, value=value)))
    assert TurnedOperands()(sch, sch.get_block("C")) == [sch]


def test_an_operand_that_all_steps_share_is_turned() -> None:
    func = parse(BLOCK.format(shape=(32, 9), lanes=32, value="X[vb, 1]"))
    written = Schedule(func)
    sch, kept = TurnedOperands()(written, written.get_block("C"))
    assert kept is written
    (copy,) = sch.get(sch.get_block("root")).alloc_buffers
    assert copy.constant_shape()[-1] == 32
    check_numbers(func, sch.mod, compiled=True)

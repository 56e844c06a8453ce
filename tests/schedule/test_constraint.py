"""require: redraws keep earlier constraints; unsatisfiable conditions are refused; numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.errors import ScheduleError
from metasched.ir.expr import EQ, FloatImm, IntImm, Max, Min, Not, Var, compare, logical_and
from metasched.schedule.numbers import number_of
from metasched.schedule.schedule import Schedule
from metasched.workloads import get


def start(seed):
    sch = Schedule(get("gmm").func((1, 64, 64, 64)), seed=seed, check=False)
    return sch, sch.get_loops(sch.get_block("Z"))


@settings(max_examples=40)
@given(st.integers(0, 1 << 30))
def test_a_later_constraint_never_breaks_an_earlier_one(seed):
    sch, loops = start(seed)
    width = sch.sample_categorical([16, 8], [0.75, 0.25])
    a = sch.sample_perfect_tile(loops[2], 3, 64)
    sch.require(compare(EQ, a[2] % width, 0))
    b = sch.sample_perfect_tile(loops[1], 3, 64)
    sch.require(b[2] * (a[2] // width) <= 12)
    sch.require(b[2] * (a[2] // width) >= 6)
    number = sch.get
    assert number(a[2]) % number(width) == 0
    assert 6 <= number(b[2]) * (number(a[2]) // number(width)) <= 12


@settings(max_examples=40)
@given(st.integers(0, 1 << 30))
def test_steps_linked_by_other_constraints_are_drawn_again(seed):
    sch, loops = start(seed)
    width = sch.sample_categorical([16, 8], [0.75, 0.25])
    tile = sch.sample_perfect_tile(loops[2], 2, 64)
    sch.require(compare(EQ, tile[1] % width, 0))
    sch.require(tile[1] // width >= 4)
    sch.require(tile[0] >= 2)  # leaves 32 lanes: only a width of 8 will do
    assert (sch.get(width), sch.get(tile[1])) == (8, 32)


def test_steps_between_are_run_again():
    sch, loops = start(3)
    tile = sch.sample_perfect_tile(loops[2], 2, 64, decision=[64, 1])
    parts = sch.split(loops[2], tile)
    sch.require(tile[1] >= 16)
    assert int(sch.get(parts[1]).extent) == sch.get(tile[1]) >= 16


def test_require_refuses_a_false_condition_and_keeps_the_trace():
    sch, loops = start(0)
    tile = sch.sample_perfect_tile(loops[2], 2, 16)
    before = sch.trace
    with pytest.raises(ScheduleError, match="a required condition does not hold") as caught:
        sch.require(tile[1] >= 32)
    assert caught.value.reason == "constraint"
    assert sch.trace is before


def test_numbers_of_expressions():
    x, y = Var("x"), Var("y")
    values = {x: 7, y: 2}
    assert number_of(x // y + x % y * 10 - 1, values) == 12
    assert number_of(logical_and(x > y, Not(compare(EQ, x, y))), values) == 1
    assert number_of(Min(x, y) + Max(x, y), values) == 9
    assert number_of(x + Var("z"), values) is None
    assert number_of(x // (y - 2), values) is None
    assert number_of(FloatImm("float32", 1.5), values) is None


def test_caches_distinguish_constants_from_python_numbers():
    """A cache that confuses a constant node with an equal number loses constraints."""
    from metasched.schedule.numbers import number_of

    number_of(12_345, {})  # no expression: not determined
    assert number_of(IntImm("int32", 12_345), {}) == 12_345

"""The stride of an index is what enumeration finds, for every index that one loop reaches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metasched.cost.index_stride import LANES, STILL, broken, clamped, index_stride
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import DType
from metasched.ir.expr import IntImm, Max, Min, Var, as_expr, cast
from metasched.ir.op import Broadcast, Ramp, call

I, J = Var("i"), Var("j")


def env(i: int, j: int):
    return {I: {0: (1, i - 1)}, J: {1: (1, j - 1)}}


def index_values(index, i, j):
    return [[index(a, b) for b in range(j)] for a in range(i)]


def enumerated(index, i, j):
    """(step at the start, width) of each loop that moves the index, others at zero."""
    found = {}
    along_i, along_j = [index(a, 0) for a in range(i)], [index(0, b) for b in range(j)]
    for loop, along in ((0, along_i), (1, along_j)):
        if max(along) > min(along):
            found[loop] = max(along) - min(along)
    return found


sizes = st.integers(2, 9)


@given(sizes, sizes, st.integers(-5, 5), st.integers(-5, 5), st.integers(-9, 9))
def test_linear_is_exact(i, j, a, b, c):
    def index(x, y):
        return x * a + y * b + c

    moved = index_stride(I * a + J * b - (-c), env(i, j))
    assert {k: w for k, (_, w) in moved.items() if w} == enumerated(index, i, j)
    assert moved.get(0, (0, 0))[0] == a
    assert moved.get(1, (0, 0))[0] == b


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
def test_fused_loops_split_again(a, b, c):
    n = a * b * c
    moved = index_stride((I // c) % b, {I: {0: (1, n - 1)}})
    values = [(x // c) % b for x in range(n)]
    assert sum(w for _, w in moved.values()) == max(values) - min(values)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 7))
def test_remainder_of_a_strided_loop(extent, stride, divisor):
    moved = index_stride((I * stride) % divisor, {I: {0: (1, extent - 1)}})
    values = [x * stride % divisor for x in range(extent)]
    assert sum(w for _, w in moved.values()) >= max(values) - min(values)


def test_sum_of_a_variable_with_itself():
    assert index_stride(I + I, env(4, 2)) == {0: (2, 6)}
    assert index_stride(I - I, env(4, 2)) == STILL  # a loop that moves nothing is absent


def test_vectors_casts_and_what_cannot_be_followed():
    assert index_stride(cast("int64", I * 2), env(4, 2)) == {0: (2, 6)}
    ramp = Ramp(I * 16, IntImm("int32", 2), 8)
    assert index_stride(ramp, env(4, 2)) == {0: (16, 48), LANES: (2, 14)}
    assert index_stride(Broadcast(I, 4), env(4, 2)) == {0: (1, 3)}
    table = Buffer.of("table", (8,), "int32")
    assert index_stride(table[I] + 3, env(4, 2)) == {0: (1, 3)}
    lazy = call("if_then_else", I < 2, J, 0)
    assert index_stride(lazy, env(4, 5)) == {1: (1, 4)}
    assert index_stride(Var("unknown"), env(4, 2)) == {}


def test_loops_that_move_a_clamped_part_are_named():
    bound = env(4, 5)
    assert clamped(I * 8 + J, bound) == set()
    assert clamped(Min(I * 8, as_expr(20)) + J, bound) == {0}
    assert clamped(Max(Min(I + J, as_expr(6)), as_expr(0)), bound) == {0, 1}


def test_lanes_that_look_up_a_table_are_named():
    table = Buffer("table", (as_expr(256),), DType("int32"))
    assert broken(BufferLoad(table, [I * 8]), env(4, 5)) == {0}
    assert broken(BufferLoad(table, [J]) + I, env(4, 5)) == {1}


def test_lanes_at_a_rounded_float_are_named():
    rounded = cast("int32", cast("float32", I) * 0.37)
    assert broken(rounded + J, env(4, 5)) == {0}
    place = Var("place")
    assert broken(place * 8 + J, env(4, 5), {place: frozenset({0})}) == {0}
    assert broken(place * 8 + J, env(4, 5)) == set()


def test_lanes_that_reach_over_the_end_of_a_row_are_named():
    """J are 16 lanes, I the loop around them; rows of 14, of 16 and of 32 elements."""
    bound = {I: {0: (1, 6)}, J: {1: (1, 15)}}
    fused = I * 16 + J
    assert 1 in broken(fused % 14, bound)
    assert 1 in broken((fused // 14) * 3 + fused % 14 * 2, bound)
    assert 1 not in broken(fused % 32, bound) | broken(fused % 16, bound)
    assert 1 not in broken(fused % 8, bound)  # the same digits in all vectors
    assert broken(fused % 200, bound) == broken(fused, bound) == set()
    assert broken((fused + 1) % 14, bound) == set()  # a ring, which `clamped` names

"""Rejecting postprocs: what is refused, and the reason under which it is counted."""

from __future__ import annotations

import pytest
from space.candidates import TARGET, tiny

from metasched.errors import ScheduleError
from metasched.postproc.dynamic_loop import DisallowDynamicLoop
from metasched.postproc.size_limits import LimitCode, LimitStack, LimitVector
from metasched.schedule.schedule import Schedule
from metasched.script.parser import parse
from metasched.workloads import get


def rejected(postproc, sch):
    with pytest.raises(ScheduleError) as caught:
        postproc(sch, TARGET)
    assert caught.value.primitive == postproc.name
    return caught.value


def test_dynamic_loops():
    func = parse(
        """
@T.prim_func
def f(a: T.handle, n: T.int32):
    A = T.match_buffer(a, (n,), "float32")
    for i in range(n):
        with T.block("B"):
            v = T.axis.spatial(n, i)
            A[v] = T.float32(0)
"""
    )
    error = rejected(DisallowDynamicLoop(), Schedule(func))
    assert error.reason == "dynamic-loop" and "the loop i has no constant extent" in error.message
    DisallowDynamicLoop()(Schedule(tiny("gmm")), TARGET)


def test_an_extent_that_is_shifted_has_a_bound():
    """A transformation over halves of halves, as Haar's."""
    func = parse(
        """
@T.prim_func
def f(A: T.Buffer((512,), "float32")):
    for l in range(5):
        for i in range(512 >> l):
            A[i] = A[2 * i % 512] + A[i]
"""
    )
    DisallowDynamicLoop()(Schedule(func), TARGET)


def test_code_size():
    sch = Schedule(get("gmm").func((1, 64, 64, 64)))
    for loop in sch.get_loops(sch.get_block("Z"))[1:3]:
        sch.unroll(loop)
    error = rejected(LimitCode(1024), sch)
    assert error.reason == "unroll-too-large" and "4096 operations" in error.message
    LimitCode(4096)(sch, TARGET)


def test_vector_width():
    sch = Schedule(get("gmm").func((1, 4, 1024, 4)))
    sch.vectorize(sch.get_loops(sch.get_block("Z"))[2])
    error = rejected(LimitVector(), sch)
    assert error.reason == "vector-too-wide" and "32768 bits" in error.message


def test_stack():
    sch = Schedule(get("gmm").func((1, 256, 256, 4)))
    stage = sch.cache_write("Z", 0, "local")
    error = rejected(LimitStack(), sch)
    assert error.reason == "stack-too-large" and "262144 bytes of stack" in error.message
    sch.reverse_compute_at(stage, sch.get_loops(sch.get_block("Z"))[1])
    LimitStack()(sch, TARGET)


def test_triangles_are_no_dynamic_loops():
    func = parse(
        """
@T.prim_func
def f(A: T.Buffer((8, 8, 8), "float32")):
    for i in range(8):
        for j in range(i):
            for k in range(j, 8):
                with T.block("A"):
                    A[i, j, k] = T.float32(1)
"""
    )
    DisallowDynamicLoop()(Schedule(func), TARGET)


def test_rows_whose_length_lies_in_memory_are_no_dynamic_loops():
    func = parse(
        """
@T.prim_func
def f(P: T.Buffer((9,), "int32"), A: T.Buffer((64,), "float32")):
    for i in range(8):
        for k in range(P[i], P[i + 1]):
            with T.block("A"):
                A[k] = T.float32(1)
"""
    )
    DisallowDynamicLoop()(Schedule(func), TARGET)


def test_loops_of_a_scalar_parameter_are_no_dynamic_loops_unless_they_become_straight_code():
    """`tune(sizes=...)` names extents of parameters; a scalar has no size to name."""
    func = parse(
        """
@T.prim_func
def f(n: T.int32, A: T.Buffer((64,), "float32")):
    for i in range(n):
        with T.block("A"):
            v = T.axis.spatial(n, i)
            A[v] = T.float32(1)
"""
    )
    sch = Schedule(func)
    DisallowDynamicLoop()(sch, TARGET)
    sch.unroll(sch.get_loops("A")[0])
    assert rejected(DisallowDynamicLoop(), sch).reason == "dynamic-loop"

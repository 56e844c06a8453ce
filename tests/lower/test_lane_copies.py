"""Memory inside vectorized loops: each lane has its own copy, in vector registers."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, build, integers

from metasched.ir.expr import as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Allocate, For, ForKind
from metasched.ir.visit import walk_stmts
from metasched.lower.pipeline import lower
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T

N = 37


def _hue(n: int) -> PrimFunc:
    @T.prim_func
    def hue(A: T.Buffer((n, 3), "float32"), B: T.Buffer((n, 2), "float32")):
        """A scalar that branches set, and a store in each of two branches."""
        for i in range(n):
            h = T.float32(0)
            hi = T.max(A[i, 0], T.max(A[i, 1], A[i, 2]))
            if hi > 1.0:
                if hi == A[i, 0]:
                    h = A[i, 1] - A[i, 2]
                    if h < 0.0:
                        h += 6.0
                elif hi == A[i, 1]:
                    h = 2.0 + A[i, 2]
            B[i, 0] = h
            if hi > 0.0:
                B[i, 1] = hi
            else:
                B[i, 1] = -1.0

    return hue


hue = _hue(N)


@T.prim_func
def median(A: T.Buffer((N + 4,), "int32"), B: T.Buffer((N,), "int32")):
    """A sort of five neighbours in memory of its own, with serial loops inside."""
    for i in range(N):
        with T.block("B"):
            vi = T.axis.spatial(N, i)
            v = T.alloc_buffer((5,), "int32")
            for k in range(5):
                v[k] = A[vi + k]
            for r, k in T.grid(3, 4):
                if v[k] > v[k + 1]:
                    t = v[k]
                    v[k] = v[k + 1]
                    v[k + 1] = t
            B[vi] = v[2]


@T.prim_func
def looked_up(A: T.Buffer((N,), "int32"), B: T.Buffer((N,), "int32")):
    """Each lane reads another element of its copy."""
    for i in range(N):
        with T.block("B"):
            vi = T.axis.spatial(N, i)
            v = T.alloc_buffer((9,), "int32")
            for k in range(9):
                v[k] = k * k + vi
            B[vi] = v[A[vi] + 4]


def _vectorized(func: PrimFunc, lanes: int) -> Schedule:
    sch = Schedule(func)
    if func is hue:
        sch.enclose("root")
    _, lane = sch.split(sch.get_loops("B")[0], [None, lanes])
    sch.vectorize(lane)
    return sch


@pytest.mark.parametrize("lanes", [4, 16, 48])
@pytest.mark.parametrize(
    "func", [hue, median, looked_up], ids=lambda f: str(f.attrs["global_symbol"])
)
def test_lanes_have_their_own_memory(func: PrimFunc, lanes: int) -> None:
    sch = _vectorized(func, lanes)
    lowered = lower(sch.func, NATIVE)
    (made,) = [s for s in walk_stmts(lowered.body) if isinstance(s, Allocate)]
    loops = [s for s in walk_stmts(made) if isinstance(s, For) and s.kind is ForKind.VECTORIZED]
    assert loops and (as_int(made.buffer.shape[0]) or 1) % (as_int(loops[0].extent) or 0) == 0
    assert not any(isinstance(s, Allocate) for loop in loops for s in walk_stmts(loop))
    a, b = ("float32", "float32") if func is hue else ("int32", "int32")
    shape = {"hue": (N, 3), "median": (N + 4,), "looked_up": (N,)}[str(func.attrs["global_symbol"])]
    agree(sch.func, integers(shape, dtype=a), np.full((N, 2) if func is hue else (N,), -7, b))


def test_copies_and_both_branches_are_stored_without_masks() -> None:
    sch = Schedule(_hue(32))
    sch.enclose("root")
    _, lane = sch.split(sch.get_loops("B")[0], [None, 16])
    sch.vectorize(lane)
    text = build(sch.func).llvm_ir
    assert "llvm.masked.store" not in text and "llvm.masked.scatter" not in text


MANY = 65  # lanes; `lane_loops` takes at most 64


@T.prim_func
def left_early(A: T.Buffer((MANY,), "int32"), B: T.Buffer((MANY,), "int32")):
    for i in T.vectorized(MANY):
        with T.block("B"):
            vi = T.axis.spatial(MANY, i)
            v = T.alloc_buffer((1,), "int32")
            v[0] = A[vi]
            while v[0] > 1:
                v[0] = v[0] - 2
            B[vi] = v[0]


def test_a_loop_without_a_vector_form_keeps_its_memory() -> None:
    lowered = lower(left_early, NATIVE)
    (made,) = [s for s in walk_stmts(lowered.body) if isinstance(s, Allocate)]
    assert as_int(made.buffer.shape[0]) == 1
    agree(left_early, integers((MANY,), dtype="int32"), np.full((MANY,), -7, "int32"))

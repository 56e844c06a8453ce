"""step_over_zeros: transposed convolutions are offered without the zeros between their inputs."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import check_numbers
from space.candidates import TARGET, draw

from metasched.ir.func import PrimFunc
from metasched.ir.stmt import For, ForKind
from metasched.ir.visit import walk_stmts
from metasched.kinds import default_modules, default_trace
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.step_over_zeros import StepOverZeros


@T.prim_func
def apart(X: T.Buffer((8, 16)), W: T.Buffer((4, 16, 32)), Y: T.Buffer((16, 32))):
    T.func_attr({"tir.finite": True})
    Z = T.alloc_buffer((19, 16))
    for i, c in T.grid(19, 16):
        with T.block("Z"):
            vi, vc = T.axis.remap("SS", [i, c])
            Z[vi, vc] = T.if_then_else(
                vi >= 2 and vi < 18 and vi % 2 == 0, X[vi // 2 - 1, vc], T.float32(0)
            )
    for y, o, k, c in T.grid(16, 32, 4, 16):
        with T.block("Y"):
            vy, vo, vk, vc = T.axis.remap("SSRR", [y, o, k, c])
            with T.init():
                Y[vy, vo] = T.float32(0)
            Y[vy, vo] += Z[vy + vk, vc] * W[3 - vk, vc, vo]


@T.prim_func
def guarded(X: T.Buffer((10, 16)), W: T.Buffer((4, 16, 32)), Y: T.Buffer((16, 32))):
    for y, o, k, c in T.grid(16, 32, 4, 16):
        with T.block("Y"):
            vy, vo, vk, vc = T.axis.remap("SSRR", [y, o, k, c])
            with T.init():
                Y[vy, vo] = T.float32(0)
            Y[vy, vo] += T.if_then_else(
                (vy + vk) % 2 == 0, X[(vy + vk) // 2, vc] * W[3 - vk, vc, vo], T.float32(0)
            )


@T.prim_func
def red_black(A: T.Buffer((18, 34)), U: T.Buffer((18, 34))):
    for i, j in T.grid(18, 34):
        U[i, j] = A[i, j]
    for t, c, i, j in T.grid(4, 2, 16, 32):
        if (i + j) % 2 == c:
            U[i + 1, j + 1] = T.float32(0.25) * (
                U[i, j + 1] + U[i + 2, j + 1] + U[i + 1, j] + U[i + 1, j + 2]
            )


def steps(func: PrimFunc) -> list[int]:
    """How often each design space uses the step."""
    generator = SpaceGenerator(default_modules(TARGET))
    spaces = generator.generate(func, TARGET)
    assert not generator.failures
    for seed, space in enumerate(spaces):
        check_numbers(func, draw(func, space, seed).mod, compiled=True)
    return [str(s.as_python()).count(".step_over_zeros(") for s in spaces]


@pytest.mark.parametrize("func", [apart, guarded])
def test_the_space_steps_over_zeros(func: PrimFunc) -> None:
    assert set(steps(func)) == {0, 1}


@T.prim_func
def copied(A: T.Buffer((18, 34)), U: T.Buffer((18, 34))):
    for i, j in T.grid(18, 34):
        if (i + j) % 2 == 0:
            U[i, j] = A[i, j]


def test_a_statement_without_vectors_at_every_other_element_is_offered_at_all() -> None:
    assert set(steps(red_black)) == {1}
    assert set(steps(copied)) == {0, 1}


@T.prim_func
def plain(A: T.Buffer((16, 16)), B: T.Buffer((16, 16)), C: T.Buffer((16, 16))):
    for i, j, k in T.grid(16, 16, 16):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] += A[vi, vk] * B[vk, vj]


def test_a_sweep_over_one_colour_has_vectors():
    spaces = SpaceGenerator(default_modules(TARGET)).generate(red_black, TARGET)
    (space,) = (s for s in spaces if ".step_over_zeros(" in str(s.as_python()))
    text = draw(red_black, space, 0).mod.script()
    assert "T.vectorized" in text.split("for t, c")[1]


def test_a_sum_without_zeros_is_offered_once():
    sch = Schedule(plain)
    assert StepOverZeros()(sch, sch.get_block("C")) == [sch]


TURNS = """
@T.prim_func
def f(A: T.Buffer((66, 130), "float32"), B: T.Buffer((66, 130), "float32")):
    for c in range(2):
        for i, j in T.grid((1, 65), (1, 129)):
            if {test}:
                {store}
"""


@pytest.mark.parametrize(
    ("store", "vectors"),
    [("A[i, j] = A[i - 1, j] + A[i, j - 1] + A[i + 1, j] + A[i, j + 1]", False),
     ("B[i, j] = A[i - 1, j] + A[i, j - 1] + A[i + 1, j] + A[i, j + 1]", True),
     ("A[i, j] = A[i, j] * 2.0 + B[i, j]", True)],
)  # fmt: skip
@pytest.mark.parametrize(
    "test",
    ["(i + j) % 2 == c", "j < 127 and (i + j) % 2 == c", "(i + j) & 1 == c", "(i - j) & 3 == c"],
)
def test_no_lanes_take_turns(test, store, vectors):
    """A vector of neighbours in a red-black sweep waits for the elements just stored."""
    func = parse(TURNS.format(test=test, store=store))
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    kinds = {s.kind for s in walk_stmts(sch.func.body) if isinstance(s, For)}
    assert ForKind.PARALLEL in kinds
    assert (ForKind.VECTORIZED in kinds) == vectors
    given = np.random.default_rng(0).integers(-4, 4, (2, 66, 130)).astype("float32")
    found = [given.copy() for _ in range(2)]
    for program, arrays in zip((func, sch), found, strict=True):
        build(program)(*arrays)
    assert np.array_equal(*found)

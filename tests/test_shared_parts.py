"""Programs whose values share parts many levels deep, as `x = x * x + x` does: each stage takes
time that grows with the number of distinct parts, and computes what is written."""

from __future__ import annotations

import time

import numpy as np
import pytest

from metasched import autoschedule, build, te
from metasched.arith.affine import terms
from metasched.ir.equal import assert_structural_equal, structural_hash
from metasched.ir.expr import Var
from metasched.ir.intern import LARGE, tree_size
from metasched.ir.interp import run
from metasched.ir.visit import shared_parts
from metasched.kinds import default_trace
from metasched.schedule.schedule import Schedule
from metasched.script import parse, script
from metasched.script import tir as T

LEVELS = 24
SECONDS = 20.0
"""Far above what a stage takes, and far below 2**24 steps."""


def squares(x, i):
    return x * x * 0.5 + x


def activation(x, i):
    return T.if_then_else(x > 0.5, x, T.exp(x) - 1.0) * x


def chosen(x, i):
    return T.Select(x > 0.5, x, x * 0.5) * x


PARTS = {f.__name__: f for f in (squares, activation, chosen)}


def stage(step, dtype="float32"):
    """One stage whose value has `LEVELS` levels."""
    source = te.placeholder((64,), name="A", dtype=dtype)

    def value(i):
        x = source[i]
        for _ in range(LEVELS):
            x = step(x, i)
        return x

    return te.create_prim_func([source, te.compute((64,), value, name="B")])


def masked():
    """Each side of a choice reads memory, so that lanes run it under a mask."""
    source, other = (te.placeholder((64,), name=n) for n in "AC")

    def value(i):
        x = source[i]
        for k in range(LEVELS):
            x = T.if_then_else(x > 0.5, x * 0.5 + other[(i + k) % 64], x - 1.0) * x
        return x

    return te.create_prim_func([source, other, te.compute((64,), value, name="B")])


def sides():
    """Either side of each choice needs the choice before, and the condition does not."""
    source, other = (te.placeholder((64,), name=n) for n in "AC")

    def value(i):
        x = source[i]
        for k in range(LEVELS):
            c = other[(i + k) % 64]
            x = T.if_then_else(c > 0.5, x * 0.5 + c, T.if_then_else(c > 0.2, x - c, x * 0.25))
        return x

    return te.create_prim_func([source, other, te.compute((64,), value, name="B")])


def summed():
    source, k = te.placeholder((64, 30), name="A"), te.reduce_axis((0, 30), name="k")

    def value(i):
        x = source[i, k]
        for _ in range(LEVELS):
            x = x * x - x
        return te.sum(x, axis=k)

    return te.create_prim_func([source, te.compute((64,), value, name="B")])


def gathered():
    source = te.placeholder((64,), name="A", dtype="int32")

    def value(i):
        x = source[i]
        for _ in range(LEVELS):
            x = source[T.abs(x) % 64] + x
        return x

    return te.create_prim_func([source, te.compute((64,), value, name="B")])


def place():
    """An index of shared quotients and products."""
    source = te.placeholder((64,), name="A")

    def value(i):
        x = i
        for k in range(LEVELS):
            x = (x * x + x // 2 + k) % 64
        return source[x]

    return te.create_prim_func([source, te.compute((64,), value, name="B")])


def locals_of_python(kind, first, step):
    """The same with variables of a script."""
    lines = [f"x0 = {first}", *(f"x{k + 1} = {step.format(f'x{k}')}" for k in range(LEVELS))]
    body = "\n        ".join([*lines, f"B[i] = x{LEVELS}"])
    return parse(
        f'@T.prim_func\ndef main(A: T.Buffer((64,), "{kind}"), B: T.Buffer((64,), "{kind}")):\n'
        f"    for i in range(64):\n        {body}\n"
    )


def condition():
    text = (
        '@T.prim_func\ndef main(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):\n'
        '    for i in range(64):\n        with T.block("b"):\n'
        "            v = T.axis.spatial(64, i)\n"
        "            c0 = A[v] > 3\n            e0 = A[v] < 7\n"
    )
    for k in range(LEVELS):
        text += f"            c{k + 1} = (c{k} and e{k}) or (e{k} and A[v] > {k})\n"
        text += f"            e{k + 1} = (c{k} or e{k}) and not c{k + 1}\n"
    return parse(f"{text}            if c{LEVELS}:\n                B[v] = A[v]\n")


PROGRAMS = {
    **{name: lambda step=step: stage(step) for name, step in PARTS.items()},
    "integers": lambda: stage(lambda x, i: x * x + x, "int32"),
    "bytes": lambda: stage(lambda x, i: x * x + x, "uint8"),
    "doubles": lambda: stage(lambda x, i: x + x, "int64"),
    "masked": masked, "sides": sides, "summed": summed, "gathered": gathered, "place": place,
    "locals": lambda: locals_of_python("float32", "A[i]", "{0} * {0} * T.float32(0.5) + {0}"),
    "choice of locals": lambda: locals_of_python(
        "float32", "A[i]", "T.if_then_else({0} > T.float32(0.5), {0}, T.exp({0})) * T.float32(0.5)"
    ),
    "places of locals": lambda: locals_of_python("int32", "i", "({0} * 3 + {0} // 2) % 64"),
    "condition": condition,
}  # fmt: skip


@pytest.fixture(params=PROGRAMS)
def program(request):
    began = time.process_time()
    yield PROGRAMS[request.param]()
    assert time.process_time() - began < SECONDS


def arrays(func, rng):
    for buffer in func.buffers:
        shape = [int(n) for n in buffer.shape]
        drawn = rng.random(shape) if buffer.dtype.is_float else rng.integers(0, 9, shape)
        yield drawn.astype(buffer.dtype.numpy)


def test_every_way_of_running_computes_what_is_written(program):
    given = list(arrays(program, np.random.default_rng(1)))
    want = [a.copy() for a in given]
    run(program, *want)
    default = Schedule(program)
    default_trace(program).apply(default)
    for func in (program, default.mod, autoschedule(program).mod):
        got = [a.copy() for a in given]
        build(func)(*got)
        for a, b in zip(want, got, strict=True):
            np.testing.assert_allclose(b, a, rtol=2e-3, atol=1e-5)


def test_the_script_names_shared_parts_and_gives_the_same_program(program):
    text = script(program)
    assert len(text) < 20_000
    again = parse(text)
    assert_structural_equal(again, program)
    assert structural_hash(again) == structural_hash(program)


def test_a_small_expression_is_printed_whole(monkeypatch):
    monkeypatch.setattr(f"{__name__}.LEVELS", 4)
    assert "meta_var" not in script(stage(squares))


def test_parts_that_mention_a_variable_of_a_let_get_no_name():
    x, y = Var("x", "float32"), Var("y", "float32")
    value, inner = x, y
    for _ in range(12):
        value, inner = value * value + value, inner * inner + inner
    whole = T.Let(inner, where={y: value})
    assert tree_size(whole) > LARGE
    found = shared_parts([whole])
    assert found
    assert value in [*found, whole.value]
    assert not any(part is inner for part in found)
    assert all(part in [*found] or part is inner for part in shared_parts([whole]))


def test_a_sum_of_shared_parts_has_the_same_terms():
    x, y = Var("x"), Var("y")
    a, b = x, y
    for _ in range(20):
        a, b = a * 2 - b + 0 * a, b + a
    found = terms(a)
    p, q = (1, 0), (0, 1)
    for _ in range(20):
        p, q = (2 * p[0] - q[0], 2 * p[1] - q[1]), (q[0] + p[0], q[1] + p[1])
    assert dict(found.terms) == {x: p[0], y: p[1]}
    assert found.const == 0

"""zero_points, narrow_operands: products with zero points on instructions for plain products."""

from __future__ import annotations

import numpy as np
import pytest
from space.test_tensor_instruction import HERE, OLD, VNNI, drawn, filled

from metasched import build
from metasched.ir.interp import run
from metasched.kinds import default_modules
from metasched.script import parse
from metasched.space.generate import SpaceGenerator

PROGRAM = """
@T.prim_func
def f(A: T.Buffer((18, 12), "uint8"), B: T.Buffer((12, 32), "{b}"), Z: T.Buffer((32,), "int32"),
      S: T.Buffer((32,), "float32"), Y: T.Buffer((18, 32), "{y}")):
    {alloc}
    for i, j, k in T.grid(18, 32, 12):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                {c}[vi, vj] = 0
            {c}[vi, vj] = {c}[vi, vj] + {value}
    {finish}
"""
FINISH = """for i, j in T.grid(18, 32):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = T.cast(C[vi, vj], "float32") * S[vj]
"""
POINTS = '(T.cast(A[vi, vk], "int32") - 121) * (T.cast(B[vk, vj], "int32") - Z[vj])'


def program(scaled: bool, value: str = POINTS, b: str = "int8"):
    alloc = 'C = T.alloc_buffer((18, 32), "int32")' if scaled else ""
    return parse(PROGRAM.format(
        alloc=alloc, finish=FINISH if scaled else "", c="C" if scaled else "Y",
        y="float32" if scaled else "int32", value=value, b=b,
    ))  # fmt: skip


def spaces(func, target):
    generator = SpaceGenerator(default_modules(target))
    found = generator.generate(func, target)
    assert not generator.failures
    return [trace for trace in found if "expand_reduction" in str(trace)]


@pytest.mark.parametrize(("scaled", "b"), [(False, "int8"), (True, "uint8")])
def test_products_with_zero_points_use_instructions(scaled, b):
    func = program(scaled, b=b)
    wanted = filled(func)
    run(func, *wanted)
    found = [trace for trace in spaces(func, OLD) if "x86.avx2" in str(trace)]
    assert found
    for trace in found[:2]:
        sch = drawn(func, trace, OLD, 1)
        assert "pmadd" in sch.mod.script()
        given = filled(func)
        run(sch.mod, *given)
        results = [given]
        if HERE.supports(OLD) is None:
            results.append(filled(func))
            build(sch.mod, target=OLD)(*results[1])
        for arrays in results:
            np.testing.assert_array_equal(arrays[-1], wanted[-1])


def test_products_with_zero_points_use_vnni():
    func = program(True)
    assert any("x86.vnni" in str(trace) for trace in spaces(func, VNNI))


@pytest.mark.parametrize(
    "value", ['T.cast(A[vi, vk], "int32") * T.cast(B[vk, vj], "int32")', "Z[vj] - 3"]
)
def test_sums_without_zero_points_stay_as_they_are(value):
    assert not spaces(program(False, value), OLD)


CONVOLUTION = """
@T.prim_func
def f(X: T.Buffer((5, 18, 8), "{x}"), W: T.Buffer((3, 8, 24), "int8"),
      Y: T.Buffer((5, 18, 24), "int32")):
    P = T.alloc_buffer((5, 20, 8), "{p}")
    for n, h, c in T.grid(5, 20, 8):
        with T.block("pad"):
            vn, vh, vc = T.axis.remap("SSS", [n, h, c])
            P[vn, vh, vc] = T.if_then_else(
                1 <= vh and vh < 19, T.cast(X[vn, vh - 1, vc], "{p}") - {point}, {fill})
    for n, h, o, k, c in T.grid(5, 18, 24, 3, 8):
        with T.block("Y"):
            vn, vh, vo, vk, vc = T.axis.remap("SSSRR", [n, h, o, k, c])
            with T.init():
                Y[vn, vh, vo] = 0
            Y[vn, vh, vo] += T.cast(P[vn, vh + vk, vc], "int32") * T.cast(W[vk, vc, vo], "int32")
"""


@pytest.mark.parametrize(
    ("x", "p", "point", "offset"),
    [("uint8", "int32", 121, -121), ("uint8", "int16", 3, -3), ("int8", "int32", -7, 7)],
)
def test_a_zero_point_before_the_padding(x, p, point, offset):
    """Padding with the zero of the integers is padding with the zero point of the bytes."""
    fill = "0" if p == "int32" else "T.int16(0)"
    func = parse(CONVOLUTION.format(x=x, p=p, point=point, fill=fill))
    wanted = filled(func)
    run(func, *wanted)
    trace = next(t for t in spaces(func, VNNI) if "x86.vnni" in str(t))
    assert f'dtype="{x}", offset={offset}' in str(trace)
    sch, given = drawn(func, trace, VNNI, 1), filled(func)
    run(sch.mod, *given)
    np.testing.assert_array_equal(given[-1], wanted[-1])


def test_operands_that_do_not_fit_bytes_stay_as_they_are():
    """301 values: from -121 to 134, and 179 in the padding."""
    text = CONVOLUTION.format(x="uint8", p="int32", point=121, fill=179)
    generator = SpaceGenerator(default_modules(VNNI))
    assert "narrow_dtype" not in "".join(map(str, generator.generate(parse(text), VNNI)))
    assert not generator.failures

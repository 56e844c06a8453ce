"""zero_points: products with zero points on the instructions for plain products."""

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

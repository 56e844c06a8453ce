"""What Python's constructs mean in a script is what they mean in Python over NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from as_python import agree

from metasched.errors import ParseError
from metasched.ir.expr import FloatImm, Mul, Var
from metasched.script import parse

ZEROS = [0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan, 1e-45]


def elementwise(value: str, dtype: str, extent: int = 8, kind: str = "range") -> str:
    """A function whose second argument becomes `value` of the first, x."""
    return f"""
@T.prim_func
def f(A: T.Buffer(({extent},), "{dtype}"), B: T.Buffer(({extent},), "{dtype}")):
    for i in {kind}({extent}):
        x = A[i]
        B[i] = {value}
"""


@pytest.mark.parametrize("kind", ["range", "T.vectorized"])
@pytest.mark.parametrize("value", [
    "-x", "-(-x)", "-(x * x)", "-x + 0.0", "x + 0.0", "0.0 - x", "-0.0 - x", "-0.0", "x * 0.0",
    "-x * -1.0", "x - 0.0", "x if x > 0.0 else -x", "-(x + -0.0)", "+x",
])  # fmt: skip
def test_the_sign_of_zero(value, kind):
    for dtype in ("float32", "float64", "float16"):
        a = np.array(ZEROS, dtype)
        agree(elementwise(value, dtype, kind=kind), a, np.zeros_like(a))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32"])
def test_negated_integers(dtype):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    a = np.array([0, 1, 2, low, high, high - 1, 5, 100], dtype)
    agree(elementwise("-x", dtype), a, np.zeros_like(a))


def test_negation_outside_of_scripts():
    x, n = Var("x", "float32"), Var("n", "int32")
    assert -x is Mul(x, FloatImm("float32", -1.0))
    assert (0 - n) is -n
    func = parse("@T.prim_func(s_tir=False)\ndef f():\n    T.evaluate(-T.float32(0))")
    assert func.body.value is FloatImm("float32", -0.0)
    with pytest.raises(ParseError, match="bool has no sign"):
        parse("@T.prim_func(s_tir=False)\ndef f(c: T.bool):\n    T.evaluate(-c)")

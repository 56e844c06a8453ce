"""Steps of an unrolled reduction share no loads where the registers are full."""

from __future__ import annotations

import re

import numpy as np
import pytest
from codegen.kernels import agree, integers, program

from metasched.codegen.compile import compile_func
from metasched.target import Target

AVX512 = Target.of({"kind": "cpu", "mcpu": "skylake-avx512"})
AVX2 = Target.of({"kind": "cpu", "mcpu": "haswell"})
NEON = Target.of("llvm -mcpu=neoverse-v1 -num-cores=2")
HIDDEN = 'asm "", "=r,0"'
BODY = """
@T.prim_func
def main(x: T.Buffer(({c}, 3 * {rows}), "{dtype}"), w: T.Buffer(({c}, 3, {lanes}), "{dtype}"),
         y: T.Buffer(({rows}, {lanes}), "{dtype}")):
    s = T.alloc_buffer(({rows}, {lanes}), "{dtype}", scope="local")
    for j in T.unroll({rows}):
        for o in T.vectorized({lanes}):
            s[j, o] = T.{dtype}(0)
    for c in range({c}):
        for q in T.unroll(3):
            for j in T.unroll({rows}):
                for o in T.vectorized({lanes}):
                    s[j, o] = s[j, o] + x[c, {x}] * w[c, q, o]
    for j in T.unroll({rows}):
        for o in T.vectorized({lanes}):
            y[j, o] = s[j, o]
"""


def sliding(rows: int, lanes: int, dtype: str = "float32", x: str = "j + q", c: int = 5):
    return program(BODY.format(rows=rows, lanes=lanes, dtype=dtype, x=x, c=c))


def llvm(func, target: Target = AVX512) -> str:
    return compile_func(func, target).llvm_ir


@pytest.mark.parametrize(("rows", "lanes", "dtype"), [
    (14, 32, "float32"), (28, 16, "float32"), (24, 8, "float64"), (26, 16, "int32"),
])  # fmt: skip
def test_results_stay(rows, lanes, dtype):
    func = sliding(rows, lanes, dtype)
    assert HIDDEN in llvm(func)
    x, w = integers((5, 3 * rows), dtype), integers((5, 3, lanes), dtype, 1)
    agree(func, x, w, np.zeros((rows, lanes), dtype))


def test_accumulators_stay_in_registers():
    """28 accumulators, 2 vectors of w and 1 of x fit in 32 registers, 16 values of x do not."""
    text = compile_func(sliding(14, 32), AVX512).asm()
    loops = re.split(r"^\.LBB\S+:", text, flags=re.MULTILINE)
    body = max(loops, key=lambda part: part.count("vfmadd"))
    assert body.count("vfmadd") >= 3 * 28
    assert not re.search(r"\(%rsp\), %zmm|%zmm\d+, \d*\(%rsp\)", body)


@pytest.mark.parametrize(("func", "target"), [
    pytest.param(sliding(4, 16), AVX512, id="the registers have room"),
    pytest.param(sliding(14, 32, x="j"), NEON, id="values of all steps"),
    pytest.param(sliding(14, 16, x="3 * j + q"), AVX512, id="no value of two steps"),
])  # fmt: skip
def test_shares_loads_otherwise(func, target):
    assert (HIDDEN in llvm(func, target)) == (target is NEON)


def test_sums_under_tests_count():
    """The first step of a convolution leaves out the column before the first."""
    text = BODY.format(rows=14, lanes=32, dtype="float32", x="j + q", c=5)
    add = "s[j, o] = s[j, o] + x[c, j + q] * w[c, q, o]"
    func = program(text.replace("                for o in T.vectorized(32):\n" + 20 * " " + add, (
        "                if q + j > 0:\n"
        "                    for o in T.vectorized(32):\n"
        f"                        {add}"
    )))  # fmt: skip
    assert "if " in func.script() and HIDDEN in llvm(func)
    x, w = integers((5, 42)), integers((5, 3, 32), seed=1)
    agree(func, x, w, np.zeros((14, 32), "float32"))


def test_depends_on_the_number_of_registers():
    assert HIDDEN in llvm(sliding(12, 8), AVX2)
    assert HIDDEN not in llvm(sliding(12, 16), AVX512)


def test_leaves_sums_in_memory_alone():
    func = program(BODY.format(rows=28, lanes=16, dtype="float32", x="j + q", c=5).replace(
        "s = T.alloc_buffer((28, 16), \"float32\", scope=\"local\")", "T.evaluate(0)"
    ).replace("s[", "y["))  # fmt: skip
    assert HIDDEN not in llvm(func)


def test_steps_whose_number_depends_on_a_loop_stay_together():
    text = """
@T.prim_func
def main(A: T.Buffer((6, 6), "int32"), B: T.Buffer((6,), "int32")):
    S = T.alloc_buffer((6,), "int32", scope="local")
    for i in T.unroll(6):
        S[i] = 0
        for k in T.unroll(6 - i):
            S[i] = S[i] + A[k, i]
    for i in range(6):
        B[i] = S[i]
"""
    agree(text, integers((6, 6), "int32"), np.zeros(6, "int32"))

"""The attribute `tir.fast_math`: it allows what it names, nothing more, and nothing by itself."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from codegen.kernels import NATIVE, build, call, integers, program

import metasched as ms
from metasched.errors import MetaschedError
from metasched.ir.func import LIBERTIES
from metasched.ir.interp import run
from metasched.measure.task import make_task
from metasched.target import Target

AVX512 = Target.of({"kind": "cpu", "mcpu": "skylake-avx512"})
SUM = """
@T.prim_func
def main(A: T.Buffer((4, {n}), "float32"), C: T.Buffer((4,), "float32")):
    T.func_attr({{"tir.fast_math": "{words}"}})
    for i in T.{kind}(4):
        for j in range({n}):
            with T.block("c"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    C[vi] = T.float32(0)
                C[vi] = C[vi] + A[{index}]
"""
MIXED = """
@T.prim_func
def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32"),
         C: T.Buffer((64,), "float32")):
    T.func_attr({{"tir.fast_math": "{words}"}})
    for i in T.vectorized(64):
        with T.block("c"):
            vi = T.axis.spatial(64, i)
            C[vi] = T.max(A[vi] / B[0], B[vi])
"""


def _sum(words: str, kind: str = "serial", index: str = "vi, vj", n: int = 203) -> str:
    return SUM.format(words=words, kind=kind, index=index, n=n)


def _flags(text: str) -> set[str]:
    lines = build(text).llvm_ir.splitlines()
    return {word for word in LIBERTIES if any(f" {word} " in line for line in lines)}


@pytest.mark.parametrize("words", ["", "reassoc", "arcp", "nnan", "nnan arcp reassoc"])
def test_only_what_is_named_is_allowed(words: str) -> None:
    assert _flags(MIXED.format(words=words)) == set(words.split())
    for kind in ("serial", "parallel"):
        assert _flags(_sum(words, kind)) - {"nnan", "arcp"} == set(words.split()) & {"reassoc"}


@pytest.mark.parametrize("n", [203, 64, 3])
@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_a_serial_sum_has_lanes_where_its_order_is_free(n: int, kind: str) -> None:
    a, c = integers((4, n)), np.zeros(4, "float32")
    fast = build(_sum("reassoc", kind, n=n))
    assert call(fast, a, c) == 0
    np.testing.assert_array_equal(c, a.sum(1))
    assert ("fadd contract reassoc nsz <" in fast.llvm_ir) == (n > 3)
    assert "fadd contract <" not in build(_sum("arcp", kind, n=n)).llvm_ir
    assert "x float>" not in build(_sum("reassoc", kind, "vj % 4, vi", 200)).llvm_ir


def test_a_maximum_without_nan_is_one_instruction() -> None:
    plain = build(MIXED.format(words=""), target=AVX512).asm()
    fast = build(MIXED.format(words="nnan"), target=AVX512).asm()
    assert "vcmpordps" in plain and "vcmpordps" not in fast


EXTREMES = """
@T.prim_func
def main(A: T.Buffer((40,), "{dtype}"), B: T.Buffer((40,), "{dtype}"),
         C: T.Buffer((40,), "{dtype}"), D: T.Buffer((40,), "{dtype}")):
    for i in T.vectorized(40):
        C[i] = T.min(A[i], B[i])
        D[i] = T.max(A[i], B[i])
"""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_either_operand_may_be_nan(dtype: str) -> None:
    """Both extremes of a whole register share one test; a mask keeps the first operand."""
    code = build(EXTREMES.format(dtype=dtype), target=AVX512).asm()
    found = [line for line in code.splitlines() if re.search(r"v(min|max)p[sd].*zmm", line)]
    assert found and all("{%k" in line for line in found)
    assert len(re.findall(r"vcmp\w*p[sd].*zmm", code)) == len(found) // 2
    rng = np.random.default_rng(0)
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, 1.0, -2.0, 3.5], dtype)
    a, b = rng.choice(special, (2, 400))
    for n in range(0, 400, 40):
        x, y = a[n : n + 40].copy(), b[n : n + 40].copy()
        low, high = np.zeros((2, 40), dtype)
        assert call(build(EXTREMES.format(dtype=dtype)), x, y, low, high) == 0
        np.testing.assert_array_equal(low, np.minimum(x, y))
        np.testing.assert_array_equal(high, np.maximum(x, y))


def test_long_lanes_of_an_extreme_are_cut_for_short_registers():
    """LLVM cannot split the instruction of 512 bits, and ends the process where it would have to.
    The fuzz of the space found it (case 610000323)."""
    short = replace(AVX512, vector_bits=256)
    for dtype, lanes in (("float32", 16), ("float64", 8)):
        whole = EXTREMES.replace("for i in T.vectorized(40)", "for j in range(2)")
        text = whole.format(dtype=dtype).replace("[i]", f"[j * 4 : j * 4 + {lanes}]")
        code = build(text, target=short).asm()
        assert re.search(r"v(min|max)p[sd].*ymm", code) and "%zmm" not in code
        assert re.search(r"v(min|max)p[sd].*zmm", build(text, target=AVX512).asm())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_reciprocal_replaces_divisions_by_one_number(dtype: str) -> None:
    text = MIXED.format(words="arcp").replace("float32", dtype)
    fast = build(text, target=AVX512).asm()
    assert "zmm" in fast and not [w for w in fast.split() if w.startswith(("vdivps", "vdivpd"))]
    a, b, c = np.arange(64.0, dtype=dtype), np.full(64, 3, dtype), np.zeros(64, dtype)
    assert call(build(text), a, b, c) == 0
    np.testing.assert_allclose(c, np.maximum(a / 3, 3), rtol=2 * np.finfo(dtype).eps)


@pytest.mark.parametrize("given", ['"fast"', "True", '"reassoc,arcp"'])
def test_other_words_are_refused(given: str) -> None:
    text = _sum("").replace('"tir.fast_math": ""', f'"tir.fast_math": {given}')
    words = r"tir.fast_math is .*; it takes words of reassoc \("
    with pytest.raises(MetaschedError, match=words) as caught:
        build(text)
    assert str(caught.value).endswith('such as T.func_attr({"tir.fast_math": "reassoc arcp"})')


def test_the_interpreter_stays_exact_and_the_check_gets_wider() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((4, 203)).astype("float32")
    results = []
    for words in ("", "reassoc arcp nnan"):
        c = np.zeros(4, "float32")
        run(program(_sum(words)), a, c)
        results.append(c)
    np.testing.assert_array_equal(*results)
    plain, fast = program(_sum("")), program(_sum("reassoc"))
    tasks = [make_task(f, build(f).signature, key="k") for f in (plain, fast)]
    assert [task.exact for task in tasks] == [True, False]
    assert tasks[1].why == "the attribute tir.fast_math"
    assert tasks[1].arrays[1].eps == 4 * tasks[0].arrays[1].eps


def test_a_schedule_keeps_the_attribute() -> None:
    sch = ms.Schedule(program(_sum("reassoc")))
    sch.parallel(sch.get_loops(sch.get_block("c"))[0])
    assert sch.func.liberties == ("reassoc",)
    assert ms.build(sch, target=NATIVE)

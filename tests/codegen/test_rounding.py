"""float32 to bfloat16 and float16: ties to even, NaN, infinities and denormal numbers, by bits."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import build, call

NARROW = """
@T.prim_func
def main(A: T.Buffer(({count},), "float32"), B: T.Buffer(({count},), "{kind}")):
    for i in T.{loop}({count}):
        with T.block("B"):
            vi = T.axis.spatial({count}, i)
            B[vi] = T.Cast("{kind}", A[vi])
"""
# Bits of a float32, and those of the nearest bfloat16.
BFLOAT = {
    0x3F808000: 0x3F80, 0x3F818000: 0x3F82, 0x3F808001: 0x3F81, 0x3F817FFF: 0x3F81,  # ties
    0xBF818000: 0xBF82, 0x7F7FFFFF: 0x7F80, 0x7F7F7FFF: 0x7F7F, 0x7F800000: 0x7F80,  # largest
    0xFF800000: 0xFF80, 0x00000000: 0x0000, 0x80000000: 0x8000,
    0x00008000: 0x0000, 0x00018000: 0x0002, 0x00008001: 0x0001, 0x807FFFFF: 0x8080,  # denormal
}  # fmt: skip
# Values, and the nearest float16.
HALF = {
    2049.0: 2048.0, 2051.0: 2052.0, 65519.0: 65504.0, 65520.0: np.inf, -1e30: -np.inf,
    2.0**-25: 0.0, 3 * 2.0**-25: 2.0**-23, 2.0**-24: 2.0**-24, -0.0: -0.0, np.inf: np.inf,
}  # fmt: skip


@pytest.mark.parametrize("loop", ["serial", "vectorized"])
def test_bfloat16_is_rounded_to_even(loop):
    a = np.array([*BFLOAT, 0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    out = np.zeros(len(a), np.uint16)
    assert call(build(NARROW.format(count=len(a), kind="bfloat16", loop=loop)), a, out) == 0
    assert [hex(x) for x in out[:-2]] == [hex(x) for x in BFLOAT.values()]
    assert all(x & 0x7F80 == 0x7F80 and x & 0x7F for x in out[-2:])  # not a number


@pytest.mark.parametrize("loop", ["serial", "vectorized"])
def test_float16_is_rounded_to_even(loop):
    a = np.array([*HALF, np.nan], np.float32)
    out = np.zeros(len(a), np.float16)
    assert call(build(NARROW.format(count=len(a), kind="float16", loop=loop)), a, out) == 0
    np.testing.assert_array_equal(out, np.array([*HALF.values(), np.nan], np.float16))
    np.testing.assert_array_equal(np.signbit(out[:-1]), np.signbit(list(HALF.values())))


@pytest.mark.parametrize("loop", ["serial", "vectorized"])
def test_an_index_from_floats_is_the_one_of_numpy(loop):
    """A fused product would cut these to 0."""
    source = """
@T.prim_func
def main(A: T.Buffer((512,), "float32"), D: T.Buffer((512,), "float32"),
         B: T.Buffer((512,), "int32")):
    for i in T.{loop}(512):
        with T.block("B"):
            vi = T.axis.spatial(512, i)
            B[vi] = T.Cast("int32", A[vi] * T.float32(0.7) - D[vi])
"""
    count = np.arange(1, 513, dtype=np.float32)
    a, d = count * 10, count * 7 - 1
    assert ((a * np.float32(0.7) - d).astype(np.int32) == 1).all()
    assert ((a.astype(np.float64) * np.float32(0.7) - d).astype(np.int32) == 0).all()
    out = np.zeros(len(a), np.int32)
    assert call(build(source.format(loop=loop)), a, d, out) == 0
    assert out.tolist() == [1] * len(a)

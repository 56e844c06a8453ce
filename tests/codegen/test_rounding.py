"""float32 to shorter floats: ties to even, NaN, infinities and denormal numbers, by bits."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import build, call, program

from metasched.ir.dtype import DType
from metasched.schedule.schedule import Schedule

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
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
def test_floats_of_8_bits_are_rounded_to_even(kind, loop):
    """At each of the 256 values, halfway between two, and at the numbers of float32 beside them."""
    dtype = DType(kind).numpy
    known = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    finite = np.sort(known[np.isfinite(known)])
    beyond = np.float32([448, 464, 480, 57344, 61440, 65536, 1e38, 2**-10, 2**-17, 1e-40])
    middle = np.concatenate([known, (finite[1:] + finite[:-1]) / 2, beyond, -beyond])
    a = (middle.view(np.int32)[:, None] + np.arange(-2, 3, dtype=np.int32)).ravel().view(np.float32)
    out = np.zeros(len(a), dtype)
    assert call(build(NARROW.format(count=len(a), kind=kind, loop=loop)), a, out) == 0
    with np.errstate(invalid="ignore"):
        want = a.astype(dtype)
    number = ~np.isnan(want.astype(np.float32))
    assert np.isnan(out.astype(np.float32))[~number].all() and (~number).any()
    np.testing.assert_array_equal(out.view(np.uint8)[number], want.view(np.uint8)[number])


SIGNS = """
@T.prim_func
def main(A: T.Buffer((8,), "{kind}"), W: T.Buffer((8,), "float32"),
         B: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    for i in T.{loop}(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = T.copysign(T.float32(2), T.Cast("float32", A[vi]))
            C[vi] = T.copysign(T.float32(2), T.Cast("float32", T.Cast("{kind}", W[vi])))
"""


@pytest.mark.parametrize("loop", ["serial", "vectorized"])
@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_not_a_number_keeps_its_sign(kind, loop):
    signs = [2, -2, 2, -2, -2, 2, 2, -2]
    nan = np.copysign(np.full(8, np.nan, np.float32), np.float32(signs))
    with np.errstate(invalid="ignore"):
        a = nan.astype(DType(kind).numpy)
    loaded, rounded = np.zeros(8, np.float32), np.zeros(8, np.float32)
    assert call(build(SIGNS.format(kind=kind, loop=loop)), a, nan, loaded, rounded) == 0
    assert loaded.tolist() == rounded.tolist() == signs


@pytest.mark.parametrize("loop", ["serial", "vectorized"])
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
def test_each_float_of_8_bits_is_widened(kind, loop):
    a = np.arange(256, dtype=np.uint8).view(DType(kind).numpy)
    out = np.zeros(256, np.float32)
    text = NARROW.format(count=256, kind="float32", loop=loop).replace('"float32"', f'"{kind}"', 1)
    assert call(build(text), a, out) == 0
    np.testing.assert_array_equal(out, a.astype(np.float32))


def test_the_type_without_infinity_has_a_greatest_value():
    """rfactor starts partial minima with the greatest value; infinity would become NaN."""
    source = """
@T.prim_func
def main(A: T.Buffer((2, 2), "float8_e4m3fn"), B: T.Buffer((2,), "float8_e4m3fn"),
         N: T.Buffer((2,), "bool")):
    for i, j in T.grid(2, 2):
        with T.block("B"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                B[vi] = T.float8_e4m3fn(448)
            B[vi] = T.min(B[vi], A[vi, vj])
    for i in range(2):
        with T.block("N"):
            vi = T.axis.spatial(2, i)
            N[vi] = T.isinf(A[vi, 0] + A[vi, 0]) or not T.isfinite(A[vi, 1])
"""
    sch = Schedule(program(source))
    sch.rfactor(sch.get_loops(sch.get_block("B"))[1], 0)
    a = np.array([[448, 7], [-448, 3]], DType("float8_e4m3fn").numpy)
    out, odd = np.zeros(2, a.dtype), np.ones(2, bool)
    assert call(build(sch.func), a, out, odd) == 0
    assert out.tolist() == [7, -448] and not odd.any()


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


@pytest.mark.parametrize("loop", ["serial", "vectorized"])
def test_a_variable_that_is_cut_to_an_index_is_the_one_of_numpy(loop):
    """As the place of a pixel in a rotated image, and its distance from the next pixel."""
    source = """
@T.prim_func
def main(A: T.Buffer((512,), "float32"), D: T.Buffer((512,), "float32"),
         B: T.Buffer((512,), "int32"), W: T.Buffer((512,), "float32")):
    for i in T.{loop}(512):
        x: T.float32 = A[i] * T.float32(0.7) - D[i]
        y: T.float32 = x + T.float32(1)
        B[i] = T.Cast("int32", T.floor(y))
        W[i] = y - T.floor(y)
"""
    count = np.arange(1, 513, dtype=np.float32)
    a, d = count * 10, count * 7 - 1
    out, apart = np.zeros(len(a), np.int32), np.zeros(len(a), np.float32)
    assert call(build(source.format(loop=loop)), a, d, out, apart) == 0
    assert out.tolist() == [2] * len(a) and not apart.any()

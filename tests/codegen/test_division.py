"""A vector divided by one number: the quotient to the last bit, by its reciprocal where that is
safe."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, build, call

from metasched.ir.dtype import DType

ROWS = """
@T.prim_func
def main(
    A: T.Buffer((64, 500), "float32"),
    B: T.Buffer((64,), "float32"),
    C: T.Buffer((64, 500), "float32"),
):
    for i in range(64):
        for j in T.vectorized(500):
            C[i, j] = A[i, j] / B[i]
"""


def test_quotients_are_exact_at_all_sizes_and_edges() -> None:
    compiled = build(ROWS)
    rng = np.random.default_rng(0)
    for spread in (1, 12, 70):
        power = 2.0 ** rng.integers(-spread, spread, (64, 501))
        numbers = (rng.standard_normal((64, 501)) * power).astype("float32")
        a, b = numbers[:, 1:].copy(), numbers[:, 0].copy()
        a[0, :7] = [np.inf, -np.inf, np.nan, 0.0, -0.0, 3e38, -3e38]
        a[40:44] = 3e38
        b[5:11] = [np.inf, np.nan, 0.0, -0.0, 1e-40, np.nextafter(np.float32(2), np.float32(1))]
        b[40:44] = [0.75, -0.75, 1e-30, 1e30]
        c = np.zeros_like(a)
        assert call(compiled, a, b, c) == 0
        with np.errstate(all="ignore"):
            expected = a / b[:, None]
        np.testing.assert_array_equal(c, expected)
        signed = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(c)[signed], np.signbit(expected)[signed])


@pytest.mark.skipif("fma" not in NATIVE.features, reason="products are not fused here")
def test_the_reciprocal_leaves_the_loop() -> None:
    compiled = build(ROWS.replace("500", "4096"))
    text = compiled.asm().split("kernel_repeat")[0]
    assert text.count("vdivss") == 1
    divides = text.index("vdivss")
    assert divides < text.index("fmadd")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_quotients_rounded_down_as_in_numpy(dtype: str) -> None:
    numbers = [0.0, -0.0, 1.0, -1.5, 3, -7, -8, 1e-3, np.inf, -np.inf, np.nan, 0.1, 65504.0]
    values = np.array(numbers).astype(DType(dtype).numpy)
    n = len(values)
    a, b = np.repeat(values, n), np.tile(values, n)
    compiled = build(f"""
@T.prim_func
def main(A: T.Buffer(({n * n},), "{dtype}"), B: T.Buffer(({n * n},), "{dtype}"),
         C: T.Buffer(({n * n},), "{dtype}"), D: T.Buffer(({n * n},), "{dtype}")):
    for i in T.vectorized({n * n}):
        C[i] = A[i] // B[i]
    for i in range({n * n}):
        D[i] = A[i] % B[i]
""")
    c, d = np.zeros_like(a), np.zeros_like(a)
    assert call(compiled, a, b, c, d) == 0
    with np.errstate(all="ignore"):
        expected = a // b, a % b
    for got, want in zip((c, d), expected, strict=True):
        got, want = (x.astype("float64") for x in (got, want))
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got)[want == 0], np.signbit(want)[want == 0])

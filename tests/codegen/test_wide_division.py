"""Vectors of 64-bit integers divided by a constant, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import WIDE, build, call

ROWS = """
@T.prim_func
def main(A: T.Buffer(({n},), "{dtype}"), Q: T.Buffer(({n},), "{dtype}"),
         R: T.Buffer(({n},), "{dtype}")):
    for i in T.vectorized({n}):
        Q[i] = {divide}
        R[i] = {rest}
"""
DIVISORS = (
    3, 5, 7, 10, 641, 1000, 998244353, (1 << 31) - 1, (1 << 32) - 1, (1 << 32) + 1, 10**9, 10**12,
    10**18, (1 << 61) - 1, (1 << 62) + 1, (1 << 63) - 1,
)  # fmt: skip
LARGE = ((1 << 63) + 1, (1 << 64) - 1, 12297829382473034411)
"""Divisors of unsigned integers alone."""


def numbers(dtype: str, divisor: int) -> np.ndarray:
    """Multiples of a divisor and their neighbours, ends of the range, and random numbers."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    rng = np.random.default_rng(divisor % 1000)
    some = [int(x) for x in rng.integers(low, high, 300, dtype, endpoint=True)]
    some += [int(x) >> int(s) for x, s in zip(some, rng.integers(0, 63, 300), strict=False)]
    times = [*range(-3, 4), high // divisor, low // divisor, *(x // divisor for x in some[:90])]
    near = [t * divisor + d for t in times for d in (-1, 0, 1)]
    ends = [low, low + 1, high - 1, high, (1 << 32) - 1, 1 << 32, (1 << 62) + 1]
    return np.array([x for x in (*some, *near, *ends) if low <= x <= high], dtype)


def divided(text: tuple[str, str], dtype: str, divisor: int) -> tuple[np.ndarray, ...]:
    a = numbers(dtype, divisor)
    by = f"T.{dtype}({divisor})"
    parts = {"divide": text[0].format(by=by), "rest": text[1].format(by=by)}
    compiled = build(ROWS.format(n=len(a), dtype=dtype, **parts))
    q, r = np.zeros_like(a), np.zeros_like(a)
    assert call(compiled, a, q, r) == 0
    return a, q, r


@pytest.mark.parametrize("divisor", [*DIVISORS, *LARGE])
def test_unsigned_quotients(divisor):
    a, q, r = divided(("A[i] // {by}", "A[i] % {by}"), "uint64", divisor)
    expected = [divmod(int(x), divisor) for x in a]
    assert [(int(x), int(y)) for x, y in zip(q, r, strict=True)] == expected


@pytest.mark.parametrize("divisor", DIVISORS)
def test_signed_quotients_round_down(divisor):
    a, q, r = divided(("A[i] // {by}", "A[i] % {by}"), "int64", divisor)
    expected = [divmod(int(x), divisor) for x in a]
    assert [(int(x), int(y)) for x, y in zip(q, r, strict=True)] == expected


@pytest.mark.parametrize("divisor", DIVISORS)
def test_signed_quotients_round_to_zero(divisor):
    a, q, r = divided(("T.truncdiv(A[i], {by})", "T.truncmod(A[i], {by})"), "int64", divisor)
    for x, one, rest in zip(map(int, a), map(int, q), map(int, r), strict=True):
        assert one == abs(x) // divisor * (-1 if x < 0 else 1)
        assert rest == x - one * divisor


@pytest.mark.parametrize("divisor", [1, 2, 64, 1 << 62, -1, -3, -(1 << 40) - 1])
def test_other_divisors(divisor):
    a, q, r = divided(("A[i] // {by}", "A[i] % {by}"), "int64", divisor)
    wrapped = [(x + (1 << 63)) % (1 << 64) - (1 << 63) for x in (int(x) // divisor for x in a)]
    assert list(map(int, q)) == wrapped
    assert list(map(int, r)) == [int(x) % divisor for x in a]


def test_lanes_are_not_divided_one_by_one():
    text = ROWS.format(n=64, dtype="uint64", divide="A[i] // 1000", rest="A[i] % 998244353")
    asm = build(text, target=WIDE).asm()
    assert "vpmuludq" in asm and "mulx" not in asm and "divq" not in asm

"""atan, atan2, asin and acos: polynomials near zero, and identities that lead there.

atan(x) = pi / 4 + atan((x - 1) / (x + 1)) and atan(x) = pi / 2 - atan(1 / x) leave |t| <= tan(pi /
8). asin(x) = pi / 2 - 2 * asin(sqrt((1 - x) / 2)) leaves |x| <= 1 / 2.
"""

from __future__ import annotations

import math

from metasched.codegen.vectormath.text import DOUBLE, SINGLE, Text

# atan(t) = t + t * z * p(z) and asin(t) = t + t * z * q(z), z = t * t. Interpolated at Chebyshev
# points; relative errors of float32 2**-28, of float64 2**-57.
_ATAN = {
    SINGLE: (-0.06451927870512009, 0.10743731260299683, -0.14263956248760223, 0.19999539852142334,
             -0.3333333134651184),
    DOUBLE: (-0.01917688711906226, 0.03923165829558719, -0.0508544973794026, 0.0585814891280221,
             -0.06664511447381948, 0.07692183190826087, -0.09090904578123903, 0.11111111015256361,
             -0.14285714284666542, 0.1999999999999552, -0.3333333333333333),
}  # fmt: skip
_ASIN = {
    SINGLE: (0.03369084745645523, 0.017149237915873528, 0.031100662425160408, 0.04459940269589424,
             0.07500094175338745, 0.1666666567325592),
    DOUBLE: (0.028757851367421566, -0.014851887071247204, 0.01740087944269402, 0.005457506718640358,
             0.01032281435018578, 0.011479177415184906, 0.013971212973552933, 0.017352392720869973,
             0.02237217294214989, 0.030381944138531247, 0.04464285714635543, 0.07499999999998433,
             0.16666666666666669),
}  # fmt: skip
# pi / 2 rounded, and what the rounded number lacks.
_HALF_PI = {
    SINGLE: (1.57079637050628662109375, -4.37113900018624283e-8),
    DOUBLE: (1.5707963267948966, 6.123233995736766e-17),
}


def atan(t: Text, x: str) -> str:
    size, one = t.named("fabs", x), t.const(1.0)
    middle = t.test("ogt", size, t.const(math.tan(math.pi / 8)))
    large = t.test("ogt", size, t.const(math.tan(3 * math.pi / 8)))
    above = t.pick(large, t.const(-1.0), t.pick(middle, t.sub(size, one), size))
    below = t.pick(large, size, t.pick(middle, t.add(size, one), one))
    r = t.div(above, below)
    high, low = _HALF_PI[t.format]

    def start(part: float) -> str:
        rest = t.pick(middle, t.const(part / 2), t.const(0.0))
        return t.pick(large, t.const(part), rest)

    z = t.mul(r, r)
    tail = t.fma(t.mul(r, z), t.poly(z, _ATAN[t.format]), start(low))
    return t.named("copysign", t.add(start(high), t.add(r, tail)), x)


def atan2(t: Text, y: str, x: str) -> str:
    """The angle k * pi / 4 +- atan(r), where r is the quotient of the smaller size and the larger,
    or (smaller - larger) / (smaller + larger), and k is 0 to 4."""
    one, zero, inf = t.const(1.0), t.const(0.0), t.const(math.inf)
    high, low = (t.const(part / 2) for part in _HALF_PI[t.format])
    a, b = t.named("fabs", y), t.named("fabs", x)
    steep = t.test("ogt", a, b)
    huge = t.test("ogt", t.pick(steep, a, b), t.const(2.0 ** (t.format.bias - 1)))
    scale = t.pick(huge, t.const(0.25), one)  # so that the sum is finite
    a, b = t.mul(a, scale), t.mul(b, scale)
    less, more, total = t.pick(steep, b, a), t.pick(steep, a, b), t.add(a, b)
    infinite = t.test("oeq", less, inf)
    middle = t.test("ogt", less, t.mul(more, t.const(math.tan(math.pi / 8))))
    middle = t.logic("or", middle, infinite)
    above = t.pick(infinite, zero, t.pick(middle, t.sub(less, more), less))
    below = t.pick(middle, total, more)
    r = t.div(above, t.pick(t.test("oeq", total, zero), one, below))
    k = t.pick(middle, one, zero)
    k = t.pick(steep, t.sub(t.const(2.0), k), k)
    left = t.emit(f"icmp slt {t.i} {t.bits(x)}, {t.int(0)}")
    k = t.pick(left, t.sub(t.const(4.0), k), k)
    falls = t.emit(f"xor {t.b} {steep}, {left}")
    r = t.pick(falls, t.neg(r), r)
    z = t.mul(r, r)
    tail = t.fma(t.mul(r, z), t.poly(z, _ATAN[t.format]), t.mul(k, low))
    return t.named("copysign", t.fma(k, high, t.add(r, tail)), y)


def _halved(t: Text, x: str) -> tuple[str, str, str]:
    """Reduce |x|: whether it is above 1 / 2, then r, and asin(r) - r."""
    size, half = t.named("fabs", x), t.const(0.5)
    far = t.test("ogt", size, half)
    z = t.pick(far, t.fma(size, t.const(-0.5), half), t.mul(size, size))
    r = t.pick(far, t.named("sqrt", z), size)
    return far, r, t.mul(t.mul(r, z), t.poly(z, _ASIN[t.format]))


def asin(t: Text, x: str) -> str:
    high, low = (t.const(part) for part in _HALF_PI[t.format])
    far, r, tail = _halved(t, x)
    two = t.const(-2.0)
    value = t.fma(two, r, t.add(high, t.fma(two, tail, low)))
    return t.named("copysign", t.pick(far, value, t.add(r, tail)), x)


def acos(t: Text, x: str) -> str:
    high, low = _HALF_PI[t.format]
    far, r, tail = _halved(t, x)
    below = t.test("olt", x, t.const(0.0))
    signed = t.named("copysign", t.add(r, t.sub(tail, t.named("copysign", t.const(low), x))), x)
    near = t.sub(t.const(high), signed)
    double = t.add(r, tail)
    double = t.add(double, double)
    other = t.sub(t.const(2 * high), t.sub(double, t.const(2 * low)))
    return t.pick(far, t.pick(below, other, double), near)

"""Exponentials: exp, exp2, exp10, expm1, tanh and sigmoid.

An argument x is reduced to n = round(x / unit) and r = x - n * unit, where unit is the number whose
power is 2. A polynomial gives exp(r), and its exponent is raised by n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from metasched.codegen.vectormath.text import DOUBLE, SINGLE, Format, Text

# q of exp(r) = 1 + r + r * r * q(r) for |r| <= ln(2) / 2. float32: Cephes, relative error 2**-27;
# float64: minimax, relative error 2**-57.
_EXP = {
    SINGLE: (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
             5.0000001201e-1),
    DOUBLE: (2.4999571711974326e-08, 2.7630531328601805e-07, 2.7557589635870813e-06,
             2.4801492369967204e-05, 1.9841269500997342e-04, 1.3888888944262165e-03,
             8.333333333497893e-03, 4.1666666666528074e-02, 1.6666666666666405e-01,
             5.000000000000011e-01),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Base:
    """The constants of an exponential function b**x.

    Attributes:
        scale: the binary logarithm of b.
        unit: 1 / scale in two parts, the first so short that its product with n is exact.
        natural: the logarithm of b.
        low, high: results are 0 for arguments below `low`, and infinite above `high`.
    """

    scale: float
    unit: tuple[float, ...]
    natural: float
    low: float
    high: float


_LN2 = {
    SINGLE: (0.693359375, -2.12194440e-4),
    DOUBLE: (6.93147180369123816490e-01, 1.90821492927058770002e-10),
}
_LG2 = {
    SINGLE: (0.301025390625, 4.60503898119521374e-06),
    DOUBLE: (3.01029995663611771306e-01, 3.69423907715893078616e-13),
}
E_BASE = {
    SINGLE: _Base(1.44269504088896341, _LN2[SINGLE], 1.0, -104.0, 89.0),
    DOUBLE: _Base(1.44269504088896341, _LN2[DOUBLE], 1.0, -746.0, 710.0),
}
_TWO = {
    SINGLE: _Base(1.0, (1.0,), math.log(2.0), -151.0, 129.0),
    DOUBLE: _Base(1.0, (1.0,), math.log(2.0), -1076.0, 1025.0),
}
_TEN = {
    SINGLE: _Base(math.log2(10.0), _LG2[SINGLE], math.log(10.0), -46.0, 39.0),
    DOUBLE: _Base(math.log2(10.0), _LG2[DOUBLE], math.log(10.0), -324.0, 309.0),
}


def _clamp(t: Text, x: str, low: float, high: float) -> tuple[str, str]:
    """Limit x to at most `high`; the second result is the mask of lanes that are not below `low`
    (NaN counts as not below).

    Without AVX-512's scalef, lanes below `low` are replaced by 0 before the computation. Their
    results would be subnormal numbers, which take up to a hundred times as long on many processors.
    A softmax with a mask has many such lanes.
    """
    test = ("uge", x, t.const(low))
    where = t.test(*test)
    x = t.pick(t.test("ogt", x, t.const(high)), t.const(high), x)
    return x if t.has_scalef else t.pick_again(test, where, x, t.const(0.0)), where


def reduced(t: Text, x: str, base: _Base) -> tuple[str, str]:
    """Reduce an argument: n, in the low bits of a number (see `Format.magic`), and the rest r as an
    argument of exp."""
    magic = t.const(t.format.magic)
    whole = base.scale == 1.0
    shifted = t.add(x, magic) if whole else t.fma(x, t.const(base.scale), magic)
    n = t.sub(shifted, magic)
    r = x
    for part in base.unit:
        r = t.sub(r, n) if whole else t.fma(n, t.const(-part), r)
    return shifted, r if base.natural == 1.0 else t.mul(r, t.const(base.natural))


def above_one(t: Text, r: str) -> str:
    """exp(r) - 1 for |r| <= ln(2) / 2."""
    return t.fma(t.poly(r, _EXP[t.format]), t.mul(r, r), r)


def scaled(t: Text, where: str, shifted: str, r: str) -> str:
    """Compute exp(r) * 2**n for |r| <= ln(2) / 2, and 0 in lanes outside `where`; n is in the low
    bits of `shifted`."""
    above = above_one(t, r)
    if t.has_scalef:
        n = t.sub(shifted, t.const(t.format.magic))
        return t.scalef(t.add(above, t.const(1.0)), n, where)
    first, second = t.two_factors(shifted)
    return t.pick(where, t.mul(t.fma(above, first, first), second), t.const(0.0))


def _power(bases: dict[Format, _Base], t: Text, x: str) -> str:
    base = bases[t.format]
    x, where = _clamp(t, x, base.low, base.high)
    return scaled(t, where, *reduced(t, x, base))


def exp(t: Text, x: str) -> str:
    return _power(E_BASE, t, x)


def exp2(t: Text, x: str) -> str:
    return _power(_TWO, t, x)


def exp10(t: Text, x: str) -> str:
    return _power(_TEN, t, x)


def exp_of_sum(t: Text, high: str, low: str) -> str:
    """exp(high + low), where `low` is small against `high` and 0 where `high` is infinite."""
    base = E_BASE[t.format]
    high, where = _clamp(t, high, base.low, base.high)
    shifted, r = reduced(t, high, base)
    return scaled(t, where, shifted, t.add(r, low))


def above_minus_one(t: Text, x: str) -> str:
    """exp(x) - 1 where 2**round(x / log(2)) is a normal number; accurate for small x too."""
    shifted, r = reduced(t, x, E_BASE[t.format])
    power = t.power_of_two(shifted)
    return t.fma(power, above_one(t, r), t.sub(power, t.const(1.0)))


def expm1(t: Text, x: str) -> str:
    """exp(x) - 1 as twice its half, because 2**n overflows where the result is still finite."""
    low = -math.log(2.0) * (t.format.mantissa + 3)  # the result is -1 from here
    high = t.const(E_BASE[t.format].high)
    inside = t.pick(t.test("olt", x, t.const(low)), t.const(low), x)
    inside = t.pick(t.test("ogt", inside, high), high, inside)
    shifted, r = reduced(t, inside, E_BASE[t.format])
    half = t.power_of_two(t.sub(shifted, t.const(1.0)))
    result = t.fma(half, above_one(t, r), t.sub(half, t.const(0.5)))
    return t.named("copysign", t.add(result, result), x)


def tanh(t: Text, x: str) -> str:
    """E / (E + 2) with E = exp(2 * |x|) - 1, which is accurate for small x too."""
    size = t.named("fabs", x)
    limit = t.const(0.5 * math.log(2.0) * (t.format.mantissa + 3))  # tanh is 1 from here
    size = t.pick(t.test("ogt", size, limit), limit, size)
    above = above_minus_one(t, t.add(size, size))
    return t.named("copysign", t.div(above, t.add(above, t.const(2.0))), x)


def sigmoid(t: Text, x: str) -> str:
    return t.div(t.const(1.0), t.add(exp(t, t.neg(x)), t.const(1.0)))

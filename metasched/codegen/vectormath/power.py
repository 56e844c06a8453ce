"""pow, as C defines it for zeros, infinities and negative bases.

float32 is computed in float64, with shorter polynomials than float64's own functions. float64 keeps
the logarithm, and its product with the exponent, as unevaluated sums of two numbers (Dekker); this
needs fused multiply-add.
"""

from __future__ import annotations

import math

from metasched.codegen.vectormath.exponential import E_BASE, exp_of_sum
from metasched.codegen.vectormath.logarithm import edges, split
from metasched.codegen.vectormath.text import DOUBLE, SINGLE, Text

Pair = tuple[str, str]

# log(1 + m) = 2 * s + s * z * (2 / 3 + z * p(z)), s = m / (2 + m), z = s * s; minimax, relative
# error 2**-66.
_TWO_THIRDS = (0.6666666666666666, 3.7007434154171884681e-17)
_SERIES = (0.13196685786420312, 0.13256781172842536, 0.15386758812753304, 0.18181784337108037,
           0.2222222252023849, 0.28571428570097973, 0.4000000000000226)  # fmt: skip

# For float32: log2(1 + m) = s * p(z), relative error 2**-45, and 2**r for |r| <= 1 / 2, 2**-34.
_LOG2 = (0.28310105034461086, 0.31989243436153897, 0.4122095544082256, 0.5770779396096877,
         0.9617966941219199, 2.885390081777846)  # fmt: skip
_EXP2 = (1.5303700711365693e-05, 0.00015469729214118296, 0.0013333478473685416,
         0.009618025613318034, 0.055504109063258665, 0.24022651213498092, 0.6931471805568324,
         0.9999999999595618)  # fmt: skip
_MOST = 200.0  # 2**x is infinite or zero in float32 from here, and a normal number in float64


def _sum(t: Text, a: str, b: str) -> Pair:
    """a + b exactly, for |a| >= |b| or a = 0."""
    total = t.add(a, b)
    return total, t.add(t.sub(a, total), b)


def _product(t: Text, a: str, b: str) -> Pair:
    """a * b exactly."""
    high = t.mul(a, b)
    return high, t.fma(a, b, t.neg(high))


def _product_of_pairs(t: Text, a: Pair, b: Pair) -> Pair:
    high, low = _product(t, a[0], b[0])
    return high, t.add(low, t.fma(a[0], b[1], t.mul(a[1], b[0])))


def _log_pair(t: Text, x: str) -> Pair:
    """log(x) of positive finite x, with a relative error of 2**-64."""
    e, m = split(t, x)
    below = t.add(m, t.const(2.0))
    lost = t.sub(m, t.sub(below, t.const(2.0)))
    inverse = t.div(t.const(1.0), below)
    s = t.mul(m, inverse)
    rest = t.sub(t.fma(t.neg(s), below, m), t.mul(s, lost))
    pair = (s, t.mul(rest, inverse))
    square = _product_of_pairs(t, pair, pair)
    tail = t.fma(square[0], t.poly(square[0], _SERIES), t.const(_TWO_THIRDS[1]))
    series = _sum(t, t.const(_TWO_THIRDS[0]), tail)
    cubic = _product_of_pairs(t, _product_of_pairs(t, square, pair), series)
    high, low = _sum(t, t.add(s, s), cubic[0])
    low = t.add(low, t.fma(t.const(2.0), pair[1], cubic[1]))
    unit = E_BASE[DOUBLE].unit
    total, error = _sum(t, t.mul(e, t.const(unit[0])), high)
    return _sum(t, total, t.add(error, t.fma(e, t.const(unit[1]), low)))


def _raised(t: Text, size: str, y: str) -> str:
    """size**y for 0 <= size <= infinity, except for size = 1."""
    if t.format is SINGLE:
        return _raised_in_double(t, size, y)
    high, low = _log_pair(t, size)
    power, error = _product(t, edges(t, size, high), y)
    error = t.fma(low, y, error)
    # The second parts are NaN for extreme operands; then only the first part counts.
    inside = t.test("olt", t.named("fabs", power), t.const(1024.0))
    return exp_of_sum(t, power, t.pick(inside, error, t.const(0.0)))


def _raised_in_double(t: Text, size: str, y: str) -> str:
    wide = t.of(DOUBLE)
    x = wide.convert(size, t)
    e, m = split(wide, x, may_be_subnormal=False)
    s = wide.div(m, wide.add(m, wide.const(2.0)))
    binary = wide.fma(s, wide.poly(wide.mul(s, s), _LOG2), e)
    power = wide.mul(wide.convert(y, t), edges(wide, x, binary))
    for order, limit in (("ogt", _MOST), ("olt", -_MOST)):
        most = wide.const(limit)
        power = wide.pick(wide.test(order, power, most), most, power)
    magic = wide.const(DOUBLE.magic)
    shifted = wide.add(power, magic)
    rest = wide.sub(power, wide.sub(shifted, magic))
    return t.convert(wide.mul(wide.poly(rest, _EXP2), wide.power_of_two(shifted)), wide)


def pow(t: Text, x: str, y: str) -> str:
    size = t.named("fabs", x)
    one, inf = t.const(1.0), t.const(math.inf)
    value = _raised(t, size, y)
    value = t.pick(t.logic("and", t.test("oeq", size, one), t.test("ord", y, y)), one, value)
    whole = t.test("oeq", t.named("trunc", y), y)
    half = t.mul(y, t.const(0.5))
    odd = t.logic("and", whole, t.test("une", t.named("trunc", half), half))
    value = t.pick(odd, t.named("copysign", value, x), value)
    below = t.logic("and", t.test("olt", x, t.const(0.0)), t.test("olt", size, inf))
    fraction = t.logic("and", below, t.test("one", t.named("trunc", y), y))
    value = t.pick(fraction, t.const(math.nan), value)
    certain = t.logic("or", t.test("oeq", x, one), t.test("oeq", y, t.const(0.0)))
    return t.pick(certain, one, value)

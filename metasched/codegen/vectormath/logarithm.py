"""Logarithms: log, log2, log10 and log1p.

A positive number is written as 2**e * (1 + m) with sqrt(1/2) <= 1 + m < sqrt(2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from metasched.codegen.vectormath.text import DOUBLE, SINGLE, Format, Text

# float32, Cephes: log(1 + m) = m - m * m / 2 + m**3 * p(m).
_CUBIC = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
          -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)  # fmt: skip
# float64: log(1 + m) = 2 * s + s * z * p(z), s = m / (2 + m), z = s * s; minimax, error 2**-59.
# The form m - (m * m / 2 - s * (m * m / 2 + z * p(z))) is the one of Sun's fdlibm.
_ARTANH = (0.14795720311106136, 0.15314079070199926, 0.18183562981675067, 0.22222198603594284,
           0.2857142874204778, 0.3999999999941638, 0.6666666666666734)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Base:
    """A logarithm: 1 / log(base) and log(2) / log(base), in two parts each. The second number's
    first part is so short that its product with an exponent is exact."""

    scale: tuple[float, float]
    unit: tuple[float, float]


_NATURAL = {
    SINGLE: _Base((1.0, 0.0), (0.693359375, -2.12194440e-4)),
    DOUBLE: _Base((1.0, 0.0), (6.93147180369123816490e-01, 1.90821492927058770002e-10)),
}
_BINARY = {
    SINGLE: _Base((1.44269502162933349609, 1.92596299112661746887e-08), (1.0, 0.0)),
    DOUBLE: _Base((1.44269504088896340735992, 2.03552737409310331e-17), (1.0, 0.0)),
}
_DECIMAL = {
    SINGLE: _Base(
        (0.434294492006301879883, -1.0103050052231683581e-08),
        (0.301025390625, 4.60503898119521374e-06),
    ),
    DOUBLE: _Base(
        (0.434294481903251816668, 1.09831965021676510e-17),
        (3.01029995663611771306e-01, 3.69423907715893078616e-13),
    ),
}


def split(t: Text, x: str, may_be_subnormal: bool = True) -> tuple[str, str]:
    """Write positive finite x as 2**e * (1 + m); gives e and m."""
    form, width = t.format, t.format.mantissa
    bias = t.const(2.0**width + form.bias)
    if may_be_subnormal:
        test = ("olt", x, t.const(form.tiny))
        tiny = t.test(*test)
        x = t.pick(tiny, t.mul(x, t.const(2.0**width)), x)
        bias = t.pick_again(test, tiny, t.const(2.0**width + form.bias + width), bias)
    root = form.bits_of(math.sqrt(0.5))
    # The exponent of x / sqrt(1/2), with its bias, is in the upper bits.
    moved = t.iop("add", t.bits(x), t.int(form.bits_of(1.0) - root))
    biased = t.iop("lshr", moved, t.int(width))
    # The integer e in the low bits of 2**mantissa is the number 2**mantissa + e.
    number = t.floating(t.iop("or", biased, t.int(form.bits_of(2.0**width))))
    exponent = t.sub(number, bias)
    fraction = t.iop("and", moved, t.int((1 << width) - 1))
    return exponent, t.sub(t.floating(t.iop("add", fraction, t.int(root))), t.const(1.0))


def _tail(t: Text, m: str) -> str:
    """log(1 + m) - m."""
    square = t.mul(m, m)
    if t.format is SINGLE:
        p = t.poly(m, _CUBIC)
        return t.fma(square, t.const(-0.5), t.mul(t.mul(m, square), p))
    s = t.div(m, t.add(m, t.const(2.0)))
    z, half = t.mul(s, s), t.mul(square, t.const(0.5))
    return t.sub(t.mul(s, t.fma(z, t.poly(z, _ARTANH), half)), half)


def edges(t: Text, x: str, y: str) -> str:
    """Replace the results of a logarithm at 0, below 0, at infinity and at NaN."""
    y = t.pick(t.test("olt", x, t.const(math.inf)), y, x)
    y = t.pick(t.test("oeq", x, t.const(0.0)), t.const(-math.inf), y)
    return t.pick(t.test("olt", x, t.const(0.0)), t.const(math.nan), y)


def _log(bases: dict[Format, _Base], t: Text, x: str) -> str:
    """log(x) / log(base), in the order of increasing size."""
    base = bases[t.format]
    e, m = split(t, x)
    y = _tail(t, m)
    if base.scale[1]:
        y = t.fma(m, t.const(base.scale[1]), t.mul(y, t.const(base.scale[0])))
    if base.unit[1]:
        y = t.fma(e, t.const(base.unit[1]), y)
    y = t.fma(m, t.const(base.scale[0]), y) if base.scale[1] else t.add(m, y)
    return edges(t, x, t.fma(e, t.const(base.unit[0]), y))


def log(t: Text, x: str) -> str:
    return _log(_NATURAL, t, x)


def log2(t: Text, x: str) -> str:
    return _log(_BINARY, t, x)


def log10(t: Text, x: str) -> str:
    return _log(_DECIMAL, t, x)


def log1p(t: Text, x: str) -> str:
    """log(u) + (1 + x - u) / u, where u is 1 + x rounded."""
    one = t.const(1.0)
    u = t.add(x, one)
    taken = t.sub(u, one)
    lost = t.add(t.sub(one, t.sub(u, taken)), t.sub(x, taken))
    e, m = split(t, u)
    base = _NATURAL[t.format]
    y = t.add(_tail(t, m), t.div(lost, u))
    y = t.add(m, t.fma(e, t.const(base.unit[1]), y))
    y = edges(t, u, t.fma(e, t.const(base.unit[0]), y))
    return t.pick(t.test("oeq", x, t.const(0.0)), x, y)

"""sinh and cosh by exponentials; asinh, acosh and atanh by log1p."""

from __future__ import annotations

import math

from metasched.codegen.vectormath.exponential import E_BASE, above_one, reduced, scaled
from metasched.codegen.vectormath.logarithm import log1p
from metasched.codegen.vectormath.text import Text


def _limited(t: Text, x: str) -> str:
    """|x|, at most a number whose exponential is infinite halved, and finite halved twice."""
    size, most = t.named("fabs", x), t.const(E_BASE[t.format].high + 0.6)
    return t.pick(t.test("ogt", size, most), most, size)


def cosh(t: Text, x: str) -> str:
    """h + 1 / (4 * h) with h = exp(|x|) / 2, which is finite wherever the result is finite."""
    size = _limited(t, x)
    shifted, r = reduced(t, size, E_BASE[t.format])
    half = scaled(t, t.test("uge", size, t.const(0.0)), t.sub(shifted, t.const(1.0)), r)
    return t.add(half, t.div(t.const(0.25), half))


def sinh(t: Text, x: str) -> str:
    """h + h / (2 * h + 1) with h = (exp(|x|) - 1) / 2, which is accurate for small x too."""
    shifted, r = reduced(t, _limited(t, x), E_BASE[t.format])
    quarter = t.power_of_two(t.sub(shifted, t.const(2.0)))  # a normal number for all arguments
    part = t.fma(quarter, above_one(t, r), t.sub(quarter, t.const(0.25)))
    h = t.add(part, part)
    value = t.add(h, t.div(h, t.add(t.add(h, h), t.const(1.0))))
    finite = t.test("une", h, t.const(math.inf))
    return t.named("copysign", t.pick(finite, value, h), x)


def _log_of(t: Text, size: str, above: str) -> str:
    """log(1 + above); log(2 * size) where 1 is nothing beside `size`, whose square may overflow."""
    large = t.test("ogt", size, t.const(2.0 ** (t.format.mantissa + 2)))
    y = log1p(t, t.pick(large, size, above))
    return t.pick(large, t.add(y, t.const(math.log(2.0))), y)


def asinh(t: Text, x: str) -> str:
    size, one = t.named("fabs", x), t.const(1.0)
    square = t.mul(size, size)
    root = t.named("sqrt", t.add(square, one))
    above = t.add(size, t.div(square, t.add(root, one)))
    return t.named("copysign", _log_of(t, size, above), x)


def acosh(t: Text, x: str) -> str:
    less = t.sub(x, t.const(1.0))
    root = t.named("sqrt", t.fma(less, less, t.add(less, less)))
    y = _log_of(t, x, t.add(less, root))
    return t.pick(t.test("ult", x, t.const(1.0)), t.const(math.nan), y)


def atanh(t: Text, x: str) -> str:
    size = t.named("fabs", x)
    ratio = t.div(t.add(size, size), t.sub(t.const(1.0), size))
    return t.named("copysign", t.mul(log1p(t, ratio), t.const(0.5)), x)

"""sin, cos and tan.

An argument is reduced to n = round(x * 2 / pi) and r = x - n * pi / 2, by Cody and Waite: pi / 2
is a sum of several parts, and each product of n and a part is exact. With fused multiply-add the
parts are as long as float64 allows; without, they have 30 bits. The C library computes arguments
larger than `_limit`, lane by lane.
"""

from __future__ import annotations

import math

from metasched.codegen.vectormath.text import DOUBLE, SINGLE, Text

_LONG_PARTS = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
_SHORT_PARTS = (1.570796325802803, 9.920935791635221e-10, 5.17018297889025e-19,
                2.903855972970775e-28, 1.0085854034703734e-37)  # fmt: skip

# sin(r) = r + r * z * p(z) and cos(r) = 1 - z / 2 + z * z * q(z), z = r * r, |r| <= pi / 4.
# float32: Cephes; float64: minimax, errors 2**-58 and 2**-64.
_SINE = {
    SINGLE: (2.7181216275e-6, -1.9839334836e-4, 8.3333293855e-3, -1.6666654611e-1),
    DOUBLE: (1.5896682849046325e-10, -2.5050756413690847e-08, 2.7557313682938247e-06,
             -0.00019841269829788403, 0.0083333333333224, -0.16666666666666632),
}  # fmt: skip
_COSINE = {
    SINGLE: (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2),
    DOUBLE: (-1.1359790094828212e-11, 2.087572660040248e-09, -2.755731438104991e-07,
             2.4801587289594846e-05, -0.001388888888887432, 0.0416666666666666),
}  # fmt: skip


def _limit(t: Text) -> float:
    """The largest argument that this file reduces itself."""
    if not t.has_fma:
        return 2.0**22
    return 2.0**28 if t.format is SINGLE else 2.0**30


def _turned(t: Text, x: str) -> tuple[str, str]:
    """Reduce an argument in float64: r, and n as an integer whose lowest bits count."""
    wide = t.of(DOUBLE)
    z = x if t.format is DOUBLE else wide.convert(x, t)
    magic = wide.const(DOUBLE.magic)
    shifted = wide.fma(z, wide.const(2.0 / math.pi), magic)
    n = wide.sub(shifted, magic)
    parts = _LONG_PARTS if t.has_fma else _SHORT_PARTS
    for part in parts if t.format is DOUBLE else parts[: 2 if t.has_fma else 3]:
        z = wide.fma(n, wide.const(-part), z)
    quarter = wide.bits(shifted)
    if t.format is DOUBLE:
        return z, quarter
    return t.convert(z, wide), t.emit(f"trunc {wide.i} {quarter} to {t.i}")


def _sine_and_cosine(t: Text, r: str) -> tuple[str, str]:
    z = t.mul(r, r)
    sine = t.fma(t.mul(t.poly(z, _SINE[t.format]), z), r, r)
    cosine = t.fma(z, t.poly(z, _COSINE[t.format]), t.const(-0.5))
    return sine, t.fma(cosine, z, t.const(1.0))


def _negated(t: Text, value: str, quarters: str, bit: int) -> str:
    """Change the sign of `value` where `bit` of the integer `quarters` is set."""
    mask = t.iop("and", quarters, t.int(1 << bit))
    sign = t.iop("shl", mask, t.int(t.format.dtype.bits - 1 - bit))
    return t.floating(t.iop("xor", t.bits(value), sign))


def _near_or_far(t: Text, name: str, x: str, near: str) -> str:
    """The result `near`, or the C library's result in lanes whose argument is too large."""
    far = t.test("ogt", t.named("fabs", x), t.const(_limit(t)))
    return t.rarely(name, far, (x,), near)


def _sine_of(t: Text, name: str, x: str, first: int) -> str:
    """sin(x + first * pi / 2)."""
    r, n = _turned(t, x)
    n = t.iop("add", n, t.int(first))
    sine, cosine = _sine_and_cosine(t, r)
    value = _negated(t, t.pick(t.odd(n), cosine, sine), n, 1)
    if first == 0:
        value = t.pick(t.test("oeq", x, t.const(0.0)), x, value)  # keeps the sign of zero
    return _near_or_far(t, name, x, value)


def sin(t: Text, x: str) -> str:
    return _sine_of(t, "sin", x, 0)


def cos(t: Text, x: str) -> str:
    return _sine_of(t, "cos", x, 1)


def tan(t: Text, x: str) -> str:
    r, n = _turned(t, x)
    sine, cosine = _sine_and_cosine(t, r)
    odd = t.odd(n)
    value = t.div(t.pick(odd, cosine, sine), t.pick(odd, sine, cosine))
    value = t.pick(t.test("oeq", x, t.const(0.0)), x, _negated(t, value, n, 0))
    return _near_or_far(t, "tan", x, value)

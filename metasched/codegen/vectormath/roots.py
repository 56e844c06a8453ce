"""rsqrt of float64 without a division, hypot and fmod."""

from __future__ import annotations

import math

from metasched.codegen.vectormath.text import DOUBLE, SINGLE, Text

# Half of the exponent of the reciprocal root, less a mantissa that makes its error 3.4 %.
_GUESS = 0x5FE6EB50C7B537A9
_STEP = (0.3125, 0.375, 0.5)  # (1 - e)**(-1 / 2) = 1 + e * p(e)
_MOST = 2.0**52  # quotients below are exact but for their last place


def rsqrt(t: Text, x: str) -> str:
    """A guess from the bits of x, and two steps of Householder's iteration, with relative errors of
    2**-17 and 2**-64. Numbers that are not positive, normal and finite are rare: they take a root
    and a division."""
    y = t.floating(t.iop("sub", t.int(_GUESS), t.iop("lshr", t.bits(x), t.int(1))))
    for _ in range(2):
        e = t.fma(t.neg(t.mul(x, y)), y, t.const(1.0))
        y = t.fma(t.mul(y, e), t.poly(e, _STEP), y)
    usual = t.logic(
        "and", t.test("oge", x, t.const(t.format.tiny)), t.test("olt", x, t.const(math.inf))
    )
    rare = t.emit(f"xor {t.b} {usual}, {t.true}")
    symbol = f"ms.rsqrt.rare.v{t.lanes}{t.format.suffix}"
    inner = Text(t.format, t.lanes, t.has_fma, t.features)
    result = inner.div(inner.const(1.0), inner.named("sqrt", "%x0"))
    t.declares |= inner.declares
    t.helpers[symbol] = t.define_rare(symbol, (x,), inner.lines, result)
    return t.rare_call(symbol, rare, (x,), y)


def hypot(t: Text, x: str, y: str) -> str:
    """float32 in float64; float64 after both operands were multiplied by a power of two, so that
    their squares neither overflow nor vanish."""
    inf = t.const(math.inf)
    a, b = t.named("fabs", x), t.named("fabs", y)
    infinite = t.logic("or", t.test("oeq", a, inf), t.test("oeq", b, inf))
    if t.format is SINGLE:
        wide = t.of(DOUBLE)
        a, b = wide.convert(a, t), wide.convert(b, t)
        root = t.convert(wide.named("sqrt", wide.fma(a, a, wide.mul(b, b))), wide)
    else:
        larger = t.test("ogt", a, b)
        a, b = t.pick(larger, a, b), t.pick(larger, b, a)
        large, small = t.test("ogt", a, t.const(2.0**500)), t.test("olt", a, t.const(2.0**-500))

        def factor(sign: int) -> str:
            up = t.pick(small, t.const(2.0 ** (600 * sign)), t.const(1.0))
            return t.pick(large, t.const(2.0 ** (-600 * sign)), up)

        a, b = t.mul(a, factor(1)), t.mul(b, factor(1))
        root = t.mul(t.named("sqrt", t.fma(a, a, t.mul(b, b))), factor(-1))
    return t.pick(infinite, inf, root)


def fmod(t: Text, x: str, y: str) -> str:
    """x - n * y, exactly, with n = trunc(x / y), in float64. The rounded quotient may be one too
    large; then the rest has the wrong sign. The C library computes quotients beyond 2**52, and
    operands that are infinite or not a number."""
    wide = t.of(DOUBLE)
    a, b = (wide.named("fabs", v if t.format is DOUBLE else wide.convert(v, t)) for v in (x, y))
    quotient = wide.div(a, b)
    rest = wide.fma(wide.neg(wide.named("trunc", quotient)), b, a)
    rest = wide.pick(wide.test("olt", rest, wide.const(0.0)), wide.add(rest, b), rest)
    value = rest if t.format is DOUBLE else t.convert(rest, wide)
    usual = wide.logic(
        "and",
        wide.test("olt", quotient, wide.const(_MOST)),
        wide.test("olt", b, wide.const(math.inf)),
    )
    rare = t.emit(f"xor {t.b} {usual}, {t.true}")
    return t.rarely("fmod", rare, (x, y), t.named("copysign", value, x))

"""Division of a vector by one scalar: multiply by the reciprocal, then correct the last bit.

If all lanes have the same divisor b, the reciprocal r = 1 / b is hoisted out of the loops that do
not change b. The product q = a * r is within two units of the last place of a / b. A fused
operation gives the remainder a - q * b exactly, and q + remainder * r rounds to the correctly
rounded quotient (Markstein 1990). The proof needs a divisor of moderate magnitude whose mantissa is
not all ones; other divisors take the division instruction. A zero quotient keeps the sign of q. For
an infinite q the remainder is NaN, and q is the quotient. Dividends below 2**-100 may give a
quotient that is one unit in the last place too small.

In a function that allows reciprocals (`arcp`, see `ir.func.LIBERTIES`), the product is the result.
"""

from __future__ import annotations

from metasched.codegen.arithmetic import binary, compare, select
from metasched.codegen.branch import choose
from metasched.codegen.emit import Emitter
from metasched.codegen.types import register_type, type_suffix
from metasched.codegen.values import Val, literal
from metasched.ir.dtype import BOOL, FLOAT32, DType
from metasched.ir.expr import LT, NE, Div, Mul

_MANTISSA = 0x7FFFFF
_LEAST, _MOST = 2.0**-60, 2.0**60


def divides_by_one(e: Emitter, a: Val, b: Val) -> bool:
    """Whether `divide_by_one` applies to a vector a and a scalar b.

    It applies if the function allows reciprocals, or to float32 on targets with fused multiply-add.
    """
    if a.lanes == 1 or b.lanes > 1 or a.dtype not in ("float32", "float64"):
        return False
    return "arcp" in e.liberties or (a.dtype is FLOAT32 and e.module.has_fma)


def divide_by_one(e: Emitter, a: Val, b: Val) -> Val:
    """a / b for a vector and a scalar that does not depend on the lane."""
    wide = e.widen(b, a.lanes)
    if b.const is not None:
        return binary(e, Div, a, wide)
    inverse = e.widen(binary(e, Div, literal(1.0, a.dtype), b), a.lanes)
    if "arcp" in e.liberties:
        return binary(e, Mul, a, inverse)
    return choose(
        e, _ordinary(e, b), lambda: _corrected(e, a, wide, inverse), lambda: binary(e, Div, a, wide)
    )


def _ordinary(e: Emitter, b: Val) -> Val:
    """Emit the test that a divisor has a moderate magnitude and a mantissa that is not all ones."""
    size = e.intrinsic("llvm.fabs.f32", FLOAT32, 1, b)
    above = compare(e, LT, literal(_LEAST, FLOAT32), size)
    below = compare(e, LT, size, literal(_MOST, FLOAT32))
    word = DType("uint32")
    bits = e.pure(f"bitcast {b.typed} to {register_type(word)}", word, 1, b)
    ones = literal(_MANTISSA, word)
    mantissa = e.pure(f"and {bits.typed}, {ones.text}", word, 1, bits)
    ordinary = e.both(e.both(above, below), compare(e, NE, mantissa, ones))
    return e.intrinsic("llvm.expect.i1", BOOL, 1, ordinary, literal(1, BOOL))


def _corrected(e: Emitter, a: Val, b: Val, inverse: Val) -> Val:
    q = binary(e, Mul, a, inverse)
    minus = e.pure(f"fneg {q.typed}", FLOAT32, q.lanes, q)
    rest = _fma(e, minus, b, a)
    better = _fma(e, rest, inverse, q)
    zero = literal(0.0, FLOAT32, a.lanes)
    number = e.pure(f"fcmp one {better.typed}, {zero.text}", BOOL, better.lanes, better)
    return select(e, number, better, q)


def _fma(e: Emitter, *operands: Val) -> Val:
    suffix = type_suffix(FLOAT32, operands[0].lanes)
    return e.intrinsic(f"llvm.fma.{suffix}", FLOAT32, operands[0].lanes, *operands)

"""Quotients of vectors of 64-bit integers by a constant: the upper half of a product.

    x // d  ->  (x * m >> 64) >> s        m = ceil(2 ** (64 + s) / d)

Where m has 65 bits, its lower 64 bits give t, and the quotient is ((x - t) / 2 + t) >> (s - 1)
(Granlund and Montgomery 1994). Processors multiply vectors of 32-bit integers to 64 bits, so four
such products give the upper half. LLVM divides the lanes one by one, although it has this form for
shorter integers: on a Zen 4 this took five times as long as a loop without vectors.
"""

from __future__ import annotations

from metasched.codegen.emit import Emitter
from metasched.codegen.values import Val, literal
from metasched.ir.dtype import BOOL

_LOW = (1 << 32) - 1


def divides_in_vectors(e: Emitter, a: Val, number: int) -> bool:
    """Whether `quotient` applies to a vector and a constant divisor."""
    if number < 2 or number & (number - 1) == 0:
        return False  # shifts divide by powers of two
    return a.lanes > 1 and a.dtype.bits == 64 and e.module.multiplies_halves


def quotient(e: Emitter, a: Val, number: int, unsigned: bool) -> Val:
    """a / number, rounded to zero.

    Args:
        number: a positive number, no power of two.
        unsigned: no lane of `a` is negative.
    """
    if unsigned:
        return _unsigned(e, a, number)
    zero = literal(0, a.dtype, a.lanes)
    negative = e.pure(f"icmp slt {a.type} {a.text}, {zero.text}", BOOL, a.lanes, a)
    size = _chosen(e, negative, _op(e, "sub", zero, a), a)
    found = _unsigned(e, size, number)
    return _chosen(e, negative, _op(e, "sub", zero, found), found)


def _unsigned(e: Emitter, a: Val, number: int) -> Val:
    short = number.bit_length()  # a power of two above the number
    for shift in range(short):
        factor = -(-(1 << (64 + shift)) // number)
        if factor < 1 << 64 and factor * number - (1 << (64 + shift)) <= 1 << shift:
            return _op(e, "lshr", _upper(e, a, factor), _splat(shift, a))
    factor = -(-(1 << (64 + short)) // number) - (1 << 64)
    upper = _upper(e, a, factor)
    half = _op(e, "lshr", _op(e, "sub", a, upper), _splat(1, a))
    return _op(e, "lshr", _op(e, "add", half, upper), _splat(short - 1, a))


def _upper(e: Emitter, a: Val, factor: int) -> Val:
    """The upper 64 bits of a * factor."""
    low, high = _op(e, "and", a, _splat(_LOW, a)), _op(e, "lshr", a, _splat(32, a))
    small, large = _splat(factor & _LOW, a), _splat(factor >> 32, a)
    carried = _op(e, "lshr", _op(e, "mul", low, small), _splat(32, a))
    one = _op(e, "add", _op(e, "mul", high, small), carried)
    other = _op(e, "add", _op(e, "mul", low, large), _op(e, "and", one, _splat(_LOW, a)))
    sums = (_op(e, "lshr", part, _splat(32, a)) for part in (one, other))
    total = _op(e, "mul", high, large)
    for part in sums:
        total = _op(e, "add", total, part)
    return total


def _op(e: Emitter, name: str, a: Val, b: Val) -> Val:
    return e.pure(f"{name} {a.type} {a.text}, {b.text}", a.dtype, a.lanes, a, b)


def _splat(number: int, like: Val) -> Val:
    return literal(number, like.dtype, like.lanes)


def _chosen(e: Emitter, condition: Val, a: Val, b: Val) -> Val:
    text = f"select {condition.typed}, {a.typed}, {b.typed}"
    return e.pure(text, a.dtype, a.lanes, condition, a, b)

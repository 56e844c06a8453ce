"""Masks: where a block of an axis is masked as a whole, and what is left to compute there.

if_then_else(j <= i, x, -inf)       # 64 <= j < 128, i < 64: minus infinity
exp(-inf - m) * v                   # m > -inf: 0 * v, which is 0 if v is finite
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from math import copysign, inf

from metasched.analysis.rescaling import EXPONENTIALS
from metasched.arith.analyzer import Analyzer
from metasched.arith.conditions import conjuncts, negate
from metasched.arith.intset import Domain, interval_of
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import (
    EQ,
    FALSE,
    GE,
    GT,
    LE,
    LT,
    TRUE,
    Add,
    And,
    Cast,
    Div,
    Expr,
    FloatImm,
    Mul,
    Not,
    Or,
    Select,
    Sub,
    Var,
    as_expr,
    compare,
    logical_and,
    logical_or,
)
from metasched.ir.op import Call
from metasched.ir.visit import reads_memory, substitute


@dataclass(frozen=True, slots=True)
class Instances:
    """The instances of a block below some loops.

    Attributes:
        values: of the block's iterators.
        dom: the ranges of the loops.
    """

    values: Mapping[Var, Expr]
    dom: Domain

    def alive(self, condition: Expr) -> Expr:
        """A condition on what does not change, which holds if `condition` holds anywhere."""
        return Analyzer().simplify(self._alive(substitute(condition, self.values)))

    def _alive(self, c: Expr) -> Expr:
        if isinstance(c, And):
            return logical_and(self._alive(c.a), self._alive(c.b))
        if isinstance(c, Or):
            return logical_or(self._alive(c.a), self._alive(c.b))
        if isinstance(c, Not):
            opposite = negate(Analyzer(), c.a)
            return TRUE if isinstance(opposite, Not) else self._alive(opposite)
        if not isinstance(c, (EQ, LT, LE, GT, GE)) or not c.a.dtype.is_int or reads_memory(c):
            return c if c is FALSE else TRUE
        ends = [interval_of(side, self.dom) for side in (c.a, c.b)]
        if None in ends:
            return TRUE
        a, b = (end for end in ends if end is not None)
        if isinstance(c, EQ):
            return logical_and(compare(LE, a.min, b.max), compare(LE, b.min, a.max))
        low, high = (a.min, b.max) if isinstance(c, (LT, LE)) else (a.max, b.min)
        return compare(type(c), low, high)


@dataclass(frozen=True, slots=True)
class Masked:
    """Evaluates values in a block of an axis where a condition fails for all instances.

    Attributes:
        alive: the condition: a conjunct of what `Instances.alive` returns.
        constant: buffers all of whose elements have one value in the block.
        shifts: buffers without infinite elements, or where an infinite element or NaN makes every
            sum that uses it NaN.
        finite: whether no element of a buffer is infinite or NaN.
    """

    alive: Expr
    constant: Mapping[Buffer, Expr]
    shifts: Container[Buffer]
    finite: bool

    def value(self, e: Expr, of: Instances) -> Expr:
        """An equal value, without the parts that the mask decides."""
        if isinstance(e, BufferLoad):
            return self.constant.get(e.buffer, e)
        if isinstance(e, Select) or (isinstance(e, Call) and e.op.name == "if_then_else"):
            return self._choice(e, of)
        if not e.dtype.is_float or not e.children:
            return e
        parts = [self.value(child, of) for child in e.children]
        known = self._known(e, parts)
        return e.rebuild(parts) if known is None else known

    def _choice(self, e: Expr, of: Instances) -> Expr:
        condition, *ways = e.children
        if self.alive in conjuncts(of.alive(condition)):
            return self.value(ways[1], of)
        if self.alive in conjuncts(of.alive(negate(Analyzer(), condition))):
            return self.value(ways[0], of)
        a, b = (self.value(way, of) for way in ways)
        return a if a is b else e.rebuild((condition, a, b))

    def _known(self, e: Expr, parts: Sequence[Expr]) -> Expr | None:
        """The value of an operation on a zero or an infinity; None if it has another value."""
        a, b = (*parts, *parts)[:2]
        signs = infinite(a), infinite(b)
        found: float | None = None
        if isinstance(e, (Add, Sub)) and any(signs) and self._adds(b if signs[0] else a):
            found = signs[0] or (-signs[1] if isinstance(e, Sub) else signs[1])
            found *= inf
        elif isinstance(e, (Mul, Div)):
            found = self._product(e, a, b)
        elif isinstance(e, Call) and e.op.name in EXPONENTIALS and signs[0] < 0:
            found = 0.0
        elif isinstance(e, Cast) and (signs[0] or is_zero(a)):
            found = signs[0] * inf if signs[0] else 0.0
        return None if found is None else as_expr(found, e.dtype)

    def _adds(self, e: Expr) -> bool:
        """Whether an infinity plus a value is the infinity."""
        if isinstance(e, BufferLoad) and e.buffer in self.shifts:
            return True
        return not infinite(e) and (isinstance(e, FloatImm) or self.finite)

    def _product(self, e: Mul | Div, a: Expr, b: Expr) -> float | None:
        """The value of a product or quotient with a zero or an infinity."""
        if isinstance(e, Mul) and not (is_zero(a) or infinite(a)):
            a, b = b, a
        constant = isinstance(b, FloatImm) and not infinite(b) and not is_zero(b)
        if infinite(a) and constant:
            return infinite(a) * copysign(inf, b.value)  # type: ignore[attr-defined]
        fades = constant or (isinstance(e, Mul) and self.finite and not infinite(b))
        return 0.0 if is_zero(a) and fades else None


def infinite(e: Expr) -> int:
    """The sign of an infinite constant; 0 for other values."""
    if not isinstance(e, FloatImm):
        return 0
    return (e.value == inf) - (e.value == -inf)


def is_zero(e: Expr) -> bool:
    return isinstance(e, FloatImm) and e.value == 0

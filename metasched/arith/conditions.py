"""Conditions: how they are simplified, taken apart, and what an analyzer learns from them."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from metasched.arith import atoms, prove
from metasched.arith.bounds import INF
from metasched.arith.linear import Linear, emit
from metasched.arith.modular import make
from metasched.ir.dtype import DType
from metasched.ir.expr import (
    EQ,
    FALSE,
    GE,
    GT,
    LE,
    LT,
    NE,
    TRUE,
    And,
    Compare,
    Expr,
    FloorMod,
    IntImm,
    Not,
    Or,
    compare,
    logical_and,
    logical_not,
    logical_or,
)
from metasched.ir.intern import LARGE, tree_size
from metasched.ir.op import Call

if TYPE_CHECKING:
    from metasched.arith.analyzer import Analyzer

_OPPOSITE: dict[type[Compare], type[Compare]] = {EQ: NE, NE: EQ, LT: GE, GE: LT, GT: LE, LE: GT}


def conjuncts(condition: Expr, *, hints: bool = True) -> list[Expr]:
    """Split a conjunction into its conditions, in order; an empty list for true.

    Args:
        condition: the conjunction.
        hints: whether to replace the hint `likely(x)` by x.
    """
    result: list[Expr] = []
    seen = set[Expr]()
    stack = [condition]
    while stack:
        cond = stack.pop()
        if cond in seen:
            continue
        seen.add(cond)
        if isinstance(cond, And):
            stack += (cond.b, cond.a)
        elif hints and isinstance(cond, Call) and cond.op.name == "likely":
            stack.append(cond.args[0])
        elif cond is not TRUE:
            result.append(cond)
    return result


def simplify(an: Analyzer, expr: Expr) -> Expr:
    """An equal condition in canonical form."""
    if isinstance(expr, Compare):
        result = _compare(an, expr)
    elif isinstance(expr, And):
        result = _both(an, an.rewrite(expr.a), expr.b)
    elif isinstance(expr, Or):
        result = _either(an, an.rewrite(expr.a), expr.b)
    elif isinstance(expr, Not):
        result = negate(an, an.rewrite(expr.a))
    elif isinstance(expr, Call) and expr.op.name == "likely":
        inner = an.rewrite(expr.args[0])
        result = inner if isinstance(inner, IntImm) else expr.rebuild((inner,))
    else:
        result = atoms.rebuild(an, expr)
    if an.true and result in an.true:
        return TRUE if an.true[result] else FALSE
    return result


def negate(an: Analyzer, expr: Expr) -> Expr:
    """not expr, with the Not moved into integer comparisons, And and Or."""
    if isinstance(expr, Compare) and expr.a.dtype.is_int and expr.a.dtype.lanes == 1:
        return an.rewrite(_OPPOSITE[type(expr)](expr.a, expr.b))
    if isinstance(expr, And):
        return logical_or(negate(an, expr.a), negate(an, expr.b))
    if isinstance(expr, Or):
        return logical_and(negate(an, expr.a), negate(an, expr.b))
    return logical_not(expr)


def _both(an: Analyzer, a: Expr, b: Expr) -> Expr:
    if a is FALSE:
        return FALSE
    if a is TRUE:
        return an.rewrite(b)
    return logical_and(a, _within(an, a).rewrite(b))  # b matters only where a holds


def _either(an: Analyzer, a: Expr, b: Expr) -> Expr:
    if a is TRUE:
        return TRUE
    if a is FALSE:
        return an.rewrite(b)
    return logical_or(a, _within(an, logical_not(a)).rewrite(b))  # b matters only where a fails


def _within(an: Analyzer, condition: Expr) -> Analyzer:
    """The analyzer for what matters only where a condition holds; the same one for a large
    condition, whose parts may be shared."""
    return an if tree_size(condition) > LARGE else an.assume(condition)


def _compare(an: Analyzer, e: Compare) -> Expr:
    a, b = an.exact(e.a), an.exact(e.b)
    if a is None or b is None:
        if e.a.dtype.is_int and e.a is e.b:
            return TRUE if type(e) in (EQ, LE, GE) else FALSE
        return atoms.rebuild(an, e)
    kind = type(e)
    if kind is GT or kind is GE:
        a, b, kind = b, a, LT if kind is GT else LE
    gap = a.plus(b, -1)
    if len(gap.terms) > 1:
        gap = an.normal(gap, e.a.dtype)
    known = _decide(an, kind, gap)
    if known is not None:
        return TRUE if known else FALSE
    shown = _shown(an, kind, gap, e.a.dtype)
    return atoms.rebuild(an, e) if shown is None else shown


def _decide(an: Analyzer, kind: type[Compare], gap: Linear) -> bool | None:
    """True if `gap kind 0` always holds, False if it never holds, None if neither is proved."""
    if kind is EQ or kind is NE:
        lo, hi = an.linear_bounds(gap)
        if lo == hi == 0:
            return kind is EQ
        if lo > 0 or hi < 0:
            return kind is NE
        fact = an.linear_modular(gap)
        if (fact.base % fact.coeff if fact.coeff else fact.base) != 0:
            return kind is NE
        up, down = an.proves_nonnegative(gap), an.proves_nonnegative(gap.scaled(-1))
        if up and down:
            return kind is EQ
        if an.proves_nonnegative(gap.shifted(-1)) or an.proves_nonnegative(
            gap.scaled(-1).shifted(-1)
        ):
            return kind is NE
        return None
    strict = 1 if kind is LT else 0
    if an.proves_nonnegative(gap.scaled(-1).shifted(-strict)):
        return True
    if an.proves_nonnegative(gap.shifted(strict - 1)):
        return False
    return None


def _shown(an: Analyzer, kind: type[Compare], gap: Linear, dtype: DType) -> Expr | None:
    """`gap kind 0` with common factors removed and every term on the side where it is positive."""
    terms, const = gap.terms, gap.const
    if not _index(dtype):
        return None
    g = 0
    for c in terms.values():
        g = gcd(g, c)
    if kind is LT or kind is LE:
        split = _leading(an, gap, kind)
        if split is not None:
            gap = split
        elif g > 1:  # g*t + c < 0 -> t < ceil(-c / g);  g*t + c <= 0 -> t <= floor(-c / g)
            bound = -(const // g) if kind is LT else -const // g
            gap = Linear({a: c // g for a, c in terms.items()}, -bound)
    elif g > 1:
        gap = Linear({a: c // g for a, c in terms.items()}, const // g)  # _decide saw g | const
    terms, const = gap.terms, gap.const
    if kind in (EQ, NE) and next(iter(terms.values())) < 0:
        terms, const = {a: -c for a, c in terms.items()}, -const
    left = Linear({a: c for a, c in terms.items() if c > 0}, 0)
    right = Linear({a: -c for a, c in terms.items() if c < 0}, 0)
    if left.terms and (right.terms or const <= 0 or kind in (EQ, NE)):
        right = right.shifted(-const)
        if right.terms and const > 0:
            left, right = left.shifted(const), right.shifted(const)
    else:
        left = left.shifted(const)
    x, y = emit(left, dtype), emit(right, dtype)
    return None if x is None or y is None else compare(kind, x, y)


def _index(dtype: DType) -> bool:
    return dtype == "int32" or dtype == "int64"


def _leading(an: Analyzer, gap: Linear, kind: type[Compare]) -> Linear | None:
    """s*h + l + c < 0 -> h < -c/s, where 0 <= l < s and s divides c; for <= write c - 1 < 0."""
    const = gap.const if kind is LT else gap.const - 1
    for s in sorted({abs(c) for c in gap.terms.values()}, reverse=True):
        if s < 2:
            break
        low = Linear({a: c for a, c in gap.terms.items() if c % s}, const % s)
        if not low.terms or len(low.terms) == len(gap.terms):
            continue
        lo, hi = an.linear_bounds(low)
        if lo >= 0 and hi < s:
            high = {a: c // s for a, c in gap.terms.items() if c % s == 0}
            total = const // s  # floor: s*h + s*total + low < 0  <=>  h + total < 0
            return Linear(high, total if kind is LT else total + 1)
    return None


# ---- facts from conditions ---------------------------------------------------------------


def learn(an: Analyzer, condition: Expr) -> None:
    """Add the fact that `condition` holds to an analyzer."""
    stack = [condition]
    while stack:
        cond = stack.pop()
        if isinstance(cond, And):
            stack += (cond.b, cond.a)
        elif isinstance(cond, Not):
            inner = negate(an, an.rewrite(cond.a))
            if isinstance(inner, Not):
                an.true[inner.a] = False
                an.has_facts = True
            else:
                stack.append(inner)
        elif isinstance(cond, Call) and cond.op.name == "likely":
            stack.append(cond.args[0])
        elif isinstance(cond, Compare):
            _learn_comparison(an, cond)
        elif not isinstance(cond, IntImm):
            an.true[an.rewrite(cond)] = True
            an.has_facts = True
        an._forget()


def _learn_comparison(an: Analyzer, cond: Compare) -> None:
    a, b = an.exact(cond.a), an.exact(cond.b)
    if a is None or b is None:
        if cond.a.dtype.is_int or cond.a.dtype.is_float:
            an.true[cond] = True
            an.has_facts = True
        return
    gap = an.normal(b.plus(a, -1), cond.a.dtype)
    kind = type(cond)
    if not gap.terms:
        return
    if kind is LT:
        prove.learn(an, gap.shifted(-1))
    elif kind is LE:
        prove.learn(an, gap)
    elif kind is GT:
        prove.learn(an, gap.scaled(-1).shifted(-1))
    elif kind is GE:
        prove.learn(an, gap.scaled(-1))
    elif kind is EQ:
        _learn_equal(an, gap)
    else:
        shown = _shown(an, NE, gap, cond.a.dtype)
        if shown is not None:
            an.true[shown] = True
            an.has_facts = True
        _learn_unequal(an, gap)


def _learn_equal(an: Analyzer, gap: Linear) -> None:
    prove.learn(an, gap)
    prove.learn(an, gap.scaled(-1))
    if len(gap.terms) == 1:
        ((atom, c),) = gap.terms.items()
        if abs(c) == 1 and type(atom) is FloorMod and type(atom.b) is IntImm and atom.b.value > 0:
            inner = an.linear(atom.a).single()
            if inner is not None:
                an.moduli[inner] = make(atom.b.value, -gap.const * c)
                an.has_facts = True


def _learn_unequal(an: Analyzer, gap: Linear) -> None:
    """Learn x != c, which tightens the range of x if c is an end of the range."""
    if len(gap.terms) != 1:
        return
    ((atom, c),) = gap.terms.items()
    value, rest = divmod(-gap.const, c)
    lo, hi = an.linear_bounds(Linear({atom: 1}, 0))
    if rest or lo >= hi:
        return
    if value == lo and lo != -INF:
        an.ranges[atom] = (lo + 1, hi)
    elif value == hi and hi != INF:
        an.ranges[atom] = (lo, hi - 1)
    an.has_facts = True

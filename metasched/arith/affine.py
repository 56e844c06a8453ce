"""Affine expressions: the one reader of index expressions as sums, and their intervals.

`terms` reads an expression as a `Linear`: a sum of integer multiples of atoms and a constant. Every
analysis that needs such a sum asks one of the views on `terms`:

- `as_written`, for iterator maps and the cost model: the sum on the face of the expression;
- `linear`, for questions about indices: casts that keep the value are read through;
- `linear_address`, for addresses: as written, and the two halves of a fused loop join;
- `Analyzer.linear`, for proofs: an atom is replaced by the sum that the facts give.

The cost model uses `as_written` in two places: `cost.index_stride` computes how far each loop moves
an index, and `cost.guard_fraction` which values each loop gives an expression.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeAlias

from metasched.arith import bounds
from metasched.arith.bounds import EVERYTHING, Interval, is_index
from metasched.arith.linear import Linear, add_term, factors
from metasched.ir.expr import (
    Add,
    Cast,
    Div,
    Expr,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Mod,
    Mul,
    Select,
    Sub,
    Var,
    as_int,
    floordiv,
    floormod,
)
from metasched.ir.intern import LARGE, tree_size
from metasched.ir.op import Call

Ranges: TypeAlias = Mapping[Var, Interval]


def terms(
    expr: Expr, *, casts: bool = False, atoms: Callable[[Expr], Linear | None] | None = None
) -> Linear:
    """An integer expression as a sum of multiples of atoms, in the order of their appearance.

    An atom is an expression that is neither a sum nor a multiple by a constant: `i`, `i // 8`,
    `A[i]`, `i * n`. Iterative, so that sums of thousands of terms are legal.

    Args:
        expr: the expression.
        casts: whether to read through casts that keep the value of a signed integer; otherwise a
            cast is an atom.
        atoms: a function from an atom to a sum that equals it, or to None.
    """
    if tree_size(expr) > LARGE:
        return _terms_of_parts(expr, casts, atoms)
    found: dict[Expr, int] = {}
    const = 0
    stack: list[tuple[Expr, int]] = [(expr, 1)]
    while stack:
        node, factor = stack.pop()
        kind = type(node)
        if kind is IntImm:
            const += factor * node.value  # type: ignore[attr-defined]
            continue
        if kind is Add:
            stack.append((node.b, factor))  # type: ignore[attr-defined]
            stack.append((node.a, factor))  # type: ignore[attr-defined]
            continue
        if kind is Sub:
            stack.append((node.b, -factor))  # type: ignore[attr-defined]
            stack.append((node.a, factor))  # type: ignore[attr-defined]
            continue
        if kind is Mul:
            other, scale = node.a, node.b  # type: ignore[attr-defined]
            if type(scale) is not IntImm:
                other, scale = scale, other
            if type(scale) is IntImm:
                if scale.value:
                    stack.append((other, factor * scale.value))
                continue
        elif casts and kind is Cast and _keeps_value(node):  # type: ignore[arg-type]
            stack.append((node.value, factor))  # type: ignore[attr-defined]
            continue
        part = None if atoms is None else atoms(node)
        if part is None:
            add_term(found, node, factor)
            continue
        const += factor * part.const
        for atom, coef in part.terms.items():
            add_term(found, atom, coef * factor)
    return Linear(found, const)


def _terms_of_parts(
    expr: Expr, casts: bool, atoms: Callable[[Expr], Linear | None] | None
) -> Linear:
    """`terms` of an expression whose parts are shared: the sum of each part is found once."""
    sums: dict[Expr, Linear] = {}
    stack = [expr]
    while stack:
        node = stack.pop()
        if node in sums:
            continue
        parts = _summands(node, casts)
        missing = [part for part, _ in parts if part not in sums]
        if missing:
            stack += (node, *reversed(missing))
            continue
        if isinstance(node, IntImm):
            sums[node] = Linear({}, node.value)
        elif parts:
            total = Linear({}, 0)
            for part, factor in parts:
                if factor:
                    total = total.plus(sums[part], factor)
            sums[node] = total
        else:
            found = None if atoms is None else atoms(node)
            sums[node] = Linear({node: 1}, 0) if found is None else found
    return sums[expr]


def _summands(node: Expr, casts: bool) -> tuple[tuple[Expr, int], ...]:
    """The parts of a sum or of a multiple by a constant, each with its factor; empty for others."""
    if isinstance(node, (Add, Sub)):
        return (node.a, 1), (node.b, 1 if isinstance(node, Add) else -1)
    if isinstance(node, Mul):
        other, scale = (node.a, node.b) if isinstance(node.b, IntImm) else (node.b, node.a)
        return ((other, scale.value),) if isinstance(scale, IntImm) else ()
    if casts and isinstance(node, Cast) and _keeps_value(node):
        return ((node.value, 1),)
    return ()


def _keeps_value(node: Cast) -> bool:
    source, target = node.value.dtype, node.dtype
    return source.kind == target.kind == "int" and source.bits <= target.bits


@lru_cache(maxsize=1 << 15)
def as_written(expr: Expr) -> Linear:
    """`terms` of an expression as it is written: a cast is an atom."""
    return terms(expr)


@lru_cache(maxsize=1 << 15)
def linear(expr: Expr) -> Linear:
    """`terms` of an index: indices do not overflow, so casts to wider integers are read through."""
    return terms(expr, casts=True)


@lru_cache(maxsize=1 << 15)
def linear_address(expr: Expr) -> Linear:
    """`terms` of an address, where x // c * c + x % c, the two digits of a fused loop, become x.

    Of three digits and more, as x // 6 * 6 + x % 6 // 2 * 2 + x % 2, the last two become x % 6.
    """
    found = as_written(expr)
    rests = [t for t in found.terms if isinstance(t, FloorMod)]
    while rests:
        rest = rests.pop()
        factor, by = found.terms.get(rest, 0), rest.b
        if factor and isinstance(by, IntImm) and (pair := _digits(found, rest, factor * by.value)):
            whole, fused = pair[0], linear_address(pair[1])
            halves = Linear({whole: by.value, rest: 1}, 0)
            found = found.plus(halves, -factor).plus(fused, factor)
            rests += [t for t in fused.terms if isinstance(t, FloorMod)]
    return found


def _digits(form: Linear, rest: FloorMod, scale: int) -> tuple[Expr, Expr] | None:
    """The quotient in a form that belongs to `rest`, and the number of which they are the digits.

    For x % c, the quotient is x // c, or x % m // c where c divides m.
    """
    whole = floordiv(rest.a, rest.b)
    if form.terms.get(whole) == scale:
        return whole, rest.a
    for term, factor in form.terms.items():
        fits = factor == scale and isinstance(term, FloorDiv) and term.b is rest.b
        x = term.a if fits else None  # type: ignore[attr-defined]
        if isinstance(x, FloorMod) and x.a is rest.a and as_int(floormod(x.b, rest.b)) == 0:
            return term, x
    return None


def interval(expr: Expr, ranges: Ranges) -> Interval:
    """The interval of `expr` while each variable stays in its range; other variables are
    unbounded."""
    return form_interval(linear(expr), ranges)


def form_interval(form: Linear, ranges: Ranges) -> Interval:
    """The interval of a sum; see `interval`."""
    low: float = form.const
    high: float = form.const
    for atom, coef in form.terms.items():
        lo, hi = _atom_interval(atom, ranges)
        low += coef * (lo if coef > 0 else hi)
        high += coef * (hi if coef > 0 else lo)
    return low, high


def _atom_interval(atom: Expr, ranges: Ranges) -> Interval:
    if type(atom) is Var:
        return ranges.get(atom, EVERYTHING)
    if type(atom) is Mul and not is_index(atom.dtype):
        return EVERYTHING  # a product of narrow integers may wrap
    found = atom_interval(atom, lambda part: interval(part, ranges))
    return EVERYTHING if found is None else found


_RULES: dict[type[Expr], Callable[[Interval, Interval], Interval]] = {
    FloorDiv: bounds.floordiv,
    FloorMod: bounds.floormod,
    Div: bounds.truncdiv,
    Mod: bounds.truncmod,
    Min: bounds.minimum,
    Max: bounds.maximum,
    Select: bounds.union,
}

_BIT_RULES: dict[str, Callable[[Interval, Interval], Interval]] = {
    "shift_left": bounds.shift_left,
    "shift_right": bounds.shift_right,
    "bitwise_and": bounds.bitwise_and,
    "bitwise_or": bounds.bitwise_or,
    "bitwise_xor": bounds.bitwise_or,
}


def atom_interval(atom: Expr, of: Callable[[Expr], Interval]) -> Interval | None:
    """The interval of an operation, given its operands' intervals; None for any other atom.

    The operation is computed on unbounded integers; the caller has to check whether the type wraps.
    """
    rule = _RULES.get(type(atom))
    if rule is not None:
        return rule(of(atom.a), of(atom.b))  # type: ignore[attr-defined]
    if type(atom) is Mul:
        result: Interval = (1, 1)
        for factor in factors(atom):
            result = bounds.times(result, of(factor))
        return result
    if isinstance(atom, Call) and atom.op.name == "if_then_else":
        return bounds.union(of(atom.args[1]), of(atom.args[2]))
    if isinstance(atom, Call) and is_index(atom.dtype):
        on_bits = _BIT_RULES.get(atom.op.name)
        return None if on_bits is None else on_bits(*map(of, atom.args))
    return None


def range_interval(low: Expr, extent: Expr) -> Interval:
    """The integers of a range; a symbolic end is no bound, an empty range counts as one value."""
    lo, hi = interval(low, {})
    return lo, max(hi + interval(extent, {})[1] - 1, lo)

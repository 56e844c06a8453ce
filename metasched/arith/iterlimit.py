"""Predicates of iterator maps: applies a conjunction of bounds to the iterators.

A bound on one iterator narrows its range. A bound on a sum of iterators makes the sum a limited
group (`iterform.Group`).
"""

from __future__ import annotations

from collections.abc import Mapping

from metasched.arith.conditions import conjuncts
from metasched.arith.iterform import Group, IterSplit, NotAffine, Reader, Size
from metasched.arith.linear import Linear, emit
from metasched.ir.buffer import Range
from metasched.ir.describe import show_expr
from metasched.ir.dtype import INT64
from metasched.ir.expr import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Compare,
    Expr,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Var,
    as_int,
)
from metasched.ir.visit import free_vars


def narrowed(
    ranges: Mapping[Var, Range], predicate: Expr
) -> tuple[dict[Var, Range], list[tuple[Linear, Expr]]]:
    """Narrow the ranges of iterators by the conditions of a predicate on single iterators.

    Returns the ranges, and each other condition as a linear form that is >= 0. Bounds on sums of
    iterators come first, because bounds on digits of a sum depend on them.
    """
    result = dict(ranges)
    reader = Reader(ranges, keep_units=True)
    limits: list[tuple[Linear, Expr]] = []
    for cond in conjuncts(predicate):
        if free_vars(cond).isdisjoint(ranges):
            continue
        for gap in _gaps(reader, cond):
            atoms = [a for a in gap.terms if not free_vars(a).isdisjoint(ranges)]
            if not atoms:
                continue
            if len(atoms) == 1 and _narrow(reader, result, gap, atoms[0]):
                continue
            limits.append((gap, cond))
    limits.sort(key=lambda one: any(type(a) in (FloorDiv, FloorMod) for a in one[0].terms))
    return result, limits


def is_empty(run: Range) -> bool:
    extent = as_int(run.extent)
    return extent is not None and extent < 1


def narrowed_ranges(ranges: Mapping[Var, Range], condition: Expr) -> Mapping[Var, Range]:
    """The ranges of iterators under `condition`; only bounds on single iterators count."""
    result = ranges
    for cond in conjuncts(condition):
        try:
            result, _ = narrowed(result, cond)
        except NotAffine:
            continue
    return result


def _gaps(reader: Reader, cond: Expr) -> list[Linear]:
    """The linear forms that are >= 0 if and only if `cond` holds."""
    if not isinstance(cond, Compare) or isinstance(cond, NE) or not cond.a.dtype.is_int:
        raise NotAffine(f"the predicate {show_expr(cond)} is no bound on iterators")
    a, b = reader.an.exact(cond.a), reader.an.exact(cond.b)
    if a is None or b is None:
        raise NotAffine(f"the predicate {show_expr(cond)} is no bound on iterators")
    gap = reader.an.normal(b.plus(a, -1), INT64)
    if isinstance(cond, LT):
        return [gap.shifted(-1)]
    if isinstance(cond, LE):
        return [gap]
    if isinstance(cond, GT):
        return [gap.scaled(-1).shifted(-1)]
    if isinstance(cond, GE):
        return [gap.scaled(-1)]
    assert isinstance(cond, EQ)
    return [gap, gap.scaled(-1)]


def _narrow(reader: Reader, ranges: dict[Var, Range], gap: Linear, atom: Expr) -> bool:
    """Narrow a variable's range by c * atom + rest >= 0; False unless the atom is a variable or
    the quotient of a variable by a constant."""
    var, unit = atom, 1
    if type(atom) is FloorDiv and type(atom.b) is IntImm and atom.b.value > 0:
        var, unit = atom.a, atom.b.value
    if not isinstance(var, Var) or var not in ranges:
        return False
    c = gap.terms[atom]
    rest = Linear({a: k for a, k in gap.terms.items() if a is not atom}, gap.const)
    if rest.terms and abs(c) != 1:
        return False
    low, end = ranges[var].min, ranges[var].min + ranges[var].extent
    an = reader.an
    if c < 0:  # atom <= rest / -c
        bound = rest if rest.terms else Linear({}, rest.const // -c)
        top = emit(bound.shifted(1).scaled(unit), var.dtype)
        if top is None:
            return False
        end = an.simplify(Min(end, top))
    else:  # atom >= ceil(-rest / c)
        bound = rest.scaled(-1) if rest.terms else Linear({}, -(rest.const // c))
        bottom = emit(bound.scaled(unit), var.dtype)
        if bottom is None:
            return False
        low = an.simplify(Max(low, bottom))
    ranges[var] = Range(an.simplify(low), an.simplify(end - low))
    return True


def limit(reader: Reader, gap: Linear, condition: Expr) -> None:
    """Record gap >= 0, a bound on a fused iterator, as a limited group."""
    try:
        splits, base = reader.read_linear(gap)
        positive = all(not isinstance(s.scale, int) or s.scale > 0 for s in splits)
        if not positive:
            splits = [s._replace(scale=reader.times(s.scale, -1)) for s in splits]
        splits = [s for s in splits if s.extent != 1]
        groups, reader.groups = reader.groups, []
        scale, order, _ = reader.order(splits, condition)
        reader.groups = groups
    except NotAffine:
        raise NotAffine(
            f"the predicate {show_expr(condition)} is no bound on fused iterators"
        ) from None
    group = _group_for(reader, order)
    if scale != 1:
        if base.terms or not isinstance(scale, int):
            raise NotAffine(f"the predicate {show_expr(condition)} is no bound on fused iterators")
        base = Linear({}, base.const // scale)
    if positive:  # sum + base >= 0
        low = _max_size(reader, group.low, reader.back(base.scaled(-1), *_typed(base)))
        group.narrow(low, group.high)
    else:  # base - sum >= 0
        high = _min_size(reader, group.high, reader.back(base.shifted(1), *_typed(base)))
        group.narrow(group.low, high)


def _typed(value: Linear) -> list[Expr]:
    return list(value.terms)


def _group_for(reader: Reader, order: list[IterSplit]) -> Group:
    for group in reader.groups:
        if group.order == order:
            return group
    extent: Size = 1
    for s in order:
        extent = reader.times(extent, s.extent)
    group = Group(order, extent)
    reader.groups.append(group)
    reader.groups.sort(key=lambda g: -len(g.order))
    return group


def _max_size(reader: Reader, a: Size, b: Size) -> Size:
    return a if reader.at_most(b, a) else b


def _min_size(reader: Reader, a: Size, b: Size) -> Size:
    return a if reader.at_most(a, b) else b

"""Guards: conditions as linear forms that are at most 0 where the condition holds.

The predicate of a block guards all accesses of the block. A condition in the body guards the loads
below the condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import inf

from metasched.analysis.access import Access
from metasched.analysis.guarded import guarded_reads
from metasched.analysis.overlap import Kept
from metasched.analysis.scope import Child
from metasched.arith.affine import Ranges, form_interval, interval, linear
from metasched.arith.conditions import conjuncts
from metasched.arith.linear import Linear
from metasched.ir.buffer import Buffer
from metasched.ir.expr import EQ, GE, GT, LE, LT, NE, And, Compare, Expr, Not, Or, Var, compare
from metasched.ir.stmt import Block, fact
from metasched.ir.visit import loads_of, substitute


def predicate_guards(child: Child) -> tuple[Linear, ...]:
    """Forms that are at most 0 where the predicate lets the body run."""
    return _guards_of(child.realize.predicate)


@lru_cache(maxsize=1 << 12)
def _guards_of(predicate: Expr) -> tuple[Linear, ...]:
    forms = (_form(part, {}) for part in conjuncts(predicate))
    return tuple(form for form in forms if form is not None)


def _form(part: Expr, ranges: Ranges) -> Linear | None:
    """The linear form that is at most 0 where a condition holds; None if there is none.

    `f != c` gives a form if c is an end of the interval of `f` under `ranges`: `f` then lies on one
    side of c.
    """
    if not isinstance(part, (LT, LE, GT, GE, NE)) or not part.a.dtype.is_int or loads_of(part):
        return None
    low, high = (part.b, part.a) if isinstance(part, (GT, GE)) else (part.a, part.b)
    gap = linear(low).plus(linear(high), -1)
    if isinstance(part, NE):
        ends = form_interval(gap, ranges)
        if 0 not in ends:
            return None
        gap = gap.scaled(-1) if ends[0] == 0 else gap
    return gap.shifted(int(isinstance(part, (LT, GT, NE)))) if gap.terms else None


@fact
def _conditions(block: Block) -> dict[tuple[Buffer, tuple[Expr, ...]], frozenset[Expr]]:
    """For each element, the conditions that hold at every load of it in the body (cached)."""
    found: dict[tuple[Buffer, tuple[Expr, ...]], frozenset[Expr]] = {}
    for read in guarded_reads(block) or ():
        parts = frozenset(p for c in read.conditions for p in _parts(c))
        key = read.buffer, read.indices
        found[key] = found.get(key, parts) & parts
    return found


_OPPOSITE = {EQ: NE, NE: EQ, LT: GE, GE: LT, GT: LE, LE: GT}


def _parts(condition: Expr) -> list[Expr]:
    """Split a condition into conditions that all hold where it holds; negations are resolved."""
    if isinstance(condition, And):
        return _parts(condition.a) + _parts(condition.b)
    if isinstance(condition, Not):
        inner = condition.a
        if isinstance(inner, Not):
            return _parts(inner.a)
        if isinstance(inner, Or):
            return _parts(Not(inner.a)) + _parts(Not(inner.b))
        if isinstance(inner, Compare):
            return [compare(_OPPOSITE[type(inner)], inner.a, inner.b)]
    return [condition]


def load_guards(child: Child, access: Access) -> tuple[Linear, ...]:
    """The forms, over loop variables, that are at most 0 by the conditions around a load."""
    if access.is_write:
        return ()
    domains = {v.var: v.dom for v in child.block.iter_vars}
    spans = {v: interval(d.min + d.extent - 1, {}) for v, d in domains.items()}
    ranges = {v: (interval(d.min, {})[0], spans[v][1]) for v, d in domains.items()}
    parts = _conditions(child.block).get((access.buffer, access.indices), frozenset())
    forms = (_form(part, ranges) for part in sorted(parts, key=str))
    bound = child.realize.bindings
    return tuple(_over_loops(form, bound) for form in forms if form is not None)


def _over_loops(form: Linear, bound: Mapping[Var, Expr]) -> Linear:
    """Rewrite a form over iterators as a form over loop variables."""
    total = Linear({}, form.const)
    for atom, factor in form.terms.items():
        total = total.plus(linear(substitute(atom, bound)), factor)
    return total


def tight(guards: Iterable[Linear], ranges: Ranges) -> dict[frozenset[tuple[Expr, int]], Kept]:
    """The guards that are tighter than the ranges of their loops, keyed by their terms."""
    spans = ((form, form_interval(form, ranges)) for form in guards)
    tight = ((form, low) for form, (low, high) in spans if low > -inf and high > 0)
    return {frozenset(form.terms.items()): (form, (low, 0)) for form, low in tight}

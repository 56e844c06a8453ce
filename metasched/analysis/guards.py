"""Guards: conditions as linear forms that are at most 0 where the condition holds.

The predicate of a block guards all accesses of the block. A condition in the body guards the loads
and stores below the condition. An equality is two forms: of both signs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import inf

from metasched.analysis.access import Access
from metasched.analysis.guarded import guarded_reads, store_conditions
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
    return tuple(form for part in conjuncts(predicate) for form in _forms(part, {}))


def _forms(part: Expr, ranges: Ranges) -> tuple[Linear, ...]:
    """The linear forms that are at most 0 where a condition holds.

    `f != c` gives a form if c is an end of the interval of `f` under `ranges`: `f` then lies on one
    side of c.
    """
    if not isinstance(part, Compare) or not part.a.dtype.is_int or loads_of(part):
        return ()
    low, high = (part.b, part.a) if isinstance(part, (GT, GE)) else (part.a, part.b)
    gap = linear(low).plus(linear(high), -1)
    if not gap.terms:
        return ()
    if isinstance(part, EQ):
        return gap, gap.scaled(-1)
    if isinstance(part, NE):
        ends = form_interval(gap, ranges)
        if 0 not in ends:
            return ()
        gap = gap.scaled(-1) if ends[0] == 0 else gap
    return (gap.shifted(int(isinstance(part, (LT, GT, NE)))),)


@fact
def _conditions(block: Block) -> dict[tuple[Buffer, tuple[Expr, ...]], list[Expr]]:
    """For each element, the conditions that hold at every load and store of it in the body, in
    order (cached)."""
    found: dict[tuple[Buffer, tuple[Expr, ...]], list[Expr]] = {}
    reads = guarded_reads(block)
    if reads is None:
        return found
    uses = [(read.buffer, read.indices, read.conditions) for read in reads]
    uses += [(s.buffer, s.indices, known) for s, known in store_conditions(block)]
    for buffer, indices, conditions in uses:
        parts = dict.fromkeys(p for c in conditions for p in _parts(c))
        found[buffer, indices] = [p for p in found.get((buffer, indices), parts) if p in parts]
    return found


_OPPOSITE = {EQ: NE, NE: EQ, LT: GE, GE: LT, GT: LE, LE: GT}


def _parts(whole: Expr) -> list[Expr]:
    """Split a condition into conditions that all hold where it holds; negations are resolved."""
    found: list[Expr] = []
    stack, seen = [whole], set[Expr]()
    while stack:
        condition = stack.pop()
        if condition in seen:
            continue
        seen.add(condition)
        inner = condition.a if isinstance(condition, Not) else None
        if isinstance(condition, And):
            stack += (condition.b, condition.a)
        elif isinstance(inner, Not):
            stack.append(inner.a)
        elif isinstance(inner, Or):
            stack += (Not(inner.b), Not(inner.a))
        elif isinstance(inner, Compare):
            found.append(compare(_OPPOSITE[type(inner)], inner.a, inner.b))
        else:
            found.append(condition)
    return found


def access_guards(child: Child, access: Access) -> tuple[Linear, ...]:
    """The forms, over loop variables, that are at most 0 by the conditions around all accesses of
    the element in the body."""
    domains = {v.var: v.dom for v in child.block.iter_vars}
    spans = {v: interval(d.min + d.extent - 1, {}) for v, d in domains.items()}
    ranges = {v: (interval(d.min, {})[0], spans[v][1]) for v, d in domains.items()}
    parts = _conditions(child.block).get((access.buffer, access.indices), ())
    bound = child.realize.bindings
    forms = (form for part in parts for form in _forms(part, ranges))
    return tuple(_over_loops(form, bound) for form in forms)


def _over_loops(form: Linear, bound: Mapping[Var, Expr]) -> Linear:
    """Rewrite a form over iterators as a form over loop variables."""
    total = Linear({}, form.const)
    for atom, factor in form.terms.items():
        total = total.plus(linear(substitute(atom, bound)), factor)
    return total


def tight(guards: Iterable[Linear], ranges: Ranges) -> dict[frozenset[tuple[Expr, int]], Kept]:
    """The guards that are tighter than the ranges of their loops, keyed by their terms."""
    found: dict[frozenset[tuple[Expr, int]], Kept] = {}
    known = [(form, form_interval(form, ranges)) for form in guards]
    for form, (low, high) in known:
        opposite = form.scaled(-1)
        for other, _ in known:  # -form + c <= 0: the form is at least c
            if other.terms == opposite.terms:
                low = max(low, other.const - opposite.const)
        if low > -inf and high > 0:
            found[frozenset(form.terms.items())] = form, (low, 0)
    return found

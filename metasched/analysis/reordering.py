"""Legality of loop reordering: distance vectors, reductions and their inits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from metasched.analysis.access import exact_accesses
from metasched.analysis.any_order import has_order
from metasched.analysis.commuting import commutes
from metasched.analysis.cover import loop_ranges
from metasched.analysis.dependence import (
    Touch,
    conflicts,
    harmless,
    idempotent,
    kept_twice,
    loops_below,
    meet,
    moving_vars,
    place,
    single_valued,
    unknown_effects,
)
from metasched.analysis.failure import Failure
from metasched.analysis.instances import ahead, distances
from metasched.analysis.overlap import Outside, overlap_distances
from metasched.analysis.polyhedra import order_kept
from metasched.analysis.scope import Child, Scope, writes
from metasched.arith.affine import linear
from metasched.arith.analyzer import Analyzer
from metasched.arith.bounds import Interval
from metasched.arith.conditions import conjuncts
from metasched.arith.itermap import why_no_box
from metasched.arith.regions import inputs
from metasched.ir.buffer import Buffer
from metasched.ir.expr import TRUE, Expr, Var, as_int
from metasched.ir.stmt import For, IterKind
from metasched.ir.visit import free_vars, substitute


def reorder_violation(
    loops: Sequence[For], new_order: Sequence[For], scope: Scope
) -> Failure | None:
    """Whether executing a chain of loops in another order could change a result.

    All accesses of a block with opaque iterators must be known. Two accesses that may touch one
    element must keep their order: a distance vector that is positive in the old order must be
    positive in the new order. Two kinds of accesses may change order: updates by a commutative
    reduction that still start from the init, and writes of a block that always writes the same
    value to an element.

    Args:
        loops: all loops of the chain from the first to the last that moves, outermost first.
        new_order: the same loops in their new order.
        scope: the scope the loops belong to.
    """
    top, bottom = loops[0], loops[-1]
    unknown = unknown_effects(top, scope)
    if unknown is not None:
        return unknown
    old_vars = [loop.var for loop in loops]
    new_vars = [loop.var for loop in new_order]
    if old_vars == new_vars:
        return None
    runs: dict[Child, bool] = {}
    for child in scope.under(bottom):
        failure = _opaque_reordered(child)
        if failure is not None:
            return failure
        if child.block.init is not None:
            runs[child] = _runs_kept(child, top, old_vars, new_vars, scope)
    excused: dict[Buffer, bool] = {}
    once = {loop.var: (0.0, 0.0) for loop in loops if as_int(loop.extent) == 1}
    for a, b, distance in conflicts(scope, top, lambda a, b: _free_order(a, b, scope, top, runs)):
        if _order_kept(old_vars, new_vars, {**distance, **once}):
            continue
        if a.buffer not in excused:
            excused[a.buffer] = harmless(a.buffer, scope, bottom, None, True)
        if not excused[a.buffer] and not _proved_kept(loops, new_vars, a, b, scope, top):
            mixed = a.child is b.child and a.child in runs and _mixed(a.child, old_vars)
            return _init_late(loops, a) if mixed else _reversed_pair(loops, a, b)
    return None


def _proved_kept(
    loops: Sequence[For], new: Sequence[Var], a: Touch, b: Touch, scope: Scope, top: For
) -> bool:
    """Whether two accesses that may touch one element keep their order, the cheapest proof first.

    Some pairs certainly change places; no proof is tried for these.
    """
    old = [loop.var for loop in loops]
    return not _surely_reversed(loops, new, a, b) and (
        _kept_by_level(old, new, a, b, scope, top)
        or _kept_in_polyhedra(old, new, a, b, scope, top)
        or _kept_one_by_one(old, new, a, b)
    )


def _surely_reversed(loops: Sequence[For], new: Sequence[Var], a: Touch, b: Touch) -> bool:
    """Whether loops around one access change places of which its element does not depend.

    With v outside of w, iterations (v, w) = (0, 1) and (1, 0) touch one element. They change places
    if w moves outside, unless nothing runs at all. Such sums over two tiled loops are common, and
    a proof that must fail is slow for twenty loops.
    """
    if a is not b:
        return False
    around = place(a)
    exprs = [atom for form, _ in around.box for atom in form.terms]
    exprs += [atom for form in around.guards for atom in form.terms]
    exprs += [e for loop in around.loops for e in (loop.min, loop.extent)]
    named = frozenset().union(free_vars(around.condition), *map(free_vars, exprs))
    several = [n.var for n in loops if (as_int(n.extent) or 0) > 1 and n.var not in named]
    return several != [v for v in new if v in several]


def _opaque_reordered(child: Child) -> Failure | None:
    """Refuse to move loops around a block with opaque iterators whose accesses are not all
    known."""
    opaque = [v for v in child.block.iter_vars if v.kind is IterKind.OPAQUE]
    if not opaque or exact_accesses(child.block) is not None:
        return None
    text = f"iterator {opaque[0].var.name} of block {child.block.name} is opaque"
    return Failure("iterator-kind", f"{text}, not spatial, reduce or scan", child.block)


def _free_order(a: Touch, b: Touch, scope: Scope, top: For, runs: Mapping[Child, bool]) -> bool:
    """Whether two accesses may change order even if they touch one element."""
    if a.child is None or a.child is not b.child:
        return False
    if writes(a.child.block, a.buffer) and commutes(a.child.block, a.buffer):
        return runs.get(a.child, True)
    return a is b and idempotent(a.child, scope, top)


def _runs_kept(
    child: Child, top: For, old: Sequence[Var], new: Sequence[Var], scope: Scope
) -> bool:
    """Whether each element of a reduction still starts from its init and gets the same updates.

    The loops of reduce iterators run once for each point of the spatial loops. Where several points
    compute one element (a halo), each point computes the element anew. A loop over such points must
    then stand outside the loops of reduce iterators. Two such loops change places only if all
    points give the same value.
    """
    inside = loops_below(child.loops, top)
    below = [n.var for n in inside if as_int(n.extent) != 1]
    spatial, updates = _values(child, reduce=False), _values(child, reduce=True)
    reduced = frozenset().union(*map(free_vars, updates))
    again = _undetermined(child, spatial, below) - reduced
    steps = [v for v in below if v in reduced]
    if _undetermined(child, updates, steps):
        return False
    kept = [v for v in old if v in reduced] == [v for v in new if v in reduced]
    if _mixed(child, below):
        return kept and not again
    if not (kept or _starts_first(child)):
        return False
    if not again:
        return True
    for order in (old, new):
        places = {v: n for n, v in enumerate([*order, *(n.var for n in inside[len(old) :])])}
        if max(places[v] for v in again) > min((places[v] for v in steps), default=len(places)):
            return False
    if [v for v in old if v in again] == [v for v in new if v in again]:
        return True
    parts = conjuncts(child.realize.predicate)
    mixed = any(free_vars(p) & again and free_vars(p) & reduced for p in parts)
    return not mixed and all(single_valued(r.buffer, scope, top) for r in inputs(child.block))


def _values(child: Child, *, reduce: bool) -> list[Expr]:
    """The bindings of the reduce iterators of a block, or of the others."""
    pairs = zip(child.block.iter_vars, child.realize.iter_values, strict=True)
    return [e for v, e in pairs if v.is_reduce == reduce]


def _mixed(child: Child, among: Sequence[Var]) -> bool:
    """Whether a loop of `among` drives both spatial and reduce iterators."""
    both = (frozenset().union(*map(free_vars, _values(child, reduce=r))) for r in (False, True))
    return not frozenset.intersection(*both).isdisjoint(among)


def _undetermined(child: Child, values: Sequence[Expr], moving: Sequence[Var]) -> frozenset[Var]:
    """The variables of `moving` that the `values` of a block's bindings do not determine: two
    instances with equal values may differ in them."""
    box = [(linear(e), 1.0) for e in values]
    met = overlap_distances(box, box, Outside(moving), loop_ranges(child.loops), kept_twice(child))
    return frozenset(v for v in moving if met is not None and met.get(v) != (0, 0))


def _starts_first(child: Child) -> bool:
    """Whether the reduce iterators are at their first values only where their loops all begin."""
    values = _values(child, reduce=True)
    ranges = {n.var: n for n in child.loops}
    predicates = dict.fromkeys((TRUE, child.realize.predicate))
    begin: dict[Var, Expr] = {n.var: n.min for n in child.loops}
    firsts = [v.dom.min for v in child.block.iter_vars if v.is_reduce]
    return all(
        Analyzer().equal(substitute(value, begin), first)
        for value, first in zip(values, firsts, strict=True)
    ) and any(why_no_box(values, ranges, p) is None for p in predicates)


def _order_kept(old: list[Var], new: list[Var], distance: Mapping[Var, Interval]) -> bool:
    """Whether the first non-zero component of the distance has one sign in both orders."""
    spans = {v: distance.get(v, (-inf, inf)) for v in old}
    moving_old = [v for v in old if spans[v] != (0, 0)]
    moving_new = [v for v in new if spans[v] != (0, 0)]
    while moving_old and moving_new and moving_old[0] is moving_new[0]:
        low, high = spans[moving_old.pop(0)]
        moving_new.pop(0)
        if low > 0 or high < 0:
            return True
    left = [spans[v] for v in moving_old]
    return all(s[0] >= 0 for s in left) or all(s[1] <= 0 for s in left)


def _kept_by_level(
    old: Sequence[Var], new: Sequence[Var], a: Touch, b: Touch, scope: Scope, top: For
) -> bool:
    """Whether the distances keep their sign, by the loop of the old order that decides this sign.

    For each loop and sign the distances are computed again for this case alone: the loops before
    it have distance zero, and this loop has a distance of this sign. Distances that depend on each
    other, as after `skew` and `split`, are known more exactly then.
    """
    still: dict[Var, Interval] = {}
    for var in old:
        for first in ((1.0, inf), (-inf, -1.0)):
            if not _sign_kept(new, a, b, scope, top, {**still, var: first}, first[0] > 0):
                return False
        still[var] = (0, 0)
    return True


def _sign_kept(
    new: Sequence[Var], a: Touch, b: Touch, scope: Scope, top: For,
    within: dict[Var, Interval], positive: bool,
) -> bool:  # fmt: skip
    """Whether no distance within the intervals begins with the other sign in the new order."""
    for var in new:
        found = meet(a, b, scope, top, within)
        if found is None:
            return True
        low, high = found.get(var, within.get(var, (-inf, inf)))
        if low > 0 or high < 0:
            return (low > 0) == positive
        if (low if positive else -high) < 0:
            return False
        within = {**within, var: (0, 0)}
    return True


def _kept_in_polyhedra(
    old: Sequence[Var], new: Sequence[Var], a: Touch, b: Touch, scope: Scope, top: For
) -> bool:
    """Whether inequalities prove that two accesses of one element keep their order."""
    moving = moving_vars(a, b, scope, top)
    return order_kept(place(a), place(b), moving, tuple(old), tuple(new))


def _kept_one_by_one(old: Sequence[Var], new: Sequence[Var], a: Touch, b: Touch) -> bool:
    """Whether all pairs of instances that touch one element keep their order."""
    apart = distances(place(a), place(b), old[0])
    if apart is None or not apart.keys() >= {*old}:  # an end of a loop is read above other loops
        return False
    return bool((ahead(apart, old) == ahead(apart, new)).all())


def _init_late(loops: Sequence[For], a: Touch) -> Failure:
    def sentence() -> str:
        names = ", ".join(loop.var.name for loop in loops)
        assert a.child is not None
        return (
            f"a loop among {names} drives spatial and reduce iterators of {a.child.block.name}: "
            "reordered, an update could come before the init"
        )

    return Failure("init-late", sentence, loops[0])


_NO_REDUCTION = (
    "the order of its updates matters, as no sum, product, minimum, maximum or bit operation "
    "on the old content makes the new one"
)


def _reversed_pair(loops: Sequence[For], a: Touch, b: Touch) -> Failure:
    def sentence() -> str:
        names = ", ".join(loop.var.name for loop in loops)
        what = a.show() if a is b else f"{a.show()} and {b.show()}"
        text = (
            f"reordering loops {names} could exchange accesses to one element of "
            f"{a.buffer.name}: {what}"
        )
        ordered = a.child is not None and a.child is b.child and has_order(a.child.block, a.buffer)
        return f"{text}; {_NO_REDUCTION}" if ordered else text

    return Failure("reversed-dependence", sentence, loops[0])

"""The axes of a value: an iterator, or a sum of iterators, as the columns that a window reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from metasched.arith.affine import linear
from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import BufferLoad, Range
from metasched.ir.expr import Compare, Expr, Var, as_expr, as_int
from metasched.ir.stmt import IterVar
from metasched.ir.visit import free_vars, loads_of, reads_memory, substitute, transform_expr


class Form(NamedTuple):
    """A value over its axes.

    Attributes:
        value: the value, in the variables of the axes.
        axes: a variable for each axis and the range of its values, in the order of the indices of
            the load that has most of them.
        places: the variable of each axis over the iterators of the block.
    """

    value: Expr
    axes: list[IterVar]
    places: dict[Var, Expr]

    @staticmethod
    def plain(value: Expr, iters: Sequence[IterVar]) -> Form:
        """A value with an axis for each of the iterators on which it depends, in their order."""
        used = free_vars(value)
        axes = [v for v in iters if v.var in used]
        return Form(value, axes, {v.var: v.var for v in axes})

    def is_plain(self) -> bool:
        """Whether no index of a load combines axes: the value takes no more memory than loads."""
        own = self.places.keys()
        indices = (i for load in loads_of(self.value) for i in load.indices)
        return all(len(free_vars(i) & own) <= 1 for i in indices)


def form_of(value: Expr, iters: Sequence[IterVar]) -> Form:
    """The value over as few axes as are found: x[i + k - 1] over i + k in place of i and k."""
    ranges = {v.var: v.dom for v in iters if v.var in free_vars(value)}
    places: dict[Var, Expr] = {var: var for var in ranges}
    while (joined := next(_joined(value, ranges), None)) is not None:
        value, (outer, inner), place, (var, dom) = joined
        sums = substitute(place, places)
        ranges = {v: r for v, r in ranges.items() if v not in (outer, inner)} | {var: dom}
        places = {v: e for v, e in places.items() if v in ranges} | {var: sums}
    order = _order(value, ranges)
    return Form(value, [IterVar(v, ranges[v]) for v in order], places)


def _joined(
    value: Expr, ranges: Mapping[Var, Range]
) -> Iterator[tuple[Expr, tuple[Var, Var], Expr, tuple[Var, Range]]]:
    """Yield the value over the sum of two variables, these two, the sum, and its variable, for each
    sum that takes each number of a range and decides the value without the two."""
    indices = dict.fromkeys(i for load in loads_of(value) for i in load.indices)
    for form in map(linear, indices):
        terms = {v: c for v, c in form.terms.items() if isinstance(v, Var) and v in ranges}
        for (a, step_a), (b, step_b) in permutations(terms.items(), 2):
            step, few, most = step_a // step_b, as_int(ranges[b].extent), as_int(ranges[a].extent)
            if step_a % step_b or step < 1 or few is None or most is None or few < step:
                continue
            place = a * step + b
            var = Var(f"{a.name}_{b.name}", place.dtype)
            low = substitute(place, {a: ranges[a].min, b: ranges[b].min})
            dom = Range.of(Analyzer().simplify(low), as_expr(step * (most - 1) + few, var.dtype))
            known = Analyzer({**ranges, var: dom})
            found = _simplified(substitute(value, {b: (var - a * step).astype(b.dtype)}), known)
            if free_vars(found).isdisjoint((a, b)):
                yield found, (a, b), place, (var, dom)


def _simplified(value: Expr, known: Analyzer) -> Expr:
    """A value with its indices and its comparisons of numbers simplified."""

    def on_expr(node: Expr) -> Expr | None:
        if isinstance(node, BufferLoad):
            return BufferLoad(node.buffer, tuple(map(known.simplify, node.indices)), node.predicate)
        if isinstance(node, Compare) and not node.a.dtype.is_float and not reads_memory(node):
            return known.simplify(node)
        return None

    return transform_expr(value, on_expr)


def _order(value: Expr, ranges: Mapping[Var, Range]) -> list[Var]:
    """The variables of the axes, last those of the load that has most of them, in its order."""
    found: list[Var] = []
    for load in loads_of(value):
        used = [v for i in load.indices for v in sorted(free_vars(i), key=str) if v in ranges]
        found = max(found, list(dict.fromkeys(used)), key=len)
    return [v for v in ranges if v not in found] + found

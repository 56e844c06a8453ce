"""Substitutes loop variables: the only way in which loop transformations change blocks.

Once blocks are closed (`analysis.closing`), only their bindings and predicates, and code outside of
blocks, mention loop variables. So the trees before and after a step share the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from metasched.analysis.guarded import may_fail
from metasched.arith.analyzer import Analyzer
from metasched.arith.itermap import iter_map_simplify
from metasched.ir.buffer import Range
from metasched.ir.expr import (
    TRUE,
    Expr,
    IntImm,
    Var,
    as_expr,
    logical_and,
)
from metasched.ir.stmt import BlockRealize, For, ForKind, IfThenElse, Stmt, evolve
from metasched.ir.visit import stmt_vars, substitute


def ranges_of(loops: Sequence[For]) -> dict[Var, Range]:
    """The ranges that loops give their variables."""
    return {loop.var: Range(loop.min, loop.extent) for loop in loops}


def rebind(
    body: Stmt,
    values: Mapping[Var, Expr],
    ranges: Mapping[Var, Range],
    guard: Expr = TRUE,
    *,
    preserve_unit_iters: bool = True,
) -> Stmt:
    """`body` with loop variables replaced, bindings simplified, and `guard` on every leaf.

    Args:
        body: the statement below the loops.
        values: the replacement of each replaced variable.
        ranges: the ranges of all loops above `body`, including the new loops.
        guard: a condition over the new variables under which the body runs. Where it does not hold,
            no expression that may fail (a load, a division) is evaluated.
        preserve_unit_iters: whether to keep variables of extent one in bindings.
    """
    return _Rebound(values, preserve_unit_iters).statement(body, dict(ranges), guard)


@dataclass(frozen=True, slots=True)
class _Rebound:
    """The replacement of loop variables; `known` holds only the loops above a node, because a loop
    beside it may not run at all."""

    values: Mapping[Var, Expr]
    preserve_unit_iters: bool

    def statement(self, node: Stmt, known: dict[Var, Range], guard: Expr) -> Stmt:
        if isinstance(node, BlockRealize):
            return self._realize(node, known, guard)
        if guard is not TRUE and (not node.stmts or any(map(may_fail, node.exprs))):
            return IfThenElse(guard, self.statement(node, known, TRUE))
        if isinstance(node, For):
            low, extent = self._simplified(node.min, known), self._simplified(node.extent, known)
            body = self.statement(node.body, {**known, node.var: Range(low, extent)}, guard)
            if low is node.min and extent is node.extent and body is node.body:
                return node
            return evolve(node, min=low, extent=extent, body=body)
        if guard is TRUE and stmt_vars(node).isdisjoint(self.values):
            return node
        below = [self.statement(s, known, guard) for s in node.stmts]
        return node.rebuild(below, [substitute(e, self.values) for e in node.exprs])

    def _simplified(self, expr: Expr, known: dict[Var, Range]) -> Expr:
        new = substitute(expr, self.values)
        return expr if new is expr else Analyzer(known).simplify(new)

    def _realize(self, node: BlockRealize, known: dict[Var, Range], guard: Expr) -> Stmt:
        if guard is not TRUE and may_fail(node.predicate):
            return IfThenElse(guard, self._realize(node, known, TRUE))
        bindings = [substitute(v, self.values) for v in node.iter_values]
        predicate = substitute(node.predicate, self.values)
        if guard is TRUE and predicate is node.predicate and tuple(bindings) == node.iter_values:
            return node
        if guard is not TRUE:
            predicate = logical_and(predicate, guard)
        if predicate is not TRUE and predicate is not node.predicate:
            predicate = Analyzer(known).simplify(predicate)
        trivial = not self.preserve_unit_iters
        simple = iter_map_simplify(bindings, known, predicate, simplify_trivial=trivial)
        return BlockRealize(tuple(simple), predicate, node.block)


def nest(
    loops: Sequence[tuple[Var, Expr | int]], body: Stmt, kind: ForKind = ForKind.SERIAL
) -> Stmt:
    """Loops from zero around `body`, the first outermost."""
    for var, extent in reversed(loops):
        zero = IntImm(var.dtype, 0)
        body = For(var, zero, as_expr(extent, var.dtype), kind, body)
    return body

"""Substituting loop variables: the one way in which loop transformations reach blocks.

Only the bindings and predicates of blocks (and what stands outside of blocks) mention loop
variables once blocks are closed (`analysis.closing`), so a block itself is shared between the tree
before and after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metasched.arith.analyzer import Analyzer
from metasched.arith.itermap import iter_map_simplify
from metasched.ir.buffer import Range
from metasched.ir.expr import TRUE, Expr, IntImm, Var, as_expr, logical_and
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
        values: what becomes of the replaced variables.
        ranges: the ranges of all loops above `body`, the new ones included.
        guard: a condition over the new variables under which the body runs at all.
        preserve_unit_iters: keep variables of extent one in bindings.
    """

    def visit(node: Stmt, known: dict[Var, Range]) -> Stmt:
        # `known` holds the loops above only: beside a loop it may not be taken to run at all
        if isinstance(node, BlockRealize):
            return _realize(node, known)
        if isinstance(node, For):
            low, extent = _simplified(node.min, known), _simplified(node.extent, known)
            body = visit(node.body, {**known, node.var: Range(low, extent)})
            if low is node.min and extent is node.extent and body is node.body:
                return node
            return evolve(node, min=low, extent=extent, body=body)
        if guard is TRUE and stmt_vars(node).isdisjoint(values):
            return node
        if node.stmts:
            return node.rebuild(
                [visit(s, known) for s in node.stmts], [substitute(e, values) for e in node.exprs]
            )
        leaf = substitute(node, values)
        return leaf if guard is TRUE else IfThenElse(guard, leaf)

    def _simplified(expr: Expr, known: dict[Var, Range]) -> Expr:
        new = substitute(expr, values)
        return expr if new is expr else Analyzer(known).simplify(new)

    def _realize(node: BlockRealize, known: dict[Var, Range]) -> BlockRealize:
        bindings = [substitute(v, values) for v in node.iter_values]
        predicate = substitute(node.predicate, values)
        if guard is TRUE and predicate is node.predicate and tuple(bindings) == node.iter_values:
            return node
        if guard is not TRUE:
            predicate = logical_and(predicate, guard)
        if predicate is not TRUE and predicate is not node.predicate:
            predicate = Analyzer(known).simplify(predicate)
        simple = iter_map_simplify(
            bindings, known, predicate, simplify_trivial=not preserve_unit_iters
        )
        return BlockRealize(tuple(simple), predicate, node.block)

    return visit(body, dict(ranges))


def nest(
    loops: Sequence[tuple[Var, Expr | int]], body: Stmt, kind: ForKind = ForKind.SERIAL
) -> Stmt:
    """Loops from zero around `body`, the first outermost."""
    for var, extent in reversed(loops):
        zero = IntImm(var.dtype, 0)
        body = For(var, zero, as_expr(extent, var.dtype), kind, body)
    return body

"""Reductions without an iteration: the interpreter refuses them where a kernel does.

Such a reduction never runs its init, so its result would be what the memory held. The length must
be known before the program runs: it is made of run-time extents and scalar arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from metasched.errors import InterpretError
from metasched.ir.expr import Expr, Var
from metasched.ir.interp_expr import ExprCompiler
from metasched.ir.interp_fence import Env
from metasched.ir.stmt import BlockRealize, For, Stmt
from metasched.ir.visit import free_vars, reads_memory, substitute

_Reduction = tuple[BlockRealize, tuple[For, ...], Mapping[Var, Expr]]


def refuse_no_result(
    compiler: ExprCompiler, loop: For, symbols: frozenset[Var]
) -> Callable[[Env], None] | None:
    """What to run where a loop has no iteration: it raises if a reduction then has no result.

    None for a loop over which nothing is reduced, or whose extent no call fixes (see `symbols`).
    """

    def fixed(expr: Expr) -> bool:
        return free_vars(expr) <= symbols and not reads_memory(expr)

    checks = []
    if fixed(loop.extent) and free_vars(loop.extent):
        for realize, inner, values in _reductions(loop.body, (), {}):
            spatial, reduced = _used(realize, values, False), _used(realize, values, True)
            if loop.var not in reduced:
                continue
            asked = [n.extent for n in inner if n.var not in reduced - spatial]
            asked += [v.dom.extent for v in realize.block.iter_vars if not v.is_reduce]
            sizes = [compiler.expr(e) for e in dict.fromkeys(asked) if fixed(e)]
            lengths = []  # of the iterators that share the loop, as after `fuse`
            for v in realize.block.iter_vars if loop.var in spatial else ():
                if v.is_reduce and loop.var in free_vars(values[v.var]) and fixed(v.dom.extent):
                    lengths.append((compiler.expr(v.dom.extent), v.var.name))
            checks.append((realize.block.name, sizes, lengths, loop.var in spatial))
    if not checks:
        return None

    def check(env: Env) -> None:
        for name, sizes, lengths, shared in checks:
            what = [f"the iterator {v} has no value" for length, v in lengths if length(env) <= 0]
            if not shared:
                what = [f"the loop {loop.var.name} has no iteration"]
            if what and all(size(env) >= 1 for size in sizes):
                raise InterpretError(
                    f"{name} has no result: {what[0]}; pass larger extents, or write the init as a "
                    "block of its own"
                )

    return check


def _used(realize: BlockRealize, values: Mapping[Var, Expr], reduced: bool) -> frozenset[Var]:
    """The variables that the reduce iterators of a block use, or the others."""
    own = (values[v.var] for v in realize.block.iter_vars if v.is_reduce is reduced)
    return frozenset().union(*map(free_vars, own))


def _reductions(
    stmt: Stmt, loops: tuple[For, ...], values: Mapping[Var, Expr]
) -> Iterator[_Reduction]:
    """The blocks with an init below `stmt`, each with the loops and the values of all iterators
    between."""
    if isinstance(stmt, For):
        loops = (*loops, stmt)
    elif isinstance(stmt, BlockRealize):
        own = (substitute(value, values) for value in stmt.iter_values)
        values = {**values, **dict(zip((v.var for v in stmt.block.iter_vars), own, strict=True))}
        if stmt.block.init is not None:
            yield stmt, loops, values
    for child in stmt.stmts:
        yield from _reductions(child, loops, values)

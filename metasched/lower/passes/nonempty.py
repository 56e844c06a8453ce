"""Assertions that the reductions of a program have an iteration for each result.

A reduction without an iteration never runs its init: its result would be what the memory held.
A kernel asserts in front of all other work that this does not happen. An init that is a block of
its own, as after `decompose_reduction`, needs no assertion: the result of no iteration is the init.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from metasched.analysis.sizes import run_time_extents
from metasched.arith.affine import linear
from metasched.arith.analyzer import Analyzer
from metasched.arith.conditions import conjuncts
from metasched.ir.buffer import Range
from metasched.ir.describe import show_expr
from metasched.ir.expr import (
    EQ,
    FALSE,
    GE,
    GT,
    LE,
    LT,
    Expr,
    Var,
    compare,
    logical_and,
    logical_not,
    logical_or,
)
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import AssertStmt, BlockRealize, For, IterVar, Stmt, evolve, seq
from metasched.ir.visit import free_vars, reads_memory, substitute

_Reduction = tuple[BlockRealize, tuple[For, ...], Mapping[Var, Expr]]


def assert_lengths(func: PrimFunc) -> PrimFunc:
    """The function that asserts first that each of its reductions has an iteration.

    The assertions are on lengths known at run time only: of run-time extents and scalar arguments.
    An assertion holds where a reduction has an iteration, or where nothing asks for its result. A
    length that depends on other loops or on memory is not asserted, unless it is positive wherever
    its symbols are: then each of its symbols is.
    """
    symbols = frozenset({*run_time_extents(func), *(p for p in func.params if isinstance(p, Var))})
    if not symbols or not func.is_schedulable:
        return func
    found: dict[Expr, AssertStmt] = {}
    for reduction in _reductions(func.body, (), {}):
        for made in _assertions(*reduction, symbols):
            found.setdefault(made.condition, made)
    if not found:
        return func
    root = evolve(func.root, body=seq((*found.values(), func.root.body)))
    return func.with_body(evolve(func.body, block=root))


def _reductions(
    stmt: Stmt, above: tuple[For, ...], values: Mapping[Var, Expr]
) -> Iterator[_Reduction]:
    """The reduction blocks with an init below `stmt`, each with all loops above it and the values
    of all iterators around it."""
    if isinstance(stmt, For):
        above = (*above, stmt)
    elif isinstance(stmt, BlockRealize):
        own = (substitute(value, values) for value in stmt.iter_values)
        values = {**values, **dict(zip((v.var for v in stmt.block.iter_vars), own, strict=True))}
        if stmt.block.init is not None:
            yield stmt, above, values
    for child in stmt.stmts:
        yield from _reductions(child, above, values)


def _assertions(
    realize: BlockRealize,
    loops: tuple[For, ...],
    values: Mapping[Var, Expr],
    symbols: frozenset[Var],
) -> Iterator[AssertStmt]:
    """The assertions that a reduction has an iteration, unless nothing asks for its result."""
    used: dict[bool, set[Var]] = {True: set(), False: set()}
    for item in realize.block.iter_vars:
        used[item.is_reduce] |= free_vars(values[item.var])
    summed = {n.var: n.min for n in loops if n.var in used[True] - used[False]}
    fused = [v for v in realize.block.iter_vars if v.is_reduce]
    fused = [v for v in fused if free_vars(values[v.var]) <= used[False]]
    asked = [n.extent for n in loops if n.var not in used[True]]
    asked += [item.dom.extent for item in realize.block.iter_vars if not item.is_reduce]
    known = Analyzer()
    no_result: Expr = FALSE
    for extent in dict.fromkeys(asked):
        if _is_fixed(extent, symbols):
            known = known.assume(extent >= 1)
            no_result = logical_or(no_result, compare(LE, extent, 0))
    for needed, what in _needed(realize, loops, summed, fused, symbols):
        if not known.prove(needed):
            yield AssertStmt(
                logical_or(no_result, needed),
                f"{realize.block.name} has no result: {what}; pass larger extents, or write the "
                "init as a block of its own",
            )


def _needed(
    realize: BlockRealize,
    loops: tuple[For, ...],
    first: dict[Var, Expr],
    fused: list[IterVar],
    symbols: frozenset[Var],
) -> Iterator[tuple[Expr, str]]:
    """The conditions under which a reduction reaches the block, each with the text of its failure.

    `first` maps the loop variables that only reduce iterators use to their least values. `fused`
    are the reduce iterators that share a loop with others: their domains must have values.
    """
    positive = Analyzer({n.var: Range(n.min, n.extent) for n in loops if n.var not in first})
    for symbol in symbols:
        positive = positive.assume(symbol >= 1)
    for loop in loops:
        if loop.var in first:
            what = f"the loop {loop.var.name} has no iteration"
            if _is_fixed(loop.extent, symbols):
                yield loop.extent >= 1, what
            elif positive.prove(loop.extent >= 1):
                yield from ((v >= 1, what) for v in _by_name(free_vars(loop.extent) & symbols))
    last = {n.var: n.min + n.extent - 1 for n in loops if n.var in first}
    for condition in conjuncts(realize.predicate):
        if free_vars(condition).isdisjoint(first):
            continue
        at_first = substitute(substitute(condition, first), first)
        if positive.prove(logical_not(at_first)):  # it excludes the first iterations, as of `delay`
            fused = [item for item in realize.block.iter_vars if item.is_reduce]
        met = _can_hold(condition, first, last)
        if _is_fixed(met, symbols):
            yield met, f"no iteration meets {show_expr(condition)}"
    for item in fused:
        if _is_fixed(item.dom.extent, symbols):
            yield item.dom.extent >= 1, f"the iterator {item.var.name} has no value"


def _can_hold(condition: Expr, first: Mapping[Var, Expr], last: Mapping[Var, Expr]) -> Expr:
    """Whether a condition holds in an iteration: at the corner of the loops that is best for it."""
    if isinstance(condition, EQ):
        parts = (compare(kind, condition.a, condition.b) for kind in (LE, GE))
        return logical_and(*(_can_hold(part, first, last) for part in parts))
    if isinstance(condition, (LT, LE, GT, GE)):
        grows = isinstance(condition, (LT, LE))
        more, less = (condition.b, condition.a) if grows else (condition.a, condition.b)
        form = linear(more - less)
        if all(isinstance(atom, Var) or free_vars(atom).isdisjoint(first) for atom in form.terms):
            best = {v: last[v] if form.terms.get(v, 0) > 0 else first[v] for v in first}
            return substitute(substitute(condition, best), best)
    corners = (substitute(substitute(condition, ends), ends) for ends in (first, last))
    return logical_or(*corners)


def _is_fixed(expr: Expr, symbols: frozenset[Var]) -> bool:
    """Whether an expression has one value in a call: it uses no loop variable and no memory."""
    return free_vars(expr) <= symbols and not reads_memory(expr)


def _by_name(variables: frozenset[Var]) -> list[Var]:
    return sorted(variables, key=lambda v: v.name)

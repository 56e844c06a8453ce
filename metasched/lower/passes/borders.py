"""Loops over tiles are cut where the border of an array begins.

    for x in 4:                                        S(x=0) with the test
        for c in 64:                                   for x in 2:
            for i in T.unroll(7):              ->          for c in 64: for i in T.unroll(7): S
                if x * 7 + i > 0 and ..: S             S(x=3) with the test

A convolution that adds no term outside of its input tests each term of a tile. Tiles that lie
inside need no test. A tile at the border has a loop of its own, of one iteration: its tests compare
constants where the loops inside are unrolled. Only tests around updates count that a serial loop
inside repeats: a test around the stores of finished results is no reason to copy a tile, nor is a
test around a load alone, which costs little.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from metasched.arith.affine import linear_address
from metasched.arith.conditions import conjuncts
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import TRUE, Expr, Select, Var, as_expr, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import BufferStore, For, ForKind, IfThenElse, Stmt, evolve, seq
from metasched.ir.visit import (
    free_vars,
    fresh_copy,
    jumps,
    loads_of,
    map_body,
    substitute,
    transform,
    walk_exprs,
)
from metasched.lower.passes.guards import all_of, difference

TILES = 64
"""The most iterations of a loop that is cut."""
PIECES = 3
"""The most pieces of a loop."""
STORES = 3072
"""The most stores of all pieces after unrolling: more take long to compile."""


class _Span(NamedTuple):
    """The iterations for which a test holds, whatever the loops inside do."""

    begin: int
    end: int


def cut_at_borders(func: PrimFunc) -> PrimFunc:
    """Apply the transformation above."""
    return map_body(func, lambda body: transform(body, _loop))


def _loop(stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, For) or stmt.kind is not ForKind.SERIAL or jumps(stmt.body):
        return None
    extent = as_int(stmt.extent) or 0
    if not 1 < extent <= TILES:
        return None
    spans: dict[Expr, _Span] = {}
    for part, inner in _tests(stmt.body, {}):
        span = _span(part, stmt, inner)
        if span is not None:
            spans[part] = span
    places = sorted({0, extent, *(p for s in spans.values() for p in s if 0 < p < extent)})
    pieces = len(places) - 1
    if not 1 < pieces <= PIECES or pieces * _stores(stmt.body) > STORES:
        return None
    cut = itertools.pairwise(places)
    return seq([_piece(stmt, begin, end, spans) for begin, end in cut])


def _tests(
    stmt: Stmt, inner: Mapping[Expr, For], around: tuple[Expr, ...] = ()
) -> Iterator[tuple[Expr, Mapping[Expr, For]]]:
    """The tests of updates in a further serial loop, each with the loops inside.

    Args:
        stmt: a statement of the body.
        inner: the loops around the statement, by their variables.
        around: the conditions around the statement.
    """
    if isinstance(stmt, For):
        inner = {**inner, stmt.var: stmt}
    if isinstance(stmt, IfThenElse):
        yield from _tests(stmt.then, inner, (*around, stmt.condition))
        if stmt.orelse is not None:
            yield from _tests(stmt.orelse, inner, around)
        return
    if isinstance(stmt, BufferStore) and _repeats(stmt, inner):
        for condition in (*around, *_choices(stmt.value)):
            for part in conjuncts(condition, hints=False):
                yield part, inner
    for part_of in stmt.stmts:
        yield from _tests(part_of, inner, around)


def _repeats(store: BufferStore, inner: Mapping[Expr, For]) -> bool:
    """Whether a serial loop inside updates the same element in each iteration."""
    index = free_vars(store.indices[0])
    loops = (s for s in inner.values() if s.kind is ForKind.SERIAL and as_int(s.extent) != 1)
    loads = loads_of(store.value)
    update = any(x.buffer is store.buffer and x.indices == store.indices for x in loads)
    return update and any(loop.var not in index for loop in loops)


def _choices(value: Expr) -> Iterator[Expr]:
    """The conditions of choices in a value, but of loads alone."""
    for node in walk_exprs(value):
        if isinstance(node, Select) and not isinstance(node.a, BufferLoad):
            yield node.condition
        elif (
            isinstance(node, Call)
            and node.op.name == "if_then_else"
            and not isinstance(node.args[1], BufferLoad)
        ):
            yield node.args[0]


def _span(part: Expr, loop: For, inner: Mapping[Expr, For]) -> _Span | None:
    """Where a test holds for all iterations of the loops inside; None if nothing is known, or if
    the test does not depend on an unrolled or vectorized loop inside."""
    found = difference(part, loop)
    if found is None:
        return None
    form, factor = linear_address(found[0]), found[1]
    most, tiled = form.const, False
    for atom, by in form.terms.items():
        around = inner.get(atom)
        size = None if around is None else as_int(around.extent)
        if around is None or size is None or as_int(around.min) != 0:
            return None
        most += max(by, 0) * (size - 1)
        tiled = tiled or around.kind in (ForKind.UNROLLED, ForKind.VECTORIZED)
    extent = as_int(loop.extent) or 0
    if not tiled:
        return None
    if factor > 0:  # most + factor * x < 0
        return _Span(0, min(max(-(most // factor), 0), extent))
    return _Span(min(max(most // -factor + 1, 0), extent), extent)


def _stores(stmt: Stmt) -> int:
    """The stores of a statement after its loops are unrolled."""
    times = 1
    if isinstance(stmt, For) and stmt.kind is ForKind.UNROLLED:
        times = as_int(stmt.extent) or 1
    return isinstance(stmt, BufferStore) + times * sum(map(_stores, stmt.stmts))


def _piece(loop: For, begin: int, end: int, spans: Mapping[Expr, _Span]) -> Stmt:
    """The iterations from `begin` to `end`, without the tests that hold for all of them."""
    known = {part for part, s in spans.items() if s.begin <= begin and end <= s.end}
    body = _without(loop.body, known) if known else loop.body
    var = Var(loop.var.name, loop.var.dtype)
    first = as_expr(begin, var.dtype)
    if end - begin == 1 and not loop.annotations:
        return fresh_copy(substitute(body, {loop.var: first}))
    later = substitute(body, {loop.var: first if end - begin == 1 else var + first})
    return fresh_copy(evolve(loop, var=var, extent=as_expr(end - begin, var.dtype), body=later))


def _without(body: Stmt, known: set[Expr]) -> Stmt:
    """A statement without tests that hold."""

    def left(condition: Expr) -> Expr:
        return all_of([p for p in conjuncts(condition, hints=False) if p not in known])

    def on_stmt(node: Stmt) -> Stmt | None:
        if not isinstance(node, IfThenElse):
            return None
        condition = left(node.condition)
        return node.then if condition is TRUE else evolve(node, condition=condition)

    def on_expr(node: Expr) -> Expr | None:
        if isinstance(node, Select):
            condition = left(node.condition)
            return node.a if condition is TRUE else Select(condition, node.a, node.b)
        if isinstance(node, Call) and node.op.name == "if_then_else":
            condition = left(node.args[0])
            value, other = node.args[1:]
            return value if condition is TRUE else node.rebuild((condition, value, other))
        return None

    return transform(body, on_stmt, on_expr)

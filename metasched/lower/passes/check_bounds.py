"""Assertions before every access; `build(check_bounds=True)` finds accesses outside a buffer.

An assertion stands right before the statement that loads or stores. A load in one side of
`if_then_else`, or in the right side of `and` and `or`, is checked only if that side is evaluated.
An index that is itself loaded is checked before its use. Addresses that a program passes on are not
followed, and masked lanes are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.describe import show_expr
from metasched.ir.expr import (
    GE,
    LT,
    TRUE,
    And,
    Arithmetic,
    Expr,
    IntImm,
    Let,
    Logical,
    Select,
    Var,
    as_expr,
    binary,
    compare,
    logical_and,
    logical_not,
)
from metasched.ir.func import PrimFunc
from metasched.ir.op import Broadcast, Call, Ramp, call
from metasched.ir.stmt import (
    AssertStmt,
    Block,
    BlockRealize,
    BufferStore,
    Stmt,
    While,
    seq,
)
from metasched.ir.visit import map_body, reads_memory
from metasched.lower.passes.data import data_vars, wraps
from metasched.lower.passes.flatten import CUTS


def check_bounds(func: PrimFunc) -> PrimFunc:
    """S  ->  assert that what S loads and stores lies in its buffers; S."""
    place = _Place("the function", data_vars(func))
    return map_body(func, lambda body: _checked(body, place))


class _Place(NamedTuple):
    """Where an access stands, in words, and the variables that name values made of memory."""

    words: str
    data: frozenset[Var]


def _checked(stmt: Stmt, place: _Place) -> Stmt:
    if isinstance(stmt, Block):
        place = place._replace(words=f"block {stmt.name}")
    parts = [_checked(part, place) for part in stmt.stmts]
    found = stmt.rebuild(parts, stmt.exprs) if parts else stmt
    if isinstance(stmt, Block):
        return found  # declared regions are no accesses
    if isinstance(stmt, BlockRealize) and stmt.predicate is not TRUE:
        asserts = list(_loads(stmt.predicate, place))
        for value in stmt.iter_values:
            asserts += _loads_where(stmt.predicate, value, place)
    else:
        asserts = [each for e in stmt.exprs for each in _loads(e, place)]
    if isinstance(stmt, While) and isinstance(found, While):
        found = While(found.condition, seq([found.body, *asserts]))  # for the next evaluation
    if isinstance(stmt, BufferStore) and stmt.predicate is None:
        asserts.append(_claim(place, "stores", stmt.buffer, stmt.indices))
    if isinstance(stmt, BlockRealize) and not asserts:
        return found
    return seq([*(a for a in asserts if a.condition is not TRUE), found])


def _loads(expr: Expr, place: _Place) -> Iterator[AssertStmt]:
    """The conditions under which all loads of an expression are in bounds; loads in indices come
    first."""
    if not reads_memory(expr):
        return
    if isinstance(expr, Call) and expr.op.name == "if_then_else":
        chosen, then, orelse = expr.args
        yield from _loads(chosen, place)
        yield from _loads_where(chosen, then, place)
        yield from _loads_where(logical_not(chosen), orelse, place)
        return
    if isinstance(expr, Logical) and expr.dtype.lanes == 1:
        yield from _loads(expr.a, place)
        evaluated = expr.a if isinstance(expr, And) else logical_not(expr.a)
        yield from _loads_where(evaluated, expr.b, place)
        return
    if isinstance(expr, Call) and expr.op.name == "address_of":
        return
    if isinstance(expr, Let):
        yield from _loads(expr.value, place)
        for claim in _loads(expr.body, place):
            inner = tuple(Let(expr.var, expr.value, each) for each in claim.exprs)
            yield AssertStmt(inner[0], claim.message, inner[1:])
        return
    for child in expr.children:
        yield from _loads(child, place)
    if isinstance(expr, BufferLoad) and expr.predicate is None:
        yield _claim(place, "loads", expr.buffer, expr.indices)


def _loads_where(evaluated: Expr, expr: Expr, place: _Place) -> Iterator[AssertStmt]:
    """The conditions for the loads of an expression that is evaluated under a condition."""
    for claim in _loads(expr, place):
        condition = call("if_then_else", evaluated, claim.condition, TRUE)
        yield AssertStmt(condition, claim.message, claim.values)


def _claim(place: _Place, verb: str, buffer: Buffer, indices: tuple[Expr, ...]) -> AssertStmt:
    """Assert that indices lie in a buffer, and record the values for the message: see
    `Signature.failure`."""
    inside = _inside(buffer, indices, place.data)
    if inside is TRUE:
        return AssertStmt(TRUE, "")
    given, shape = (", ".join(map(show_expr, each)) for each in (indices, buffer.shape))
    text = f"{place.words} {verb} {buffer.name}[{given}], which is outside {buffer.name}"
    lanes = max([1, *(index.dtype.lanes for index in indices)])
    known = all(isinstance(extent, IntImm) for extent in buffer.shape)
    extents = () if known else buffer.shape
    counts = map(as_expr, (lanes, len(indices), len(extents)))
    values = (*counts, *map(_first_lane, indices), *extents)
    return AssertStmt(
        inside, f"{text} of shape ({shape})", tuple(_wide(v, place.data) for v in values)
    )


def _first_lane(index: Expr) -> Expr:
    if isinstance(index, Ramp):
        return index.base
    return index.value if isinstance(index, Broadcast) else index


def _inside(buffer: Buffer, indices: tuple[Expr, ...], data: frozenset[Var]) -> Expr:
    """The condition that indices lie in a buffer; lanes of a vector may run on into later rows."""
    found: Expr = TRUE
    for index, extent in zip(indices, buffer.shape, strict=True):
        first = _first_lane(index)
        if first.dtype.lanes > 1:
            return TRUE
        found = logical_and(found, _between(first, extent, data))
    last = indices[-1] if indices else None
    if isinstance(last, Ramp):
        reach: Expr = IntImm("int64", 0)
        size: Expr = IntImm("int64", 1)
        for index, extent in zip(indices, buffer.shape, strict=True):
            end = (
                index.base + (index.lanes - 1) * index.stride if isinstance(index, Ramp) else index
            )
            reach = reach * _wide(extent, data) + _wide(end, data)
            size = size * _wide(extent, data)
        found = logical_and(found, _between(reach, size, data))
    return found


def _between(index: Expr, extent: Expr, data: frozenset[Var]) -> Expr:
    value = _wide(index, data)
    zero = compare(GE, value, as_expr(0, value.dtype))
    return logical_and(zero, compare(LT, value, _wide(extent, data)))


def _wide(index: Expr, data: frozenset[Var]) -> Expr:
    """An index as the address has it: `flatten` calculates it in 64 bits, but for operations of
    which an operand may wrap."""
    if index.dtype not in ("int32", "int64") or wraps(index, data, CUTS):
        return index.astype("int64")
    if isinstance(index, Arithmetic):
        return binary(type(index), _wide(index.a, data), _wide(index.b, data))
    if isinstance(index, Select):
        return Select(index.condition, _wide(index.a, data), _wide(index.b, data))
    if isinstance(index, Call) and index.op.name == "if_then_else":
        condition, a, b = index.args
        return call("if_then_else", condition, _wide(a, data), _wide(b, data))
    return index.astype("int64")

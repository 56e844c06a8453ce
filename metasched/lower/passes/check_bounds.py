"""Assertions before every access; `build(check_bounds=True)` finds accesses outside a buffer.

An assertion stands right before the statement that loads or stores. A load in one side of
`if_then_else` is checked only if that side is chosen. An index that is itself loaded is checked
before its use. Addresses that a program passes on are not followed, and masked lanes are not
checked.
"""

from __future__ import annotations

from collections.abc import Iterator

from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.describe import show_expr
from metasched.ir.expr import (
    GE,
    LT,
    TRUE,
    Expr,
    IntImm,
    Let,
    as_expr,
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


def check_bounds(func: PrimFunc) -> PrimFunc:
    """S  ->  assert that what S loads and stores lies in its buffers; S."""
    return map_body(func, lambda body: _checked(body, "the function"))


def _checked(stmt: Stmt, place: str) -> Stmt:
    if isinstance(stmt, Block):
        place = f"block {stmt.name}"
    parts = [_checked(part, place) for part in stmt.stmts]
    found = stmt.rebuild(parts, stmt.exprs) if parts else stmt
    if isinstance(stmt, Block):
        return found  # declared regions are no accesses
    asserts = [each for e in stmt.exprs for each in _loads(e, place)]
    if isinstance(stmt, While) and isinstance(found, While):
        found = While(found.condition, seq([found.body, *asserts]))  # for the next evaluation
    if isinstance(stmt, BufferStore) and stmt.predicate is None:
        asserts.append(_claim(place, "stores", stmt.buffer, stmt.indices))
    if isinstance(stmt, BlockRealize) and not asserts:
        return found
    return seq([*(a for a in asserts if a.condition is not TRUE), found])


def _loads(expr: Expr, place: str) -> Iterator[AssertStmt]:
    """The conditions under which all loads of an expression are in bounds; loads in indices come
    first."""
    if not reads_memory(expr):
        return
    if isinstance(expr, Call) and expr.op.name == "if_then_else":
        chosen, then, orelse = expr.args
        yield from _loads(chosen, place)
        for side, taken in ((then, chosen), (orelse, logical_not(chosen))):
            for claim in _loads(side, place):
                condition = call("if_then_else", taken, claim.condition, TRUE)
                yield AssertStmt(condition, claim.message, claim.values)
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


def _claim(place: str, verb: str, buffer: Buffer, indices: tuple[Expr, ...]) -> AssertStmt:
    """Assert that indices lie in a buffer, and record the values for the message: see
    `Signature.failure`."""
    inside = _inside(buffer, indices)
    if inside is TRUE:
        return AssertStmt(TRUE, "")
    given, shape = (", ".join(map(show_expr, each)) for each in (indices, buffer.shape))
    text = f"{place} {verb} {buffer.name}[{given}], which is outside {buffer.name}"
    lanes = max([1, *(index.dtype.lanes for index in indices)])
    known = all(isinstance(extent, IntImm) for extent in buffer.shape)
    extents = () if known else buffer.shape
    counts = map(as_expr, (lanes, len(indices), len(extents)))
    values = (*counts, *map(_first_lane, indices), *extents)
    numbers = tuple(value.astype("int64") for value in values)
    return AssertStmt(inside, f"{text} of shape ({shape})", numbers)


def _first_lane(index: Expr) -> Expr:
    if isinstance(index, Ramp):
        return index.base
    return index.value if isinstance(index, Broadcast) else index


def _inside(buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
    """The condition that indices lie in a buffer; lanes of a vector may run on into later rows."""
    found: Expr = TRUE
    for index, extent in zip(indices, buffer.shape, strict=True):
        first = _first_lane(index)
        if first.dtype.lanes > 1:
            return TRUE
        found = logical_and(found, _between(first, extent))
    last = indices[-1] if indices else None
    if isinstance(last, Ramp):
        reach: Expr = IntImm("int64", 0)
        size: Expr = IntImm("int64", 1)
        for index, extent in zip(indices, buffer.shape, strict=True):
            end = (
                index.base + (index.lanes - 1) * index.stride if isinstance(index, Ramp) else index
            )
            reach = reach * extent.astype("int64") + end.astype("int64")
            size = size * extent.astype("int64")
        found = logical_and(found, _between(reach, size))
    return found


def _between(index: Expr, extent: Expr) -> Expr:
    zero = compare(GE, index, as_expr(0, index.dtype))
    return logical_and(zero, compare(LT, index, extent.astype(index.dtype)))

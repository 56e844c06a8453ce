"""Calls of foreign functions: in which order they happen, and how often.

What a function of C keeps between its calls, or prints, stands in no region of a block. So other
statements may move around such calls, but the calls stay. A call that gets pointers is an
exception: its block declares the memory that it uses, and this contract decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from metasched.ir.expr import Expr, StringImm, Var
from metasched.ir.func import IRModule
from metasched.ir.op import LIBM_SYMBOLS, Call
from metasched.ir.stmt import BlockRealize, For, ForKind, IfThenElse, Stmt, While, fact
from metasched.ir.visit import blocks_of, walk, walk_exprs

_FOREIGN = ("call_extern", "call_packed")
_POINTERS = ("address_of", "access_ptr")
_IN_ORDER = (ForKind.SERIAL, ForKind.UNROLLED)

Path: TypeAlias = tuple[Any, ...]
"""Where a statement stands: its loops, blocks and conditions, each with its position."""


class ForeignCall(NamedTuple):
    """A call of a foreign function.

    Attributes:
        around: the innermost loop or block.
        in_instance: whether a block without blocks, or a statement without statements, holds the
            call: each of its instances makes the call as often as before, wherever it runs.
    """

    function: str
    path: Path
    around: For | BlockRealize | None
    in_instance: bool


def calls_out(mod: IRModule) -> bool:
    """Whether a module calls a foreign function that may do what no region tells."""
    bodies = [func.body for func in mod.functions.values()]
    return any(isinstance(e, Expr) and _function(e) for body in bodies for e in walk(body))


@fact
def foreign_calls(body: Stmt) -> list[ForeignCall]:
    """The foreign calls of a body in program order.

    Equal functions and places mean that the calls happen in the same order, and as often.
    """
    return list(_below(body, (), None, False, [0]))


def _below(
    stmt: Stmt, path: Path, around: For | BlockRealize | None, in_leaf: bool, position: list[int]
) -> Iterator[ForeignCall]:
    """The calls in a statement, whose position among those of its parent is `position[0]`."""
    for expr in stmt.exprs:
        for e in walk_exprs(expr):
            if (name := _function(e)) is not None:
                yield ForeignCall(name, path, around, in_leaf or not stmt.stmts)
    key = _key(stmt)
    if key is None:
        for part in stmt.stmts:
            yield from _below(part, path, around, in_leaf, position)
        return
    found = False
    if isinstance(stmt, BlockRealize):
        in_leaf = not any(True for _ in blocks_of(stmt.block))
    for branch, part in enumerate(stmt.stmts):
        inner = stmt if isinstance(stmt, (For, BlockRealize)) else around
        for call in _below(part, (*path, (position[0], branch, *key)), inner, in_leaf, [0]):
            yield call
            found = True
    position[0] += found


def _key(stmt: Stmt) -> tuple[Any, ...] | None:
    """What says when, and how often, the parts of a statement run; None where they run once, one
    after the other."""
    if isinstance(stmt, For):
        kind = None if stmt.kind in _IN_ORDER else stmt.kind
        return stmt.var, stmt.min, stmt.extent, stmt.step, kind, stmt.thread
    if isinstance(stmt, BlockRealize):
        return stmt.block.token, stmt.iter_values, stmt.predicate
    if isinstance(stmt, (IfThenElse, While)):
        return (stmt.condition,)
    return None


def _function(expr: Expr) -> str | None:
    """The foreign function that an expression calls, if it may do what no region tells."""
    if not isinstance(expr, Call) or expr.op.name not in _FOREIGN:
        return None
    first, *given = expr.args or (None,)
    name = first.value if isinstance(first, StringImm) else "?"
    pointers = any(
        (isinstance(e, Var) and e.dtype.is_handle)
        or (isinstance(e, Call) and e.op.name in _POINTERS)
        for argument in given
        for e in walk_exprs(argument)
    )
    return None if pointers or name in LIBM_SYMBOLS else name

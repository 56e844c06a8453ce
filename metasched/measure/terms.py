"""longest_sum: how many values one element of a program's results is accumulated from."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass

from metasched.arith.affine import interval
from metasched.arith.bounds import EVERYTHING, Interval
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import Expr, Var, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Block, BufferStore, For, Stmt
from metasched.ir.visit import free_vars, stmt_vars, walk_exprs, walk_stmts


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop or an iterator of a reduction around a statement.

    Attributes:
        var: its variable.
        extent: the most iterations; 1 if they are unknown.
        starts: the buffers of which its body stores an element that does not depend on the element.
        carries: whether it is an iterator of a reduction or scan, which accumulates all its stores.
    """

    var: Var
    extent: int
    starts: frozenset[Buffer]
    carries: bool


def accumulates(store: BufferStore) -> bool:
    """Whether the stored value is computed from the buffer that it is stored in."""
    return any(
        isinstance(e, BufferLoad) and e.buffer is store.buffer for e in walk_exprs(store.value)
    )


def longest_sum(
    func: PrimFunc, numbers: Mapping[str, int], of: Container[Buffer] | None = None
) -> int:
    """The most values from which one element is accumulated, in a block or in plain loops.

    An element is accumulated in the loops around its store whose variables its indices do not name,
    up to the loop that also starts the element again. Loops of unknown extent count once.

    Args:
        func: the unscheduled function.
        numbers: values of run-time extents and scalars, by name.
        of: the buffers whose elements count; all by default.
    """
    known: dict[Var, Interval] = {
        v: (numbers[v.name], numbers[v.name]) for v in stmt_vars(func.body) if v.name in numbers
    }

    def longest(stmt: Stmt, around: tuple[_Loop, ...], ranges: dict[Var, Interval]) -> int:
        if isinstance(stmt, BufferStore):
            counts = accumulates(stmt) and (of is None or stmt.buffer in of)
            return _terms(stmt, around) if counts else 1
        around, ranges = _inside(stmt, around, ranges)
        return max((longest(s, around, ranges) for s in stmt.stmts), default=1)

    return longest(func.body, (), known)


def _inside(
    stmt: Stmt, around: tuple[_Loop, ...], ranges: dict[Var, Interval]
) -> tuple[tuple[_Loop, ...], dict[Var, Interval]]:
    """The loops around the parts of a statement, and the ranges of variables there.

    Iterators take the place of the loops around a block.
    """
    if isinstance(stmt, For):
        values = _values(stmt.min, stmt.extent, ranges, as_int(stmt.step or 1))
        return (*around, _loop(stmt, stmt.var, stmt.extent, ranges)), {**ranges, stmt.var: values}
    if isinstance(stmt, Block) and stmt.iter_vars:
        inner = (v for v in stmt.iter_vars if not v.is_spatial)
        around = tuple(_loop(stmt, v.var, v.dom.extent, ranges) for v in inner)
        values_of = {v.var: _values(v.dom.min, v.dom.extent, ranges) for v in stmt.iter_vars}
        return around, {**ranges, **values_of}
    return around, ranges


def _loop(stmt: For | Block, var: Var, extent: Expr, ranges: Mapping[Var, Interval]) -> _Loop:
    stores = (s for s in walk_stmts(stmt.body) if isinstance(s, BufferStore))
    starts = frozenset(s.buffer for s in stores if not accumulates(s))
    most = interval(extent, ranges)[1]
    extent_or_one = max(int(most), 1) if math.isfinite(most) else 1
    return _Loop(var, extent_or_one, starts, isinstance(stmt, Block))


def _values(
    low: Expr, extent: Expr, ranges: Mapping[Var, Interval], step: int | None = 1
) -> Interval:
    if step is None or step < 0:
        return EVERYTHING
    first, count = interval(low, ranges), interval(extent, ranges)
    return first[0], first[1] + (count[1] - 1) * step


def _terms(store: BufferStore, around: tuple[_Loop, ...]) -> int:
    """The iterations that accumulate one element of a store."""
    named = {v for index in store.indices for v in free_vars(index)}
    total = 1
    for loop in reversed(around):
        if store.buffer in loop.starts:
            break
        if loop.carries or loop.var not in named:
            total *= loop.extent
    return total

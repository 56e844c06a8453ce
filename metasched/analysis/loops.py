"""Loops: trip counts, chains, perfect nests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from metasched.ir.expr import as_int
from metasched.ir.stmt import Block, For, Stmt


def loops_above(ancestors: Iterable[Stmt]) -> tuple[For, ...]:
    """The loops between a statement and the block around it, outermost first.

    Args:
        ancestors: the statements above it, nearest first (up to the root, or to any block).
    """
    loops: list[For] = []
    for stmt in ancestors:
        if isinstance(stmt, Block):
            break
        if isinstance(stmt, For):
            loops.append(stmt)
    return tuple(reversed(loops))


def trip_count(loop: For) -> int | None:
    """How many iterations a loop has, None when symbolic."""
    extent = as_int(loop.extent)
    return None if extent is None else max(extent, 0)


def extent_product(loops: Iterable[For]) -> int | None:
    """How often the body below all these loops is executed, None when symbolic."""
    total = 1
    for loop in loops:
        extent = trip_count(loop)
        if extent is None:
            return None
        total *= extent
    return total


def chain(loop: For) -> tuple[For, ...]:
    """`loop` and the loops below it as long as each is the only statement of the one before."""
    loops = [loop]
    while isinstance(loops[-1].body, For):
        loops.append(loops[-1].body)
    return tuple(loops)


def perfect_nest(stmt: Stmt) -> tuple[tuple[For, ...], Stmt]:
    """The loops of the chain that starts at `stmt` (perhaps none), and what stands inside all."""
    if not isinstance(stmt, For):
        return (), stmt
    loops = chain(stmt)
    return loops, loops[-1].body


def is_chain(loops: Sequence[For]) -> bool:
    """Whether each loop is the only statement of the one before it."""
    return all(a.body is b for a, b in pairwise(loops))


def is_plain(loop: For) -> bool:
    """Whether a loop counts 0, 1, 2, ..., and carries neither annotation nor thread binding."""
    from_zero = as_int(loop.min) == 0 and (loop.step is None or as_int(loop.step) == 1)
    return from_zero and not loop.annotations and loop.thread is None

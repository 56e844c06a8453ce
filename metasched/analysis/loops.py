"""Loops: chains, perfect nests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

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


def chain(loop: For) -> tuple[For, ...]:
    """`loop` and the loops below, as long as each is the only statement of the loop around it."""
    loops = [loop]
    while isinstance(loops[-1].body, For):
        loops.append(loops[-1].body)
    return tuple(loops)


def perfect_nest(stmt: Stmt) -> tuple[tuple[For, ...], Stmt]:
    """The loops of the chain that starts at `stmt` (perhaps none), and the innermost body."""
    if not isinstance(stmt, For):
        return (), stmt
    loops = chain(stmt)
    return loops, loops[-1].body


def is_chain(loops: Sequence[For]) -> bool:
    """Whether each loop is the only statement of the loop before it in `loops`."""
    return all(a.body is b for a, b in pairwise(loops))

"""Reductions: a block's init runs where all its reduce iterators are at their minimum."""

from __future__ import annotations

from metasched.analysis.begun import with_init_in_body
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Block, Stmt
from metasched.ir.visit import map_body, transform
from metasched.lower.passes.nonempty import assert_lengths


def lower_init(func: PrimFunc) -> PrimFunc:
    """init: I; body: S  ->  body: (if all reduce iterators are minimal: I); S.

    Assertions at the start say that they are minimal once for each result.
    """
    return map_body(assert_lengths(func), lambda body: transform(body, _block))


def _block(stmt: Stmt) -> Stmt | None:
    return with_init_in_body(stmt) if isinstance(stmt, Block) and stmt.init is not None else None

"""Blocks that share a name in the script: a schedule numbers them, because steps name blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Block, BlockRealize, BlockToken, Stmt, evolve, fact
from metasched.ir.visit import blocks_of, map_body, transform


def numbered_blocks(func: PrimFunc) -> PrimFunc:
    """`func` with blocks `X`, `X` called `X_1`, `X_2`; `func` itself where all names differ.

    The root block keeps its name.
    """
    return map_body(func, _numbered)


@fact
def _numbered(body: Stmt) -> Stmt:
    names = _new_names(body)
    if not names:
        return body

    def renamed(stmt: Stmt) -> Stmt | None:
        new = names.get(stmt.token) if isinstance(stmt, Block) else None
        return None if new is None else evolve(stmt, name=new)

    return transform(body, renamed)


def _new_names(body: Stmt) -> Mapping[BlockToken, str]:
    """The new names of the blocks that share a name, by token."""
    blocks = [realize.block for realize in blocks_of(body)]
    count = Counter(block.name for block in blocks)
    root = body.block if isinstance(body, BlockRealize) else None
    taken, number = set(count), Counter[str]()
    names: dict[BlockToken, str] = {}
    for block in blocks:
        if count[block.name] == 1 or block is root:
            continue
        new = block.name
        while new in taken:
            number[block.name] += 1
            new = f"{block.name}_{number[block.name]}"
        taken.add(new)
        names[block.token] = new
    return names

"""Statements outside of blocks, and statements of blocks with loops of their own."""

from __future__ import annotations

from metasched.ir.expr import TRUE
from metasched.ir.stmt import Block, BlockRealize, For, fact
from metasched.ir.visit import blocks_of, walk_stmts
from metasched.schedule.handles import BlockRV
from metasched.schedule.primitives.enclose import stores_outside
from metasched.schedule.primitives.unblockize import obstacle
from metasched.schedule.schedule import Schedule


def enclose_statements(sch: Schedule, block: BlockRV) -> None:
    """Put the statements that stand outside of blocks in `block` into blocks of their own."""
    if stores_outside(sch.state.block(block).block.body):
        sch.enclose(block)


def open_blocks(sch: Schedule, block: BlockRV) -> bool:
    """Put the statements of blocks with loops of their own in the place of these blocks.

    Returns whether `block` held such a block.
    """
    wide = [b for b in sch.get_child_blocks(block) if _holds_loops(sch.state.block(b))]
    for child in wide:
        sch.unblockize(child)
    return bool(wide)


def _holds_loops(realize: BlockRealize) -> bool:
    """Whether smaller blocks would divide a block: only statements and loops that its spatial
    iterators repeat."""
    block = realize.block
    alone = realize.predicate is TRUE and obstacle(block) is None
    return alone and all(v.is_spatial for v in block.iter_vars) and _loops_alone(block)


@fact
def _loops_alone(block: Block) -> bool:
    """Whether the body of a block has loops, but no blocks."""
    loops = any(isinstance(s, For) for s in walk_stmts(block.body))
    return loops and not any(True for _ in blocks_of(block.body))

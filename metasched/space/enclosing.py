"""Statements outside of blocks, and statements of blocks with loops of their own."""

from __future__ import annotations

from metasched.analysis.producers import self_contained
from metasched.analysis.scope import Scope
from metasched.ir.buffer import Buffer
from metasched.ir.expr import TRUE
from metasched.ir.stmt import Block, BlockRealize, For, fact
from metasched.ir.visit import blocks_of, walk_stmts
from metasched.schedule.handles import BlockRV
from metasched.schedule.primitives.enclose import stores_outside
from metasched.schedule.primitives.own_rows import named_by_memory, rows_outside
from metasched.schedule.primitives.unblockize import obstacle
from metasched.schedule.schedule import Schedule


def enclose_statements(sch: Schedule, block: BlockRV, *, own_memory: bool = False) -> None:
    """Put the statements that stand outside of blocks in `block` into blocks of their own.

    With `own_memory`, rows with a stack or a queue of their own stay whole.
    """
    body = sch.state.block(block).block.body
    if not stores_outside(body):
        return
    if own_memory and rows_outside(body):
        sch.enclose(block, own_memory=True)
    else:
        sch.enclose(block)


def open_blocks(sch: Schedule, block: BlockRV) -> bool:
    """Put the statements of blocks with loops of their own in the place of these blocks.

    Returns whether `block` held such a block.
    """
    wide = [b for b in sch.get_child_blocks(block) if _holds_loops(sch.state.block(b))]
    for child in wide:
        sch.unblockize(child)
    return bool(wide)


def divide_blocks(sch: Schedule, block: BlockRV) -> None:
    """Open the blocks with loops of their own, and enclose all statements.

    A block whose memory the iterations around would share then stays whole, such as a row with a
    stack or a queue: memory says which elements it reads, so nothing proves that they are its own.
    """
    for child in sch.get_child_blocks(block):
        realize = sch.state.block(child)
        if _holds_loops(realize) and not _shares(sch, block, child, realize):
            sch.unblockize(child)
    enclose_statements(sch, block, own_memory=True)


def _shares(sch: Schedule, block: BlockRV, child: BlockRV, realize: BlockRealize) -> bool:
    """Whether iterations of the loops around a block would share its memory once it is opened."""
    around = sch.state.loops_above(realize)
    if not around or not _named_by_memory(realize.block):
        return False
    opened = sch.copy()
    opened.unblockize(child)
    enclose_statements(opened, block)
    scope = Scope.of(opened.state.block(block).block)
    loop = next(n for c in scope.realizes for n in c.loops if n.var is around[-1].var)
    return not all(self_contained(b, scope, loop) for b in _named_by_memory(realize.block))


@fact
def _named_by_memory(block: Block) -> list[Buffer]:
    """The buffers of a block's own that it stores to where memory says."""
    return [b for b in block.alloc_buffers if named_by_memory(block.body, b)]


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

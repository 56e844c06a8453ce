"""The memory that blocks and loops write."""

from __future__ import annotations

from metasched.analysis.access import exact_accesses
from metasched.analysis.scope import Scope
from metasched.ir.buffer import Buffer
from metasched.ir.stmt import Block, BufferStore, For, Stmt, fact


@fact
def written(block: Block) -> frozenset[Buffer]:
    """The buffers that a block writes (cached): a buffer that is only read has no conflicts."""
    exact = exact_accesses(block)
    writes = block.writes if exact is None else [a for a in exact if a.is_write]
    return frozenset(w.buffer for w in writes)


def loose_below(loop: For, scope: Scope) -> list[tuple[Stmt, tuple[For, ...]]]:
    """The statements below a loop that stand outside of blocks, with the loops around them."""
    return [(s, loops) for s, loops in scope.loose if any(n.var is loop.var for n in loops)]


def written_below(loop: For, scope: Scope) -> frozenset[Buffer]:
    """The buffers that are written below a loop."""
    stored = (s.buffer for s, _ in loose_below(loop, scope) if isinstance(s, BufferStore))
    return frozenset(stored).union(*(written(child.block) for child in scope.under(loop)))

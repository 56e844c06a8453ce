"""prefetch_rows: prefetch later rows of an argument while the present row is computed.

Where stages are computed row by row (a softmax: maximum, exponentials, sum, quotients), memory is
idle during the stages that only touch the row in the cache. The last stage that reads an argument
prefetches later rows; the number of rows ahead, or none, is sampled. Tiled blocks are left alone:
their next tile does not follow in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from metasched.analysis.block import TILED, is_leaf
from metasched.analysis.scope import Child, Scope
from metasched.ir.buffer import Buffer
from metasched.ir.expr import as_int
from metasched.lower.passes.prefetch import AHEAD
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.strides import has_vectors
from metasched.space.tiling import uniform


@dataclass(frozen=True, slots=True)
class PrefetchRows:
    """Offer to prefetch the rows of large arguments (see the file's docstring).

    Attributes:
        rows: choices of how many rows ahead.
        least: the fewest bytes of an argument; smaller arguments stay in the cache.
    """

    rows: Sequence[int] = (0, 1, 2)
    least: int = 1 << 18

    @property
    def name(self) -> str:
        return "prefetch_rows"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        node = realize.block
        if sch.state.parent(realize) is None or {TILED, AHEAD} & node.annotations.keys():
            return [sch]
        if is_leaf(node) is not None or not has_vectors(node):
            return [sch]
        scope = sch.state.scope(realize)
        child = scope.child(node.token)
        beside = scope.under(child.loops[0]) if child.loops else ()
        if len(beside) < 2 or any(TILED in c.block.annotations for c in beside):
            return [sch]
        _, func = sch.state.func_of(realize)
        lengths = {
            as_int(r.buffer.shape[-1])
            for r in node.reads
            if r.buffer in func.params and self._large(r.buffer) and _last(scope, child, r.buffer)
        }
        length = lengths.pop() if len(lengths) == 1 else None
        if length is not None:
            ahead = [n * length for n in self.rows]
            choice = uniform(sch, ahead)
            sch.annotate(block, AHEAD, choice)
        return [sch]

    def _large(self, buffer: Buffer) -> bool:
        return prod(as_int(n) or 0 for n in buffer.shape) * buffer.dtype.bytes >= self.least


def _last(scope: Scope, child: Child, buffer: Buffer) -> bool:
    """Whether no later block of the same nest reads the buffer."""
    readers = [c for c in scope.readers(buffer) if c.loops[:1] == child.loops[:1]]
    return readers[-1].token is child.token

"""turned_operands: what lanes of ordered loops read lies side by side in a copy.

    for t, j: for b in lanes: C[t + 1, j + 1, b] = f(X[b, t], C[t, j, b], C[t + 1, j, b])
    ->
    X_t[t, b] = X[b, t]
    for t, j: for b in lanes: C[t + 1, j + 1, b] = f(X_t[t, b], C[t, j, b], C[t + 1, j, b])

A block whose other loops need their order has lanes along the iterations that are independent. A
small operand that has its rows along another iterator would keep it from vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

from metasched.analysis.access import SHUFFLED, accesses
from metasched.analysis.block import TILED, is_leaf
from metasched.ir.buffer import Buffer
from metasched.ir.expr import Var, as_int
from metasched.ir.stmt import Block, IterKind
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.lane_layout import dimension, move_last, turnable
from metasched.space.strides import has_vectors, iter_stride
from metasched.space.tiling import changed, untouched


@dataclass(frozen=True, slots=True)
class TurnedOperands:
    """Offer a block with turned copies of operands, beside the unchanged block, if it has vectors
    only then.

    Attributes:
        least: how often each element of a copy is read at least.
    """

    least: int = 8

    @property
    def name(self) -> str:
        return "turned_operands"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        node = realize.block
        if sch.state.parent(realize) is None or TILED in node.annotations:
            return [sch]
        ordered = any(v.kind is IterKind.OPAQUE for v in node.iter_vars)
        if not ordered or is_leaf(node) is not None or has_vectors(node):
            return [sch]
        if not untouched(sch.state.scope(realize).child(node.token)):
            return [sch]
        times = prod(sch.state.size(v.dom.extent) or 1 for v in node.iter_vars)
        for v in node.iter_vars:
            found = _operands(node, v.var, times // self.least)
            if not v.is_reduce and as_int(v.dom.extent) != 1 and found:
                return [*changed(sch, partial(_turn, block, found)), sch]
        return [sch]


def _operands(node: Block, var: Var, most: int) -> dict[Buffer, int]:
    """The buffers of which a block loads lanes along an iterator that lie apart, each with the
    dimension of the lanes; none if other accesses are no vectors, or a buffer is large."""
    apart: dict[Buffer, int] = {}
    every = accesses(node)
    for access in every:
        stride = iter_stride(access, var)
        if stride == 1 or (not access.is_write and stride is not None and -1 <= stride <= SHUFFLED):
            continue
        found = [a for a in every if a.buffer is access.buffer]
        size = prod(access.buffer.constant_shape() or (most + 1,))
        if not turnable(found, var) or size > most:
            return {}
        apart[access.buffer] = dimension(found, var) or 0
    return apart


def _turn(block: BlockRV, found: dict[Buffer, int], sch: Schedule) -> bool:
    for buffer, dim in found.items():
        place = next(n for n, r in enumerate(sch.get(block).reads) if r.buffer is buffer)
        move_last(sch, sch.cache_read(block, place, "global", [block]), 0, dim)
    return has_vectors(sch.get(block))

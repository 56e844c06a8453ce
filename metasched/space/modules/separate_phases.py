"""separate_phases: windows that move by several elements read copies of every such element.

    Y[n] += X[4 * n + k] * h[k]                     lanes of n lie 4 elements apart
    ->
    P[p, m] = X[4 * m + p]
    Y[n] += P[k % 4, n + k // 4] * h[k]             lanes of n lie side by side

Decimating filters and convolutions with steps are such windows. Each vector of lanes that lie apart
is shuffled from several; the phases P of a signal are shuffled once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from metasched.analysis.access import accesses
from metasched.analysis.block import TILED, is_leaf
from metasched.arith.affine import linear
from metasched.ir.dtype import DType
from metasched.ir.expr import Expr, FloatImm, IntImm, as_int
from metasched.ir.stmt import Block
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.strides import vector_iter
from metasched.space.tiling import changed, untouched


@dataclass(frozen=True, slots=True)
class SeparatePhases:
    """Offer a block with copies of the phases that its windows read, beside the unchanged block.

    Attributes:
        most: the longest step of a window.
        least: how often each element of the copy is read at least.
    """

    most: int = 8
    least: int = 8

    @property
    def name(self) -> str:
        return "separate_phases"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        node = realize.block
        if sch.state.parent(realize) is None or TILED in node.annotations:
            return [sch]
        if is_leaf(node) is not None or all(v.is_spatial for v in node.iter_vars):
            return [sch]
        if not untouched(sch.state.scope(realize).child(node.token)):
            return [sch]
        found = [
            (place, step)
            for place, region in enumerate(node.reads)
            if 1 < (step := _step(node, place)) <= self.most
            and _uses(sch, node) >= self.least * prod(region.buffer.constant_shape() or (1 << 62,))
        ]
        if not found:
            return [sch]
        return [*changed(sch, lambda variant: _separate(variant, block, found)), sch]


def _step(node: Block, place: int) -> int:
    """By how many elements neighbouring results move a window along the last dimension of a read;
    0 where other iterators do not move it by less."""
    buffer, lane = node.reads[place].buffer, vector_iter(node)
    found = [a for a in accesses(node) if a.buffer is buffer]
    if lane is None or len({a.indices for a in found}) != 1 or any(a.is_write for a in found):
        return 0
    *others, last = [linear(index) for index in found[0].indices]
    step = last.terms.get(lane.var, 0)
    ordered = [last.terms.get(v.var, 0) for v in node.iter_vars if not v.is_spatial]
    plain = last.terms.keys() <= {v.var for v in node.iter_vars}
    apart = any(lane.var in form.terms for form in others)
    return step if plain and not apart and any(by % step for by in ordered if step > 0) else 0


def _uses(sch: Schedule, node: Block) -> int:
    return prod(sch.state.size(v.dom.extent) or 1 for v in node.iter_vars)


def _separate(sch: Schedule, block: BlockRV, found: Sequence[tuple[int, int]]) -> None:
    """Copy each read that is found, in phases."""
    for place, step in found:
        buffer = sch.get(block).reads[place].buffer
        copy = sch.cache_read(block, place, "global", [block])
        whole = (as_int(buffer.shape[-1]) or 0) % step == 0
        sch.transform_layout(
            copy,
            ("write", 0),
            lambda *i, step=step: (*i[:-1], i[-1] % step, i[-1] // step),
            pad_value=None if whole else _zero(buffer.dtype),
        )


def _zero(dtype: DType) -> Expr:
    return FloatImm(dtype, 0.0) if dtype.is_float else IntImm(dtype, 0)

"""join_iterators: one iterator for each index that several iterators of a block make up.

D[2 * h + y, 2 * w + x] += G[h, w] where X[2 * h + y, 2 * w + x] == M[h, w]      lanes x in 2
->
D[i, j] += G[i // 2, j // 2] where X[i, j] == M[i // 2, j // 2]                  lanes j in 2 * w

So a pooling's gradient, an image drawn larger, or blocks of pixels get vectors along whole rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metasched.analysis.access import SHUFFLED
from metasched.analysis.block import TILED
from metasched.arith.affine import linear
from metasched.arith.indexmap import IndexMap
from metasched.ir.expr import Expr, Var, as_int
from metasched.ir.stmt import Block, IterVar
from metasched.ir.visit import free_vars
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import undo_to
from metasched.space.strides import has_vectors
from metasched.space.tiling import changed, untouched


@dataclass(frozen=True, slots=True)
class JoinIterators:
    """Join the spatial iterators of an elementwise block that make up an index of its store, if the
    joined iterators have vectors."""

    @property
    def name(self) -> str:
        return "join_iterators"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        if not _digits(sch, block):
            return [sch]
        return changed(sch, lambda variant: join_iterators(variant, block)) or [sch]


def join_iterators(sch: Schedule, block: BlockRV, fewest: int = 0) -> bool:
    """Rewrite a block as the file's docstring shows, if it has vectors then.

    Args:
        fewest: only where an iterator of the joined ones has fewer iterations alone.
    """
    groups, iters = _digits(sch, block), sch.get(block).iter_vars
    extents = {v.var: as_int(v.dom.extent) or 0 for v in iters}
    if not groups or (fewest and min(extents[g[-1]] for g in groups) >= fewest):
        return False
    before = len(sch.trace)
    sch.transform_block_layout(block, _joined(iters, groups))
    if has_vectors(sch.get(block)):
        return True
    undo_to(sch, before)
    return False


def _digits(sch: Schedule, block: BlockRV) -> list[list[Var]]:
    """The `_groups` of an untouched elementwise block; none for another block."""
    realize = sch.state.block(block)
    node = realize.block
    if sch.state.parent(realize) is None or TILED in node.annotations:
        return []
    plain = all(v.is_spatial for v in node.iter_vars) and node.init is None
    if not plain or not untouched(sch.state.scope(realize).child(node.token)):
        return []
    return _groups(node)


def _groups(block: Block) -> list[list[Var]]:
    """The iterators of each index of the only store that several make up as digits, outermost
    first. None where the last index that moves is not among them: rows are vectors as they are."""
    found: list[list[Var]] = []
    if len(block.writes) != 1:
        return found
    extents = {v.var: as_int(v.dom.extent) or 0 for v in block.iter_vars}
    region = list(block.writes[0].region)
    parts = 1  # of an element, as colours of a pixel, stored by statements of their own
    while region and not free_vars(region[-1].min) and parts <= SHUFFLED:
        parts *= as_int(region.pop().extent) or SHUFFLED + 1
    if parts > SHUFFLED:
        return found
    for r in region:
        form = linear(r.min)
        digits = sorted(form.terms, key=lambda v: form.terms[v])
        factor = 1
        group: list[Var] = []
        for v in digits:
            if not isinstance(v, Var) or v not in extents or form.terms[v] != factor:
                break
            group.append(v)
            factor *= extents[v]
        if form.const == 0 and len(group) == len(digits) > 1 and as_int(r.extent) == 1:
            found.append(group[::-1])
        elif r is region[-1]:
            return []
    every = [v for group in found for v in group]
    return found if len(every) == len(set(every)) else []


def _joined(iters: Sequence[IterVar], groups: Sequence[Sequence[Var]]) -> IndexMap:
    """The map that puts each group in the place of its outermost iterator."""
    inputs = {v.var: Var(f"i{n}", v.var.dtype) for n, v in enumerate(iters)}
    extents = {v.var: v.dom.extent for v in iters}
    outputs: list[Expr] = []
    for v in iters:
        group = next((g for g in groups if v.var in g), [v.var])
        if group[0] is v.var:
            index: Expr = inputs[v.var]
            for inner in group[1:]:
                index = index * extents[inner] + inputs[inner]
            outputs.append(index)
    return IndexMap(tuple(inputs.values()), tuple(outputs))

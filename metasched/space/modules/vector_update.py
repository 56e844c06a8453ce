"""vector_update: sum an update along contiguous memory in vector lanes, without moving the block.

    for k in range(j): A[i, j] -= A[i, k] * A[j, k]

Dot products of run-time extent stand in loops that other blocks share (factorizations, triangular
solves), so that no tiling takes the block. An argmax in plain loops, and a largest float, keep the
first of equal values in lanes, too (`lower.passes.fold_choice`). The module only adds the note
`pragma_fold_lanes`: `lower.passes.fold` proves that the partial results are independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod

from metasched.analysis.access import strides
from metasched.analysis.block import FOLD, TILED, is_leaf, loop_iter_kind
from metasched.analysis.reducer import identity_of
from metasched.analysis.scope import Child
from metasched.arith.affine import interval
from metasched.arith.bounds import Interval
from metasched.ir.dtype import DType
from metasched.ir.expr import TRUE, Var, as_int
from metasched.ir.stmt import BlockRealize, BufferStore, For, ForKind, IterKind, Stmt
from metasched.lower.passes.fold_choice import takes_lanes
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.tiling import choice

MOST = 8
"""The most vector registers of partial results."""
LONG = 16
"""Sums of this many vectors at most are offered in lanes alone."""


@dataclass(frozen=True, slots=True)
class VectorUpdate:
    """Offer lanes for an update whose innermost loop runs along memory.

    Short loops are offered without lanes, too.

    Attributes:
        vector_bits: the bits of a vector register.
        vectors: choices of how many registers of partial results are kept.
    """

    vector_bits: int = 256
    vectors: Sequence[int] = (1, 2, 4)

    @property
    def name(self) -> str:
        return "vector_update"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        if sch.state.parent(realize) is None or {TILED, FOLD} & realize.block.annotations.keys():
            return [sch]
        child = sch.state.scope(realize).child(realize.block.token)
        if not child.loops:
            return [sch]
        dtype = child.block.writes[0].buffer.dtype if _sums(child) else _kept_type(child)
        length = None if dtype is None else _length(child)
        if length is None or dtype is None:
            return [sch]
        lanes = self.vector_bits // dtype.bits
        rows = prod(
            as_int(n.extent) or 1 for n in _unrolled(realize, sch.state.loops_above(realize))
        )
        widths = [
            lanes * v
            for v in self.vectors
            if 1 < lanes * v <= length and v * rows <= max(MOST, rows)
        ]
        if not widths:
            return [sch]
        variant = sch.copy()
        width = choice(variant, widths)
        variant.annotate(block, FOLD, width)
        return [variant] if length >= LONG * lanes else [variant, sch]


def update_length(child: Child) -> int | None:
    """The most values that an update without init adds up along contiguous memory.

    Unrolled loops directly around the block run over several results.

    None for blocks that hold blocks, blocks with a predicate, and blocks whose innermost loop is
    shared, is no reduction, or reads memory with strides.
    """
    return _length(child) if _sums(child) else None


def _length(child: Child) -> int | None:
    """The most iterations of the innermost loop of an update that combines contiguous memory."""
    block, loops = child.block, child.loops
    if block.init is not None or is_leaf(block) is not None or not loops:
        return None
    inner = _unrolled(child.realize, loops)
    loops, inside = loops[: len(loops) - len(inner)], (*inner, child.realize)[0]
    if not loops or child.realize.predicate is not TRUE:
        return None
    loop = loops[-1]
    if loop.body is not inside or loop.kind is not ForKind.SERIAL or loop.annotations:
        return None
    moves = strides(child, loop)
    steps = [step for _, step in moves]
    if 1 not in steps or any(step not in (-1, 0, 1) for step in steps):
        return None
    if any(step != 0 for access, step in moves if access.is_write):
        return None
    ranges: dict[Var, Interval] = {}
    for outer in loops[:-1]:
        low, high = interval(outer.min, ranges)
        ranges[outer.var] = low, high + max(interval(outer.extent, ranges)[1] - 1, 0)
    most = interval(loop.extent, ranges)[1]
    return None if most == inf else int(most)


def _sums(child: Child) -> bool:
    """Whether the innermost loop, around unrolled loops, combines values in any order."""
    loops = child.loops[: len(child.loops) - len(_unrolled(child.realize, child.loops))]
    body = child.block.body
    if not loops or not isinstance(body, BufferStore) or identity_of(body.value) is None:
        return False
    return loop_iter_kind(loops[-1], (child,)) is IterKind.REDUCE


def _kept_type(child: Child) -> DType | None:
    """The type of the values of an argmax, or of a largest value, whose order the lanes keep; None
    for other blocks."""
    bound, loop = child.realize.iter_values, child.loops[-1]
    if loop.var not in bound or as_int(loop.extent) is None:
        return None
    return takes_lanes(child.block.body, child.block.iter_vars[bound.index(loop.var)].var)


def _unrolled(realize: BlockRealize, loops: Sequence[For]) -> tuple[For, ...]:
    """The unrolled loops of constant range that hold nothing but a block, outermost first."""
    found: list[For] = []
    inside: Stmt = realize
    for loop in reversed(loops):
        fixed = as_int(loop.min) is not None and as_int(loop.extent) is not None
        if loop.body is not inside or loop.kind is not ForKind.UNROLLED or not fixed:
            break
        found.append(loop)
        inside = loop
    return tuple(reversed(found))

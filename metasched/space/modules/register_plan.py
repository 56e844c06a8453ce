"""register_plan: how register_tiling vectorizes a block and packs its operands, before sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from metasched.analysis.access import accesses
from metasched.analysis.reducer import match_reducer
from metasched.analysis.scope import Child
from metasched.errors import ScheduleError
from metasched.ir.expr import Expr, Mul, as_int
from metasched.ir.stmt import Block, IterKind
from metasched.ir.visit import free_vars
from metasched.schedule.handles import BlockRV, ExprRV, LoopRV
from metasched.schedule.primitives.chain_sum import terms_of
from metasched.schedule.schedule import Schedule
from metasched.space.modules.tensor_form import TensorForm
from metasched.space.packing import Operand, fill_panel, woven_iters
from metasched.space.strides import FEW, iter_stride, loads_run_along, rows_of, vector_iter
from metasched.space.tiling import Axis, epilogue_of, untouched

Tiles: TypeAlias = dict[Axis, tuple[Sequence[int], Sequence[ExprRV]]]
"""For each axis, the levels of its parts and their factors."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a block is vectorized and which operands are packed, before any sampling.

    Attributes:
        vector: the position of the vector iterator.
        widths: the choices of lanes of a vector.
        packable: the choices of the packed operand; None for no packing.
        step: the columns are padded to a multiple of this number.
        ahead: constant operands: their panels are packed once, before the kernel runs.
        direct: operands that few rows use, which may be read unpacked.
        form: the tensor instructions to use instead of vectors; None for vectors.
        at_run_time: the number of columns is known at run time only.
        ordered: the terms of the block keep their order.
        in_place: the block updates results in memory, which no stage stores.
        woven: the position of the iterator whose few results lie between two lanes in memory.
    """

    vector: int
    widths: tuple[int, ...]
    packable: tuple[Operand | None, ...]
    step: int = 1
    ahead: tuple[Operand, ...] = ()
    direct: tuple[Operand, ...] = ()
    form: TensorForm | None = None
    at_run_time: bool = False
    ordered: bool = False
    in_place: bool = False
    woven: int | None = None

    def spare(self, registers: int) -> int:
        """How many of the registers neither results nor columns take: one for an operand. Woven
        results have an operand each, which takes two loads and a shuffle."""
        return 1 if self.woven is None else 1 + registers // 3


def in_order(block: Block) -> bool:
    """Whether a block updates results in the order of its loops, as a sum of floats in plain
    loops."""
    return block.init is None and any(v.kind is IterKind.OPAQUE for v in block.iter_vars)


def lies_apart(sch: Schedule, block: Block, vector_bits: int) -> bool:
    """Whether vectors along a reduction read memory in order, and lanes along the results do not,
    as in X[4 * t + k] * H[k] for few rows: `vector_reduction` may be faster."""
    vector, result = vector_iter(block), block.writes[0].buffer
    loads = [a for a in accesses(block) if not a.is_write and a.buffer is not result]
    long = [
        v
        for v in block.iter_vars
        if v.is_reduce and (sch.state.size(v.dom.extent) or 0) * result.dtype.bits >= vector_bits
    ]
    return (
        vector is not None
        and any((iter_stride(a, vector.var) or 0) > 1 for a in loads)
        and any(loads_run_along(block, v.var) for v in long)
        and min(rows_of(sch, block, a) for a in loads) <= FEW
    )


def starter_of(sch: Schedule, block: BlockRV) -> Child | None:
    """The block that sets each result that an update starts from, at an index of its own.

    None unless exactly one other block writes the results before the update, and nothing else.
    """
    realize = sch.state.block(block)
    scope, buffer = sch.state.scope(realize), realize.block.writes[0].buffer
    writers = [c for c in scope.writers(buffer) if c.realize is not realize]
    if len(writers) != 1 or writers[0] not in scope.producers(realize.block.token):
        return None
    first = writers[0].block
    places = {r.min for w in first.writes for r in w.region if as_int(r.min) is None}
    own: set[Expr] = {v.var for v in first.iter_vars}
    moving = {v.var for v in first.iter_vars if as_int(v.dom.extent) != 1}
    alone = first.init is None and len(first.writes) == 1 and moving <= places <= own
    spatial = all(v.is_spatial for v in first.iter_vars)
    return writers[0] if alone and spatial and untouched(writers[0]) else None


def is_stage(sch: Schedule, block: BlockRV) -> bool:
    """Whether a block sets the results of an update, and another stores them."""
    return starter_of(sch, block) is not None and epilogue_of(sch, block) is not None


def chain_products(sch: Schedule, block: BlockRV, plan: Plan) -> None:
    """Let a sum of floats that adds several products in vectors, in any order, add them one after
    another: each takes one fused instruction."""
    node = sch.get(block)
    if plan.form is not None or plan.ordered or plan.in_place:
        return
    found = None if node.init is None else match_reducer(node.init, node.body)
    if found is None or found.name != "sum" or not found.buffers[0].dtype.is_float:
        return
    terms = [term for term, _ in terms_of(found.rhs[0])]
    if len(terms) > 1 and any(isinstance(term, Mul) for term in terms):
        with suppress(ScheduleError):  # the block adds them so, or may not be changed
            sch.chain_sum(block)


def overcompute(
    sch: Schedule, block: BlockRV, first: BlockRV | None, multiples: Mapping[int, Expr | int]
) -> None:
    """Pad iterators of a block, and those of the block that sets its results (see `starter_of`).

    Args:
        multiples: the multiples by positions of iterators; others are not padded.
    """
    node = sch.get(block)
    places = [r.min for r in node.writes[0].region]
    if first is not None:
        start = sch.get(first)
        indices = [r.min for r in start.writes[0].region]
        at: dict[Expr, Expr | int] = {
            node.iter_vars[n].var: factor for n, factor in multiples.items()
        }
        own = [
            at.get(places[indices.index(v.var)], 1) if v.var in indices else 1
            for v in start.iter_vars
        ]
        sch.overcompute(first, own)
    sch.overcompute(block, [multiples.get(n, 1) for n in range(len(node.iter_vars))])


def woven(sch: Schedule, block: BlockRV, finish: BlockRV | None, plan: Plan) -> int | None:
    """The position of the iterator whose few results `finish` stores between two lanes."""
    found = None if finish is None or plan.form is not None else woven_iters(sch, finish)
    if found is None or finish is None:
        return None
    node, last = sch.get(block), sch.get(finish)
    result = node.writes[0]
    held = next(r for r in last.reads if r.buffer is result.buffer)
    there = {h.min: r.min for r, h in zip(result.region, held.region, strict=True)}
    lane, few = (there.get(last.iter_vars[n].var) for n in found)
    iters: list[Expr] = [v.var for v in node.iter_vars]
    return iters.index(few) if few in iters and lane is iters[plan.vector] else None


def spreads(sch: Schedule, block: BlockRV, stage: BlockRV) -> bool:
    """Whether a stage uses each result of a block for many elements, too many to unroll."""
    node, buffer = sch.get(stage), sch.get(block).writes[0].buffer
    used = [region for region in (*node.reads, *node.writes) if region.buffer is buffer]
    places = frozenset().union(*(free_vars(r.min) for region in used for r in region.region))
    return any(v.var not in places and as_int(v.dom.extent) != 1 for v in node.iter_vars)


def columns_of(tiles: Tiles, plan: Plan) -> Sequence[ExprRV]:
    """The factors of the vector axis."""
    return next(factors for axis, (_, factors) in tiles.items() if axis.position == plan.vector)


def tile_step(plan: Plan, pack: Operand, lane: Axis, registers: int) -> int:
    """The number of columns of which a tile has a multiple: a vector, or the columns of a packed
    operand that few rows use and instructions copy at once."""
    if plan.form is None or pack.rows > FEW:
        return max(plan.widths)
    return plan.form.together(pack.rows, lane.extent or 1, registers)


def fill(
    sch: Schedule, panel: BlockRV, place: LoopRV, plan: Plan, width: ExprRV | int, depth: int = 1,
    wide: int | None = None,
) -> None:  # fmt: skip
    """Compute a panel at the loop `place`, the innermost of `depth` nested loops.

    Args:
        wide: how many columns instructions copy at once to registers; None for a panel in memory.
    """
    if plan.form is not None:
        plan.form.fill(sch, panel, place, depth, wide)
    else:
        fill_panel(sch, panel, place, depth, width, max(plan.widths))

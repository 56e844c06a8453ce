"""depth_blocking: a long reduction in slices, so that panels of both operands stay in the caches.

    for io, jo in parallel:
        for ko:                           # slices of the reduction
            [pack a slice of the columns of B]    # smaller than the second-level cache
            for i1, j1:
                registers = sum over the slice     # as in register_tiling
                results += registers
        [the elementwise consumer]

The loops of Goto and van de Geijn (2008) around the register block of `register_tiling`, which
holds a whole reduction in registers at once and so needs panels as deep as the reduction. The
results pass through memory once for each slice; slices are sampled, deep enough for that to pay.
Where few rows use an operand, packing it does not pay: a variant reads its slices where they are,
and asks for them a sampled number of steps ahead of time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from metasched.analysis.block import TILED
from metasched.ir.expr import EQ, Expr, as_expr, compare
from metasched.lower.passes.prefetch import AHEAD
from metasched.schedule.handles import BlockRV, ExprRV, LoopRV
from metasched.schedule.schedule import Schedule
from metasched.space.modules.register_tiling import (
    Operand,
    Plan,
    RegisterTiling,
    inner_loops,
    packed_panel,
    vectors,
)
from metasched.space.tiling import Axis, axes, changed, epilogue, product, tile, tileable

STRUCTURE = "SRSS"
_PARALLEL, _SLICE, _MIDDLE, _REGISTER = range(4)
PAGE = 1 << 12
AHEAD_STEPS = (0, 8, 16)
"""How many steps before it is used a row is asked for that is read where it is."""


@dataclass(frozen=True, slots=True)
class DepthBlocking:
    """See the file's docstring; offered beside what the modules after it make of the block.

    Attributes:
        blocks: how results are held in registers, and the limits of that.
        shallow: a reduction of fewer steps stays whole: its panels are small as they are.
        slices: the fewest and the most steps of a slice.
    """

    blocks: RegisterTiling
    shallow: int = 512
    slices: tuple[int, int] = (64, 4096)

    @property
    def name(self) -> str:
        return "depth_blocking"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        if not tileable(sch, block):
            return [sch]
        depth = math.prod(a.extent or 1 for a in axes(sch, block) if not a.spatial)
        ways = []
        for plan in self.blocks.plans(sch, block) if depth >= self.shallow else ():
            now = [o for o in plan.packable if o is not None]
            pairs = [(o, True) for o in (*now, *plan.ahead)] + [(o, False) for o in now if o.stride]
            ways += [partial(self._apply, block, plan, *pair) for pair in pairs if plan.step == 1]
        return [sch, *changed(sch, *ways)]

    def _apply(
        self, block: BlockRV, plan: Plan, operand: Operand, pack: bool, sch: Schedule
    ) -> None:
        """All steps; without `pack` the slices of the operand are read where they are."""
        finish = epilogue(sch, block)
        item = sch.get(block).reads[operand.index].buffer.dtype.bytes
        panel = packed_panel(sch, block, operand, plan) if pack else None
        reduced = [a for a in axes(sch, block) if not a.spatial]
        slices, steps = self._slices(sch, reduced)
        part = sch.rfactor(slices, 0)
        sch.set_scope(part, 0, "local")
        # the slices are the first iterator of both parts, before those that the plan speaks of
        every = [replace(a, position=a.position - 1) for a in axes(sch, block)]
        width, tiles, results = self._tiles(sch, every, plan, operand)
        every.append(every.pop(next(n for n, a in enumerate(every) if a.position == plan.vector)))
        row: Expr | int = min(operand.stride * item, PAGE)  # few sets of a cache hold parts of rows
        if pack:
            row = product([*tiles[every[-1]][1][1:], item])
        sch.require(as_expr(product([*steps, row])) <= self.blocks.panel_bytes)
        levels = tile(sch, STRUCTURE, [(a, *tiles[a]) for a in every])
        outer = sch.fuse(*levels[_PARALLEL])
        place = levels[_MIDDLE][-1]
        sch.compute_at(part, place, preserve_unit_loops=True)
        self._inner(sch, part, 2 + len(levels[_MIDDLE]), plan, width, results)
        if panel is None:
            far = [n * operand.stride for n in AHEAD_STEPS]
            sch.annotate(part, AHEAD, sch.sample_categorical(far, [1.0 / len(far)] * len(far)))
        elif operand not in plan.ahead:
            self.blocks.fill(sch, panel, levels[_SLICE][-1], plan, width, 2)
        vectors(sch, levels[_REGISTER], len(levels[_REGISTER]) - 1, width)
        if finish is not None:
            sch.reverse_compute_at(finish, outer, preserve_unit_loops=True)
            last = inner_loops(sch, finish, 1)[-1]
            sch.vectorize(sch.split(last, [None, width])[1])
            sch.annotate(finish, TILED, STRUCTURE)
        sch.parallel(outer)
        for tiled in (block, part):
            sch.annotate(tiled, TILED, STRUCTURE)

    def _slices(self, sch: Schedule, reduced: Sequence[Axis]) -> tuple[LoopRV, Sequence[ExprRV]]:
        """One loop over the slices, outside of the reduction loops, and the steps of a slice."""
        taken = [sch.sample_perfect_tile(a.loop, 2, self.slices[1]) for a in reduced]
        loops = [sch.split(a.loop, list(t)) for a, t in zip(reduced, taken, strict=True)]
        outer, inner = zip(*loops, strict=True)
        counts, steps = zip(*taken, strict=True)
        sch.require(as_expr(product(counts)) >= 2)
        sch.require(as_expr(product(steps)) >= self.slices[0])
        sch.require(as_expr(product(steps)) <= self.slices[1])
        sch.reorder(*outer, *inner)
        return sch.fuse(*outer), steps

    def _tiles(
        self, sch: Schedule, every: Sequence[Axis], plan: Plan, pack: Operand
    ) -> tuple[ExprRV | int, dict[Axis, tuple[Sequence[int], Sequence[ExprRV]]], Expr]:
        """The width of a vector; for each axis of the results, its levels and factors; how many
        registers the results of a block fill."""
        tiles: dict[Axis, tuple[Sequence[int], Sequence[ExprRV]]] = {}
        spatial = [a for a in every if a.spatial]
        levels = (_PARALLEL, _MIDDLE, _REGISTER)
        lane = next(a for a in spatial if a.position == plan.vector)
        again = self.blocks.repacked(spatial, lane, pack)
        width, columns = self.blocks.columns(sch, lane, plan)
        sch.require(compare(EQ, columns[1] * columns[2] % max(plan.widths), 0))
        outside: list[ExprRV] = []
        held: list[Expr] = [columns[2] // width]
        for axis in every:
            if not axis.spatial:
                tiles[axis] = ((_SLICE,), ())
            elif axis is lane:
                tiles[axis] = (levels, columns)
            elif axis.extent == 1 or axis.position in pack.batch:
                tiles[axis] = ((_PARALLEL,), ())
            else:
                most = max(1, self.blocks.registers - 2)
                places = levels if again > 1 else levels[1:]
                taken = sch.sample_perfect_tile(axis.loop, len(places), most)
                tiles[axis] = (places, taken)
                held.append(taken[-1])
                outside += taken[: len(places) - 2]
        results = as_expr(product(held))
        if outside:
            sch.require(as_expr(product(outside)) <= again)
        sch.require(results + held[0] + 1 <= self.blocks.registers)
        least = self.blocks.least([a for a in spatial if tiles[a][1]], plan, padded=False)
        if least > 1:
            sch.require(results >= least)
        self.blocks.balance(sch, spatial, tiles)
        return width, tiles, results

    def _inner(
        self,
        sch: Schedule,
        part: BlockRV,
        depth: int,
        plan: Plan,
        width: ExprRV | int,
        results: Expr,
    ) -> None:
        """The loops of a slice: its steps, the last ones unrolled, around the register block."""
        node = sch.get(part)
        loops = inner_loops(sch, part, depth)
        columns = loops[1 + plan.vector]
        pairs = [p for p in zip(node.iter_vars[1:], loops[1:], strict=True) if p[1] != columns]
        rows = [loop for v, loop in pairs if v.is_spatial]
        steps = [loop for v, loop in pairs if not v.is_spatial]
        taken = sch.sample_perfect_tile(steps[-1], 2, 8)
        sch.require(taken[1] * results <= self.blocks.body)
        rolled, unrolled = sch.split(steps[-1], list(taken))
        sch.reorder(*steps[:-1], rolled, unrolled, *rows, columns)
        sch.unroll(unrolled)
        vectors(sch, [*rows, columns], len(rows), width)

"""depth_blocking: a long reduction in slices, so that panels of both operands stay in the caches.

    for io, jo in parallel:
        for ko:                           # slices of the reduction
            [pack a slice of the columns of B]    # smaller than the second-level cache
            for i1, j1:
                registers = sum over the slice     # as in register_tiling
                results += registers
        [the elementwise consumer]

These are the loops of Goto and van de Geijn (2008) around the register block of `register_tiling`.
Without slices, a register block runs the whole reduction, and its panels are as deep as the
reduction. Results pass through memory once for each slice; the sampled slices are deep enough to
make up for it. Where few rows use an operand, packing does not pay: a variant reads its slices
unpacked, and prefetches them a sampled number of steps ahead. Tensor instructions read them through
registers (`tensor_form`). In a further variant the cores share the reduction, not the columns, so
that a core reads memory from end to end:

    for p in parallel:                    # parts of the reduction
        for ko:                           # slices of a part, of few rows
            for j1: sums[p] += registers
    C = the sum over p of sums[p]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from metasched.analysis.block import FOLD, TILED
from metasched.errors import ScheduleError
from metasched.ir.expr import Expr, as_expr, as_int
from metasched.lower.passes.prefetch import AHEAD
from metasched.schedule.handles import BlockRV, ExprRV, LoopRV
from metasched.schedule.schedule import Schedule
from metasched.space.modules.register_plan import Plan, fill, tile_step
from metasched.space.modules.register_tiling import RegisterTiling
from metasched.space.modules.rfactor import PARTIAL
from metasched.space.modules.tensor_form import TensorForm
from metasched.space.packing import Operand, packed_panel, strips
from metasched.space.strides import FEW
from metasched.space.tiling import (
    Axis,
    axes,
    changed,
    epilogue,
    product,
    tile,
    tileable,
    uniform,
    vectors,
    within_parallel,
)

STRUCTURE = "SRSS"
_PARALLEL, _SLICE, _MIDDLE, _REGISTER = range(4)
PAGE = 1 << 12
STREAMS = (4, 64)
"""The fewest and the most steps of a slice where few rows use the operand. A core reads this many
rows of the operand side by side, as streams, and the results come from the nearest cache."""
STRETCH = 1 << 11
"""Bytes of a row of an unpacked operand, at least, that a core reads without a break."""
AHEAD_STEPS = (0, 8, 16)
"""Choices of how many steps ahead a row of an unpacked operand is prefetched."""
LARGE = 1 << 17
"""Bytes of an operand, at least, of which the cores read different rows."""
PARTS = 4
"""The most parts of a reduction for each core."""


@dataclass(frozen=True, slots=True)
class DepthBlocking:
    """Offer slices of a long reduction (see the file's docstring), beside the unchanged block.

    Attributes:
        blocks: the register tiling of the results, with its limits.
        shallow: a reduction of fewer steps is not sliced: its panels are small anyway.
        slices: the fewest and the most steps of a slice.
    """

    blocks: RegisterTiling
    shallow: int = 512
    slices: tuple[int, int] = (64, 4096)

    @property
    def name(self) -> str:
        return "depth_blocking"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        constant = all(as_int(v.dom.extent) is not None for v in sch.get(block).iter_vars)
        if not constant or not tileable(sch, block, reuse=False):
            return [sch]
        found = self.offered(sch, block, self.blocks.plans(sch, block))
        return [sch, *found, *self.in_parts(sch, block)]

    def in_parts(
        self, sch: Schedule, block: BlockRV, form: TensorForm | None = None
    ) -> list[Schedule]:
        """The variants with slices in which each core has rows of its own of a large operand that
        few rows use, and sums of its own."""
        plans = self.blocks.plans(sch, block, form)
        operands = (o for plan in plans for o in (*plan.packable, *plan.direct))
        large = any(o is not None and o.rows <= FEW and o.bytes >= LARGE for o in operands)
        if not large or self.blocks.cores < 2 or within_parallel(sch, block):
            return []
        if PARTIAL in sch.get(block).annotations:
            return []
        found: list[Schedule] = []
        made: list[BlockRV] = []
        for variant in changed(sch, lambda v: made.append(self._in_parts(v, block, plans[0]))):
            found += self.offered(variant, made[0], self.blocks.plans(variant, made[0], form))
            sch.refused += variant.refused
        return found

    def _in_parts(self, sch: Schedule, block: BlockRV, plan: Plan) -> BlockRV:
        """Cut a reduction into parts for the cores; returns the block with a part's sums, whose
        first iterator counts the parts. The given block adds the sums up."""
        reduced = [a for a in _reduced(sch, block, plan) if a.extent != 1]
        if not reduced:
            why = f"{sch.get(block).name} has no reduction that could be cut into parts"
            raise ScheduleError("depth_blocking", "no-reduction", why)
        taken = sch.sample_perfect_tile(reduced[0].loop, 2, -1)
        sch.require(taken[0] >= self.blocks.cores)
        sch.require(taken[0] <= self.blocks.cores * PARTS)
        outer, _ = sch.split(reduced[0].loop, list(taken))
        part = sch.rfactor(outer, 0)
        loops = sch.get_loops(part)
        at = next(n for n, a in enumerate(axes(sch, part)) if a.position == 0)
        sch.reorder(loops[at], *loops[:at])
        sch.annotate(block, PARTIAL, 1)
        sch.annotate(block, FOLD, 1)
        return part

    def offered(self, sch: Schedule, block: BlockRV, plans: Sequence[Plan]) -> list[Schedule]:
        """The variants with slices, for plans of the register tiling."""
        found: list[Schedule] = []
        reuse = tileable(sch, block)
        for plan in plans:
            depth = math.prod(a.extent or 1 for a in _reduced(sch, block, plan))
            pairs = [(o, True) for o in (*plan.packable, *plan.ahead) if o is not None and reuse]
            pairs += [(o, False) for o in plan.direct]
            for o, pack in pairs if plan.step == 1 else ():
                whole = pack and plan.form is None  # a form packs the operand even for few rows
                if depth >= (self.shallow if whole or o.rows > FEW else 2 * STREAMS[0]):
                    way = partial(self._apply, block, plan, o, pack)
                    found += changed(sch, partial(way, True)) or changed(sch, partial(way, False))
        return found

    def _apply(
        self, block: BlockRV, plan: Plan, operand: Operand, pack: bool, long: bool, sch: Schedule
    ) -> None:
        """Apply all steps. `pack`: pack the slices of the operand. `long`: require tiles that read
        rows of at least STRETCH bytes, for an operand that few rows use."""
        finish = epilogue(sch, block)
        panel, lanes = packed_panel(sch, block, operand, plan.vector) if pack else (None, 0)
        reduced = [a for a in _reduced(sch, block, plan) if a.extent != 1]
        spatial = [a.position for a in axes(sch, block) if a.spatial]
        few = operand.rows <= FEW and (not pack or plan.form is not None)
        group = 1 if plan.form is None else plan.form.group
        limits = STREAMS if few else self.slices
        slices, steps = self._slices(sch, reduced, (max(1, limits[0] // group), limits[1] // group))
        part = sch.rfactor(slices, 0)
        sch.set_scope(part, 0, "local")
        # The slices are the first iterator of both parts; the plan counts iterators after it.
        every = [replace(a, position=a.position - 1) for a in axes(sch, block)]
        if spatial != [a.position for a in every if a.spatial]:
            why = "a reduction iterator stands before a spatial one, whose position slicing changes"
            raise ScheduleError("depth_blocking", "reduction-first", why)
        width, tiles, results = self.blocks.results(
            sch, every, plan, operand, (_PARALLEL, _MIDDLE, _REGISTER), padded=False
        )
        tiles.update({a: ((_SLICE,), ()) for a in every if not a.spatial})
        every.append(every.pop(next(n for n, a in enumerate(every) if a.position == plan.vector)))
        columns = tiles[every[-1]][1]
        if few and long:
            stretches = (every[-1].extent or 1) * operand.item // STRETCH
            sch.require(columns[0] <= max(stretches, self.blocks.cores))
        row = product([*columns[1:], operand.item])
        if panel is not None:
            store = strips if plan.form is None else plan.form.strips
            store(sch, panel, lanes, columns[-1])
        if panel is None or few:
            # Unpacked rows lie far apart, and may compete for few sets of a cache.
            row = min(operand.stride * operand.item, PAGE)
        sch.require(as_expr(product([*steps, row, group])) <= self.blocks.panel_bytes)
        levels = tile(sch, STRUCTURE, [(a, *tiles[a]) for a in every])
        outer = sch.fuse(*levels[_PARALLEL])
        place = levels[_MIDDLE][-1]
        sch.compute_at(part, place, preserve_unit_loops=True)
        rolled, below = self._inner(sch, part, 2 + len(levels[_MIDDLE]), plan, width, results)
        if panel is None:
            far = [n * operand.stride for n in AHEAD_STEPS]
            sch.annotate(part, AHEAD, uniform(sch, far))
        elif operand not in plan.ahead:
            at, depth = (rolled, below) if few else (levels[_SLICE][-1], 2)
            wide = tile_step(plan, operand, every[-1], self.blocks.registers) if few else None
            fill(sch, panel, at, plan, width, depth, wide)
        vectors(sch, levels[_REGISTER], len(levels[_REGISTER]) - 1, width)
        if finish is not None:
            sch.reverse_compute_at(finish, outer, preserve_unit_loops=True)
            last = sch.get_loops(finish)[-1]
            sch.vectorize(sch.split(last, [None, width])[1])
            sch.annotate(finish, TILED, STRUCTURE)
        sch.parallel(outer)
        for tiled in (block,) if plan.form is not None else (block, part):
            sch.annotate(tiled, TILED, STRUCTURE)

    def _slices(
        self, sch: Schedule, reduced: Sequence[Axis], limits: tuple[int, int]
    ) -> tuple[LoopRV, Sequence[ExprRV]]:
        """Make one loop over the slices, outside the reduction loops; returns the loop and the
        number of steps that a slice takes of each reduction loop."""
        taken = [sch.sample_perfect_tile(a.loop, 2, limits[1]) for a in reduced]
        loops = [sch.split(a.loop, list(t)) for a, t in zip(reduced, taken, strict=True)]
        outer, inner = zip(*loops, strict=True)
        counts, steps = zip(*taken, strict=True)
        sch.require(as_expr(product(counts)) >= 2)
        sch.require(as_expr(product(steps)) >= limits[0])
        sch.require(as_expr(product(steps)) <= limits[1])
        sch.reorder(*outer, *inner)
        return sch.fuse(*outer), steps

    def _inner(
        self,
        sch: Schedule,
        part: BlockRV,
        depth: int,
        plan: Plan,
        width: ExprRV | int,
        results: Expr,
    ) -> tuple[LoopRV, int]:
        """Order the loops of a slice: its steps (the last unrolled) around the register block.

        Returns the innermost loop over steps that is not unrolled, and its depth.
        """
        node = sch.get(part)
        loops = sch.get_loops(part)[depth:]
        columns = loops[1 + plan.vector]
        pairs = [p for p in zip(node.iter_vars[1:], loops[1:], strict=True) if p[1] != columns]
        rows = [loop for v, loop in pairs if v.is_spatial]
        steps = [loop for v, loop in pairs if not v.is_spatial]
        group = [] if plan.form is None else [steps.pop()]
        taken = sch.sample_perfect_tile(steps[-1], 2, 8)
        sch.require(taken[1] * results <= self.blocks.body)
        rolled, unrolled = sch.split(steps[-1], list(taken))
        sch.reorder(*steps[:-1], rolled, unrolled, *rows, columns)
        sch.unroll(unrolled)
        if plan.form is None:
            vectors(sch, [*rows, columns], len(rows), width)
        else:
            plan.form.place(sch, [*rows, columns], group)
        return rolled, depth + 1 + len(steps)


def _reduced(sch: Schedule, block: BlockRV, plan: Plan) -> list[Axis]:
    """The loops of the reduction, without the last one if an instruction computes it as a group."""
    found = [a for a in axes(sch, block) if not a.spatial]
    return found if plan.form is None else found[:-1]

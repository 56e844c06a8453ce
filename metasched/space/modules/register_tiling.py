"""register_tiling: keep a tile of results in vector registers while the whole reduction runs.

    for io, jo in parallel:             # balanced over the cores
        [pack the columns of B]         # variant: a contiguous panel, reused by all rows
        for i1, j1:
            for ko, ki in unrolled:     # i2 * j2 / lanes registers hold the results
                for i2 in unrolled, j2 in vectors of `width`
            store the tile (or the elementwise consumer, fused)

This is the micro kernel of fast matrix multiplications (Goto and van de Geijn 2008), for any block
with data reuse. The vectorized loop is the loop along which the block stores contiguously. The
sampled tiles must meet conditions, which are steps `require`. The results fit the registers, the
unrolled body is short, and the outer tiles divide evenly over the cores.

Extents without suitable divisors are padded. Rows are padded to a size up to 15 % larger
(`sample_padded_tile`, `overcompute`), columns to whole vectors in a padded panel, or with clamped
reads in the last tile. Only the block that stores the results then has conditions. A panel is
stored in strips as wide as a tile, so that the micro kernel reads memory in order.

A sum of floats in plain loops keeps its order. If a block sets its results and another stores them,
both are fused with the tile. Otherwise its tiles are computed in place, from the results in memory:
no row or column is padded, and the tile stays in registers because code generation finds that no
other statement of the loops touches it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from metasched.analysis.block import TILED
from metasched.ir.expr import EQ, Expr, as_expr, as_int, compare
from metasched.ir.stmt import Block, IterVar
from metasched.schedule.domain import divisors
from metasched.schedule.handles import BlockRV, ExprRV, LoopRV
from metasched.schedule.schedule import Schedule
from metasched.space.modules.register_plan import (
    Plan,
    Tiles,
    chain_products,
    columns_of,
    fill,
    in_order,
    is_stage,
    lies_apart,
    overcompute,
    spreads,
    starter_of,
    tile_step,
    woven,
)
from metasched.space.modules.tensor_form import TensorForm
from metasched.space.packing import (
    Operand,
    constant_buffers,
    copied_together,
    lane_operands,
    packed_panels,
    stored_iter,
    strips,
    woven_iters,
)
from metasched.space.strides import FEW, vector_iter, walks_anywhere, worth_packing
from metasched.space.tiling import (
    MAX_PADDING,
    Axis,
    Factors,
    axes,
    balance,
    changed,
    epilogue,
    padding,
    padding_step,
    product,
    skip_outside,
    tile,
    tileable,
    vectors,
    weave,
    within_parallel,
)

STRUCTURE = "SSRRS"
SMALL_OPERAND = 1 << 12
"""Operands of fewer bytes are not packed: they stay in the first-level cache."""
SHORT_REDUCTION = 4
"""An innermost reduction loop of at most this many iterations is unrolled together with the
reduction loop around it."""
ROWS_PER_PACKING = 160
"""Packing a panel takes as long as computing this many rows: moving one element takes as long as 10
vector operations, and a vector operation computes 16 elements of a row."""
_PARALLEL, _MIDDLE, _REDUCE, _UNROLLED, _REGISTER, _GROUP = range(6)


@dataclass(frozen=True, slots=True)
class RegisterTiling:
    """Tile blocks with data reuse that store contiguously (see the file's docstring).

    Attributes:
        vector_bits: the width of a vector register.
        registers: the number of vector registers.
        cores: how many cores the outer tiles are spread over.
        panel_bytes: the size of the largest packed panel.
        body: the most vector operations of the unrolled body.
        chains: the fewest independent accumulators; they hide the latency of an addition.
        pad_rows: whether rows may be padded to sizes without divisors; not within loops whose
            extents are sampled, because the sizes are part of the space.
    """

    vector_bits: int = 256
    registers: int = 16
    cores: int = 1
    panel_bytes: int = 1 << 20
    body: int = 256
    chains: int = 8
    pad_rows: bool = True

    @property
    def name(self) -> str:
        return "register_tiling"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        if not tileable(sch, block):
            return [sch]
        nested, ordered = within_parallel(sch, block), in_order(sch.get(block))
        in_place = ordered and not is_stage(sch, block)
        here = replace(self, pad_rows=False) if nested or in_place else self
        here = replace(here, cores=1) if nested else here
        found: list[Schedule] = []
        for plan, pack in [(p, pack) for p in self.plans(sch, block) for pack in p.packable]:
            tiled = partial(here.apply, block, plan, pack)
            found += changed(sch, partial(tiled, True)) or changed(sch, partial(tiled, False))
        keep = in_place or lies_apart(sch, sch.get(block), self.vector_bits)
        return [*found, sch] if keep else found or [sch]

    def plans(self, sch: Schedule, block: BlockRV, form: TensorForm | None = None) -> list[Plan]:
        """The ways to vectorize and pack a block; none without a contiguous store.

        A plan has vectors that divide the columns. If only half vectors divide the columns, or no
        tile of two to four vectors, there is also a plan with padded columns: in a panel if there
        is one operand to pack, otherwise clamped, if no operand must be packed. With the
        instructions of a `form`, the operand of the lanes is always packed.
        """
        node = sch.get(block)
        vector, ordered = vector_iter(node), in_order(node)
        in_place = ordered and not is_stage(sch, block)
        sizes = [sch.state.size(v.dom.extent) for v in node.iter_vars]
        if vector is None or None in sizes or walks_anywhere(node, vector):
            return []
        constant = all(as_int(v.dom.extent) is not None for v in node.iter_vars)
        if (form is not None or in_place) and not constant:
            return []
        extent = as_int(vector.dom.extent)
        if extent is None:
            found = self._plans_at_run_time(sch, node, vector)
            return [replace(plan, ordered=ordered) for plan in found]
        lanes = max(1, self.vector_bits // node.writes[0].buffer.dtype.bits)
        lanes = lanes if form is None else form.lanes
        widths = [w for w in (lanes, lanes // 2) if w >= 2 and extent % w == 0]
        position = node.iter_vars.index(vector)
        found = []
        operands = lane_operands(sch, node, vector.var)
        constants = constant_buffers(sch, block)
        ahead = tuple(o for o in operands if node.reads[o.place[0]].buffer in constants)
        if form is not None:
            step = 1 if extent % lanes == 0 else padding_step(extent, lanes) or lanes
            return [Plan(position, (lanes,), (o,), step, ahead, (), form) for o in operands]
        others = [o for o in operands if o not in ahead]
        packable: list[Operand | None] = [None] if all(o.contiguous for o in others) else []
        direct = tuple(o for o in others if o.stride and o.rows <= 2 * ROWS_PER_PACKING)
        others = [o for o in others if worth_packing(sch, node, o.rows, o.contiguous, lanes)]
        large = [o for o in others if not o.contiguous or o.bytes > SMALL_OPERAND]
        first = {(o.contiguous, o.batch): o for o in reversed(large)}  # see `packed_panels`
        packable += [o for o in large if o.contiguous or o is first[False, o.batch]]
        alone = len(operands) == 1 == len(others) + len(ahead)
        if in_place:
            pass  # no column may be computed that does not exist
        elif extent % lanes and (alone or None in packable) and extent > lanes // 2 > 0:
            step = padding_step(extent, lanes)
            if step or not widths:
                padded = tuple(operands) if alone else (None,)
                found.append(Plan(position, (lanes,), padded, step or lanes, ahead))
        elif alone and large and all(extent // lanes % v for v in (2, 3, 4)):
            step = padding_step(extent, lanes)
            if step > lanes:  # the columns have no tile of two to four vectors
                found.append(Plan(position, (lanes,), tuple(large), step, ahead))
        if not widths and not found:
            widths = [max(d for d in divisors(extent) if d <= lanes)]
        if widths and widths[0] > 1:
            found.append(Plan(position, tuple(widths), tuple(packable), 1, ahead, direct))
        return [replace(plan, ordered=ordered, in_place=in_place) for plan in found]

    def _plans_at_run_time(self, sch: Schedule, node: Block, vector: IterVar) -> list[Plan]:
        """The plans for columns of run-time extent: padded in a panel, or with conditions."""
        lanes = max(1, self.vector_bits // node.writes[0].buffer.dtype.bits)
        operands = lane_operands(sch, node, vector.var)
        packable: list[Operand | None] = list(operands) if len(operands) == 1 else []
        if all(o.contiguous for o in operands):
            packable.append(None)
        plan = Plan(node.iter_vars.index(vector), (lanes,), tuple(packable), at_run_time=True)
        return [plan] if packable and lanes > 1 else []

    def _rows(self, sch: Schedule, axis: Axis, levels: int, padded: bool) -> list[ExprRV]:
        """Sample the tile of a spatial axis that is not the vector axis."""
        sizes, chances = self._row_sizes(axis.extent or 1)
        most = max(1, self.registers - 2)
        if not padded or sizes == [axis.extent]:
            return list(sch.sample_perfect_tile(axis.loop, levels, most))
        return list(sch.sample_padded_tile(axis.loop, levels, most, sizes, chances))

    def _row_sizes(self, extent: int) -> tuple[list[int], list[float]]:
        """The sizes to which rows may be padded, and the probability of each size.

        The extent itself is among the sizes unless it has no divisor that makes a register tile.
        Up to three larger sizes offer tiles of rows that the extent lacks.
        """
        if not self.pad_rows:
            return [extent], [1.0]
        most = max(2, (self.registers - 1) // 2 - 1)
        own = [d for d in divisors(extent) if most // 2 < d <= most]
        scores: dict[int, float] = {}
        for rows in range(max(3, most // 2), most + 1):
            size = -(-extent // rows) * rows
            if extent % rows and padding(extent, size) <= MAX_PADDING:
                scores[size] = max(scores.get(size, 0.0), rows * extent / size)
        padded = sorted(scores, key=lambda s: -scores[s])[:3]
        keep = [extent] if own or not padded or extent <= most else []
        own_share = 1.0 if not padded else 0.6 if own else 0.3
        probs = [own_share] * len(keep)
        rest = 1.0 - sum(probs)
        return [*keep, *padded], probs + [rest / len(padded) for _ in padded]

    def apply(
        self, block: BlockRV, plan: Plan, pack: Operand | None, strict: bool, sch: Schedule
    ) -> None:
        """Tile, pack and vectorize a block by a plan.

        Args:
            pack: the operand that is packed, if any.
            strict: also require what a small block may be unable to meet: enough accumulators,
                few repeated packings, and outer tiles that divide evenly over the cores.
        """
        chain_products(sch, block, plan)
        finish = None if plan.in_place else epilogue(sch, block)
        start = starter_of(sch, block) if plan.ordered and not plan.in_place else None
        first = None if start is None else sch.get_block(start.block.name)
        if finish is not None:
            sch.set_scope(block, 0, "local")
        elif not plan.ordered:
            finish = sch.cache_write(block, 0, "local")
        plan = replace(plan, woven=woven(sch, block, finish, plan))
        how = (plan.vector, plan.step, plan.form is None)
        panels = packed_panels(sch, block, pack, *how) if pack is not None else []
        if plan.step > 1:
            overcompute(sch, block, first, {plan.vector: plan.step})
        every = axes(sch, block)
        width, tiles = self._sample(sch, every, plan, pack, strict)
        parts = self._whole_tiles(sch, block, first, plan, every, tiles)
        if plan.at_run_time and panels:
            columns = product(columns_of(tiles, plan)[1:])
            for panel, lanes in panels:
                dims = range(len(sch.get(panel).iter_vars))
                sch.overcompute(panel, [columns if n == lanes else 1 for n in dims])
            overcompute(sch, block, first, {plan.vector: columns})
        parts.sort(key=lambda part: part[0].position == plan.vector)
        store = strips if plan.form is None else plan.form.strips
        for panel, lanes in panels:
            store(sch, panel, lanes, tiles[parts[-1][0]][1][-1])
        levels = tile(sch, STRUCTURE if plan.form is None else plan.form.structure, parts)
        outer = sch.fuse(*levels[_PARALLEL])
        depth = 1 + len(levels[_MIDDLE])
        self._join(sch, block, first, finish, levels[_MIDDLE][-1], depth, plan, width)
        for panel, _ in panels if pack not in plan.ahead else ():
            if plan.form is None or pack is None or pack.rows > FEW:
                fill(sch, panel, outer, plan, width)
            else:  # few rows use small pieces, which are packed in registers
                lane = next(a for a in every if a.position == plan.vector)
                steps, wide = levels[_REDUCE], tile_step(plan, pack, lane, self.registers)
                fill(sch, panel, steps[-1], plan, width, depth + len(steps), wide)
        for loop in levels[_UNROLLED]:
            sch.unroll(loop)
        if not within_parallel(sch, block):
            sch.parallel(outer)
        if plan.form is None:
            vectors(sch, levels[_REGISTER], len(levels[_REGISTER]) - 1, width)
            sch.annotate(block, TILED, STRUCTURE)
        else:
            plan.form.place(sch, levels[_REGISTER], levels[_GROUP])
        skip_outside(sch, block if finish is None else finish, levels[_MIDDLE])

    def _join(
        self, sch: Schedule, block: BlockRV, first: BlockRV | None, finish: BlockRV | None,
        place: LoopRV, depth: int, plan: Plan, width: ExprRV | int,
    ) -> None:  # fmt: skip
        """Set and store the results of a tile at the loop `place`, the innermost of `depth`."""
        for stage, move in ((first, sch.compute_at), (finish, sch.reverse_compute_at)):
            if stage is not None:
                move(stage, place, preserve_unit_loops=True)
                if plan.woven is not None and (found := woven_iters(sch, stage)) is not None:
                    weave(sch, sch.get_loops(stage)[depth:], *found, width)
                    continue
                lane, most = stored_iter(sch, stage), max(plan.widths)
                together = copied_together(sch, stage, lane, most)
                wide, few = width if together >= most else together, not spreads(sch, block, stage)
                vectors(sch, sch.get_loops(stage)[depth:], lane, wide, few)

    def _whole_tiles(
        self,
        sch: Schedule,
        block: BlockRV,
        first: BlockRV | None,
        plan: Plan,
        every: Sequence[Axis],
        tiles: Tiles,
    ) -> list[tuple[Axis, Sequence[int], Factors]]:
        """Pad the rows to whole tiles; returns the levels and factors of each axis."""
        rows = [a for a in every if a.spatial and a.position != plan.vector and tiles[a][1]]
        parts: list[tuple[Axis, Sequence[int], Factors]] = [(a, *tiles[a]) for a in every]
        if any(a.at_run_time for a in every):
            padded = {a.position: product(tiles[a][1][1:]) for a in rows if a.at_run_time}
            overcompute(sch, block, first, padded)
        elif any(self._row_sizes(a.extent or 1)[0] != [a.extent] for a in rows):
            # The padded size may hold more tiles than the rows need: these are left out.
            kept = {a.position: [*tiles[a][1][:-2], tiles[a][1][-1]] for a in rows}
            overcompute(sch, block, first, {n: product(sizes) for n, sizes in kept.items()})
            needed = {a: [*kept[a.position][:-1], None, tiles[a][1][-1]] for a in rows}
            parts = [(a, places, needed.get(a, factors)) for a, places, factors in parts]
        return parts

    def _sample(
        self, sch: Schedule, every: Sequence[Axis], plan: Plan, pack: Operand | None, strict: bool
    ) -> tuple[ExprRV | int, Tiles]:
        """Sample the width of a vector, and the levels and factors of each axis."""
        levels = (_PARALLEL, _MIDDLE, _REGISTER)
        width, tiles, results = self.results(sch, every, plan, pack, levels, strict)
        sch.require(self._reduction(sch, every, tiles, plan) * results <= self.body)
        if strict and pack is not None:
            columns = columns_of(tiles, plan)
            self._bound_panel(sch, every, columns, max(plan.widths), pack.item)
        return width, tiles

    def results(
        self,
        sch: Schedule,
        every: Sequence[Axis],
        plan: Plan,
        pack: Operand | None,
        levels: Sequence[int],
        strict: bool = True,
        padded: bool = True,
    ) -> tuple[ExprRV | int, Tiles, Expr]:
        """Sample the tiles of the spatial axes.

        Args:
            pack: the operand that is packed, if any.
            levels: the levels of the structure for the parts of a spatial axis.
            strict: see `apply`.
            padded: whether rows may be padded.

        Returns the width of a vector, the levels and factors of each spatial axis, and the number
        of registers that the results of a tile fill.
        """
        tiles: Tiles = {}
        spatial = [a for a in every if a.spatial]
        vector = next(a for a in spatial if a.position == plan.vector)
        packings = self.max_packings(spatial, vector, pack) if pack is not None else math.inf
        width, columns = self.columns(sch, vector, plan, pack)
        if pack is not None:
            sch.require(compare(EQ, columns[-1] % tile_step(plan, pack, vector, self.registers), 0))
        registers: list[Expr] = [columns[-1] // width]
        outside: list[ExprRV] = []
        for axis in spatial:
            if axis is vector:
                tiles[axis] = (levels[-len(columns) :], columns)
            elif axis.extent == 1 or (pack is not None and axis.position in pack.batch):
                tiles[axis] = (levels[:1], ())
            elif axis.position == plan.woven:
                tiles[axis] = (levels[-1:], ())
                registers.append(as_expr(axis.extent or 1))
            elif axis.at_run_time:
                # the inner tiles are constant: one loop of run-time extent, then the registers
                around = levels[1] if pack is not None else levels[0]
                factors = self._rows(sch, axis, 2, padded)
                tiles[axis] = ((around, levels[-1]), factors)
                registers.append(factors[-1])
            else:
                places = levels if packings > 1 else levels[1:]
                factors = self._rows(sch, axis, len(places), padded)
                tiles[axis] = (places, factors)
                registers.append(factors[-1])
                outside += factors[: len(places) - 2]
        if strict and pack is not None and outside:
            sch.require(as_expr(product(outside)) <= int(packings))
        results = as_expr(product(registers))
        sch.require(results + registers[0] + plan.spare(self.registers) <= self.registers)
        accumulators = self.min_accumulators([a for a in spatial if tiles[a][1]], plan, padded)
        if strict and accumulators > 1:
            sch.require(results >= accumulators)
        if strict:
            self.balance(sch, spatial, tiles)
        return width, tiles, results

    def columns(
        self, sch: Schedule, lane: Axis, plan: Plan, pack: Operand | None
    ) -> tuple[ExprRV | int, list[ExprRV]]:
        """Sample the width of a vector and the tile of the vector axis."""
        width: ExprRV | int = plan.widths[0]
        if plan.at_run_time:
            return width, self._vectors(sch, lane, plan, 2 if pack is None else 3)
        if len(plan.widths) > 1:
            width = sch.sample_categorical(list(plan.widths), [0.75, 0.25])
        few = plan.direct if plan.form is None else [o for o in plan.packable if o is not None]
        most = 8 if any(o.rows <= FEW for o in few) else 4
        columns = sch.sample_perfect_tile(lane.loop, 3, max(plan.widths) * most)
        sch.require(compare(EQ, columns[-1] % width, 0))
        return width, columns

    def _vectors(self, sch: Schedule, lane: Axis, plan: Plan, levels: int) -> list[ExprRV]:
        """Sample the tile of a vector axis that is known at run time only: whole vectors."""
        lanes, extent = plan.widths[0], lane.extent or 1
        sizes = list(dict.fromkeys(-(-extent // (v * lanes)) * v * lanes for v in (1, 2, 3, 4)))
        sizes = [size for size in sizes if size == sizes[0] or padding(extent, size) <= 1]
        chances = [1.0 / len(sizes)] * len(sizes)
        columns = list(sch.sample_padded_tile(lane.loop, levels, 4 * lanes, sizes, chances))
        sch.require(compare(EQ, columns[-1] % lanes, 0))
        return columns

    def min_accumulators(self, spatial: Sequence[Axis], plan: Plan, padded: bool) -> int:
        """The fewest accumulators of a tile: `chains`, or fewer if some size of the rows has no
        tile with `chains` accumulators."""
        width = plan.widths[0]
        vector = next(a for a in spatial if a.position == plan.vector)
        columns = vector.extent or 1
        if plan.at_run_time:
            columns = -(-columns // width) * width
        wide = {d // width for d in divisors(columns) if d % width == 0}
        counts = {w for w in wide if w <= 4} or {1}
        for axis in spatial:
            if axis is not vector:
                sizes = self._row_sizes(axis.extent or 1)[0] if padded else [axis.extent or 1]
                tiles = ([d for d in divisors(n) if d <= self.registers] for n in sizes)
                worst = min(tiles, key=max)
                counts = {c * d for c in counts for d in worst if c * d <= self.registers}
        fits = [c for c in counts if c + min(c, 4) + 1 <= self.registers]
        return min(self.chains, max(fits, default=1))

    def _reduction(self, sch: Schedule, every: Sequence[Axis], tiles: Tiles, plan: Plan) -> Expr:
        """Sample the tiles of the reduction axes; return the number of unrolled steps.

        The last reduction loop is split for unrolling. If the last loop is short (a row of a small
        kernel), the loop before is split, too. Other reduction loops stay whole.
        """
        reduced: list[Axis] = []
        inner = None if plan.form is None else max(every, key=lambda axis: axis.position)
        for axis in every:
            if axis is inner:
                tiles[axis] = ((_GROUP,), ())
            elif not axis.spatial:
                tiles[axis] = ((_REDUCE,), ())
                if (axis.extent or 1) > 1:
                    reduced.append(axis)
        steps: list[ExprRV] = []
        short = len(reduced) > 1 and (reduced[-1].extent or 1) <= SHORT_REDUCTION
        short = short and not plan.ordered  # the loops before the last loop stay before it
        for axis in reduced[-2 if short else -1 :]:
            factors = sch.sample_perfect_tile(axis.loop, 2, 8)
            tiles[axis] = ((_REDUCE, _UNROLLED), factors)
            steps.append(factors[-1])
        return as_expr(product(steps))

    def balance(self, sch: Schedule, spatial: Sequence[Axis], tiles: Tiles) -> None:
        """Require a number of outer tiles that keeps the cores busy (see `tiling.balance`)."""
        alone = [a for a in spatial if tiles[a][0][0] == _PARALLEL and not tiles[a][1]]
        whole = math.prod(a.extent or 1 for a in alone)
        parts = [tiles[axis] for axis in spatial if tiles[axis][1]]
        balance(sch, self.cores, whole, [factors[0] for at, factors in parts if at[0] == _PARALLEL])

    def _bound_panel(
        self, sch: Schedule, every: Sequence[Axis], columns: Sequence[ExprRV], lanes: int, item: int
    ) -> None:
        """Require a panel that stays in the cache while all rows are computed from it."""
        depth = math.prod(a.extent or 1 for a in every if not a.spatial)
        room = self.panel_bytes // max(1, depth * item)
        if room >= 2 * lanes:
            sch.require(as_expr(product(columns[1:])) <= room)

    def max_packings(self, spatial: Sequence[Axis], vector: Axis, pack: Operand) -> int:
        """How often the same panel may be packed again for other rows.

        Each packing must be used by enough rows. If there are fewer columns than lanes of all
        cores, each core may pack the panel once.
        """
        rows = [a.extent or 1 for a in spatial if a is not vector and a.position not in pack.batch]
        short = (vector.extent or 1) < self.cores * self.vector_bits // 32
        return max(math.prod(rows) // ROWS_PER_PACKING, self.cores if short else 1)

"""register_tiling: a block of results stays in vector registers while a whole reduction runs.

    for io, jo in parallel:             # balanced over the cores
        [pack the columns of B]         # variant: a contiguous panel, reused by all rows
        for i1, j1:
            for ko, ki in unrolled:     # results live in registers: R_i * R_j / lanes of them
                for i2 in unrolled, j2 in vectors of `width`
            store the block (or the elementwise consumer, fused)

This is the micro kernel of the best matrix multiplications (Goto and van de Geijn 2008), stated for
any block with data reuse; which loop is vectorised follows from the strides of its stores. Tile
sizes are bound by `require` to what fits the registers, to a body that is not too long, and to
outer tiles that divide evenly over the cores, so sampling wastes no trial on the rest.

Sizes that divide badly get the same full blocks: rows may run on to a size a little above theirs
(`sample_padded_tile`, `overcompute`), columns run on to whole vectors in a padded panel, and only
the block that stores the results has conditions. Panels are strips as wide as the block, so
that the micro kernel reads memory in order, which no distance between columns can spoil.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from metasched.analysis.access import accesses
from metasched.analysis.block import TILED
from metasched.arith.indexmap import IndexMap
from metasched.ir.expr import EQ, Expr, Var, as_expr, as_int, compare
from metasched.ir.stmt import Block
from metasched.ir.visit import free_vars
from metasched.schedule.domain import divisors
from metasched.schedule.handles import BlockRV, ExprRV, LoopRV
from metasched.schedule.schedule import Schedule
from metasched.space.modules.tensor_form import TensorForm
from metasched.space.strides import (
    FEW,
    iter_stride,
    lanes_together,
    rows_of,
    vector_iter,
    worth_moving,
)
from metasched.space.tiling import Axis, Factors, axes, changed, epilogue, product, tile, tileable

STRUCTURE = "SSRRS"
SMALL_PANEL = 1 << 12
"""Operands of fewer bytes stay in the nearest cache as they are."""
SHORT = 4
"""A reduction loop of so few iterations is unrolled together with the one around it."""
WASTE = 0.15
"""The share of work that may be done beyond an extent for better tiles."""
PACKING = 160
"""Rows that a packed panel is worth: moving an element costs as much as some ten vector
operations take, one of which serves one row of sixteen elements."""
_PARALLEL, _MIDDLE, _REDUCE, _UNROLLED, _REGISTER, _GROUP = range(6)
Tiles: TypeAlias = dict[Axis, tuple[Sequence[int], Sequence[ExprRV]]]
"""For each axis its levels and the factors of its parts there."""


@dataclass(frozen=True, slots=True)
class RegisterTiling:
    """See the file's docstring. For blocks with reuse whose stores are contiguous along some loop.

    Attributes:
        vector_bits, registers: of the machine's vector registers.
        cores: how many the outer tiles are spread over.
        panel_bytes: the largest packed panel.
        body: vector operations of the unrolled body at most.
        chains: independent accumulations wanted at least, to hide the latency of one.
    """

    vector_bits: int = 256
    registers: int = 16
    cores: int = 1
    panel_bytes: int = 1 << 20
    body: int = 256
    chains: int = 8

    @property
    def name(self) -> str:
        return "register_tiling"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        if not tileable(sch, block):
            return [sch]
        found: list[Schedule] = []
        for plan, pack in [(p, pack) for p in self.plans(sch, block) for pack in p.packable]:
            way = partial(self.apply, block, plan, pack)
            found += changed(sch, partial(way, True)) or changed(sch, partial(way, False))
        return found or [sch]

    # -- what the block allows ---------------------------------------------------------------------

    def plans(self, sch: Schedule, block: BlockRV, form: TensorForm | None = None) -> list[Plan]:
        """Vectors that divide the columns; where whole ones do not, whole ones that run on. With
        instructions of a `form` their operand is packed always."""
        node = sch.get(block)
        vector = vector_iter(node)
        if vector is None or any(as_int(v.dom.extent) is None for v in node.iter_vars):
            return []
        extent = as_int(vector.dom.extent) or 1
        lanes = max(1, self.vector_bits // node.writes[0].buffer.dtype.bits)
        lanes = lanes if form is None else form.lanes
        widths = [w for w in (lanes, lanes // 2) if w >= 2 and extent % w == 0]
        position = node.iter_vars.index(vector)
        found = []
        operands = lane_operands(node, vector.var)
        free = sch.state.func_of(sch.state.block(block))[1].constants
        ahead = tuple(o for o in operands if node.reads[o.place[0]].buffer in free)
        if form is not None:
            step = 1 if extent % lanes == 0 else _run_on(extent, lanes) or lanes
            return [Plan(position, (lanes,), (o,), step, ahead, (), form) for o in operands]
        now = [o for o in operands if o not in ahead]
        packable: list[Operand | None] = [None] if all(o.contiguous for o in now) else []
        direct = tuple(o for o in now if o.stride and o.rows <= 2 * PACKING)
        now = [o for o in now if worth_moving(node, o.rows, o.contiguous, lanes)]
        packable += [o for o in now if not o.contiguous or o.bytes > SMALL_PANEL]
        alone = len(operands) == 1 == len(now) + len(ahead)
        if extent % lanes and alone and extent > lanes // 2 > 0:
            step = _run_on(extent, lanes)
            if step or not widths:
                step = step or lanes
                found.append(Plan(position, (lanes,), tuple(operands), step, ahead))
        if not widths and not found:
            widths = [max(d for d in divisors(extent) if d <= lanes)]
        if widths and widths[0] > 1:
            found.append(Plan(position, tuple(widths), tuple(packable), 1, ahead, direct))
        return found

    def _rows(self, sch: Schedule, axis: Axis, levels: int, padded: bool) -> list[ExprRV]:
        """The sampled tile of an axis that is not the vectors'."""
        sizes, chances = self._row_sizes(axis.extent or 1)
        most = max(1, self.registers - 2)
        if not padded or sizes == [axis.extent]:
            return list(sch.sample_perfect_tile(axis.loop, levels, most))
        return list(sch.sample_padded_tile(axis.loop, levels, most, sizes, chances))

    def _row_sizes(self, extent: int) -> tuple[list[int], list[float]]:
        """The extent itself unless it has no divisor that makes a register block, and the sizes
        a little above it that offer blocks of rows it lacks; with chances."""
        most = max(2, (self.registers - 1) // 2 - 1)
        own = [d for d in divisors(extent) if most // 2 < d <= most]
        best: dict[int, float] = {}
        for rows in range(max(3, most // 2), most + 1):
            size = -(-extent // rows) * rows
            if extent % rows and _waste(extent, size) <= WASTE:
                best[size] = max(best.get(size, 0.0), rows * extent / size)
        more = sorted(best, key=lambda s: -best[s])[:3]
        keep = [extent] if own or not more or extent <= most else []
        own_share = 1.0 if not more else 0.6 if own else 0.3
        chances = [own_share] * len(keep)
        left = 1.0 - sum(chances)
        return [*keep, *more], chances + [left / len(more) for _ in more]

    # -- the steps ---------------------------------------------------------------------------------

    def apply(
        self, block: BlockRV, plan: Plan, pack: Operand | None, strict: bool, sch: Schedule
    ) -> None:
        """All steps; `strict` adds the constraints that a small block may be unable to meet."""
        finish = epilogue(sch, block)
        if finish is None:
            finish = sch.cache_write(block, 0, "local")
        else:
            sch.set_scope(block, 0, "local")
        panel, lanes = (None, 0) if pack is None else packed_panel(sch, block, pack, plan)
        iters = range(len(sch.get(block).iter_vars))
        if plan.step > 1:
            sch.overcompute(block, [plan.step if n == plan.vector else 1 for n in iters])
        every = axes(sch, block)
        width, tiles = self._sample(sch, every, plan, pack, strict)
        rows = [a for a in every if a.spatial and a.position != plan.vector and tiles[a][1]]
        parts: list[tuple[Axis, Sequence[int], Factors]] = [(a, *tiles[a]) for a in every]
        if any(self._row_sizes(a.extent or 1)[0] != [a.extent] for a in rows):
            # as many blocks as the rows need, which may be fewer than the sampled size holds
            kept = {a.position: [*tiles[a][1][:-2], tiles[a][1][-1]] for a in rows}
            sch.overcompute(block, [product(kept.get(n, [])) for n in iters])
            needed = {a: [*kept[a.position][:-1], None, tiles[a][1][-1]] for a in rows}
            parts = [(a, places, needed.get(a, factors)) for a, places, factors in parts]
        parts.sort(key=lambda part: part[0].position == plan.vector)
        if panel is not None:
            store = strips if plan.form is None else plan.form.strips
            store(sch, panel, lanes, tiles[parts[-1][0]][1][-1])
        levels = tile(sch, STRUCTURE if plan.form is None else plan.form.structure, parts)
        outer = sch.fuse(*levels[_PARALLEL])
        place = levels[_MIDDLE][-1]
        sch.reverse_compute_at(finish, place, preserve_unit_loops=True)
        depth = 1 + len(levels[_MIDDLE])
        lane = _last_dim(sch, finish)
        most = _together(sch, finish, lane, max(plan.widths))
        wide = width if most >= max(plan.widths) else most
        vectors(sch, sch.get_loops(finish)[depth:], lane, wide)
        if panel is not None and pack not in plan.ahead:
            self.fill(sch, panel, outer, plan, width)
        for loop in levels[_UNROLLED]:
            sch.unroll(loop)
        sch.parallel(outer)
        if plan.form is None:
            vectors(sch, levels[_REGISTER], len(levels[_REGISTER]) - 1, width)
            sch.annotate(block, TILED, STRUCTURE)
        else:
            plan.form.place(sch, levels[_REGISTER], levels[_GROUP])

    def fill(
        self,
        sch: Schedule,
        panel: BlockRV,
        place: LoopRV,
        plan: Plan,
        width: ExprRV | int,
        depth: int = 1,
    ) -> None:
        """Compute a panel at the loop that is `depth` loops deep, with vectors along its lanes."""
        if plan.form is not None:
            return plan.form.fill(sch, panel, place, depth)
        node = sch.get(panel)
        last = free_vars(node.writes[0].region[-1].min)
        lane = next(n for n, v in enumerate(node.iter_vars) if v.var in last)
        across = self._across(node, max(plan.widths))
        sch.compute_at(panel, place, preserve_unit_loops=True)
        loops = sch.get_loops(panel)[depth:]
        most = _together(sch, panel, lane, max(plan.widths))
        if most < 4 and across is not None:
            rows, lanes = (sch.split(loops[n], [None, width]) for n in (across, lane))
            rest = [loop for n, loop in enumerate(loops) if n not in (across, lane)]
            sch.reorder(*rest, lanes[0], rows[0], rows[1], lanes[1])
            sch.unroll(rows[1])
            sch.vectorize(lanes[1])
            return
        if lane != len(loops) - 1:
            loops.append(loops.pop(lane))
            sch.reorder(*loops)
        wide = width if most in (1, max(plan.widths)) else most
        sch.vectorize(sch.split(loops[-1], [None, wide])[1])

    def _across(self, node: Block, width: int) -> int | None:
        """The iterator of a panel along which its source is contiguous: squares of it and the lanes
        are transposed in registers."""
        (source,) = [a for a in accesses(node) if not a.is_write]
        for n, v in enumerate(node.iter_vars):
            if iter_stride(source, v.var) == 1 and (as_int(v.dom.extent) or 1) % width == 0:
                return n
        return None

    def _sample(
        self, sch: Schedule, every: Sequence[Axis], plan: Plan, pack: Operand | None, strict: bool
    ) -> tuple[ExprRV | int, Tiles]:
        """The width of a vector and, for each axis, its levels and factors."""
        levels = (_PARALLEL, _MIDDLE, _REGISTER)
        width, tiles, results = self.results(sch, every, plan, pack, levels, strict)
        sch.require(self._reduction(sch, every, tiles, plan) * results <= self.body)
        if strict and pack is not None:
            columns = next(tiles[a][1] for a in every if a.position == plan.vector)
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
        """The width of a vector; for each axis of the results, its levels and factors; how many
        registers the results of a block fill. `padded`: rows may run on."""
        tiles: Tiles = {}
        spatial = [a for a in every if a.spatial]
        vector = next(a for a in spatial if a.position == plan.vector)
        again = self.repacked(spatial, vector, pack) if pack is not None else math.inf
        width, columns = self.columns(sch, vector, plan)
        if pack is not None:
            sch.require(compare(EQ, columns[2] % max(plan.widths), 0))
        held: list[Expr] = [columns[2] // width]
        outside: list[ExprRV] = []
        for axis in spatial:
            if axis is vector:
                tiles[axis] = (levels, columns)
            elif axis.extent == 1 or (pack is not None and axis.position in pack.batch):
                tiles[axis] = (levels[:1], ())
            else:
                places = levels if again > 1 else levels[1:]
                taken = self._rows(sch, axis, len(places), padded)
                tiles[axis] = (places, taken)
                held.append(taken[-1])
                outside += taken[: len(places) - 2]
        if strict and pack is not None and outside:
            sch.require(as_expr(product(outside)) <= int(again))
        results = as_expr(product(held))
        sch.require(results + held[0] + 1 <= self.registers)
        least = self.least([a for a in spatial if tiles[a][1]], plan, padded)
        if strict and least > 1:
            sch.require(results >= least)
        if strict:
            self.balance(sch, spatial, tiles)
        return width, tiles, results

    def columns(self, sch: Schedule, lane: Axis, plan: Plan) -> tuple[ExprRV | int, list[ExprRV]]:
        """The sampled width of a vector and tile of the axis along the vectors."""
        width: ExprRV | int = plan.widths[0]
        if len(plan.widths) > 1:
            width = sch.sample_categorical(list(plan.widths), [0.75, 0.25])
        most = 8 if any(o.rows <= FEW for o in plan.direct) else 4
        columns = sch.sample_perfect_tile(lane.loop, 3, max(plan.widths) * most)
        sch.require(compare(EQ, columns[-1] % width, 0))
        return width, columns

    def least(self, spatial: Sequence[Axis], plan: Plan, padded: bool) -> int:
        """How many accumulators can be asked for: `chains`, or as many as there may be at all,
        whichever sizes the rows have."""
        width = plan.widths[0]
        vector = next(a for a in spatial if a.position == plan.vector)
        wide = {d // width for d in divisors(vector.extent or 1) if d % width == 0}
        counts = {w for w in wide if w <= 4} or {1}
        for axis in spatial:
            if axis is not vector:
                sizes = self._row_sizes(axis.extent or 1)[0] if padded else [axis.extent or 1]
                each = ([d for d in divisors(n) if d <= self.registers] for n in sizes)
                blocks = min(each, key=max)
                counts = {c * d for c in counts for d in blocks if c * d <= self.registers}
        fits = [c for c in counts if c + min(c, 4) + 1 <= self.registers]
        return min(self.chains, max(fits, default=1))

    def _reduction(self, sch: Schedule, every: Sequence[Axis], tiles: Tiles, plan: Plan) -> Expr:
        """Levels of the reduction loops: the last one is cut for unrolling, with it the one before
        when it is short (a row of a small kernel); the others stay. The unrolled steps."""
        long: list[Axis] = []
        inner = None if plan.form is None else max(every, key=lambda axis: axis.position)
        for axis in every:
            if axis is inner:
                tiles[axis] = ((_GROUP,), ())
            elif not axis.spatial:
                tiles[axis] = ((_REDUCE,), ())
                if (axis.extent or 1) > 1:
                    long.append(axis)
        steps: list[ExprRV] = []
        short = len(long) > 1 and (long[-1].extent or 1) <= SHORT
        for axis in long[-2 if short else -1 :]:
            taken = sch.sample_perfect_tile(axis.loop, 2, 8)
            tiles[axis] = ((_REDUCE, _UNROLLED), taken)
            steps.append(taken[-1])
        return as_expr(product(steps))

    def balance(self, sch: Schedule, spatial: Sequence[Axis], tiles: Tiles) -> None:
        """Outer tiles that keep every core busy for at least eight ninths of the time."""
        n = self.cores
        if n < 2:
            return
        whole = math.prod(a.extent or 1 for a in spatial if not tiles[a][1])
        if whole % n == 0:
            return
        parts = [(places[0], taken) for places, taken in map(tiles.__getitem__, spatial) if taken]
        outer = product([whole, *(taken[0] for place, taken in parts if place == _PARALLEL)])
        if isinstance(outer, Expr):
            sch.require((outer + (n - 1)) // n * (n * 8) <= outer * 9)

    def _bound_panel(
        self, sch: Schedule, every: Sequence[Axis], columns: Sequence[ExprRV], lanes: int, item: int
    ) -> None:
        """A panel that stays in the cache while all rows pass over it."""
        depth = math.prod(a.extent or 1 for a in every if not a.spatial)
        room = self.panel_bytes // max(1, depth * item)
        if room >= 2 * lanes:
            sch.require(columns[1] * columns[2] <= room)

    def repacked(self, spatial: Sequence[Axis], vector: Axis, pack: Operand) -> int:
        """How often a panel may be packed anew, for other rows: few enough for these to pay."""
        rows = [a.extent or 1 for a in spatial if a is not vector and a.position not in pack.batch]
        short = (vector.extent or 1) < self.cores * self.vector_bits // 32
        return max(math.prod(rows) // PACKING, self.cores if short else 1)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is fixed for a block: its vector iterator, widths to draw from, variants of packing;
    the columns run on to a multiple of `step`. Constant operands, which are packed ahead of time,
    are in `ahead`: a panel of theirs stays where nothing else is. Those in `direct` may be read as
    they are, so few rows use them. `form`: instructions that take the place of vectors."""

    vector: int
    widths: tuple[int, ...]
    packable: tuple[Operand | None, ...]
    step: int = 1
    ahead: tuple[Operand, ...] = ()
    direct: tuple[Operand, ...] = ()
    form: TensorForm | None = None


def _run_on(extent: int, lanes: int) -> int:
    """The columns that run on to a multiple of a few vectors at little cost; 0 for none."""
    steps = [v * lanes for v in (4, 2, 1) if _waste(extent, v * lanes) <= WASTE]
    return steps[0] if steps else 0


def _waste(extent: int, multiple: int) -> float:
    """The share of work beyond an extent when it runs on to a multiple."""
    return -(-extent // multiple) * multiple / extent - 1


@dataclass(frozen=True, slots=True)
class Operand:
    """A read that varies along the lanes.

    Attributes:
        place: which read, and which of several accesses to its buffer.
        item, bytes: the size of an element and of all.
        contiguous: whether the lanes lie side by side in memory, so that packing is a choice.
        batch: positions of the other spatial iterators it varies with: each has panels of its own.
        rows: results that use each of its elements.
        stride: elements between two steps of the innermost reduction, where lanes lie side by side;
            0 where it is unknown.
    """

    place: tuple[int, ...]
    item: int
    bytes: int
    contiguous: bool
    batch: tuple[int, ...]
    rows: int
    stride: int


def lane_operands(block: Block, lane: Var) -> list[Operand]:
    """The reads that vary along `lane` and are no larger by the block's iterators than they are.

    (An input that is read in windows would grow: its neighbouring windows overlap.)
    """
    found = []
    for index, region in enumerate(block.reads):
        places = [a for a in accesses(block) if not a.is_write and a.buffer is region.buffer]
        loads = [a for a in places if any(lane in free_vars(i) for i in a.indices)]
        if region.buffer is block.writes[0].buffer or len(loads) != 1:
            continue
        used = set().union(*(free_vars(i) for i in loads[0].indices))
        iters = [v for v in block.iter_vars if v.var in used]
        size = math.prod(as_int(v.dom.extent) or 1 for v in iters)
        if size > math.prod(as_int(n) or 1 for n in region.buffer.shape):
            continue
        own = [v for v in iters if v.is_spatial and v.var is not lane and as_int(v.dom.extent) != 1]
        batch = tuple(block.iter_vars.index(v) for v in own)
        item = region.buffer.dtype.bytes
        steps = [v.var for v in block.iter_vars if v.is_reduce and as_int(v.dom.extent) != 1]
        beside = iter_stride(loads[0], lane) == 1
        stride = (iter_stride(loads[0], steps[-1]) if steps and beside else None) or 0
        rows = rows_of(block, loads[0])
        place = (index,) if len(places) == 1 else (index, places.index(loads[0]))
        found.append(Operand(place, item, item * size, beside, batch, rows, stride))
    return found


def packed_panel(sch: Schedule, block: BlockRV, o: Operand, plan: Plan) -> tuple[BlockRV, int]:
    """A copy of an operand by the block's iterators, and which of its dimensions the lanes are."""
    which: tuple[str | int, ...] = ("read", *o.place)
    panel = sch.reindex(block, which)
    node = sch.get(block)
    index = [r.buffer for r in node.reads].index(sch.get(panel).writes[0].buffer)
    region = node.reads[index].region
    lane = next(n for n, r in enumerate(region) if r.min is node.iter_vars[plan.vector].var)
    if plan.step > 1:
        sch.overcompute(panel, [plan.step if n == lane else 1 for n in range(len(region))])
    return panel, lane


def strips(sch: Schedule, panel: BlockRV, lane: int, width: ExprRV) -> None:
    """Store a panel in strips of `width` columns, of which each passes through memory in order."""
    inputs = tuple(Var(f"i{n}") for n in range(len(sch.get(panel).writes[0].region)))
    at = inputs[lane]
    order = (*inputs[:lane], at // width, *inputs[lane + 1 :], at % width)
    sch.transform_layout(panel, ("write", 0), IndexMap(inputs, order))


def _together(sch: Schedule, block: BlockRV, position: int, most: int) -> int:
    """How many lanes of an iterator a copying block can move at once."""
    node = sch.get(block)
    return lanes_together(node, node.iter_vars[position].var, most)


def _last_dim(sch: Schedule, block: BlockRV) -> int:
    """The position of the iterator along which a copying block stores contiguously."""
    node = sch.get(block)
    vector = vector_iter(node)
    return node.iter_vars.index(vector) if vector is not None else len(node.iter_vars) - 1


def vectors(sch: Schedule, loops: Sequence[LoopRV], lane: int, width: ExprRV | int) -> None:
    """Unroll loops around vectors of `width` cut from the loop at position `lane`."""
    outer, inner = sch.split(loops[lane], [None, width])
    rows = [loop for position, loop in enumerate(loops) if position != lane]
    if lane != len(loops) - 1:
        sch.reorder(*rows, outer, inner)
    for loop in (*rows, outer):
        sch.unroll(loop)
    sch.vectorize(inner)

"""multi_level_tiling_with_intrin: tiles of instructions such as products of small matrices.

    for io, jo in parallel:
        copy the tiles of A and of B that are used    # variant: all tiles, before the loops
        for i1, j1:
            for ko:
                for ki, i2, j2 in unrolled:           # results stay in a local buffer
                    C[tile i, tile j] += instruction(A[tile i, tile k], B[tile k, tile j])
            store the results, or the consumer, fused

`schedule.auto_tensorize` maps the block's iterators to the loops of the instruction. The module
`tensor_instruction` handles instructions that compute lanes of short dot products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

from metasched.analysis.access import accesses
from metasched.analysis.block import TILED
from metasched.arith.affine import linear
from metasched.errors import ScheduleError
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.equal import structural_hash
from metasched.ir.expr import FloorMod, as_expr, as_int
from metasched.ir.stmt import Block, BufferStore, For, IterKind, Stmt
from metasched.ir.visit import free_vars
from metasched.schedule.auto_tensorize import TensorizeMapping, tensorize_mappings
from metasched.schedule.handles import BlockRV, ExprRV, LoopRV
from metasched.schedule.intrinsics import TensorIntrin
from metasched.schedule.schedule import Schedule
from metasched.schedule.tensorize_layout import results_in_tiles, transform_by_mapping
from metasched.space.modules.multi_level_tiling import Reuse, place_after
from metasched.space.modules.tensor_form import lane_shape, offer_instructions
from metasched.space.strides import iter_stride, lanes_together, vector_iter
from metasched.space.tiling import (
    Axis,
    Factors,
    axes,
    balance,
    changed,
    epilogue,
    product,
    tile,
    tileable,
)

WAYS = 2
"""The most mappings of a block to an instruction that are offered."""
WORK = 2.0
"""Padding to whole tiles may multiply the work by at most this factor."""
TILES = 4
"""Register blocks of at most this many instructions are tried even if their results do not fit the
registers."""


@dataclass(frozen=True, slots=True)
class MultiLevelTilingWithIntrin:
    """Offer tiles of an instruction (see the file's docstring), beside the unchanged block.

    Attributes:
        intrin_name: the name of the tensor intrinsic; None for all registered intrinsics that the
            target has, except intrinsics that `use_tensor_instruction` handles.
        structure: letters S and R, outermost level first. The first level runs in parallel; the
            last R, if there are several, and what follows it are unrolled.
        max_innermost_factor: limit of the innermost part of each loop, in instructions.
        reuse_read: after how many levels the operands are copied into tiles; "may" also offers
            copies before the loops.
        reuse_write: after how many levels the results are stored.
        features: the features of the target.
        vector_bits, registers: the bits and the number of vector registers, which results must fit.
        cores: the number of cores over which the first level is spread.
        body: the most statements of the unrolled loops.
    """

    intrin_name: str | None = None
    structure: str = "SSRRS"
    max_innermost_factor: int = 4
    reuse_read: Reuse = field(default_factory=partial(Reuse, "may", (1,)))
    reuse_write: Reuse = field(default_factory=partial(Reuse, "must", (2,), "local"))
    features: tuple[str, ...] = ()
    vector_bits: int = 256
    registers: int = 16
    cores: int = 1
    body: int = 256

    @property
    def name(self) -> str:
        return "multi_level_tiling_with_intrin"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        if not tileable(sch, block) or sch.get(block).init is None:
            return [sch]
        found: list[Schedule] = []
        for names in self._instructions():
            intrin = TensorIntrin.get(names[0])
            try:
                ways = tensorize_mappings(sch.get(block), intrin.desc)[:WAYS]
            except ScheduleError as error:
                if self.intrin_name is not None or error.reason == "no-iterator":
                    sch.refused.append(error)
                continue
            for way in ways:
                found += self._tiled(sch, block, names, way)
        return [*found, sch]

    def _instructions(self) -> list[list[str]]:
        """The names of the intrinsics to offer, grouped by their descriptions."""
        found: dict[str, list[str]] = {}
        given = TensorIntrin.names() if self.intrin_name is None else [self.intrin_name]
        for name in given:
            intrin = TensorIntrin.get(name)
            if intrin.lacks(self.features):
                continue
            if self.intrin_name is None and lane_shape(intrin.desc) is not None:
                continue
            found.setdefault(_description(intrin), []).append(name)
        return list(found.values())

    def _tiled(
        self, sch: Schedule, block: BlockRV, names: Sequence[str], way: TensorizeMapping
    ) -> list[Schedule]:
        """A schedule for each place where operands may be copied; the cores have equal work unless
        the extents do not allow it."""
        found = []
        for read in dict.fromkeys(self.reuse_read.places):
            apply = partial(self._apply, block, names, way, read)
            found += changed(sch, partial(apply, True)) or changed(sch, partial(apply, False))
        return found

    def _apply(
        self,
        block: BlockRV,
        names: Sequence[str],
        way: TensorizeMapping,
        read: int | None,
        even: bool,
        sch: Schedule,
    ) -> None:
        """Apply all steps to a copy of the schedule.

        Args:
            read: after how many levels operands are copied; None for copies before the loops.
            even: require parallel loops with equal work for each core.
        """
        if way.work > WORK:
            why = f"whole tiles of {names[0]} would take {way.work:.1f} times the work"
            raise ScheduleError(self.name, "padding", why, block_or_loop=sch.get(block))
        ahead, first = self._before(sch, block, way, read)
        done = transform_by_mapping(sch, block, way, epilogue(sch, block))
        sch.annotate(done.block, TILED, self.structure)
        levels = tile(sch, self.structure, self._parts(sch, done.block, way, names[0], even))
        levels[0] = [sch.fuse(*levels[0])]
        place = place_after(levels, max(self.reuse_write.levels, default=1))
        sch.reverse_compute_at(done.finish, place, preserve_unit_loops=True)
        results_in_tiles(sch, done, way)
        self._store(sch, done.finish, _depth(sch, place))
        offer_instructions(sch, done.block, names)
        for theirs, panel in done.panels.items():
            outputs = done.dims[theirs]
            if theirs in first:
                sch.parallel(sch.fuse(*_fill(sch, panel, way, outputs, 0)))
            elif theirs not in ahead:
                place = place_after(levels, read or self.reuse_read.levels[0])
                sch.compute_at(panel, place, preserve_unit_loops=True)
                _fill(sch, panel, way, outputs, _depth(sch, place))
        for loop in (loop for level in levels[self._unrolled :] for loop in level):
            sch.unroll(loop)
        sch.parallel(levels[0][0])

    @property
    def _unrolled(self) -> int:
        """The first level whose loops are unrolled."""
        reduced = [n for n, letter in enumerate(self.structure) if letter == "R"]
        return reduced[-1] + (len(reduced) == 1) if reduced else 1

    def _before(
        self, sch: Schedule, block: BlockRV, way: TensorizeMapping, read: int | None
    ) -> tuple[set[Buffer], set[Buffer]]:
        """The operands to copy ahead of time, and the operands to copy before the loops."""
        node = sch.get(block)
        constants = sch.state.func_of(sch.state.block(block))[1].constants
        operands = {b: load for b, load in way.operands.items() if b is not way.result}
        ahead = {b for b, load in operands.items() if load.buffer in constants}
        if read is not None:
            return ahead, set()
        first = {b for b, load in operands.items() if b not in ahead and not _grows(node, load)}
        if not first:
            why = f"each operand of {node.name} is constant, or read in windows that overlap"
            raise ScheduleError(self.name, "copied-inside", why, block_or_loop=node)
        return ahead, first

    def _parts(
        self, sch: Schedule, block: BlockRV, way: TensorizeMapping, intrin: str, even: bool
    ) -> list[tuple[Axis, Sequence[int], Factors]]:
        """The levels and the sampled factors of each loop."""
        spatial, reduced = (
            [n for n, letter in enumerate(self.structure) if letter == kind] for kind in "SR"
        )
        node, every = sch.get(block), axes(sch, block)
        steps = [a for a in every if not a.spatial and a.extent != 1]
        parts: list[tuple[Axis, Sequence[int], Factors]] = []
        held: list[ExprRV] = []
        outer: list[ExprRV] = []
        whole = 1
        for axis in every:
            places = spatial if axis.spatial else reduced or spatial[:1]
            alone = axis.extent == 1 or (
                _moves_all(node, axis) if axis.spatial else axis is not steps[-1]
            )
            if alone or len(places) == 1:
                parts.append((axis, places[:1], ()))
                whole *= (axis.extent or 1) if axis.spatial else 1
                continue
            most = self.max_innermost_factor * (1 if axis.spatial else 2)
            factors = sch.sample_perfect_tile(axis.loop, len(places), most)
            parts.append((axis, places, factors))
            if axis.spatial:
                held.append(factors[-1])
                outer.append(factors[0])
            else:
                held.insert(0, factors[-1])
        self._limit(sch, way, intrin, held, len(held) > len(outer))
        if even:
            balance(sch, self.cores, whole, outer)
        return parts

    def _limit(
        self,
        sch: Schedule,
        way: TensorizeMapping,
        intrin: str,
        held: Sequence[ExprRV],
        steps: bool,
    ) -> None:
        """Require results that fit the registers and an unrolled body of limited size.

        Args:
            held: the innermost factors.
            steps: whether the first factor of `held` counts the unrolled reduction steps.
        """
        result = way.operands[way.result].buffer.dtype.bits
        room = self.registers * self.vector_bits * 3 // 4 // (way.results * result)
        tiles = held[1:] if steps else held
        if tiles:
            sch.require(as_expr(product(tiles)) <= max(TILES, room))
        if held:
            size = _statements(TensorIntrin.get(intrin).impl.body)
            sch.require(as_expr(product(held)) <= max(1, self.body // size))

    def _store(self, sch: Schedule, finish: BlockRV, depth: int) -> None:
        """Store the results in vectors where they lie side by side.

        The columns of tiles that lie side by side make one vector, if the loops hold a register
        block alone, which is small.
        """
        node = sch.get(finish)
        vector = vector_iter(node)
        if vector is None:
            return
        loops = list(sch.get_loops(finish)[depth:])
        at = node.iter_vars.index(vector)
        inner, columns = loops.pop(at), _columns(node, at)
        beside = None if columns is None else loops.pop(columns)
        sch.reorder(*loops, *([] if beside is None else [beside]), inner)
        if self.structure[max(self.reuse_write.levels, default=1) :].count("S") == 1:
            sch.vectorize(inner if beside is None else sch.fuse(beside, inner))
            return
        lanes = self.vector_bits // node.writes[0].buffer.dtype.bits
        size = as_int(vector.dom.extent) or lanes
        width = lanes_together(node, vector.var, max(1, min(lanes, size & -size)))
        if width > 1:
            sch.vectorize(sch.split(inner, [None, width])[1])


@lru_cache(maxsize=1024)
def _description(intrin: TensorIntrin) -> str:
    """Equal for intrinsics with the same description up to names."""
    return structural_hash(intrin.desc)


def _fill(
    sch: Schedule, panel: BlockRV, way: TensorizeMapping, outputs: Sequence[int], depth: int
) -> list[LoopRV]:
    """Make a copy store one tile after another, in vectors; returns its loops over spatial tiles.

    Args:
        sch: the schedule.
        panel: the block that copies.
        way: the mapping.
        outputs: the outputs of the mapping that are the iterators of the copy.
        depth: the number of loops around the loops of the copy.
    """
    node, loops = sch.get(panel), sch.get_loops(panel)[depth:]
    lane, width = _lane(node)
    across = _across(node, way, outputs, lane, width)
    order: dict[str, list[LoopRV]] = {"S": [], "R": [], "tile": [], "square": [], "lanes": []}
    for n, (output, loop) in enumerate(zip(outputs, loops, strict=True)):
        letter = "R" if way.kinds[output] is IterKind.REDUCE else "S"
        level = letter if output < way.outside else "tile"
        if level == "tile" and way.sizes[output] != way.tiles[output - way.outside]:
            outer, loop = sch.split(loop, [None, way.tiles[output - way.outside]])
            order[letter].append(outer)
        if n in (lane, across):
            outer, loop = sch.split(loop, [None, width])
            order[level].append(outer)
            level = "lanes" if n == lane else "square"
        order[level].append(loop)
    sch.reorder(*(loop for part in order.values() for loop in part))
    for loop in order["square"]:
        sch.unroll(loop)
    sch.vectorize(order["lanes"][0])
    return order["S"] or order["R"] or order["tile"][:1]


def _columns(node: Block, at: int) -> int | None:
    """The iterator before `at` that counts the tiles side by side in which a block stores the
    steps of iterator `at`."""
    (target,) = [a for a in accesses(node) if a.is_write]
    steps = as_int(node.iter_vars[at].dom.extent)
    strides = [iter_stride(target, v.var) for v in node.iter_vars[:at]]
    return strides.index(steps) if steps != 1 and steps in strides else None


def _lane(node: Block) -> tuple[int, int]:
    """The iterator along which a copy stores contiguously, and for how many steps: a power of
    two."""
    (target,) = [a for a in accesses(node) if a.is_write]
    for atom, factor in linear(target.indices[-1]).terms.items():
        var, by = (atom.a, as_int(atom.b)) if isinstance(atom, FloorMod) else (atom, None)
        at = [n for n, v in enumerate(node.iter_vars) if v.var is var]
        if factor == 1 and at:
            steps = by or as_int(node.iter_vars[at[0]].dom.extent) or 1
            return at[0], steps & -steps
    return len(node.iter_vars) - 1, 1


def _across(
    node: Block, way: TensorizeMapping, outputs: Sequence[int], lane: int, width: int
) -> int | None:
    """The iterator along which a copy loads contiguously, if it is not the iterator of the lanes:
    squares of both are transposed in registers."""
    (source,) = [a for a in accesses(node) if not a.is_write]
    if width < 4 or iter_stride(source, node.iter_vars[lane].var) == 1:
        return None
    for n, output in enumerate(outputs):
        inside = output >= way.outside
        size = way.tiles[output - way.outside] if inside else way.sizes[output] or 1
        fixed = inside or way.kinds[output] is IterKind.REDUCE
        beside = iter_stride(source, node.iter_vars[n].var) == 1
        if n != lane and fixed and beside and size % width == 0:
            return n
    return None


def _depth(sch: Schedule, loop: LoopRV) -> int:
    """How many loops stand around the body of a loop."""
    return len(sch.state.loops_above(sch.state.loop(loop))) + 1


def _grows(node: Block, load: BufferLoad) -> bool:
    """Whether a copy of an operand by the block's iterators is larger than the operand."""
    used = frozenset().union(*(free_vars(i) for i in load.indices))
    size = math.prod(as_int(v.dom.extent) or 1 for v in node.iter_vars if v.var in used)
    return size > math.prod(as_int(n) or 1 for n in load.buffer.shape)


def _moves_all(node: Block, axis: Axis) -> bool:
    """Whether an iterator moves all operands, as a batch iterator does."""
    var = node.iter_vars[axis.position].var
    regions = (*node.reads, *node.writes)
    return all(any(var in free_vars(r.min) for r in region.region) for region in regions)


def _statements(body: Stmt) -> int:
    """The stores of an implementation, with its loops unrolled."""
    count = int(isinstance(body, BufferStore)) + sum(_statements(s) for s in body.stmts)
    return count * ((as_int(body.extent) or 1) if isinstance(body, For) else 1)

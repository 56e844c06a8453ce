"""fuse_row_blocks: compute a chain of products and normalisations block of rows by block of rows.

    for b, h, io in parallel:            # R rows of the output
        scores of R rows                 # a product
        their maxima, exponentials, sums
        R rows of the output             # another product

As in FlashAttention (Dao et al. 2022), the results between two products stay in the cache: R rows
of the output need only R rows of these results. Unlike FlashAttention, a block has whole rows of
scores, so no running maximum or sum is corrected. The results equal the unfused program's results.
Where no R divides the rows, the last block also computes rows that do not exist, from operands of
the last row.

The chain becomes one block around blocks. Later modules tile its leaves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from metasched.analysis.block import TILED, is_output, needs_multi_level_tiling
from metasched.analysis.scope import Child, Scope
from metasched.arith.indexmap import IndexMap
from metasched.errors import ScheduleError
from metasched.ir.buffer import Buffer
from metasched.ir.expr import Expr, Var, as_expr, as_int
from metasched.ir.stmt import Block, BlockRealize, For
from metasched.ir.visit import free_vars
from metasched.schedule.handles import BlockRV, ExprRV
from metasched.schedule.schedule import Schedule
from metasched.space.modules.compute_location import all_producers
from metasched.space.packing import lane_operands
from metasched.space.strides import FEW, vector_iter
from metasched.space.tiling import changed, product, uniform, untouched, within_parallel

MOST_ROWS = 128
"""The most rows of a block: the tiles inside need no more to reuse their operands."""
FEWEST_ROWS = 8
"""The fewest rows of a block, if the output has this many."""

_PADDED = (8, 16, 32, 64, 128)  # rows of a block where no number in these limits divides

_LINE = 64  # bytes of a cache line
_CONFLICT = 512  # every eighth line: of 64 sets, the rows share 8 or fewer


@dataclass(frozen=True, slots=True)
class Chain:
    """The stages that can be computed for a block of rows of an output.

    Attributes:
        rows: how many leading loops of the output are rows.
        names: the producers of which a row of the output needs one row, the last in the program
            first.
        row_bytes: the bytes of one row of all their results.
    """

    rows: int
    names: tuple[str, ...]
    row_bytes: int


@dataclass(frozen=True, slots=True)
class FuseRowBlocks:
    """Offer an output and its producers in blocks of rows (see the file's docstring).

    For outputs with a producer that reuses data, such as a product, if the chain reduces the
    producer's results again. No two rows of the output may need the same row of the producer.
    Operands that all rows share, and that vectors cannot read, are transposed before. Offers this
    variant and the unchanged program.

    Attributes:
        cores: the number of cores over which the blocks of rows are spread.
        cache_bytes: the most bytes of results between the blocks of the chain.
    """

    cores: int = 1
    cache_bytes: int = 1 << 20

    @property
    def name(self) -> str:
        return "fuse_row_blocks"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        chain = self.chain(sch, block)
        if chain is None:
            return [sch]
        return [*changed(sch, partial(self._apply, block, chain)), sch]

    def chain(self, sch: Schedule, block: BlockRV, products: bool = True) -> Chain | None:
        """The chain of an output that has the most row loops and several reductions, among them a
        producer with reuse if `products`; None where there is none."""
        realize = sch.state.block(block)
        around = sch.state.scope_block(realize)
        if around is None or sch.state.parent(realize) is None or within_parallel(sch, block):
            return None
        scope = sch.state.scope(realize)
        output = scope.child(realize.block.token)
        if not is_output(around, realize.block) or not untouched(output):
            return None
        producers = [p for p in all_producers(scope, output) if untouched(p)]
        reuse = {p.block.name for p in producers if _reuses(scope, p)}
        spatial = [v.var for v in output.block.iter_vars if v.is_spatial]
        if (products and not reuse) or not spatial:
            return None
        bound = dict(zip(output.realize.iter_values, output.block.iter_vars, strict=True))
        leading = 0
        while leading < len(output.loops) and bound[output.loops[leading].var].is_spatial:
            leading += 1
        for rows in range(leading, 0, -1):
            if as_int(output.loops[rows - 1].extent) != 1:
                chain = self._moved(sch, output, producers, rows)
                members = [p for p in producers if p.block.name in chain.names]
                reductions = sum(_reduces(p.block) for p in (*members, output))
                if reductions > 1 and not (products and reuse.isdisjoint(chain.names)):
                    return chain
        return None

    def _moved(self, sch: Schedule, output: Child, producers: list[Child], rows: int) -> Chain:
        """The producers that can be computed for one row of the output, found on a copy of the
        schedule; a producer that two rows need is left out."""
        probe = sch.copy()
        place = probe.get_loops(probe.get_block(output.block.name))[rows - 1]
        names: list[str] = []
        row_bytes = 0
        for producer in producers:
            name = producer.block.name
            attempt = probe.copy()
            try:
                attempt.compute_at(attempt.get_block(name), place, preserve_unit_loops=False)
            except ScheduleError:
                continue
            moved = attempt.state.block(attempt.get_block(name))
            loops = attempt.state.loops_above(moved)
            if _steps(loops) > _steps(producer.loops):
                continue
            probe = attempt
            names.append(name)
            results = moved.block.writes[0].buffer.dtype.bytes
            row_bytes += results * _spatial_steps(moved, loops[rows:])
        return Chain(rows, tuple(names), row_bytes)

    def _apply(self, block: BlockRV, chain: Chain, sch: Schedule) -> None:
        rows = fuse_rows(sch, block, chain, self.cores)
        sch.require(rows * chain.row_bytes <= self.cache_bytes)


def fuse_rows(sch: Schedule, block: BlockRV, chain: Chain, cores: int) -> ExprRV:
    """Compute a chain block of rows by block of rows, spread over cores; returns the sampled number
    of rows in a block."""
    members = [sch.get_block(name) for name in chain.names]
    for member in (*members, block):
        _transpose_shared(sch, member, {sch.get(m).writes[0].buffer for m in members})
    loops = sch.get_loops(block)
    split = loops[chain.rows - 1]
    extent = as_int(sch.get(split).extent) or 1
    before = math.prod(as_int(sch.get(x).extent) or 1 for x in loops[: chain.rows - 1])
    busy = min(cores, before * extent)
    fewest = min(FEWEST_ROWS, extent)
    if any(extent % n == 0 for n in range(fewest, MOST_ROWS + 1)):
        copy = None
        tiles = sch.sample_perfect_tile(split, 2, MOST_ROWS)
        sch.require(tiles[1] >= fewest)
        if before < cores:
            sch.require(as_expr(product([before, tiles[0]])) >= busy)
        rows = tiles[1]
    else:  # for example a prime number of rows
        sizes = [n for n in _PADDED if before * -(-extent // n) >= busy]
        rows = uniform(sch, sizes or [FEWEST_ROWS])
        copy = _padded(sch, block, members, sch.get(split).var, rows)
    place, _ = sch.split(split, [None, rows])
    for member in members:
        sch.compute_at(member, place, preserve_unit_loops=False)
    outer = sch.blockize([*reversed(members), block])
    around = sch.get_loops(outer)
    if copy is not None:
        sch.reverse_compute_at(copy, around[-1], preserve_unit_loops=False)
    sch.parallel(sch.fuse(*around))
    sch.annotate(outer, TILED, "S")
    return rows


def _padded(
    sch: Schedule, block: BlockRV, members: list[BlockRV], loop: Var, rows: ExprRV
) -> BlockRV:
    """Round the rows of a chain up to whole blocks; returns the block that copies the rows that
    exist into the output.

    Args:
        loop: the variable of the output's loop over rows.
    """
    copy = sch.cache_write(block, 0, "global")
    bound = sch.state.block(block)
    row = next(v.var for v in bound.block.iter_vars if bound.bindings[v.var] is loop)
    at: dict[Buffer, int] = {}
    found: list[tuple[BlockRV, list[ExprRV | int]]] = []
    for each in (block, *members):
        node = sch.get(each)
        own = row if each is block else _index(node, at)
        found.append((each, [rows if v.var is own else 1 for v in node.iter_vars]))
        for read in node.reads:
            places = [n for n, r in enumerate(read.region) if r.min is own]
            at.update(dict.fromkeys([read.buffer], places[0]) if places else {})
    for each, multiples in reversed(found):
        sch.overcompute(each, multiples)
    return copy


def _index(node: Block, at: Mapping[Buffer, int]) -> Expr:
    """The iterator of a block for the rows of its result."""
    written = node.writes[0]
    if written.buffer not in at:
        raise ScheduleError("fuse_row_blocks", "not-plain", f"no rows of {node.name} are read")
    return written.region[at[written.buffer]].min


def _reuses(scope: Scope, child: Child) -> bool:
    return needs_multi_level_tiling(scope, child.token) is None


def _reduces(block: Block) -> bool:
    return any(v.is_reduce and as_int(v.dom.extent) != 1 for v in block.iter_vars)


def _steps(loops: tuple[For, ...]) -> int:
    return math.prod(as_int(loop.extent) or 1 for loop in loops)


def _spatial_steps(realize: BlockRealize, loops: tuple[For, ...]) -> int:
    """The iterations of the loops that spatial iterators of a block use."""
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    used = set[Var]().union(*(free_vars(value) for v, value in pairs if v.is_spatial))
    return _steps(tuple(loop for loop in loops if loop.var in used))


def _transpose_shared(sch: Schedule, block: BlockRV, inside: set[object]) -> None:
    """Copy operands so that they are contiguous along the vectors.

    Copied are operands from outside the chain that many rows use and that are not contiguous along
    the vectors.
    """
    node = sch.get(block)
    vector = vector_iter(node)
    if vector is None or not _reduces(node):
        return
    for operand in reversed(lane_operands(sch, node, vector.var)):
        source = node.reads[operand.place[0]].buffer
        if operand.contiguous or operand.rows <= FEW or source in inside:
            continue
        copy = sch.reindex(block, ("read", *operand.place))
        lane = _dimension(sch.get(block), sch.get(copy), vector.var)
        inputs = tuple(Var(f"i{n}") for n in range(len(sch.get(copy).writes[0].region)))
        order = (*inputs[:lane], *inputs[lane + 1 :], inputs[lane])
        sch.transform_layout(copy, ("write", 0), IndexMap(inputs, order))
        _spread_rows(sch, copy)


def _spread_rows(sch: Schedule, copy: BlockRV) -> None:
    """Keep the rows of a copied operand from falling into the same sets of the cache.

    Vectors walk down a few columns of the copy. Where a row is a multiple of `_CONFLICT` bytes
    long, the columns of all rows share few sets, and evict each other. So a row then takes an odd
    number of cache lines.
    """
    buffer = sch.get(copy).writes[0].buffer
    row, line = as_int(buffer.shape[-1]), _LINE // buffer.dtype.bytes
    if buffer.ndim > 1 and row is not None and row * buffer.dtype.bytes % _CONFLICT == 0:
        sch.storage_align(copy, 0, buffer.ndim - 2, 2 * line, line)


def _dimension(node: Block, copy: Block, var: Var) -> int:
    """The dimension of the copied operand that moves with an iterator of the block."""
    read = next(r for r in node.reads if r.buffer is copy.writes[0].buffer)
    return next(n for n, r in enumerate(read.region) if var in free_vars(r.min))

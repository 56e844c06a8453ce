"""rolling_update: normalisations in one pass over blocks of their axis, as FlashAttention computes.

    for b, h, io in parallel:            # R rows of the output
        for jo in blocks of the axis:
            scores of R rows             # at most `size` columns
            their running maxima, exponentials, running sums
            R rows of the output so far, corrected and added to

Rows of any length stay in the cache: what lies between the first product and the output is R rows
of `size` columns. The step `rolling_update` proves that the results are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from metasched.analysis.block import TILED
from metasched.analysis.reducer import match_reducer
from metasched.errors import ScheduleError
from metasched.ir.buffer import Buffer
from metasched.ir.expr import Var, as_int
from metasched.ir.stmt import Block, BufferStore
from metasched.ir.visit import loads_of
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.schedule import Schedule
from metasched.space.modules.row_blocks import Chain, FuseRowBlocks, fuse_rows
from metasched.space.tiling import changed, uniform

SIZES = (64, 128, 256, 512, 1024)
"""Choices of the columns of a block."""


@dataclass(frozen=True, slots=True)
class RollingUpdate:
    """Offer chains in blocks of rows and of their reduced axis (see the file's docstring).

    The chain ends in an output and reduces along one axis twice, first to a maximum or minimum.
    Offers this variant and the unchanged program.

    Attributes:
        rows: the module that knows chains in blocks of rows.
    """

    rows: FuseRowBlocks

    @property
    def name(self) -> str:
        return "rolling_update"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        chain = self.rows.chain(sch, block, products=False)
        if chain is None:
            return [sch]
        names = [*reversed(chain.names), sch.get(block).name]
        if not axis_loops([sch.get(sch.get_block(name)) for name in names]):
            return [sch]
        return [*changed(sch, partial(self._apply, block, chain, names)), sch]

    def _apply(self, block: BlockRV, chain: Chain, names: list[str], sch: Schedule) -> None:
        quotients = _quotients([sch.get(sch.get_block(name)) for name in names])
        for name in quotients:
            sch.compute_inline(sch.get_block(name))
        chain = replace(chain, names=tuple(n for n in chain.names if n not in quotients))
        rows = fuse_rows(sch, block, chain, self.rows.cores)
        blocks = [sch.get(sch.get_block(n)) for n in names if n not in quotients]
        loops = [_loop(sch, name, var) for name, var in axis_loops(blocks).items()]
        extent = as_int(sch.get(loops[0]).extent) or max(SIZES)
        below = [n for n in SIZES if n < extent]
        sizes = [n for n in below if extent % n == 0] or below or [extent]
        size = uniform(sch, sizes)
        sch.require(rows * size * 8 <= self.rows.cache_bytes)
        sch.annotate(sch.rolling_update(loops, size), TILED, "S")


def axis_loops(blocks: list[Block]) -> dict[str, Var]:
    """The blocks that compute along the axis of a maximum or minimum, with their iterators of it.

    Later sums depend on the maximum or minimum. Empty if there is no such axis.
    """
    for at, block in enumerate(blocks):
        found = match_reducer(block.init, block.body)
        axis = [v.var for v in block.iter_vars if v.is_reduce]
        if found is None or found.name not in ("max", "min") or len(axis) != 1:
            continue
        along = {block.name: axis[0]}
        places: dict[Buffer, int] = {}
        _note_reads(block, axis[0], places)
        for before in reversed(blocks[:at]):
            _follow(before, places, along, written=True)
        for after in blocks[at + 1 :]:
            _follow(after, places, along, written=False)
        inside = [b for b in blocks if b.name in along]
        summed = [b for b in inside[inside.index(block) :] if b.init is not None]
        if len(summed) > 1:
            return {b.name: along[b.name] for b in inside}
    return {}


def _note_reads(block: Block, var: Var, places: dict[Buffer, int]) -> None:
    """Note the dimensions of a block's reads that an iterator indexes."""
    for expr in block.body.exprs:
        for load in loads_of(expr):
            for place, index in enumerate(load.indices):
                if index is var:
                    places.setdefault(load.buffer, place)


def _follow(block: Block, places: dict[Buffer, int], along: dict[str, Var], written: bool) -> None:
    """Note the iterator of a block along the axis, and the other dimensions that it indexes."""
    if not isinstance(block.body, BufferStore):
        return
    store = block.body
    own = {v.var for v in block.iter_vars}
    if written:
        elements = [(store.buffer, store.indices)]
    else:
        elements = [(x.buffer, x.indices) for e in store.exprs for x in loads_of(e)]
    for buffer, indices in elements:
        index = indices[places[buffer]] if buffer in places else None
        if index in own and isinstance(index, Var):
            along[block.name] = index
            _note_reads(block, index, places)
            for place, other in enumerate(store.indices):
                if other is index:
                    places.setdefault(store.buffer, place)
            return


def _quotients(blocks: list[Block]) -> list[str]:
    """The blocks that use a sum over the axis for each position of the axis."""
    along = axis_loops(blocks)
    sums: set[Buffer] = set()
    found: list[str] = []
    for block in blocks:
        var = along.get(block.name)
        used = {x.buffer for e in block.body.exprs for x in loads_of(e)}
        if any(v.var is var and v.is_reduce for v in block.iter_vars):
            reduction = match_reducer(block.init, block.body)
            if reduction is not None and reduction.name == "sum":
                sums.add(reduction.buffers[0])
        elif var is not None and not sums.isdisjoint(used):
            found.append(block.name)
    return found


def _loop(sch: Schedule, name: str, var: Var) -> LoopRV:
    """The loop of an iterator of a block."""
    block = sch.get_block(name)
    realize = sch.state.block(block)
    for loop in sch.get_loops(block):
        if sch.get(loop).var is realize.bindings[var]:
            return loop
    raise ScheduleError("rolling_update", "not-plain", f"{var.name} of {name} has no loop")

"""time_tiling: several steps of a loop over time on rows that are in the cache.

    for w in waves:
        for t_0 in tiles of time steps, in parallel:
            for t_1: for i_1 in a tile of rows:
                one row of each statement of the step

A step of a large grid reads the whole grid from memory. The statements of a step are merged into
one loop over rows, each behind the statement before it as far as its reads ask for (`delay`). The
rows are skewed by the time steps, and both loops are tiled (Wolf and Lam 1991). Then a tile of rows
stays in the cache for all steps of a tile. A second skew gives waves of independent tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from metasched.analysis.block import TILED, is_leaf
from metasched.analysis.dependence import carried_dependence
from metasched.analysis.scope import Child
from metasched.errors import ScheduleError
from metasched.ir.buffer import BufferRegion
from metasched.ir.expr import as_int
from metasched.ir.stmt import For, ForKind, SeqStmt, Stmt
from metasched.ir.visit import free_vars, substitute
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.schedule import Schedule
from metasched.space.tiling import changed, loop_handle, uniform

STRUCTURE = "time"
"""The value of the note TILED on a block."""
REACH = 3
"""By how many rows more than the statement before it a statement may be delayed."""
FACTORS = (1, 2, 3, 4, 6, 8)
"""Factors of the skew that are tried; the smallest legal one is taken."""
FEWEST = 4
"""The fewest time steps and rows of a program that is tiled."""


@dataclass(frozen=True, slots=True)
class TimeTiling:
    """Offer a loop over time in tiles of steps and rows (see the file's docstring).

    For an outermost serial loop whose iterations depend on each other, around nests without
    reductions. The outer loops of the nests must be independent inside a step; a nest of one loop
    counts as one row. What each iteration uses again must be larger than the cache. Offers the
    tiles, and the unchanged program.

    Attributes:
        cores: of the machine; one core gets no waves.
        cache: bytes of the cache in which the rows of a tile are to stay.
        together: choices of the steps of a tile.
        rows: choices of the rows of a tile.
    """

    cores: int = 1
    cache: int = 1 << 20
    together: Sequence[int] = (4, 8, 12, 16, 24, 32)
    rows: Sequence[int] = (4, 8, 16, 32, 64)

    @property
    def name(self) -> str:
        return "time_tiling"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        loops = sch.state.loops_above(realize)
        if not loops or not self._pays(sch, loops[0], block):
            return [sch]
        plan = _plan(sch, sch.get_loops(block)[0])
        if plan is None:
            return [sch]
        return [*changed(sch, partial(self._tiled, block, *plan)), sch]

    def _pays(self, sch: Schedule, time: For, block: BlockRV) -> bool:
        """Whether `block` is the first below a loop over time that uses more than the cache."""
        scope = sch.state.scope(time)
        children = scope.under(time)
        if children[0].realize is not sch.state.block(block) or not _is_over_time(time):
            return False
        if not all(_is_plain(child) for child in children):
            return False
        written = {r.buffer for c in children for r in c.block.writes}
        used = written | {r.buffer for c in children for r in c.block.reads if _again(c, r, time)}
        sizes = [[sch.state.size(n) or 0 for n in b.shape] + [b.dtype.bytes] for b in used]
        if sum(map(prod, sizes)) <= self.cache:
            return False
        return carried_dependence(time, scope) is not None

    def _tiled(self, block: BlockRV, delays: Sequence[int], factor: int, sch: Schedule) -> None:
        time = sch.get_loops(block)[0]
        blocks = sch.get_child_blocks(time)
        rows = sch.skew(time, _merged(sch, time, delays), factor)
        time, step = sch.split(time, [None, uniform(sch, self.together)])
        tile, row = sch.split(rows, [None, uniform(sch, self.rows)])
        sch.reorder(time, tile, step, row)
        if self.cores > 1:
            wave = sch.skew(time, tile, 1)
            sch.reorder(wave, time)
            sch.parallel(time)
        for one in blocks:
            sch.annotate(one, TILED, STRUCTURE)


def _again(child: Child, region: BufferRegion, time: For) -> bool:
    """Whether each iteration of a loop over time reads the same elements."""
    bindings = child.realize.bindings
    used = (free_vars(substitute(e, bindings)) for r in region.region for e in (r.min, r.extent))
    return all(time.var not in one for one in used)


def _is_over_time(loop: For) -> bool:
    """Whether a loop is plain and long enough, and holds nests of long enough loops only."""
    plain = loop.kind is ForKind.SERIAL and not loop.annotations
    nests = _nests(loop)
    if not plain or len(nests) != len(_items(loop)) or (as_int(loop.extent) or 0) < FEWEST:
        return False
    return max(as_int(nest.extent) or 0 for nest in nests) >= FEWEST and all(
        n.kind is ForKind.SERIAL and not n.annotations and as_int(n.min) is not None for n in nests
    )


def _is_plain(child: Child) -> bool:
    block = child.block
    untiled = TILED not in block.annotations and block.init is None
    return untiled and is_leaf(block) is None and not any(v.is_reduce for v in block.iter_vars)


def _plan(sch: Schedule, time: LoopRV) -> tuple[list[int], int] | None:
    """The smallest delays of the nests below a loop over time, and the smallest factor of the skew
    with which tiles are legal; None without any.

    Rows of one nest that no step of another row touches need no skew: each row can run all steps,
    in parallel with the other rows.
    """
    delays = [0]
    if len(_nests(sch.state.loop(time))) == 1 and _accepted(sch, time, delays, 0):
        return None
    while len(delays) < len(_nests(sch.state.loop(time))):
        ways = ([*delays, delays[-1] + more] for more in range(REACH + 1))
        found = next((way for way in ways if _accepted(sch, time, way)), None)
        if found is None:
            return None
        delays = found
    factor = next((f for f in FACTORS if _accepted(sch, time, delays, f)), None)
    return None if factor is None else (delays, factor)


def _accepted(
    sch: Schedule, time: LoopRV, delays: Sequence[int], factor: int | None = None
) -> bool:
    """Whether the first nests below a loop may be merged behind these delays, and with a factor
    whether time steps may be innermost after a skew by it (0 for no skew)."""
    trial = sch.copy()
    try:
        rows = _merged(trial, time, delays)
        if factor is not None:
            trial.reorder(trial.skew(time, rows, factor) if factor else rows, time)
    except ScheduleError:
        return False
    return True


def _merged(sch: Schedule, time: LoopRV, delays: Sequence[int]) -> LoopRV:
    """Merge the outer loops of the first nests below a loop, each behind its delay."""
    nests = _nests(sch.state.loop(time))[: len(delays)]
    deepest = max(map(_depth, nests))
    loops = [loop_handle(sch, nest) for nest in nests]
    for n, nest in enumerate(nests):
        if _depth(nest) < deepest:  # one row
            loops[n] = sch.add_unit_loop(loops[n])
    nodes = [sch.state.loop(loop) for loop in loops]
    starts = [(as_int(n.min) or 0) + d for n, d in zip(nodes, delays, strict=True)]
    starts = [start - min(starts) for start in starts]
    ends = [start + _length(node) for start, node in zip(starts, nodes, strict=True)]
    delayed = [
        sch.delay(loop, start, max(ends) - end)
        for loop, start, end in zip(loops, starts, ends, strict=True)
    ]
    return sch.merge(*delayed) if len(delayed) > 1 else delayed[0]


def _length(loop: For) -> int:
    size = as_int(loop.extent)
    if size is None:
        raise ScheduleError("delay", "run-time-extent", f"{loop.var.name} has no constant extent")
    return size


def _depth(nest: Stmt) -> int:
    """How many loops stand around the deepest block of a nest, from the nest on."""
    return isinstance(nest, For) + max(map(_depth, nest.stmts), default=0)


def _items(loop: For) -> Sequence[Stmt]:
    return loop.body.items if isinstance(loop.body, SeqStmt) else (loop.body,)


def _nests(loop: For) -> list[For]:
    return [item for item in _items(loop) if isinstance(item, For)]

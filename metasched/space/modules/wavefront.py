"""wavefront: time steps or rows of a stencil in place, several at a time.

    for o in tiles of outer:             # with threads: a parallel loop in each wave of tiles
        for inner + factor * outer:
            for the other loops:
                for outer in the tile:   # unrolled: these iterations are independent

Each element of a Gauss-Seidel sweep needs elements of the same sweep, so no loop has independent
iterations, and each element waits for the latency of the previous element. After `inner` is skewed
(Wolf and Lam 1991), several iterations of `outer` run at the same time at distant places of
`inner`, and their latencies overlap. Tiles of both loops depend on earlier tiles in both
directions; after a second skew, the tiles of one wave are independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from metasched.analysis.block import TILED, is_leaf
from metasched.analysis.dependence import carried_dependence
from metasched.analysis.loops import is_chain
from metasched.errors import ScheduleError
from metasched.ir.stmt import Block, ForKind, IfThenElse
from metasched.ir.visit import loads_of
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import SMALL, steps
from metasched.space.strides import apart_in_pages
from metasched.space.tiling import changed, uniform

STRUCTURE = "wavefront"
"""The value of the note TILED on a block."""
FACTORS = (1, 2, 3)
"""Factors of the skew that are tried; the smallest legal one is taken."""
LONG = 4
"""The skewed loop is at least this many times as long as the distance of the iterations."""


@dataclass(frozen=True, slots=True)
class Wavefront:
    """Offer a block without independent loops in wavefronts (see the file's docstring).

    For a leaf block under a chain of two loops or more, of which each carries a dependence, except
    where elements that the block updates decide whether it runs. Offers the iterations of a loop
    interleaved on one thread, tiles of them on several threads, and the unchanged program.

    Attributes:
        cores: of the machine; one core gets no tiles for threads.
        together: choices of how many iterations are interleaved.
        tiles: choices of the iterations of the inner loop in a tile.
    """

    cores: int = 1
    together: Sequence[int] = (2, 4, 6, 8)
    tiles: Sequence[int] = (16, 32, 64, 128)

    @property
    def name(self) -> str:
        return "wavefront"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        if not _is_chained(sch, block):
            return [sch]
        for at in range(len(sch.get_loops(block)) - 1):
            length = sch.state.size(sch.get(sch.get_loops(block)[at + 1]).extent)
            for factor in FACTORS:
                if length is not None and length < LONG * factor:
                    break  # iterations of the outer loop would hardly run at the same time
                if self._overlaps(sch.copy(), block, at, factor):
                    sizes = self._sizes(sch, block, at, factor)
                    ways = [partial(self._interleaved, block, at, factor, sizes)]
                    if self.cores > 1:
                        ways.append(partial(self._tiled, block, at, factor, sizes))
                    return [*changed(sch, *ways), sch]
        return [sch]

    def _sizes(self, sch: Schedule, block: BlockRV, at: int, factor: int) -> list[int]:
        """How many iterations of the loop at a position may be interleaved."""
        realize = sch.state.block(block)
        child = sch.state.scope(realize).child(realize.block.token)
        moves = {child.loops[at].var: 1, child.loops[at + 1].var: -factor}
        return apart_in_pages(child, moves, self.together) or [min(self.together)]

    def _overlaps(self, trial: Schedule, block: BlockRV, at: int, factor: int) -> bool:
        """Whether the loop at a position has independent iterations once the next is skewed."""
        try:
            self._interleaved(block, at, factor, self.together, trial)
        except ScheduleError:
            return False
        node = trial.state.loop(trial.get_loops(block)[-1])
        return carried_dependence(node, trial.state.scope(node)) is None

    def _interleaved(
        self, block: BlockRV, at: int, factor: int, sizes: Sequence[int], sch: Schedule
    ) -> None:
        """Several iterations of the loop at a position side by side."""
        loops = sch.get_loops(block)
        inner = sch.skew(loops[at], loops[at + 1], factor)
        outer, part = sch.split(loops[at], [None, uniform(sch, sizes)])
        sch.reorder(outer, inner, *loops[at + 2 :], part)
        sch.unroll(part)
        sch.annotate(block, TILED, STRUCTURE)

    def _tiled(
        self, block: BlockRV, at: int, factor: int, sizes: Sequence[int], sch: Schedule
    ) -> None:
        """The same in tiles; the tiles of one wave run in parallel."""
        loops = sch.get_loops(block)
        inner = sch.skew(loops[at], loops[at + 1], factor)
        outer, part = sch.split(loops[at], [None, uniform(sch, sizes)])
        tile, place = sch.split(inner, [None, uniform(sch, self.tiles)])
        sch.reorder(outer, tile, place, *loops[at + 2 :], part)
        wave = sch.skew(outer, tile, 1)
        sch.reorder(wave, outer)
        sch.parallel(outer)
        sch.unroll(part)
        sch.annotate(block, TILED, STRUCTURE)


def _tests_itself(block: Block) -> bool:
    """Whether all of a block stands under a test of elements that it updates: the processor runs
    ahead of the test, so that no iteration waits, and predicts it better in the order of memory."""
    written = {w.buffer for w in block.writes}
    test = block.body.condition if isinstance(block.body, IfThenElse) else None
    return test is not None and any(load.buffer in written for load in loads_of(test))


def _is_chained(sch: Schedule, block: BlockRV) -> bool:
    """Whether a block updates a buffer in place below a chain of loops, each with a dependence."""
    realize = sch.state.block(block)
    loops = sch.state.loops_above(realize)
    read = {r.buffer for r in realize.block.reads}
    if len(loops) < 2 or read.isdisjoint(w.buffer for w in realize.block.writes):
        return False
    if _tests_itself(realize.block):
        return False
    if is_leaf(realize.block) is not None or any(v.is_reduce for v in realize.block.iter_vars):
        return False
    plain = all(n.kind is ForKind.SERIAL and not n.annotations for n in loops)
    if not plain or not is_chain(loops) or loops[-1].body is not realize or steps(loops[0]) < SMALL:
        return False
    scope = sch.state.scope(realize)
    return all(carried_dependence(loop, scope) is not None for loop in loops)

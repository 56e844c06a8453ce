"""whole_iterations: iterations with memory of their own, in the lanes of vectors.

    for x_0: for x_1 in 64 lanes:
        nine neighbours of pixel x; a sort of them; B[x] = the middle one

Distribution gives such memory a copy for each iteration of the whole loop, and an array in place of
registers. `space/lanes.py` says which loops fit. Statements that need the order of the iterations,
as `total += h` at the end of each, first get a loop of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from metasched.analysis.access import STEPS
from metasched.analysis.block import TILED
from metasched.ir.expr import as_int
from metasched.ir.stmt import BlockToken
from metasched.lower.passes.turned_rows import TURNED
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.lanes import (
    lane_bits,
    lane_loop,
    part_iterations,
    run_in_lanes,
    turns_rows,
)
from metasched.space.loop_kinds import SMALL, child_of, steps
from metasched.space.strides import rows_apart
from metasched.space.tiling import changed, uniform

STRUCTURE = "whole_iterations"
"""The value of the note TILED on a block."""


@dataclass(frozen=True, slots=True)
class WholeIterations:
    """Offer vectors over whole iterations of a loop (see the file's docstring), beside the
    unchanged program.

    Acts on the first block inside the loop; all blocks inside get the note TILED.

    Attributes:
        vector_bits: of a vector register.
        vectors: choices of how many registers of iterations run side by side.
    """

    vector_bits: int = 256
    vectors: Sequence[int] = (1, 2, 4)

    @property
    def name(self) -> str:
        return "whole_iterations"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        if sch.state.parent(realize) is None or TILED in realize.block.annotations:
            return [sch]
        scope = sch.state.scope(realize)
        child = scope.child(realize.block.token)
        if not child.loops or steps(child.loops[0]) < SMALL:
            return [sch]
        func = sch.state.func_of(realize)[0] if len(sch.mod.functions) > 1 else None
        found = lane_loop(scope, child)
        if found is None:
            parted = sch.copy()
            fits = part_iterations(parted, child.token, func)
            return [*(self(parted, block)[:-1] if fits else ()), sch]
        loop, private = found
        under = scope.under(loop)
        lanes = self.vector_bits // lane_bits(scope, loop)
        sizes, extent = [lanes * n for n in self.vectors], as_int(loop.extent)
        if extent is None:  # rows of a sparse matrix are short, and the last vector is masked
            sizes = [lanes // 2, lanes]
        else:
            if any(rows_apart(c, loop) for c in under) and lanes >= 2 * STEPS:
                sizes.insert(0, lanes // 2)  # rows may push each other out of the cache
            sizes = [n for n in sizes if n <= extent]
        taken = any(TILED in c.block.annotations for c in under)
        if under[0] is not child or taken or lanes < 2 or not sizes:
            return [sch]
        tokens, turned = [c.token for c in under], turns_rows(scope, under, loop, private)
        return [*changed(sch, partial(self._apply, tokens, sizes, func, turned)), sch]

    def _apply(
        self, tokens: list[BlockToken], sizes: list[int], func: str | None, turned: bool,
        sch: Schedule,
    ) -> bool:  # fmt: skip
        if not run_in_lanes(sch, tokens[0], uniform(sch, sizes), func):
            return False
        for token in tokens:
            block = sch.get_block(child_of(sch, token).block.name, func)
            sch.annotate(block, TILED, STRUCTURE)
            if turned:
                sch.annotate(block, TURNED, 1)
        return True

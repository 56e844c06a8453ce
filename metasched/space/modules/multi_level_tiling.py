"""multi_level_tiling: the classical tiling by a structure such as "SSRSRS" (as in Ansor)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from metasched.analysis.block import TILED
from metasched.ir.stmt import Block
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.schedule import Schedule
from metasched.space.tiling import Axis, Factors, axes, changed, epilogue, tile, tileable


@dataclass(frozen=True, slots=True)
class Reuse:
    """Whether and where a copy in faster storage is used.

    Attributes:
        req: "no", "may" (variants with and without) or "must".
        levels: after how many levels of the structure the copy is placed.
        scope: storage scope of the copy.
    """

    req: Literal["no", "may", "must"] = "no"
    levels: tuple[int, ...] = ()
    scope: str = "global"

    @property
    def places(self) -> tuple[int | None, ...]:
        """The levels to offer, None for no copy."""
        if self.req == "no" or not self.levels:
            return (None,)
        return self.levels if self.req == "must" else (None, *self.levels)


@dataclass(frozen=True, slots=True)
class MultiLevelTiling:
    """Tile every loop of a block with data reuse by `structure`.

    Attributes:
        structure: letters S and R, outermost level first.
        max_innermost_factor: limit of the innermost part of each loop; -1 for no limit.
        reuse_read: copies of the operands, all placed at the same level.
        reuse_write: a copy of the result; if a consumer finishes each element, the consumer writes
            the copy back.
        filter_fn: blocks to tile, in place of the blocks with data reuse.
    """

    structure: str = "SSRSRS"
    max_innermost_factor: int = 64
    reuse_read: Reuse = field(default_factory=Reuse)
    reuse_write: Reuse = field(default_factory=Reuse)
    filter_fn: Callable[[Block], bool] | None = None

    @property
    def name(self) -> str:
        return "multi_level_tiling"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        node = sch.get(block)
        if self.filter_fn is not None:
            if not self.filter_fn(node) or TILED in node.annotations:
                return [sch]
        elif not tileable(sch, block):
            return [sch]
        pairs = itertools.product(self.reuse_write.places, self.reuse_read.places)
        return changed(sch, *(partial(self._apply, block, *pair) for pair in pairs)) or [sch]

    def _apply(self, block: BlockRV, write: int | None, read: int | None, sch: Schedule) -> None:
        finish = None
        if write is not None:
            finish = epilogue(sch, block)
            if finish is None:
                finish = sch.cache_write(block, 0, self.reuse_write.scope)
        levels = tile(sch, self.structure, [self._parts(sch, a) for a in axes(sch, block)])
        if finish is not None and write is not None:
            place = place_after(levels, write)
            sch.reverse_compute_at(finish, place, preserve_unit_loops=True)
        if read is not None:
            node = sch.get(block)
            outputs = {r.buffer for r in node.writes}
            for index, region in enumerate(node.reads):
                if region.buffer not in outputs:
                    copy = sch.cache_read(block, index, self.reuse_read.scope)
                    sch.compute_at(copy, place_after(levels, read), preserve_unit_loops=True)
        sch.annotate(block, TILED, self.structure)

    def _parts(self, sch: Schedule, axis: Axis) -> tuple[Axis, Sequence[int], Factors]:
        letter = "S" if axis.spatial else "R"
        places = [i for i, level in enumerate(self.structure) if level == letter]
        if len(places) < 2:
            return axis, places or [0], ()
        factors = sch.sample_perfect_tile(axis.loop, len(places), self.max_innermost_factor)
        return axis, places, factors


def place_after(levels: Sequence[Sequence[LoopRV]], level: int) -> LoopRV:
    """The last loop of the first `level` levels."""
    return [loop for group in levels[:level] for loop in group][-1]

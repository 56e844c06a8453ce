"""stage_values: a stage for the slow values of a sum that many of its results share.

    O[h, d] += exp(S[h, l] - M[h]) / Z[h] * V[l, d]
    ->
    value[h, l] = exp(S[h, l] - M[h]) / Z[h]
    O[h, d] += value[h, l] * V[l, d]

The lanes of the sum run along d, so each exponential would be computed alone. The stage has lanes
along l, and the sum is a product of matrices. A choice between elements that columns share, as of a
convolution whose padding is written in its sum, is a stage, too: the padded image.
"""

from __future__ import annotations

from dataclasses import dataclass

from metasched.analysis.block import TILED
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.tiling import changed


@dataclass(frozen=True, slots=True)
class StageValues:
    """Compute the slow values of a sum once, in a stage before it, in place of the unchanged block.

    Attributes:
        least: how many iterations share a value at least.
    """

    least: int = 8

    @property
    def name(self) -> str:
        return "stage_values"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        node = realize.block
        if sch.state.parent(realize) is None or TILED in node.annotations:
            return [sch]
        if all(v.is_spatial for v in node.iter_vars):
            return [sch]  # lanes and loops inside leave a value outside
        nothing = ("no-values", "not-leaf")

        def step(variant: Schedule) -> None:
            variant.cache_values(block, "global", self.least)

        return changed(sch, step, nothing=nothing) or [sch]

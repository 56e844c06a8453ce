"""zero_points: multiply out products of operands with zero points, and sum the terms apart.

    C[i, j] += (A[i, k] - a) * (B[k, j] - b)   ->   R[i] += A[i, k];  S[j] += B[k, j]
                                                    P[i, j] += A[i, k] * B[k, j]
                                                    C[i, j] = P[i, j] - b * R[i] - a * S[j] + steps

The later modules see a plain product P of short integers, which instructions compute. The stage C
finishes the tiles of P; if it has one consumer, it is inlined there. The unchanged block is
offered, too: where few rows use B, the sum S costs as much as the product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from metasched.ir.expr import Add, Mul, Sub
from metasched.ir.stmt import BufferStore
from metasched.ir.visit import walk_exprs
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.tiling import changed, tileable


@dataclass(frozen=True, slots=True)
class ZeroPoints:
    """Offer products with zero points multiplied out (see the file's docstring)."""

    @property
    def name(self) -> str:
        return "zero_points"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        if not tileable(sch, block):
            return [sch]
        body = sch.get(block).body
        if not isinstance(body, BufferStore) or not body.value.dtype.is_int:
            return [sch]
        factors = (e for m in walk_exprs(body.value) if isinstance(m, Mul) for e in m.children)
        if not any(isinstance(e, (Add, Sub)) for f in factors for e in walk_exprs(f)):
            return [sch]
        return [*changed(sch, partial(expanded, block), nothing=["one-term"]), sch]


def expanded(block: BlockRV, sch: Schedule) -> list[BlockRV]:
    """Multiply out a block, and let a single consumer finish what remains of it; returns the
    summing blocks, the product last."""
    sums = sch.expand_reduction(block)
    if len(sch.get_consumers(block)) == 1 and not sch.is_output_block(block):
        sch.compute_inline(block)
    return sums

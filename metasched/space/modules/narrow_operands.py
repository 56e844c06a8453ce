"""narrow_operands: store operands of an integer product in bytes, less their zero point.

    P[h] = int32(X[h - 1]) - 121 inside, else 0        ->  P8[h] = X[h - 1] inside, else 121
    C[i] += P[i + k] * int32(W[k])                         C[i] += (int32(P8[i + k]) - 121) * ...

The zero point is subtracted before the padding in the formulas of quantized convolutions. After
this step `zero_points` multiplies the product out, and instructions compute the product of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from metasched.analysis.access import accesses
from metasched.arith.products import span
from metasched.ir.buffer import Buffer
from metasched.ir.dtype import DType
from metasched.ir.expr import Expr
from metasched.ir.stmt import Block, BufferStore
from metasched.ir.visit import loads_of
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.strides import FEW, rows_of
from metasched.space.tiling import changed, tileable


@dataclass(frozen=True, slots=True)
class NarrowOperands:
    """Store in bytes the operands that a stage makes of bytes (see the file's docstring).

    An operand that few results use is left alone: each use converts it back.
    """

    @property
    def name(self) -> str:
        return "narrow_operands"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        if not tileable(sch, block):
            return [sch]
        for buffer in _operands(sch, sch.get(block)):
            scope = sch.state.scope(sch.state.block(block))
            made = scope.writers(buffer) if buffer in scope.block.alloc_buffers else []
            body = made[0].block.body if len(made) == 1 else None
            narrow = of_bytes(body.value) if isinstance(body, BufferStore) else None
            if narrow is None:
                continue
            stage = sch.get_block(made[0].block.name)
            kind, offset = narrow

            def step(variant: Schedule) -> None:
                variant.narrow_dtype(stage, 0, str(kind), offset)  # noqa: B023

            (sch,) = changed(sch, step) or [sch]
        return [sch]


def of_bytes(value: Expr) -> tuple[DType, int] | None:
    """The type of bytes of which a wider integer is made, and the offset at which the type holds
    the integer; None for other values."""
    kinds = {load.buffer.dtype for load in loads_of(value)}
    if not value.dtype.is_int or value.dtype.bits == 8 or len(kinds) != 1:
        return None
    (kind,) = kinds
    if not kind.is_int or kind.bits != 8:
        return None
    (low, high), (least, most) = span(value), kind.range
    if high - low > most - least:
        return None
    return kind, 0 if least <= low and high <= most else int(low) - least


def _operands(sch: Schedule, node: Block) -> list[Buffer]:
    """The operands of a sum of integers that more than `FEW` results use."""
    result = node.writes[0].buffer
    loads = [a for a in accesses(node) if not a.is_write and a.buffer is not result]
    if not result.dtype.is_int or len(loads) < 2:
        return []
    return list(dict.fromkeys(a.buffer for a in loads if rows_of(sch, node, a) > FEW))

"""widen_operands: convert the operands of a product to a wider type once, before it reads them.

    A, B in bfloat16; C += float32(A) * float32(B)    ->  A32 = float32(A)
                                                          B32 = float32(B)
                                                          C += A32 * B32

A register block converts each element once for each row or column of registers that uses it. With
operands that were converted before, the block converts nothing, and later tiling modules see a
product of float32. An operand that a tiling packs is converted while it is packed
(`space.packing`). This is faster on machines without an instruction for bfloat16, or with an
instruction of half the rate. `use_tensor_instruction` converts operands in the same way, to the
types of its instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from metasched.analysis.access import accesses
from metasched.ir.buffer import Buffer
from metasched.ir.dtype import DType
from metasched.ir.stmt import Block
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.strides import FEW, rows_of
from metasched.space.tiling import changed, tileable


@dataclass(frozen=True, slots=True)
class WidenOperands:
    """Offer a product whose operands have the type of its sums, if the sums are floats.

    See the file's docstring. The unchanged block is offered, too.
    """

    @property
    def name(self) -> str:
        return "widen_operands"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        if not tileable(sch, block):
            return [sch]
        result = sch.get(block).writes[0].buffer.dtype
        if not result.is_float or not widens(sch, sch.get(block), result):
            return [sch]
        return [sch, *changed(sch, partial(widen, block, result))]


def widens(sch: Schedule, node: Block, wide: DType) -> bool:
    """Whether a type holds the values of both operands of a block, and an operand is narrower.

    False if at most `FEW` results use an operand: the conversion would move more memory than the
    block.
    """
    kinds = {b.dtype for b in _operands(sch, node)}
    return bool(kinds - {wide}) and all(wide.holds(kind) for kind in kinds)


def widen(block: BlockRV, wide: DType, sch: Schedule) -> None:
    """Convert every narrower operand: in the stage that computes it, or in a copy."""
    for buffer in _operands(sch, sch.get(block)):
        if buffer.dtype is wide:
            continue
        sch.widen_dtype(stage_of(sch, block, buffer), 0, str(wide))


def stage_of(sch: Schedule, block: BlockRV, buffer: Buffer) -> BlockRV:
    """The stage that computes an operand for a block alone, or a copy of the operand."""
    scope = sch.state.scope(sch.state.block(block))
    made = scope.writers(buffer)
    alone = buffer in scope.block.alloc_buffers and len(scope.readers(buffer)) == 1
    if alone and len(made) == 1 and all(r.buffer is not buffer for r in made[0].block.reads):
        return sch.get_block(made[0].block.name)
    position = [r.buffer for r in sch.get(block).reads].index(buffer)
    return sch.cache_read(block, position, "global")


def _operands(sch: Schedule, node: Block) -> list[Buffer]:
    """The two operands of a block, each read at one index and for more than `FEW` results; empty
    for other blocks."""
    result = node.writes[0].buffer
    loads = [a for a in accesses(node) if not a.is_write and a.buffer is not result]
    found = list(dict.fromkeys(a.buffer for a in loads))
    single = len(found) == len(loads) == 2
    return found if single and all(rows_of(sch, node, a) > FEW for a in loads) else []

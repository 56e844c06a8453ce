"""unsigned_operands: store signed bytes of a product as unsigned bytes, each plus 128.

    C[i, j] += A[i, k] * B[k, j]   ->   A8[i, k] = uint8(A[i, k] + 128)
                                        P[i, j] += A8[i, k] * B[k, j]
                                        S[j] += B[k, j]
                                        C[i, j] = P[i, j] - 128 * S[j]

Some machines multiply unsigned by signed bytes, and take two instructions for signed bytes. With
sums of columns apart, the product takes one. `use_tensor_instruction` offers both.
"""

from __future__ import annotations

from metasched.analysis.access import accesses
from metasched.ir.dtype import DType
from metasched.ir.stmt import Block
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.modules.tensor_form import operands
from metasched.space.modules.widen_operands import stage_of
from metasched.space.modules.zero_points import expanded
from metasched.space.strides import FEW, rows_of

SIGNED, UNSIGNED = DType("int8"), DType("uint8")


def has_signed(sch: Schedule, node: Block) -> bool:
    """Whether a block multiplies signed bytes, and more than `FEW` results use each operand.

    The sums of an operand that few results use would cost as much as the product.
    """
    found = operands(node)
    if found is None or found[0] is found[1] or {b.dtype for b in found} != {SIGNED}:
        return False
    loads = [a for a in accesses(node) if a.buffer in found and not a.is_write]
    return all(rows_of(sch, node, a) > FEW for a in loads)


def flipped(sch: Schedule, block: BlockRV) -> BlockRV:
    """Store the operand that all lanes share plus 128; returns the block of the plain product."""
    node = sch.get(block)
    found = operands(node)
    assert found is not None
    stage = stage_of(sch, block, found[0])
    sch.widen_dtype(stage, 0, str(node.writes[0].buffer.dtype))
    sch.narrow_dtype(stage, 0, str(UNSIGNED), -128)
    return expanded(block, sch)[-1]

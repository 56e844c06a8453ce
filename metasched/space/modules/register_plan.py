"""register_plan: how register_tiling vectorizes a block and packs its operands, before sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from metasched.ir.stmt import Block, IterKind
from metasched.schedule.handles import ExprRV
from metasched.space.modules.tensor_form import TensorForm
from metasched.space.packing import Operand
from metasched.space.tiling import Axis

Tiles: TypeAlias = dict[Axis, tuple[Sequence[int], Sequence[ExprRV]]]
"""For each axis, the levels of its parts and their factors."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a block is vectorized and which operands are packed, before any sampling.

    Attributes:
        vector: the position of the vector iterator.
        widths: the choices of lanes of a vector.
        packable: the choices of the packed operand; None for no packing.
        step: the columns are padded to a multiple of this number.
        ahead: constant operands: their panels are packed once, before the kernel runs.
        direct: operands that few rows use, which may be read unpacked.
        form: the tensor instructions to use instead of vectors; None for vectors.
        at_run_time: the number of columns is known at run time only.
        ordered: the block is tiled in place, and its terms keep their order.
    """

    vector: int
    widths: tuple[int, ...]
    packable: tuple[Operand | None, ...]
    step: int = 1
    ahead: tuple[Operand, ...] = ()
    direct: tuple[Operand, ...] = ()
    form: TensorForm | None = None
    at_run_time: bool = False
    ordered: bool = False


def in_order(block: Block) -> bool:
    """Whether a block updates results in the order of its loops, as a sum of floats in plain loops.

    Such a block starts from the results that memory holds, and no stage stores them. The tile stays
    in registers, because code generation finds that no other statement of the loops touches it.
    """
    return block.init is None and any(v.kind is IterKind.OPAQUE for v in block.iter_vars)


def columns_of(tiles: Tiles, plan: Plan) -> Sequence[ExprRV]:
    """The factors of the vector axis."""
    return next(factors for axis, (_, factors) in tiles.items() if axis.position == plan.vector)

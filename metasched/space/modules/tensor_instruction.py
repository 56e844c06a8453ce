"""use_tensor_instruction: register blocks whose innermost step is an instruction of the target.

    for io, jo in parallel:
        pack the columns of B, `group` steps of each column together
        for i1, j1:
            for ko, ki in unrolled:        # results stay in registers
                for i2, j2 in unrolled: C[i, 16 columns] += instruction(A[i, 4 steps], B)
            store the block, or the consumer, fused

The tiling is that of `register_tiling`, with instructions (`tensor_form`) in the place of vectors
of multiply-adds. All fitting instructions of the target are offered, and the unchanged block, too,
because an instruction is not always faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.modules.register_tiling import RegisterTiling
from metasched.space.modules.tensor_form import TensorForm, forms, grouped
from metasched.space.tiling import changed, tileable


@dataclass(frozen=True, slots=True)
class UseTensorInstruction:
    """Offer register tilings with tensor instructions (see the file's docstring).

    Attributes:
        blocks: the register tiling of the results, with its limits.
        features: of the target.
        intrins: the tensor intrinsics to choose from; None for all registered ones.
    """

    blocks: RegisterTiling
    features: tuple[str, ...]
    intrins: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        return "use_tensor_instruction"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        if not tileable(sch, block):
            return [sch]
        found = []
        for form in forms(sch.get(block), self.blocks.vector_bits, self.features, self.intrins):
            for way in changed(sch, partial(_grouped, block, form)):
                found += self._tiled(way, block, form)
                sch.refused += way.refused
            if found:
                break
        return [*found, sch]

    def _tiled(self, sch: Schedule, block: BlockRV, form: TensorForm) -> list[Schedule]:
        found: list[Schedule] = []
        for plan in self.blocks.plans(sch, block, form):
            for pack in plan.packable:
                way = partial(self.blocks.apply, block, plan, pack)
                found += changed(sch, partial(way, True)) or changed(sch, partial(way, False))
        return found


def _grouped(block: BlockRV, form: TensorForm, sch: Schedule) -> None:
    grouped(sch, block, form)

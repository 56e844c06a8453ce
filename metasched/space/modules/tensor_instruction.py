"""use_tensor_instruction: register blocks whose innermost step is an instruction of the target.

    for io, jo in parallel:
        pack the columns of B, `group` steps of each column together
        for i1, j1:
            for ko, ki in unrolled:        # results stay in registers
                for i2, j2 in unrolled: C[i, 16 columns] += instruction(A[i, 4 steps], B)
            store the block, or the consumer, fused

`register_tiling` and `depth_blocking` make the tilings, with instructions (`tensor_form`) in place
of vector multiply-adds. The module offers all fitting instructions of the target, and the unchanged
block, because an instruction is not always faster. Of instructions that differ only in register
width, it offers the widest that fits.
Instructions for wider types are offered where they are more than half as fast: `widen_operands`
converts the operands before the block, such as bytes to int16 for the exact products of vpmaddwd.
Products of signed bytes are also offered as unsigned by signed bytes (`unsigned_operands`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from metasched.errors import ScheduleError
from metasched.ir.expr import as_int
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.modules.depth_blocking import DepthBlocking
from metasched.space.modules.tensor_form import (
    TensorForm,
    family,
    fastest,
    forms,
    grouped,
    wider_types,
)
from metasched.space.modules.unsigned_operands import (
    SIGNED,
    UNSIGNED,
    flipped,
    has_signed,
)
from metasched.space.modules.widen_operands import widen, widens
from metasched.space.strides import vector_iter
from metasched.space.tiling import changed, epilogue, padding_step, tileable


@dataclass(frozen=True, slots=True)
class UseTensorInstruction:
    """Offer register tilings with tensor instructions (see the file's docstring).

    Attributes:
        slices: the tiling with slices of a long reduction, which holds the register tiling.
        features: the features of the target.
        intrins: the tensor intrinsics to choose from; None for all that are registered.
    """

    slices: DepthBlocking
    features: tuple[str, ...]
    intrins: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        return "use_tensor_instruction"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        if not tileable(sch, block):
            return [sch]
        found = self._offered(sch, block)
        bits = self.slices.blocks.vector_bits
        now = fastest(sch.get(block), bits, self.features, self.intrins)
        for wide, rate in wider_types(sch.get(block), bits, self.features, self.intrins).items():
            if 2 * rate > now and widens(sch, sch.get(block), wide):
                for variant in changed(sch, partial(widen, block, wide)):
                    found += self._offered(variant, block)
                    sch.refused += variant.refused
        return [*found, *self._unsigned(sch, block, now), sch]

    def _unsigned(self, sch: Schedule, block: BlockRV, now: float) -> list[Schedule]:
        """The tilings of a product of signed bytes as unsigned by signed bytes, where the target
        has faster instructions for these than `now`."""
        found: list[Schedule] = []
        bits, kinds = self.slices.blocks.vector_bits, (UNSIGNED, SIGNED)
        node = sch.get(block)
        if not now or not has_signed(sch, node):
            return found
        if fastest(node, bits, self.features, self.intrins, kinds) <= now:
            return found
        made: list[BlockRV] = []
        for variant in changed(sch, lambda v: made.append(flipped(v, block))):
            found += self._offered(variant, made[0])
            sch.refused += variant.refused
        return found

    def _offered(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        """The tilings with instructions for the operands in their own types."""
        found: list[Schedule] = []
        bits = self.slices.blocks.vector_bits
        done: set[str] = set()
        for form in forms(sch.get(block), bits, self.features, self.intrins):
            form = form.without(done)
            if not form.names:
                continue
            for way in self._grouped(sch, block, form):
                made = self._tiled(way, block, form)
                sch.refused += way.refused
                done |= {family(name) for name in form.names if made}
                found += made
        return found

    def _grouped(self, sch: Schedule, block: BlockRV, form: TensorForm) -> list[Schedule]:
        """The block with a reduction cut into groups; before, the block is padded by the first
        padding that its accesses allow."""
        for sizes in _paddings(sch, block, form):
            found = changed(sch, partial(_padded, block, form, sizes))
            if found:
                return found
        return changed(sch, partial(_cut, block, form))

    def _tiled(self, sch: Schedule, block: BlockRV, form: TensorForm) -> list[Schedule]:
        found: list[Schedule] = []
        blocks = self.slices.blocks
        plans = blocks.plans(sch, block, form)
        for plan in plans:
            for pack in plan.packable:
                way = partial(blocks.apply, block, plan, pack)
                found += changed(sch, partial(way, True)) or changed(sch, partial(way, False))
        found += self.slices.offered(sch, block, plans)
        return found + self.slices.in_parts(sch, block, form)


def _cut(block: BlockRV, form: TensorForm, sch: Schedule) -> None:
    grouped(sch, block, form)


def _padded(block: BlockRV, form: TensorForm, sizes: Sequence[int], sch: Schedule) -> None:
    """Pad iterators to multiples, and cut a reduction into groups.

    Copies that the padding reads are made in the same step as the padding, but for operands that
    are not padded. A consumer that can finish a tile reads the padded results, not a copy.
    """
    finish = epilogue(sch, block)
    before = sch.state.scope(sch.state.block(block)).producers(sch.get(block).token)
    sch.pad_einsum(block, sizes)
    if finish is not None:
        for reader in sch.get_consumers(block):
            if sch.get(reader).token is not sch.get(finish).token:
                sch.compute_inline(reader)
    read = {region.buffer for region in sch.get(block).reads}
    for producer in before:
        if all(region.buffer not in read for region in producer.block.writes):
            with contextlib.suppress(ScheduleError):
                sch.compute_inline(sch.get_block(producer.block.name))
    grouped(sch, block, form)


def _paddings(sch: Schedule, block: BlockRV, form: TensorForm) -> list[list[int]]:
    """The multiples to which the iterators may be padded, the smallest padding first.

    Columns are padded to whole vectors, so that packing needs no conditions. One reduction is
    padded to whole groups where no reduction has them.
    """
    node = sch.get(block)
    vector = vector_iter(node)
    sizes = [1] * len(node.iter_vars)
    extents = [as_int(v.dom.extent) or 1 for v in node.iter_vars]
    reduced = [n for n, v in enumerate(node.iter_vars) if v.is_reduce]
    short = all(extents[n] % form.group for n in reduced)
    constants = sch.state.func_of(sch.state.block(block))[1].constants
    # Constants are packed ahead of time, where conditions cost nothing.
    if short or all(r.buffer not in constants for r in node.reads):
        for n, v in enumerate(node.iter_vars):
            if v is vector and extents[n] % form.lanes:
                sizes[n] = padding_step(extents[n], form.lanes) or form.lanes
    if not short:
        return [sizes] if max(sizes) > 1 else []
    reduced.sort(key=lambda n: (-extents[n] % form.group / extents[n], -n))
    return [[form.group if at == n else s for at, s in enumerate(sizes)] for n in reduced]

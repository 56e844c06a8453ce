"""rewrite_tensorize: replaces blocks marked for a tensor intrinsic, or rejects the candidate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from metasched.analysis.block import AUTO_TENSORIZE, TENSOR_CHOICE
from metasched.ir.expr import as_int
from metasched.ir.stmt import BlockRealize, For
from metasched.ir.visit import blocks_of
from metasched.postproc.base import rejection
from metasched.schedule.intrinsics import TensorIntrin
from metasched.schedule.schedule import Schedule
from metasched.target import Target


@dataclass(frozen=True, slots=True)
class RewriteTensorize:
    """Tensorize each block that has the annotation `meta_schedule.auto_tensorize`.

    By then the init is a separate block. A candidate is rejected if `tensorize` refuses a block, or
    if the target lacks a feature of the intrinsic (reason `no-instruction`).

    Attributes:
        vectorize_init_loop: vectorize the block that stores the initial values.
    """

    tries: ClassVar[bool] = False
    vectorize_init_loop: bool = True

    @property
    def name(self) -> str:
        return "rewrite_tensorize"

    def __call__(self, sch: Schedule, target: Target) -> None:
        several = len(sch.mod.functions) > 1
        for name, func in sch.mod.functions.items():
            where = name if several else None
            for realize in list(_marked(func.body)):
                self._rewrite(sch, realize, target, where)

    def _rewrite(
        self, sch: Schedule, realize: BlockRealize, target: Target, func: str | None
    ) -> None:
        node = realize.block
        names = str(node.annotations[AUTO_TENSORIZE]).split(",")
        choice = as_int(node.annotations.get(TENSOR_CHOICE, 0)) or 0
        block = sch.get_block(node.name, func)
        sch.unannotate(block, AUTO_TENSORIZE)
        if TENSOR_CHOICE in node.annotations:
            sch.unannotate(block, TENSOR_CHOICE)
        if all(v.is_spatial for v in node.iter_vars) and node.name.endswith("_init"):
            if self.vectorize_init_loop:
                _vectors(sch, node.name, func)
            return
        name = names[choice]
        lacks = TensorIntrin.get(name).lacks(target.features)
        if lacks:
            why = f"{name} needs {lacks}, which the target lacks"
            raise rejection(self.name, "no-instruction", why, realize)
        sch.tensorize(block, name)


def _marked(body: object) -> Iterator[BlockRealize]:
    return (r for r in blocks_of(body) if AUTO_TENSORIZE in r.block.annotations)  # type: ignore[arg-type]


def _vectors(sch: Schedule, name: str, func: str | None) -> None:
    """Vectorize the innermost loop inside a block that stores initial values."""
    (inner,) = sch.get_child_blocks(sch.get_block(name, func))
    loops = sch.get_loops(inner)
    if loops and isinstance(sch.get(loops[-1]), For):
        sch.vectorize(loops[-1])

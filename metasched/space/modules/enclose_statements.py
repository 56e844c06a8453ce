"""enclose_statements: blocks around the statements of a program written in plain loops."""

from __future__ import annotations

from dataclasses import dataclass

from metasched.schedule.handles import BlockRV
from metasched.schedule.primitives.enclose import stores_outside
from metasched.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class EncloseStatements:
    """Put statements outside of blocks into blocks, which the other modules can schedule.

    The module acts on root blocks.
    """

    @property
    def name(self) -> str:
        return "enclose_statements"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        if sch.state.parent(realize) is None and stores_outside(realize.block.body):
            sch.enclose(block)
        return [sch]

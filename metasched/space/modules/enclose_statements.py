"""enclose_statements: blocks around the statements of a program written in plain loops."""

from __future__ import annotations

from dataclasses import dataclass

from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.enclosing import enclose_statements, open_blocks


@dataclass(frozen=True, slots=True)
class EncloseStatements:
    """Put statements outside of blocks into blocks, which the other modules can schedule.

    A second program divides the blocks that have loops of their own in the same way. The module
    acts on root blocks.
    """

    @property
    def name(self) -> str:
        return "enclose_statements"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        if sch.state.parent(sch.state.block(block)) is not None:
            return [sch]
        opened = sch.copy()
        found = [sch, opened] if open_blocks(opened, block) else [sch]
        for each in found:
            enclose_statements(each, block)
        return found

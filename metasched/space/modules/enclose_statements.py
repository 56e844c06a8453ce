"""enclose_statements: blocks around the statements of a program written in plain loops."""

from __future__ import annotations

from dataclasses import dataclass

from metasched.ir.equal import structural_equal
from metasched.schedule.handles import BlockRV
from metasched.schedule.primitives.own_rows import rows_outside
from metasched.schedule.schedule import Schedule
from metasched.space.enclosing import enclose_statements, open_blocks


@dataclass(frozen=True, slots=True)
class EncloseStatements:
    """Put statements outside of blocks into blocks, which the other modules can schedule.

    A second program divides the blocks that have loops of their own in the same way, another keeps
    rows with a stack or a queue of their own whole. The module acts on root blocks.
    """

    @property
    def name(self) -> str:
        return "enclose_statements"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        if sch.state.parent(sch.state.block(block)) is not None:
            return [sch]
        opened, rows = sch.copy(), sch.copy()
        found = [sch, opened] if open_blocks(opened, block) else [sch]
        for each in found:
            enclose_statements(each, block)
        if rows_outside(rows.state.block(block).block.body):
            enclose_statements(rows, block, own_memory=True)
            if not structural_equal(rows.mod, sch.mod):
                found.append(rows)
        return found

"""step_blocks: one block for all that an iteration of a serial loop computes.

An iterative program (a recurrent network, the power method, a descent) runs several nests in each
iteration of a loop over time. Tiling needs nests of their own, and the loop over time cannot be
distributed. The module puts the nests below it into one block, where each nest is alone under its
loops. The other modules tile, vectorize and spread these nests as those of a whole program.
"""

from __future__ import annotations

from dataclasses import dataclass

from metasched.analysis.block import has_reuse
from metasched.analysis.scope import Child, Scope
from metasched.ir.stmt import For, ForKind, SeqStmt
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import SMALL, steps
from metasched.space.tiling import changed


@dataclass(frozen=True, slots=True)
class StepBlocks:
    """Offer a program where each iteration of a loop over time is a block of nests.

    The module acts on root blocks, on loops over several nests of which one reuses data.

    Attributes:
        least: the fewest iterations of the nest that is tiled.
    """

    least: int = SMALL

    @property
    def name(self) -> str:
        return "step_blocks"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        if sch.state.parent(realize) is not None:
            return [sch]
        scope = Scope.of(realize.block)
        groups = [g for loop in _loops_over_nests(scope) if (g := self._group(scope, loop))]
        if not groups:
            return [sch]
        name = sch.state.func_of(realize)[0]
        func = name if len(sch.mod.functions) > 1 else None

        def apart(variant: Schedule) -> None:
            for group in groups:
                variant.blockize([variant.get_block(c.block.name, func) for c in group])

        return [*changed(sch, apart), sch]

    def _group(self, scope: Scope, loop: For) -> list[Child]:
        """The nests below a loop over time; none if no nest has work to tile."""
        group = list(scope.under(loop))
        nests = [(c, [n for n in c.loops if n in loop.body.stmts]) for c in group]
        worth = any(
            own and steps(own[0]) >= self.least and has_reuse(c.block) is None for c, own in nests
        )
        return group if worth else []


def _loops_over_nests(scope: Scope) -> list[For]:
    """The loops over several statements, the outermost such loop of each nest."""
    found: dict[For, None] = {}
    for child in scope.realizes:
        loop = next((n for n in child.loops if isinstance(n.body, SeqStmt)), None)
        if loop is not None and all(n.kind is ForKind.SERIAL for n in child.loops):
            found[loop] = None
    return list(found)

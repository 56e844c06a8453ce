"""Combinators: modules made of modules.

`chain` runs modules one after the other; `choose` offers each as an alternative. `attempt` gives
the schedule unchanged if a step is refused; `each_block` runs a module on every block below a block
(idea: Exo's higher-order schedules, ELEVATE's strategies).
"""

from __future__ import annotations

from collections.abc import Callable

from metasched.errors import MetaschedError, ScheduleError
from metasched.ir.stmt import BlockRealize
from metasched.ir.visit import blocks_of
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.module import Module, ModuleFn, ScheduleModule


def chain(*modules: Module) -> Module:
    """A module that runs modules in order; each runs on every alternative of the module before."""

    def run(sch: Schedule, block: BlockRV) -> list[Schedule]:
        found = [sch]
        for module in modules:
            found = [after for before in found for after in _unless_inlined(module, before, block)]
        return found

    return _combined("chain", modules, run)


def choose(*modules: Module) -> Module:
    """A module that runs all modules on the same schedule and offers all their alternatives."""

    def run(sch: Schedule, block: BlockRV) -> list[Schedule]:
        return [after for module in modules for after in module(sch.copy(), block)]

    return _combined("choose", modules, run)


def attempt(module: Module) -> Module:
    """A module that gives the schedule unchanged when a step of `module` is refused.

    Only ScheduleError counts as a refusal; any other exception is a defect and goes through.
    """

    def run(sch: Schedule, block: BlockRV) -> list[Schedule]:
        try:
            return module(sch.copy(), block) or [sch]
        except ScheduleError as error:
            sch.refused.append(error)
            return [sch]

    return _combined("attempt", (module,), run)


def each_block(module: Module, where: Callable[[BlockRealize], bool] | None = None) -> Module:
    """A module that runs `module` on every block below a block, the last in the program first.

    Args:
        where: leave out the blocks for which this is false.
    """

    def run(sch: Schedule, block: BlockRV) -> list[Schedule]:
        below = [r for r in blocks_of(sch.get(block).body) if where is None or where(r)]
        found = [sch]
        for realize in reversed(below):
            after: list[Schedule] = []
            for before in found:
                if realize.block.token not in before.state.index.blocks:
                    after.append(before)
                    continue
                after += module(before, before.get_block(realize.block.name))
            found = after
        return found

    return _combined("each_block", (module,), run)


def _combined(kind: str, modules: tuple[Module, ...], run: ModuleFn) -> Module:
    """The combined module, for the target kinds that all parts have in common."""
    name = f"{kind}({', '.join(m.name for m in modules)})"
    limits = [m.targets for m in modules if isinstance(m, ScheduleModule) and m.targets]
    targets = tuple(k for k in limits[0] if all(k in each for each in limits)) if limits else ()
    if limits and not targets:
        raise MetaschedError(f"the parts of {name} are for no target kind in common")
    return ScheduleModule(name, targets, run)


def _unless_inlined(module: Module, sch: Schedule, block: BlockRV) -> list[Schedule]:
    """The module's alternatives; a block that an earlier module inlined is skipped."""
    gone = sch.state.value(block) not in sch.state.index.blocks
    return [sch] if gone else module(sch, block)

"""Combinators: modules made of modules.

`chain` does one after the other, `choose` offers each as an alternative, `attempt` leaves the
schedule alone where a step is refused, `each_block` applies a module below a block (idea: Exo's
higher-order schedules, ELEVATE's strategies).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from metasched.errors import ScheduleError
from metasched.ir.stmt import BlockRealize
from metasched.ir.visit import blocks_of
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.module import Module


@dataclass(frozen=True)
class _Chain:
    modules: tuple[Module, ...]

    @property
    def name(self) -> str:
        return "chain(" + ", ".join(m.name for m in self.modules) + ")"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        found = [sch]
        for module in self.modules:
            found = [after for before in found for after in _if_there(module, before, block)]
        return found


@dataclass(frozen=True)
class _Choose:
    modules: tuple[Module, ...]

    @property
    def name(self) -> str:
        return "choose(" + ", ".join(m.name for m in self.modules) + ")"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        return [after for module in self.modules for after in module(sch.copy(), block)]


@dataclass(frozen=True)
class _Attempt:
    module: Module

    @property
    def name(self) -> str:
        return f"attempt({self.module.name})"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        try:
            return self.module(sch.copy(), block) or [sch]
        except ScheduleError:
            return [sch]


@dataclass(frozen=True)
class _EachBlock:
    module: Module
    where: Callable[[BlockRealize], bool] | None

    @property
    def name(self) -> str:
        return f"each_block({self.module.name})"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        below = [r for r in blocks_of(sch.get(block).body) if self.where is None or self.where(r)]
        found = [sch]
        for realize in reversed(below):
            after: list[Schedule] = []
            for before in found:
                if realize.block.token not in before.state.index.blocks:
                    after.append(before)
                    continue
                after += self.module(before, before.get_block(realize.block.name))
            found = after
        return found


def chain(*modules: Module) -> Module:
    """One module after the other, each on every alternative the former left."""
    return _Chain(modules)


def choose(*modules: Module) -> Module:
    """The alternatives of all modules, each starting from the same schedule."""
    return _Choose(modules)


def attempt(module: Module) -> Module:
    """The module, or the schedule unchanged when one of its steps is refused.

    Only ScheduleError counts as a refusal; any other exception is a defect and goes through.
    """
    return _Attempt(module)


def each_block(module: Module, where: Callable[[BlockRealize], bool] | None = None) -> Module:
    """The module on every block below the given one, the last in the program first.

    Args:
        where: leave out the blocks for which this is false.
    """
    return _EachBlock(module, where)


def _if_there(module: Module, sch: Schedule, block: BlockRV) -> list[Schedule]:
    """The module's alternatives; a block that an earlier module inlined is skipped."""
    gone = sch.state.value(block) not in sch.state.index.blocks
    return [sch] if gone else module(sch, block)

"""apply_custom_rule: a block whose annotation `schedule_rule` names a module is left to it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.module import RULE, SCHEDULE_MODULES
from metasched.target import Target


@dataclass(frozen=True, slots=True)
class ApplyCustomRule:
    """Hand annotated blocks to the module named; other modules pass them over.

    A name that is unknown, or of a module for other targets, is warned of and the annotation
    dropped, so that the block is scheduled as any other. "None" keeps all modules away.
    """

    target: Target

    @property
    def name(self) -> str:
        return "apply_custom_rule"

    @property
    def takes_rules(self) -> bool:
        """It is called on annotated blocks."""
        return True

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        node = sch.get(block)
        rule = node.annotations.get(RULE)
        if rule is None or rule == "None":
            return [sch]
        module = SCHEDULE_MODULES.get(rule) if rule in SCHEDULE_MODULES else None
        if module is not None and module.suits(self.target):
            return module(sch, block)
        why = "is not registered" if module is None else f"is not for {self.target.kind}"
        warnings.warn(
            f"block {node.name} asks for schedule module {rule!r}, which {why}; it is scheduled "
            "like any other",
            stacklevel=2,
        )
        sch.unannotate(block, RULE)
        return [sch]

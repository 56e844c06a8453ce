"""apply_custom_rule: run the module that a block's annotation `schedule_rule` names."""

from __future__ import annotations

from dataclasses import dataclass

from metasched.errors import warn
from metasched.schedule.handles import BlockRV
from metasched.schedule.schedule import Schedule
from metasched.space.module import RULE, SCHEDULE_MODULES
from metasched.target import Target


@dataclass(frozen=True, slots=True)
class ApplyCustomRule:
    """Run the named module on annotated blocks, which other modules leave alone.

    If the name is unknown, or its module is for other targets, a warning says so. Then the
    annotation is dropped, and the block is scheduled like any other. With "None" no module runs.
    """

    target: Target

    @property
    def name(self) -> str:
        return "apply_custom_rule"

    @property
    def takes_rules(self) -> bool:
        """True: the generator calls this module on annotated blocks."""
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
        warn(
            f"block {node.name} asks for schedule module {rule!r}, which {why}; it is scheduled "
            "like any other"
        )
        sch.unannotate(block, RULE)
        return [sch]

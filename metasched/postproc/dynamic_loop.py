"""disallow_dynamic_loop: rejects loops of symbolic extent without a constant bound."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from metasched.arith.affine import interval
from metasched.arith.bounds import Interval
from metasched.ir.expr import Var, as_int
from metasched.ir.stmt import BlockRealize, For, Stmt
from metasched.ir.visit import reads_memory, walk_stmts
from metasched.postproc.base import rejection
from metasched.schedule.schedule import Schedule
from metasched.target import Target


@dataclass(frozen=True, slots=True)
class DisallowDynamicLoop:
    """Reject loops of symbolic extent without a constant bound; limits on code need the bound.

    An extent may depend on outer loops, as in a triangle, and on the contents of a buffer, as in
    rows of different lengths: such loops run as they were written. Reason: `dynamic-loop`.
    """

    @property
    def name(self) -> str:
        return "disallow_dynamic_loop"

    def __call__(self, sch: Schedule, target: Target) -> None:
        if all(as_int(loop.extent) is not None for loop in sch.state.index.loops.values()):
            return
        for func in sch.mod.functions.values():
            loop = _unbounded(func.body)
            if loop is not None:
                raise rejection(
                    self.name,
                    "dynamic-loop",
                    f"the loop {loop.var.name} has no constant extent",
                    loop,
                )


def _unbounded(body: Stmt) -> For | None:
    """The first loop whose extent no constant bounds while the loops around it run."""
    ranges: dict[Var, Interval] = {}
    for node in walk_stmts(body):
        if isinstance(node, BlockRealize):
            ranges.update({var: interval(e, ranges) for var, e in node.bindings.items()})
        elif isinstance(node, For):
            low, high = interval(node.min, ranges)
            most = interval(node.extent, ranges)[1]
            if most == inf and not reads_memory(node.extent):
                return node
            last = max(most - 1, 0) * (as_int(node.step) or 1 if node.step is not None else 1)
            ranges[node.var] = low, high + last
    return None

"""disallow_dynamic_loop: rejects loops of symbolic extent without a constant bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from metasched.analysis.sizes import sizes_of
from metasched.arith.affine import interval
from metasched.arith.bounds import Interval
from metasched.ir.expr import Expr, Var, as_int
from metasched.ir.stmt import BlockRealize, For, ForKind, Stmt
from metasched.ir.visit import free_vars, reads_memory, walk_stmts
from metasched.postproc.base import rejection
from metasched.schedule.schedule import Schedule
from metasched.target import Target

STRAIGHT = (ForKind.UNROLLED, ForKind.VECTORIZED)


@dataclass(frozen=True, slots=True)
class DisallowDynamicLoop:
    """Reject loops of symbolic extent without a constant bound; limits on code need the bound.

    An extent may depend on outer loops, as in a triangle, and on the contents of a buffer, as in
    rows of different lengths: such loops run as they were written. It may be known at run time only
    where the function names its size (`tune(sizes=...)`). Reason: `dynamic-loop`.
    """

    @property
    def name(self) -> str:
        return "disallow_dynamic_loop"

    def __call__(self, sch: Schedule, target: Target) -> None:
        if all(as_int(loop.extent) is not None for loop in sch.state.index.loops.values()):
            return
        for func in sch.mod.functions.values():
            loop = _unbounded(func.body, sizes_of(func))
            if loop is not None:
                raise rejection(
                    self.name,
                    "dynamic-loop",
                    f"the loop {loop.var.name} has no constant extent, and the function names no "
                    "size for it (tune(sizes=...))",
                    loop,
                )


def _unbounded(body: Stmt, sizes: Mapping[Var, Expr]) -> For | None:
    """The first loop whose extent no constant bounds while the loops around it run.

    An extent with a representative size counts as bounded, unless the loop shall become straight
    code or vectors.
    """
    ranges: dict[Var, Interval] = {var: interval(size, {}) for var, size in sizes.items()}
    for node in walk_stmts(body):
        if isinstance(node, BlockRealize):
            ranges.update({var: interval(e, ranges) for var, e in node.bindings.items()})
        elif isinstance(node, For):
            low, high = interval(node.min, ranges)
            most = interval(node.extent, ranges)[1]
            straight = node.kind in STRAIGHT and not free_vars(node.extent).isdisjoint(sizes)
            if straight or (most == inf and not reads_memory(node.extent)):
                return node
            last = max(most - 1, 0) * (as_int(node.step) or 1 if node.step is not None else 1)
            ranges[node.var] = low, high + last
    return None

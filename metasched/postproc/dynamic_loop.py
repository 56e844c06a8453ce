"""disallow_dynamic_loop: rejects loops of symbolic extent without a constant bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from metasched.analysis.sizes import run_time_extents, sizes_of
from metasched.arith.affine import interval
from metasched.arith.bounds import Interval
from metasched.ir.expr import Expr, Var, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import BlockRealize, For, ForKind
from metasched.ir.visit import free_vars, reads_memory, walk_stmts
from metasched.postproc.base import rejection
from metasched.schedule.schedule import Schedule
from metasched.target import Target

STRAIGHT = (ForKind.UNROLLED, ForKind.VECTORIZED)


@dataclass(frozen=True, slots=True)
class DisallowDynamicLoop:
    """Reject loops of symbolic extent without a constant bound; limits on code need the bound.

    An extent may depend on outer loops, as in a triangle, on the contents of a buffer, as in rows
    of different lengths, and on a scalar parameter, as in a cache that is filled so far: such loops
    run as they were written. A run-time extent of a parameter needs a size (`tune(sizes=...)`).
    Reason: `dynamic-loop`.
    """

    @property
    def name(self) -> str:
        return "disallow_dynamic_loop"

    def __call__(self, sch: Schedule, target: Target) -> None:
        if all(as_int(loop.extent) is not None for loop in sch.state.index.loops.values()):
            return
        for func in sch.mod.functions.values():
            loop = _unbounded(func, sizes_of(func))
            if loop is not None:
                raise rejection(
                    self.name,
                    "dynamic-loop",
                    f"the loop {loop.var.name} has no constant extent, and the function names no "
                    "size for it (tune(sizes=...))",
                    loop,
                )


def _unbounded(func: PrimFunc, sizes: Mapping[Var, Expr]) -> For | None:
    """The first loop whose extent no constant bounds while the loops around it run.

    An extent with a representative size, or of scalar parameters, counts as bounded, unless the
    loop shall become straight code or vectors.
    """
    ranges: dict[Var, Interval] = {var: interval(size, {}) for var, size in sizes.items()}
    scalars = {p for p in func.params if isinstance(p, Var)} - {*run_time_extents(func)}
    for node in walk_stmts(func.body):
        if isinstance(node, BlockRealize):
            ranges.update({var: interval(e, ranges) for var, e in node.bindings.items()})
        elif isinstance(node, For):
            low, high = interval(node.min, ranges)
            most = interval(node.extent, ranges)[1]
            used = free_vars(node.extent)
            straight = node.kind in STRAIGHT and not used.isdisjoint({*sizes, *scalars})
            given = reads_memory(node.extent) or not used.isdisjoint(scalars)
            if straight or (most == inf and not given):
                return node
            last = max(most - 1, 0) * (as_int(node.step) or 1 if node.step is not None else 1)
            ranges[node.var] = low, high + last
    return None

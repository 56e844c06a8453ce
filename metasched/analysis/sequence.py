"""Loop fusion: may two consecutive nests run iteration by iteration?

Two nests of equal shape may be fused when no iteration of the later nest depends on a later
iteration of the earlier nest, or overwrites what such an iteration reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from metasched.analysis.cover import loop_ranges
from metasched.analysis.dependence import Touch, guard_pairs, place, touches, written
from metasched.analysis.failure import Failure
from metasched.analysis.instances import ahead, distances
from metasched.analysis.overlap import Outside, overlap_distances
from metasched.analysis.scope import Child, Scope
from metasched.ir.expr import Var
from metasched.ir.stmt import For


def interleaving_violation(
    scope: Scope, loops: Sequence[For], earlier: Sequence[Child], later: Sequence[Child]
) -> Failure | None:
    """Whether fusing the nests of `earlier` and `later` has changed what they compute.

    Args:
        scope: the scope after the fusion, with both blocks below `loops`.
        loops: the common loops, outermost first; before the fusion each block had its own.
    """
    order = [loop.var for loop in loops]
    for child in (*earlier, *later):
        if any(stmt for stmt, above in scope.loose if loops[0] in above):
            text = f"statements outside of blocks stand beside block {child.block.name}"
            return Failure("not-structured", text, child.block)
    for first in earlier:
        for second in later:
            among = written(first.block) | written(second.block)
            for a in touches(first, among):
                for b in touches(second, among):
                    if (a.writes or b.writes) and a.buffer is b.buffer:
                        failure = _backward(order, a, b)
                        if failure is not None:
                            return failure
    return None


def _backward(order: Sequence[Var], a: Touch, b: Touch) -> Failure | None:
    """Whether `a` in one iteration may touch an element that `b` touches in an earlier one."""
    where = next(k for k, loop in enumerate(a.loops) if loop.var is order[0])
    below = [loop.var for t in (a, b) for loop in t.loops[where:]]
    moving = {*below, *a.inner, *b.inner}
    ranges = loop_ranges((*a.loops, *b.loops))
    distance = overlap_distances(a.box, b.box, Outside(moving), ranges, guard_pairs(a, b, ranges))
    if distance is None:
        return None
    for var in order:
        _, high = distance.get(var, (-1, 1))
        if high < 0:
            return None
        if high > 0:
            apart = distances(place(a), place(b), order[0])
            if apart is not None and not (ahead(apart, order) < 0).any():
                return None

            def sentence(var: Var = var) -> str:
                return (
                    f"in one nest {b.show()} before {a.show()} in a later iteration of "
                    f"{var.name}; in two nests their order is reversed"
                )

            return Failure("backward-dependence", sentence, b.child.block if b.child else None)
    return None

"""May loops be executed in another order? Distance vectors, reductions and their inits."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from metasched.analysis.affine import Interval
from metasched.analysis.binding import affine_binding
from metasched.analysis.dependence import (
    Touch,
    commutes,
    conflicts,
    harmless,
    idempotent,
    loops_below,
    unknown_effects,
)
from metasched.analysis.failure import Failure
from metasched.analysis.scope import Child, Scope, writes
from metasched.ir.buffer import Buffer
from metasched.ir.expr import Var, as_int
from metasched.ir.stmt import For
from metasched.ir.visit import free_vars


def reorder_violation(
    loops: Sequence[For], new_order: Sequence[For], scope: Scope
) -> Failure | None:
    """Whether executing a chain of loops in another order could change a result.

    All blocks below must have only spatial and reduction iterators and affine bindings. Then for
    every pair of accesses that may touch one element, the order of the two must stay: the distance
    vectors that are positive in the old order must be positive in the new one. Updates by
    commutative reductions are free.

    Args:
        loops: all loops of the chain from the first to the last that moves, outermost first.
        new_order: the same loops in their new order.
        scope: the scope the loops belong to.
    """
    top, bottom = loops[0], loops[-1]
    unknown = unknown_effects(top, scope)
    if unknown is not None:
        return unknown
    old_vars = [loop.var for loop in loops]
    new_vars = [loop.var for loop in new_order]
    if old_vars == new_vars:
        return None
    for child in scope.under(bottom):
        failure = _reorderable(child, top) or _init_late(child, old_vars, new_vars)
        if failure is not None:
            return failure
    excused: dict[Buffer, bool] = {}
    for a, b, distance in conflicts(scope, top, lambda a, b: _free_order(a, b, scope, top)):
        if _order_kept(old_vars, new_vars, distance):
            continue
        if a.buffer not in excused:
            excused[a.buffer] = harmless(a.buffer, scope, bottom, None, True)
        if not excused[a.buffer]:
            return _reversed_pair(loops, a, b)
    return None


def _reorderable(child: Child, top: For) -> Failure | None:
    block = child.block
    for v in block.iter_vars:
        if not (v.is_spatial or v.is_reduce):
            text = f"iterator {v.var.name} of block {block.name} is {v.kind.value}"
            return Failure("iterator-kind", f"{text}, not spatial or reduce", block)
    failure = affine_binding(child)
    below = loops_below(child.loops, top)
    if failure is not None and affine_binding(child.realize, below) is not None:
        return failure
    return None


def _init_late(child: Child, old: Sequence[Var], new: Sequence[Var]) -> Failure | None:
    """Whether an update could come before its init, which runs where the reduction starts.

    Loops of reduce iterators alone start there in any order; one that drives both kinds does not.
    """
    block = child.block
    if block.init is None:
        return None
    pairs = list(zip(block.iter_vars, child.realize.iter_values, strict=True))
    reduced = frozenset().union(*(free_vars(e) for v, e in pairs if not v.is_spatial))
    mixed = reduced & frozenset().union(*(free_vars(e) for v, e in pairs if v.is_spatial))
    if mixed.isdisjoint(old):
        return None
    if [v for v in old if v in reduced] == [v for v in new if v in reduced]:
        return None
    name = next(v.name for v in old if v in mixed)
    text = f"the loop {name} drives spatial and reduce iterators of {block.name}: reordered, an "
    return Failure("init-late", f"{text}update could come before the init", child.realize)


def _free_order(a: Touch, b: Touch, scope: Scope, top: For) -> bool:
    """Whether two accesses of one block may change order whatever they touch."""
    if a.child is None or a.child is not b.child:
        return False
    if writes(a.child.block, a.buffer) and commutes(a.child.block, a.buffer):
        return a.child.block.init is None or not _repeated(a.child, top)
    return a is b and idempotent(a.child, scope, top)


def _repeated(child: Child, top: For) -> bool:
    """Whether a loop from `top` down runs the same instances again, each time from the init."""
    used = frozenset().union(*map(free_vars, child.realize.iter_values))
    return any(n.var not in used and as_int(n.extent) != 1 for n in loops_below(child.loops, top))


def _order_kept(old: list[Var], new: list[Var], distance: dict[Var, Interval]) -> bool:
    """Whether the first non-zero component of the distance has one sign in both orders."""
    spans = {v: distance.get(v, (-inf, inf)) for v in old}
    moving_old = [v for v in old if spans[v] != (0, 0)]
    moving_new = [v for v in new if spans[v] != (0, 0)]
    while moving_old and moving_new and moving_old[0] is moving_new[0]:
        low, high = spans[moving_old.pop(0)]
        moving_new.pop(0)
        if low > 0 or high < 0:
            return True
    left = [spans[v] for v in moving_old]
    return all(s[0] >= 0 for s in left) or all(s[1] <= 0 for s in left)


def _reversed_pair(loops: Sequence[For], a: Touch, b: Touch) -> Failure:
    def sentence() -> str:
        names = ", ".join(loop.var.name for loop in loops)
        what = a.show() if a is b else f"{a.show()} and {b.show()}"
        return (
            f"reordering loops {names} could exchange accesses to one element of "
            f"{a.buffer.name}: {what}"
        )

    return Failure("reversed-dependence", sentence, loops[0])

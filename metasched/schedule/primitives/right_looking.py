"""right_looking: updates later elements as soon as a value is final, not each element at its turn.

    for j in range(n):
        for k in range(j): X[j] -= f(j, k, X[k])
        X[j] = X[j] / d[j]
    ->
    for j in range(n):
        X[j] = X[j] / d[j]
        for k in range(j + 1, n): X[k] -= f(k, j, X[j])

The left form gathers all that an element needs, the right form spreads what an element gives
(Dongarra, Gustavson and Karp 1984 name both of a factorization). The right form has an inner loop
whose iterations are independent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from metasched.analysis.dependence import Touch, touches
from metasched.analysis.exchange import pushed_early
from metasched.analysis.scope import Child, Scope
from metasched.analysis.written import written
from metasched.arith.analyzer import Analyzer
from metasched.ir.expr import as_expr, as_int
from metasched.ir.stmt import BlockToken, Break, Continue, For, SeqStmt, Stmt, evolve, seq
from metasched.ir.visit import blocks_of, substitute
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    proof,
    refuse_jumps,
    refuse_on,
    require_plain_loop,
    require_serial,
    require_steady_ends,
)
from metasched.schedule.handles import LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.state import State


@primitive(of_loop=ways.plain())
def right_looking(state: State, loop: LoopRV) -> list[LoopRV]:
    """Run the updates of later iterations of `loop` right after an iteration is complete.

    `loop` holds a loop over its earlier iterations, which updates, and statements that complete the
    iteration. Afterwards these statements come first, and a loop over the later iterations updates
    them. Each element gets its updates in the same order. Without such statements, the two loops of
    the triangle change places. Returns both loops.

    requires  a serial loop without annotation, thread binding, break and continue, which holds a
              loop over all earlier iterations, maybe statements beside it, and nothing but loops
              and blocks; no init below; nothing below writes what the ends of loops read; the
              updates by a later iteration and to an earlier iteration touch other elements, and so
              do an update and the completion of an iteration between the two; statements before the
              updates touch other elements than the updates of their iteration, or both update
              integers by the same operation
    rewrite   for j in range(n):
                  for k in range(j): U(j, k)
                  D(j)
              ->
              for j in range(n):
                  D(j)
                  for k in range(after j, n): U(k, j)
    """
    node = require_plain_loop(state, loop, from_zero=False)
    require_serial(state, node)
    refuse_jumps(state, node, Break, Continue)
    items = node.body.items if isinstance(node.body, SeqStmt) else (node.body,)
    inner = _updating(state, node, items)
    at = items.index(inner)
    scope = state.scope(node)
    loose = [s for s, above in scope.loose if any(n.var is node.var for n in above)]
    if loose:
        text = f"the loop {node.var.name} holds more than loops and blocks"
        raise state.error("not-structured", text, node)
    for realize in blocks_of(node.body):
        if realize.block.init is not None:
            raise state.error(
                "has-init", f"block {realize.block.name} has an init", realize,
                hint="decompose_reduction moves the init out of the loops",
            )  # fmt: skip
    require_steady_ends(state, [node, inner])
    early = {r.block.token for s in items[:at] for r in blocks_of(s)}
    _require_independent(state, scope, node, inner, early)
    outer = state.fresh_var(node.var.name, node.var.dtype)
    later = state.fresh_var(inner.var.name, inner.var.dtype)
    rest = [substitute(s, {node.var: outer}) for s in items if s is not inner]
    start = (outer + 1).astype(later.dtype)
    extent = Analyzer().simplify((node.min + node.extent).astype(later.dtype) - start)
    values = {node.var: later.astype(node.var.dtype), inner.var: outer.astype(inner.var.dtype)}
    pushed: Stmt = evolve(
        inner, var=later, min=start, extent=extent, body=substitute(inner.body, values)
    )
    state.commit(edit.replace(node, evolve(node, var=outer, body=seq([*rest, pushed]))))
    return state.new_loops([outer, later])


def _updating(state: State, node: For, items: Sequence[Stmt]) -> For:
    """The loop over all earlier iterations among the statements of a loop."""
    for inner in items:
        if not isinstance(inner, For) or as_int(inner.extent) is not None:
            continue
        same = Analyzer().equal(inner.min, as_expr(node.min, inner.min.dtype))
        whole = Analyzer().equal(inner.min + inner.extent, node.var)
        if same and whole and not inner.annotations and inner.thread is None:
            require_serial(state, inner)
            return inner
    raise state.error(
        "no-updates", f"the loop {node.var.name} holds no loop over all earlier iterations", node
    )


@proof
def _require_independent(
    state: State, scope: Scope, node: For, inner: For, early: Collection[BlockToken]
) -> None:
    """Refuse accesses of one element whose order the exchange would change.

    Args:
        early: the blocks before the updates.
    """
    below = scope.under(node)
    updates, rest = scope.under(inner), [c for c in below if inner not in c.loops]
    for child in updates:
        for other in below:
            beside, begins = other in rest, other.token in early
            for a, b in _pairs(child, other):
                refuse_on(state, pushed_early(a, b, node, inner, beside, begins), node)


def _pairs(child: Child, other: Child) -> list[tuple[Touch, Touch]]:
    among = written(child.block) | written(other.block)
    return [
        (a, b)
        for a in touches(child, among)
        for b in touches(other, among)
        if a.buffer is b.buffer and (a.writes or b.writes)
    ]

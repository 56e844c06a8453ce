"""reorder: puts the loops of a chain in another order."""

from __future__ import annotations

from metasched.analysis.reordering import reorder_violation
from metasched.ir.stmt import For, Stmt, evolve
from metasched.ir.visit import free_vars
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    confirm_kinds,
    proof,
    refuse_on,
    require_same_scope,
)
from metasched.schedule.handles import LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.state import State


@primitive(of_loop=ways.child_first)
def reorder(state: State, *ordered_loops: LoopRV) -> None:
    """Put the given loops, which stand on one chain, into the given order.

    Loops of the chain that are not named keep their places.

    requires  distinct loops on one chain of single statements in one block; all accesses of blocks
              with opaque iterators known; no loop outside of a loop that its bounds depend on;
              accesses to one element in their old order, but for updates by a commutative reduction
              (after its init) and writes of the same value
    rewrite   for i, j in T.grid(4, 8): S(i, j)
              ->
              for j, i in T.grid(8, 4): S(i, j)
    """
    nodes = [state.loop(rv) for rv in ordered_loops]
    if len(set(nodes)) != len(nodes):
        raise state.error("repeated-loop", "a loop is named twice")
    if len(nodes) < 2:
        return
    require_same_scope(state, nodes)
    chain = _chain(state, nodes)
    wanted = iter(nodes)
    named = set(nodes)
    order = [next(wanted) if loop in named else loop for loop in chain]
    if order == chain:
        return
    inner: set[object] = set()
    for loop in reversed(order):
        for expr in loop.exprs:
            if not free_vars(expr).isdisjoint(inner):
                raise state.error(
                    "dependent-bound",
                    f"a bound of {loop.var.name} depends on a loop that would be inside it",
                    loop,
                    hint="overcompute_box runs a triangle as the square around it, and skip_unused "
                    "leaves out tiles outside of the triangle; cut_loop cuts a loop in two",
                )
        inner.add(loop.var)
    _require_free_order(state, chain, order)
    body: Stmt = chain[-1].body
    for loop in reversed(order):
        body = evolve(loop, body=body)
    state.commit(edit.replace(chain[0], body))
    confirm_kinds(state, [n for n in chain if order.index(n) < chain.index(n)])


@proof
def _require_free_order(state: State, chain: list[For], order: list[For]) -> None:
    """Refuse an order that breaks a dependence.

    Only the loops from the first to the last moved loop matter.
    """
    moved = [n for n, (a, b) in enumerate(zip(chain, order, strict=True)) if a is not b]
    part = slice(moved[0], moved[-1] + 1)
    failure = reorder_violation(chain[part], order[part], state.scope(chain[0]))
    refuse_on(state, failure, chain[0])


def _chain(state: State, nodes: list[For]) -> list[For]:
    """All loops from the outermost to the innermost named one, which must be one chain."""
    depth = {n: sum(1 for _ in state.ancestors(n)) for n in nodes}
    top, bottom = min(nodes, key=depth.__getitem__), max(nodes, key=depth.__getitem__)
    chain: list[For] = [bottom]
    above = state.parent(bottom)
    while chain[-1] is not top:
        if not isinstance(above, For):
            break
        chain.append(above)
        above = state.parent(above)
    chain.reverse()
    missing = [n for n in nodes if n not in chain]
    if chain[0] is not top or missing:
        odd = missing[0] if missing else top
        raise state.error(
            "not-a-chain",
            f"between {odd.var.name} and {bottom.var.name} there is more than a chain of loops",
            odd,
            hint="only loops that are each other's only statement can be reordered",
        )
    return chain

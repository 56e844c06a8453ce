"""May the updates of a triangular recurrence run as soon as their operand is complete?

The updates U(j, k) with k < j, and the completions D(j), run in the order U(j, 0..j - 1), D(j) for
each j. If the loops change places, the order is D(k), U(k + 1.., k) for each k. Two accesses keep
their order, but for two cases:

- U(j, k) and U(j', k') with j < j' and k > k';
- U(j, k) and D(m) with k < m < j.
"""

from __future__ import annotations

from metasched.analysis.dependence import Touch, place
from metasched.analysis.failure import Failure
from metasched.analysis.polyhedra import meet_nowhere
from metasched.ir.stmt import For


def pushed_early(a: Touch, b: Touch, node: For, inner: For, completes: bool) -> Failure | None:
    """Whether two accesses of one element may change their order.

    Args:
        a: an access of an update.
        b: an access of an update, or of a completion if `completes`.
        node: the loop over the elements j.
        inner: the loop over the earlier elements k.
    """
    where = next(k for k, loop in enumerate(a.loops) if loop.var is node.var)
    moving = {loop.var for t in (a, b) for loop in t.loops[where:]} | a.inner | b.inner
    j, k = node.var, inner.var
    less = (
        [((k, 0), (j, 1)), ((j, 1), (j, 0))] if completes else [((j, 0), (j, 1)), ((k, 1), (k, 0))]
    )
    if meet_nowhere(place(a), place(b), (a.guards, b.guards), moving, less):
        return None

    def sentence() -> str:
        return (
            f"{a.show()}, and {b.show()}, perhaps the same element: their order would change if "
            f"{node.var.name} gave its values to later iterations at once"
        )

    return Failure("order-changed", sentence, a.child.block if a.child else None)

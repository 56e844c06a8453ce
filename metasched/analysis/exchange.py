"""May the updates of a triangular recurrence run as soon as their operand is complete?

The updates U(j, k) with k < j, and the completions D(j), run in the order U(j, 0..j - 1), D(j) for
each j. If the loops change places, the order is D(k), U(k + 1.., k) for each k. Two accesses keep
their order, but for two cases:

- U(j, k) and U(j', k') with j < j' and k > k';
- U(j, k) and D(m) with k < m < j.

Statements P(j) that run before the updates of j run after them in the new order. Then U(j, k) and
P(m) with k < m <= j change their order, too. For m = j this is harmless if both update an element
by the same operation in any order, as integers are added up.
"""

from __future__ import annotations

from metasched.analysis.dependence import Touch, place
from metasched.analysis.failure import Failure
from metasched.analysis.polyhedra import meet_nowhere
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import Add, Expr, Max, Min, Mul, Sub
from metasched.ir.stmt import Block, BufferStore, For, fact
from metasched.ir.visit import loads_of


def pushed_early(
    a: Touch, b: Touch, node: For, inner: For, completes: bool, begins: bool = False
) -> Failure | None:
    """Whether two accesses of one element may change their order.

    Args:
        a: an access of an update.
        b: an access of an update, or of another statement.
        node: the loop over the elements j.
        inner: the loop over the earlier elements k.
        completes: `b` stands beside the updates.
        begins: `b` stands before the updates.
    """
    where = next(k for k, loop in enumerate(a.loops) if loop.var is node.var)
    moving = {loop.var for t in (a, b) for loop in t.loops[where:]} | a.inner | b.inner
    j, k = node.var, inner.var
    less = (
        [((k, 0), (j, 1)), ((j, 1), (j, 0))] if completes else [((j, 0), (j, 1)), ((k, 1), (k, 0))]
    )
    places = place(a), place(b), moving
    same = begins and not (_commute(a, b) or meet_nowhere(*places, [((k, 0), (j, 0))], [j]))
    if meet_nowhere(*places, less) and not same:
        return None

    def sentence() -> str:
        return (
            f"{a.show()}, and {b.show()}, perhaps the same element: their order would change if "
            f"{node.var.name} gave its values to later iterations at once"
        )

    return Failure("order-changed", sentence, a.child.block if a.child else None)


def _commute(a: Touch, b: Touch) -> bool:
    """Whether two accesses store updates by the same operation, whose order does not matter."""
    kinds = [commuting_update(t.child.block) for t in (a, b) if t.child is not None and t.writes]
    return len(kinds) == 2 and kinds[0] is not None and kinds[0] is kinds[1]


def commuting_update(block: Block, *, reassociated: bool = False) -> type[Expr] | None:
    """The operation by which a block, all of whose effect is one store, updates an element.

    None where the order of several such updates matters. It does not matter for integers, for a
    minimum and a maximum, and for other operations on floats if they may be `reassociated`. (In any
    order a NaN stays; of 0.0 and -0.0, either may be the minimum or maximum of a program.)
    """
    kind = _update(block)
    any_order = reassociated or kind in (None, Min, Max) or block.writes[0].buffer.dtype.is_int
    return kind if any_order else None


@fact
def _update(block: Block) -> type[Expr] | None:
    store = block.body
    if block.init is not None or not isinstance(store, BufferStore):
        return None
    value, own = store.value, BufferLoad(store.buffer, store.indices)
    if not isinstance(value, (Add, Sub, Mul, Max, Min)):
        return None
    pairs = ((value.a, value.b), (value.b, value.a))
    for before, added in pairs[:1] if isinstance(value, Sub) else pairs:
        if before is own and own not in loads_of(added):
            return type(value)
    return None

"""chain_sum: lets a reduction add the terms of a sum one after another.

    C[i, j] = C[i, j] + (A[i, k] * B[j, k] + B[i, k] * A[j, k])
    ->
    C[i, j] = C[i, j] + A[i, k] * B[j, k] + B[i, k] * A[j, k]

Each product and its sum become one fused instruction. Grouped, the last sum is an instruction of
its own, and the products of a whole register tile wait for it in registers that the tile needs.
"""

from __future__ import annotations

from collections.abc import Iterator

from metasched.analysis.reducer import match_reducer
from metasched.ir.expr import Add, Expr, FloatImm, IntImm, Sub, add, sub
from metasched.ir.stmt import BufferStore, evolve
from metasched.schedule import edit, ways
from metasched.schedule.checks import require_reduction, require_root_free
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.state import State


@primitive(of_block=ways.plain())
def chain_sum(state: State, block: BlockLike) -> None:
    """Add the terms of what a reduction adds one after another.

    requires  a reduction block whose body is one store of a sum of the stored element and a sum or
              difference of terms
    rewrite   for i, k in T.grid(4, 8): C(C[i] = C[i] + (A[i, k] * B[k] + D[i, k] * E[k]))
              ->
              for i, k in T.grid(4, 8): C(C[i] = C[i] + A[i, k] * B[k] + D[i, k] * E[k])
    """
    assert isinstance(block, BlockRV)
    realize = require_root_free(state, block)
    old = realize.block
    require_reduction(state, state.scope(realize), realize)
    found = None if old.init is None else match_reducer(old.init, old.body)
    if found is None or found.name != "sum" or not isinstance(old.body, BufferStore):
        raise state.error("no-sum", f"{old.name} is not one store that adds to a sum", realize)
    total = found.lhs[0]
    for term, plus in terms_of(found.rhs[0]):  # C - x is read as C + (0 - x)
        total = add(total, term) if plus else sub(total, term)
    if total is old.body.value:
        raise state.error("one-term", f"{old.name} adds its terms one after another", realize)
    made = evolve(old, body=evolve(old.body, value=total))
    state.commit(edit.wrap(realize, lambda s: evolve(s, block=made)))


def terms_of(value: Expr, plus: bool = True) -> Iterator[tuple[Expr, bool]]:
    """The terms of a sum but zeros, and whether each is added; others are subtracted."""
    if isinstance(value, (Add, Sub)):
        yield from terms_of(value.a, plus)
        yield from terms_of(value.b, plus is isinstance(value, Add))
    elif not isinstance(value, (FloatImm, IntImm)) or value.value != 0:
        yield value, plus

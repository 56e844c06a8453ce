"""reorder_block_iter_var: puts the iterators of a block in another order."""

from __future__ import annotations

from collections.abc import Sequence

from metasched.ir.stmt import Block, BlockRealize, Stmt, evolve
from metasched.schedule import edit, ways
from metasched.schedule.checks import require_root_free
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.layout_arguments import plain_int
from metasched.schedule.state import State


@primitive(of_block=ways.with_reversed_iters)
def reorder_block_iter_var(state: State, block: BlockLike, new_order: Sequence[int]) -> None:
    """Put the iterators of a block, with their bindings, in the order of the positions given.

    requires  `new_order` names each position of the block's iterators once
    rewrite   vi, vj = T.axis.remap("SS", [i, j]) -> vj, vi = T.axis.remap("SS", [j, i])
    """
    assert isinstance(block, BlockRV)
    realize = require_root_free(state, block)
    count = len(realize.block.iter_vars)
    order = [plain_int(state, n, "a position in new_order") for n in new_order]
    if sorted(order) != list(range(count)):
        raise state.error(
            "no-permutation",
            f"new_order {order} does not name each of the {count} iterators of "
            f"{realize.block.name} once",
            realize,
        )

    def change(node: Stmt) -> Stmt:
        assert isinstance(node, BlockRealize)
        inner: Block = evolve(node.block, iter_vars=tuple(node.block.iter_vars[n] for n in order))
        return BlockRealize(tuple(node.iter_values[n] for n in order), node.predicate, inner)

    state.commit(edit.wrap(realize, change))

"""unsafe_set_dtype: a temporary buffer in another type, with casts where it is used."""

from __future__ import annotations

from metasched.errors import MetaschedError
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import DType
from metasched.ir.expr import Expr, cast
from metasched.ir.stmt import Block, BufferStore, Stmt, evolve
from metasched.ir.visit import map_exprs, replace_loads, substitute_buffers
from metasched.schedule import edit
from metasched.schedule.checks import refuse_opaque
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.storage import allocating_block, pick_buffer
from metasched.schedule.state import State


@primitive()
def unsafe_set_dtype(
    state: State, block: BlockLike, buffer_index: int | str | Buffer, dtype: str
) -> None:
    """Keep a buffer that `block` writes in another type; values are cast in and out.

    Results change where the type cannot hold the values: that is what the name warns of.

    requires  the buffer is allocated by a block and used by loads and stores only; a scalar type
              other than its own
    rewrite   B[i] = A[i]; C[i] = B[i]
              -> B[i] = T.Cast("float16", A[i]); C[i] = T.Cast("float32", B[i])
    """
    assert isinstance(block, BlockRV)
    realize = state.block(block)
    old = pick_buffer(state, realize, "write", buffer_index)
    try:
        wanted = DType(dtype)
    except MetaschedError as error:
        raise state.error("unknown-dtype", str(error), realize) from None
    state.canonical = {
        "buffer_index": [r.buffer for r in realize.block.writes].index(old), "dtype": str(wanted),
    }  # fmt: skip
    if wanted.lanes != 1 or wanted.is_handle or wanted == "void":
        raise state.error("unknown-dtype", f"{wanted} is no type of buffer elements", realize)
    if wanted is old.dtype:
        raise state.error("same-dtype", f"{old.name} is {wanted} already", realize)
    site = allocating_block(state, realize, old)
    refuse_opaque(state, site, old)
    new = state.fresh_buffer(
        old.name, old.shape, wanted, old.scope, old.strides, old.elem_offset, old.align,
        old.offset_factor,
    )  # fmt: skip
    state.commit(edit.wrap(site, lambda s: _recast(s, old, new)))


def _recast(site: Stmt, old: Buffer, new: Buffer) -> Stmt:
    def recast(node: BufferLoad) -> Expr:
        load = BufferLoad(new, node.indices, node.predicate)
        return cast(old.dtype.with_lanes(load.dtype.lanes), load)

    def on_stmt(node: Stmt) -> Stmt | None:
        if isinstance(node, BufferStore) and node.buffer is old:
            value = cast(new.dtype.with_lanes(node.value.dtype.lanes), node.value)
            return evolve(node, buffer=new, value=value)
        return None

    made = map_exprs(site, lambda e: replace_loads(e, old, recast), on_stmt)
    changed = substitute_buffers(made, {old: new})
    assert isinstance(changed, Block)
    return changed

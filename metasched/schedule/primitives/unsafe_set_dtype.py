"""unsafe_set_dtype, widen_dtype: store a temporary buffer in another type.

Both cast each stored value, and cast it back where it is loaded. `unsafe_set_dtype` takes any type.
`widen_dtype` takes a type that holds all values of the old type; a load that is cast to a third
type is not cast back first.
"""

from __future__ import annotations

from collections.abc import Mapping

from metasched.errors import MetaschedError
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import DType
from metasched.ir.expr import Cast, Expr, cast
from metasched.ir.stmt import Block, BufferStore, Stmt, evolve
from metasched.ir.visit import substitute_buffers, transform
from metasched.schedule import edit, ways
from metasched.schedule.checks import refuse_pointers
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.storage import allocating_block, pick_buffer, views_of
from metasched.schedule.state import State


@primitive()
def unsafe_set_dtype(
    state: State, block: BlockLike, buffer_index: int | str | Buffer, dtype: str
) -> None:
    """Store a buffer that `block` writes in another type; stores and loads cast the values.

    The step is unsafe: results change if the type cannot hold the values.

    Views of the buffer change their type with it.

    requires  the buffer is allocated by a block and used by loads, stores and views only; a scalar
              type other than its own
    rewrite   B[i] = A[i]; C[i] = B[i]
              -> B[i] = T.Cast("float16", A[i]); C[i] = T.Cast("float32", B[i])
    """
    site, buffers = _retyped(state, block, buffer_index, dtype)
    state.commit(edit.wrap(site, lambda s: _recast(s, buffers)))


@primitive(of_block=ways.with_buffers("write", "float64"))
def widen_dtype(
    state: State, block: BlockLike, buffer_index: int | str | Buffer, dtype: str
) -> None:
    """Store a buffer that `block` writes in a type that holds all values of its own type.

    Results stay the same. A load that is cast to a third type is cast directly from the new type.
    Views of the buffer change their type with it.

    requires  the buffer is allocated by a block and used by loads, stores and views only; a scalar
              type that holds all values of its own type
    rewrite   B[i] = A[i]; C[i] = B[i]
              -> B[i] = T.Cast("float64", A[i]); C[i] = T.Cast("float32", B[i])
    """
    site, buffers = _retyped(state, block, buffer_index, dtype)
    for old, new in buffers.items():
        if not new.dtype.holds(old.dtype):
            why = f"{new.dtype} does not hold all values of {old.dtype}, the type of {old.name}"
            raise state.error("narrower", why, site)
    state.commit(edit.wrap(site, lambda s: _direct(_recast(s, buffers), buffers)))


def _retyped(
    state: State, block: BlockLike, buffer_index: int | str | Buffer, dtype: str
) -> tuple[Block, dict[Buffer, Buffer]]:
    """The block that allocates a buffer, and the retyped copies of the buffer and its views."""
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
    buffers: dict[Buffer, Buffer] = {}
    for buffer in (old, *views_of(site, old)):
        refuse_pointers(state, site, buffer)
        buffers[buffer] = state.fresh_buffer(
            buffer.name, buffer.shape, wanted, buffer.scope, buffer.strides, buffer.elem_offset,
            buffer.align, buffer.offset_factor,
        )  # fmt: skip
    return site, buffers


def _recast(site: Stmt, buffers: Mapping[Buffer, Buffer]) -> Block:
    def on_expr(node: Expr) -> Expr | None:
        if not isinstance(node, BufferLoad) or node.buffer not in buffers:
            return None
        old = node.buffer
        load = BufferLoad(buffers[old], node.indices, node.predicate)
        return cast(old.dtype.with_lanes(load.dtype.lanes), load)

    def on_stmt(node: Stmt) -> Stmt | None:
        if isinstance(node, BufferStore) and node.buffer in buffers:
            new = buffers[node.buffer]
            value = cast(new.dtype.with_lanes(node.value.dtype.lanes), node.value)
            return evolve(node, buffer=new, value=value)
        return None

    changed = substitute_buffers(transform(site, on_stmt, on_expr), buffers)
    assert isinstance(changed, Block)
    return changed


def _direct(site: Block, buffers: Mapping[Buffer, Buffer]) -> Block:
    """Remove the cast back of a load that is cast to another type again."""
    wide = set(buffers.values())

    def on_expr(node: Expr) -> Expr | None:
        if not isinstance(node, Cast) or not isinstance(node.value, Cast):
            return None
        load = node.value.value
        stored = isinstance(load, BufferLoad) and load.buffer in wide
        return cast(node.dtype, load) if stored else None

    changed = transform(site, None, on_expr)
    assert isinstance(changed, Block)
    return changed

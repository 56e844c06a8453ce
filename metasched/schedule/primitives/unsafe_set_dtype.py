"""unsafe_set_dtype, widen_dtype, narrow_dtype: store a temporary buffer in another type.

They cast each stored value, and cast it back where it is loaded. `unsafe_set_dtype` takes any type.
`widen_dtype` takes a type that holds all values of the old type; a load that is cast to a third
type is not cast back first. `narrow_dtype` takes a type that holds all stored values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod

from metasched.arith.products import choices, products_of, span
from metasched.errors import MetaschedError
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.describe import show_expr
from metasched.ir.dtype import DType
from metasched.ir.expr import Cast, Expr, IntImm, Select, add, cast, sub, wrap
from metasched.ir.op import call
from metasched.ir.stmt import Block, BufferStore, Stmt, evolve
from metasched.ir.visit import substitute_buffers, transform, walk_stmts
from metasched.schedule import edit, ways
from metasched.schedule.checks import refuse_pointers
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.layout_arguments import plain_int
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


@primitive(of_block=ways.with_buffers("write", "int16"))
def narrow_dtype(
    state: State, block: BlockLike, buffer_index: int | str | Buffer, dtype: str, offset: int = 0
) -> None:
    """Store a buffer of integers that `block` writes in a narrower type, each value less `offset`.

    Results stay the same. `offset` is subtracted in both branches of a choice: bytes less their
    zero point, padded with 0, become bytes that are padded with the zero point. Views of the buffer
    change their type with it.

    requires  the buffer is allocated by a block and used by loads, stores and views only; integers,
              and another scalar type of integers without more bits; the types in each stored value
              show that the new type holds the value less `offset`
    rewrite   B[i] = T.max(T.min(A[i], 90), -3); C[i] = B[i]
              -> B[i] = T.Cast("int8", T.max(T.min(A[i], 90), -3)); C[i] = T.Cast("int32", B[i])
    """
    start = plain_int(state, offset, "offset")
    site, buffers = _retyped(state, block, buffer_index, dtype)
    state.canonical = {**(state.canonical or {}), "offset": start}
    for old, new in buffers.items():
        if not (old.dtype.is_int and new.dtype.is_int and new.dtype.bits <= old.dtype.bits):
            why = f"{old.name} holds {old.dtype}: {new.dtype} is no integer of at most as many bits"
            raise state.error("not-narrower", why, site)
    holder = site
    for node in walk_stmts(site):
        holder = node if isinstance(node, Block) else holder
        if isinstance(node, BufferStore) and node.buffer in buffers:
            _require_held(state, holder, node, buffers[node.buffer].dtype, start)

    def back(value: Expr) -> Expr:
        return add(value, _number(value.dtype, start))

    state.commit(edit.wrap(site, lambda s: _recast(s, buffers, partial(_less, start), back)))


def _require_held(
    state: State, holder: Block, store: BufferStore, dtype: DType, offset: int
) -> None:
    """Refuse a store of values that a type may not hold, each less `offset`."""
    (low, high), (least, most) = span(store.value), dtype.range
    if low - offset < least or high - offset > most:
        what = (
            f"{show_expr(store.value)} in {store.buffer.name} may be {low} to {high} by its types"
        )
        why = f"{what}, and {dtype} holds {least + offset} to {most + offset} at offset {offset}"
        raise state.error("wide-values", f"{why}; take a wider type or another offset", holder)


def _less(offset: int, dtype: DType, value: Expr) -> Expr:
    """`value` less `offset` as `dtype`, which holds it; in both branches of a choice."""
    branches = choices(value)
    if branches is not None:
        a, b = (_less(offset, dtype, branch) for branch in branches)
        if isinstance(value, Select):
            return Select(value.condition, a, b)
        return call("if_then_else", value.children[0], a, b)
    terms = list(products_of(value))
    rest = [term for term in terms if not all(isinstance(f, IntImm) for f in term[1])]
    fixed = sum(sign * prod(f.value for f in factors if isinstance(f, IntImm))
                for sign, factors in terms if (sign, factors) not in rest)  # fmt: skip
    if fixed == offset and len(rest) == 1 and rest[0][0] == 1 and len(rest[0][1]) == 1:
        (value,) = rest[0][1]
        return (
            value.value
            if isinstance(value, Cast) and value.value.dtype is dtype
            else cast(dtype, value)
        )
    return cast(dtype, sub(value, _number(value.dtype, offset)))


def _number(dtype: DType, value: int) -> Expr:
    return cast(dtype, IntImm(dtype.scalar, wrap(dtype.scalar, value)))


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


def _recast(
    site: Stmt,
    buffers: Mapping[Buffer, Buffer],
    store: Callable[[DType, Expr], Expr] = cast,
    load: Callable[[Expr], Expr] = lambda value: value,
) -> Block:
    """Replace buffers: `store` gives the value that is stored, `load` the value of a load."""

    def on_expr(node: Expr) -> Expr | None:
        if not isinstance(node, BufferLoad) or node.buffer not in buffers:
            return None
        old = node.buffer
        new = BufferLoad(buffers[old], node.indices, node.predicate)
        return load(cast(old.dtype.with_lanes(new.dtype.lanes), new))

    def on_stmt(node: Stmt) -> Stmt | None:
        if isinstance(node, BufferStore) and node.buffer in buffers:
            new = buffers[node.buffer]
            value = store(new.dtype.with_lanes(node.value.dtype.lanes), node.value)
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

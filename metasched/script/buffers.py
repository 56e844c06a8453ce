"""Buffers in scripts: their description, and the methods that scripts may call on them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from metasched.errors import TypeMismatchError, shown_at_caller
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import Expr, ExprLike, Var, add, as_expr, mul
from metasched.ir.op import Call, Ramp
from metasched.script.builder import WORDS, TypeWord, dtype_of, typed
from metasched.script.words import apply_op


def described(
    shape: Any,
    dtype: Any = "float32",
    data: Var | Buffer | None = None,
    strides: Sequence[ExprLike] | None = None,
    elem_offset: ExprLike | None = None,
    scope: str | None = "global",
    align: int = 0,
    offset_factor: int = 0,
    buffer_type: str = "default",
    axis_separators: Sequence[int] | None = None,
) -> Buffer:
    """Make a buffer, arguments in TVM's order; an alignment or factor of zero or less means
    default. A stride that is a text is a new variable of that name."""
    extents = shape if isinstance(shape, (tuple, list)) else (shape,)
    data = data.data if isinstance(data, Buffer) else data
    return Buffer(
        "buffer",
        tuple(_size(e) for e in extents),
        dtype_of(dtype),
        scope or "global",
        tuple(Var(s) if isinstance(s, str) else _size(s) for s in strides or ()),
        None if elem_offset is None else _size(elem_offset),
        align if align > 0 else 64,
        offset_factor if offset_factor > 0 else 1,
        data if data is not None else Var("buffer", "handle"),
    )


UNSAID: Any = object()


class BufferWord:
    """`T.Buffer(shape, dtype, ...)` or `T.Buffer[shape, dtype]`: a buffer that comes from outside.

    With an `offset_factor` and no `elem_offset` the offset is a new variable, as in match_buffer.
    """

    @shown_at_caller
    def __call__(
        self,
        shape: Any,
        dtype: Any = "float32",
        data: Var | Buffer | None = None,
        strides: Sequence[ExprLike] | None = None,
        elem_offset: Any = UNSAID,
        scope: str | None = "global",
        align: int = 0,
        offset_factor: int = 0,
        *rest: Any,
        **more: Any,
    ) -> Buffer:
        if elem_offset is UNSAID:
            elem_offset = Var("elem_offset") if offset_factor > 0 else None
        given = (data, strides, elem_offset, scope, align, offset_factor)
        return described(shape, dtype, *given, *rest, **more)

    def __getitem__(self, items: Any) -> Buffer:
        if isinstance(items, tuple) and len(items) == 2 and isinstance(items[1], (str, TypeWord)):
            return self(items[0], items[1])
        return self(items)


WORDS["Buffer"] = BufferWord()


def _size(value: Any) -> Expr:
    """An extent, stride or offset: an integer."""
    found = typed(value)
    if not found.dtype.is_int:
        raise TypeMismatchError(
            f"shapes, strides and offsets are integers, not {value!r}; declare n = T.int32()"
        )
    return found


def renamed(buffer: Buffer, name: str) -> Buffer:
    """A copy of the buffer under another name; a data pointer named after the buffer is renamed."""
    data = Var(name, "handle") if buffer.data.name == "buffer" else buffer.data
    return Buffer(
        name, buffer.shape, buffer.dtype, buffer.scope, buffer.strides, buffer.elem_offset,
        buffer.align, buffer.offset_factor, data,
    )  # fmt: skip


BUFFER_DATA = ("name", "shape", "dtype", "strides", "elem_offset", "data", "ndim", "align")


def _vload(buffer: Buffer, indices: Any, dtype: Any = None, predicate: Any = None) -> BufferLoad:
    items = indices if isinstance(indices, (tuple, list)) else (indices,)
    mask = None if predicate is None else typed(predicate)
    places = [typed(i) for i in items]
    lanes = 1 if dtype is None else dtype_of(dtype).lanes // buffer.dtype.lanes
    if lanes > 1 and places and places[-1].dtype.lanes == 1:
        places[-1] = Ramp(places[-1], as_expr(1, places[-1].dtype), lanes)
    return BufferLoad(buffer, places, mask)


def _access_ptr(
    buffer: Buffer, access_mask: Any, ptr_type: Any = None, content_lanes: int = 1,
    offset: Any = 0, extent: Any = None,
) -> Call:  # fmt: skip
    """access_ptr(data, offset, extent, mask); bit 1 of the mask reads, bit 2 writes.

    `offset` counts from the first element of the buffer, which need not be the first of its memory.
    """
    if isinstance(access_mask, str):
        access_mask = sum({"r": 1, "w": 2}[letter] for letter in access_mask)
    whole = functools.reduce(mul, buffer.shape, as_expr(1)) if extent is None else extent
    place = typed(offset)
    if buffer.elem_offset is not None:
        place = add(buffer.elem_offset, place)
    return apply_op("access_ptr", [buffer.data, place, typed(whole), access_mask])


BUFFER_METHODS: dict[str, Callable[..., Any]] = {
    "scope": lambda buffer: buffer.scope,
    "vload": _vload,
    "access_ptr": _access_ptr,
    "whole": Buffer.whole,
}

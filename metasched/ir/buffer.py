"""Memory: Buffer, the loads from it, and the regions of it that blocks declare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from metasched.errors import TypeMismatchError
from metasched.ir.dtype import HANDLE, DType
from metasched.ir.expr import Expr, ExprLike, Var, as_expr, as_int, mul
from metasched.ir.intern import make, quick


@quick
class Range:
    """The integers from `min` to `min + extent - 1`."""

    min: Expr
    extent: Expr

    @staticmethod
    def of(min: ExprLike, extent: ExprLike) -> Range:
        """A range from integers or expressions; both get one type."""
        low, size = (as_expr(min), as_expr(extent))
        if low.dtype is not size.dtype:
            wide = low.dtype if low.dtype.bits > size.dtype.bits else size.dtype
            low, size = low.astype(wide), size.astype(wide)
        return Range(low, size)

    @property
    def is_point(self) -> bool:
        return as_int(self.extent) == 1


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """A multi-dimensional array. Buffers are compared by identity; `name` is a hint.

    Attributes:
        name: the preferred name in printed text.
        shape: the extents, constant or symbolic, in elements.
        dtype: the type of the elements.
        scope: the storage scope, a prefix (`global shared warp local wmma.* ...`) and a free tag.
        strides: the strides in elements; empty means compact row-major.
        elem_offset: the position of the first element in its allocation, in elements; None means 0.
        align: the alignment of the data in bytes.
        offset_factor: a number of which `elem_offset` is a multiple.
        data: the pointer variable, for access to the raw address.
    """

    name: str
    shape: tuple[Expr, ...]
    dtype: DType
    scope: str = "global"
    strides: tuple[Expr, ...] = ()
    elem_offset: Expr | None = None
    align: int = 64
    offset_factor: int = 1
    data: Var = field(default=None)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.data is None:
            object.__setattr__(self, "data", Var(self.name, HANDLE))
        if as_int(self.elem_offset) == 0:
            object.__setattr__(self, "elem_offset", None)
        if self.align < 1 or self.offset_factor < 1:  # scripts write the default for these
            given = f"align={self.align}, offset_factor={self.offset_factor}"
            raise ValueError(f"{given} of {self.name} count from 1")
        sizes = [as_int(extent) for extent in self.shape]
        if any((size or 0) < 0 for size in sizes):
            given = ", ".join(str(as_int(s)) if as_int(s) is not None else repr(s)
                              for s in self.shape)  # fmt: skip
            raise ValueError(f"the shape of {self.name} is ({given}), extents start at 0")
        if (count := math.prod(1 if size is None else size for size in sizes)) >= 1 << 63:
            raise ValueError(f"{self.name} has {count} elements, more than 64 bits count")

    @staticmethod
    def of(
        name: str,
        shape: Sequence[ExprLike],
        dtype: DType | str = "float32",
        scope: str = "global",
        strides: Sequence[ExprLike] = (),
        elem_offset: ExprLike | None = None,
        align: int = 64,
        offset_factor: int = 1,
    ) -> Buffer:
        """A buffer from Python numbers and texts."""
        return Buffer(
            name,
            tuple(as_expr(s) for s in shape),
            DType(dtype),
            scope or "global",
            tuple(as_expr(s) for s in strides),
            None if elem_offset is None else as_expr(elem_offset),
            align,
            offset_factor,
        )

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def constant_shape(self) -> tuple[int, ...] | None:
        """The shape as integers, None when an extent is symbolic."""
        sizes = [as_int(s) for s in self.shape]
        return None if None in sizes else tuple(sizes)  # type: ignore[arg-type]

    def row_major_strides(self) -> tuple[Expr, ...]:
        """The strides in elements, computed from the shape when none are stored."""
        if self.strides:
            return self.strides
        strides: list[Expr] = []
        step: Expr = as_expr(1, self.shape[-1].dtype if self.shape else None)
        for extent in reversed(self.shape):
            strides.append(step)
            step = mul(step, extent)
        return tuple(reversed(strides))

    def constant_strides(self) -> list[int | None]:
        """`row_major_strides` as integers, None for each that is symbolic."""
        if self.strides:
            return [as_int(stride) for stride in self.strides]
        strides: list[int | None] = []
        step: int | None = 1
        for extent in reversed(self.shape):
            strides.append(step)
            size = as_int(extent)
            step = None if step is None or size is None else step * size
        strides.reverse()
        return strides

    def whole(self) -> BufferRegion:
        """The region of the whole buffer."""
        return BufferRegion(self, tuple(Range(as_expr(0, s.dtype), s) for s in self.shape))

    def __getitem__(self, indices: Any) -> BufferLoad:
        items = indices if isinstance(indices, tuple) else (indices,)
        return BufferLoad(self, [as_expr(i) for i in items])

    def __repr__(self) -> str:
        return f"Buffer({self.name}: {self.dtype}{list(self.shape)})"


@quick
class BufferRegion:
    """A box of a buffer: one range for each dimension."""

    buffer: Buffer
    region: tuple[Range, ...]

    @staticmethod
    def point(buffer: Buffer, indices: Sequence[Expr]) -> BufferRegion:
        """The single element at `indices`."""
        return BufferRegion(buffer, tuple(Range(i, as_expr(1, i.dtype)) for i in indices))


class BufferLoad(Expr):
    """The element (or, with a vector index, the elements) of `buffer` at `indices`.

    A `predicate` (bool, same lanes as the value) masks lanes; masked lanes are not read.
    """

    __slots__ = ("buffer", "indices", "predicate")
    buffer: Buffer
    indices: tuple[Expr, ...]
    predicate: Expr | None

    def __new__(
        cls, buffer: Buffer, indices: Sequence[Expr], predicate: Expr | None = None
    ) -> BufferLoad:
        indices = tuple(indices)
        if len(indices) != len(buffer.shape):
            raise TypeMismatchError(
                f"{buffer.name} has {len(buffer.shape)} dimensions, {len(indices)} indices given"
            )
        dtype = buffer.dtype
        if indices and indices[-1].dtype.lanes > 1:
            dtype = dtype.with_lanes(dtype.lanes * indices[-1].dtype.lanes)
        key = (cls, buffer, indices, predicate)
        return make(cls, key, dtype, (buffer, indices, predicate))  # type: ignore[no-any-return]

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.indices if self.predicate is None else (*self.indices, self.predicate)

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        n = len(self.indices)
        return BufferLoad(self.buffer, children[:n], children[n] if len(children) > n else None)

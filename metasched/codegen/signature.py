"""The parameters of a compiled kernel's C function in order, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

# An extent: a number, the name of a symbol or scalar parameter, or (operator, left, right).
Extent: TypeAlias = "int | str | tuple[str, Extent, Extent]"

_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": int.__add__,
    "-": int.__sub__,
    "*": int.__mul__,
    "//": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
}


@dataclass(frozen=True, slots=True)
class BufferArg:
    """A parameter passed by pointer to its first element.

    Attributes:
        name: unique in the signature.
        dtype: element type as text (`float32`, `bfloat16`, `bool`).
        shape: extents in elements.
        strides: in elements, always given (row-major when the program states none).
        compact: the strides are the row-major ones.
        read, written: whether the kernel reads the buffer, and whether it writes the buffer.
    """

    name: str
    dtype: str
    shape: tuple[Extent, ...]
    strides: tuple[Extent, ...]
    compact: bool = True
    read: bool = True
    written: bool = True


@dataclass(frozen=True, slots=True)
class ScalarArg:
    """A parameter passed by value."""

    name: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Signature:
    """`int32_t symbol(params..., int64_t symbols...)`; a result other than 0 is a failure.

    `symbol_repeat` takes the same parameters, then `int64_t n`: it calls `symbol` n times and stops
    at the first failure.

    Attributes:
        symbol: name of the function in the object.
        params: buffers (pointers) and scalars in calling order.
        symbols: symbolic extents of the arguments, passed as int64 after the parameters.
        messages: the text of return code `i + FIRST_ASSERT`, for each i.
        weights: positions of the constant weights, which the kernel takes packed.
        pack: the signature of the function in the same object that packs the weights. It takes the
            unpacked weights, then as many arrays to fill. None without constant weights.
        record: length of `symbol_record` in 64-bit numbers; 0 if no assertion has values. A failed
            assertion writes its code there, then its values (see `failure`). Calls at the same time
            share the record; its reader sets the first number to 0 before the next call.
    """

    symbol: str
    params: tuple[BufferArg | ScalarArg, ...]
    symbols: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    weights: tuple[int, ...] = ()
    pack: Signature | None = None
    record: int = 0

    @property
    def packed(self) -> tuple[tuple[int, BufferArg, BufferArg], ...]:
        """(position, unpacked, packed) of each constant weight."""
        parts = self.pack.buffers if self.pack is not None else ()
        half = len(parts) // 2
        return tuple(zip(self.weights, parts[:half], parts[half:], strict=True))

    @property
    def buffers(self) -> tuple[BufferArg, ...]:
        """The buffer parameters in order."""
        return tuple(p for p in self.params if isinstance(p, BufferArg))

    def failure(self, code: int, record: Sequence[int] = ()) -> str:
        """The meaning of a return code other than 0; `record` is the failure record of the call.

        `lower.passes.check_bounds` defines the record. After the code follow the number of lanes,
        of indices and of extents, the indices of the first lane, and the symbolic extents.
        """
        if record and record[0]:
            code, lanes, dims, sizes = record[:4]
            parts = record[4 : 4 + dims], record[4 + dims : 4 + dims + sizes]
            indices, extents = (", ".join(map(str, part)) for part in parts)
            text = f"[{indices}]" if lanes == 1 else f"[{indices}] in the first of {lanes} lanes"
            behind = f", the extents ({extents})" if extents else ""
            return f"{self.failure(code)}: the indices are {text}{behind}"
        if code == OUT_OF_MEMORY:
            return "out of memory for a temporary buffer"
        index = code - FIRST_ASSERT
        if 0 <= index < len(self.messages):
            return f"assertion failed: {self.messages[index]}"
        return f"the kernel returned {code}"


OUT_OF_MEMORY = 1
FIRST_ASSERT = 16
RECORD = "_record"  # the name of the record is the function's name with this suffix


def extent_value(extent: Extent, values: Mapping[str, int]) -> int:
    """The value of an extent, given the values of symbols and scalars by name.

    Raises KeyError for a name without a value.
    """
    if isinstance(extent, int):
        return extent
    if isinstance(extent, str):
        return values[extent]
    operator, left, right = extent
    return _OPERATORS[operator](extent_value(left, values), extent_value(right, values))

"""The quick check of a call: attribute reads alone, for plain arrays and numbers that fit.

The quick check never gives a reason: it returns None for a call that it does not accept, and the
complete check of `arguments` looks again. For an accepted call both checks give the same values.
The loops omit `strict=`, which would cost a tenth of the check.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from metasched.codegen.signature import BufferArg, ScalarArg, Signature
from metasched.ir.dtype import DType

Quick: TypeAlias = "Callable[[Sequence[Any]], list[Any] | None]"
_ndarray = np.ndarray
_HEAD = object.__basicsize__  # an array begins with Python's head; then comes its address
_word_at = ctypes.c_size_t.from_address


def stated_address(value: Any) -> int:
    """The address of an array's first element as NumPy states it; takes one to two microseconds."""
    address: int = value.__array_interface__["data"][0]
    return address


def read_address(value: Any) -> int:
    """The address of an array's first element, read from the C structure of the array."""
    return _word_at(id(value) + _HEAD).value


def way_to_address() -> Callable[[Any], int]:
    """Choose `read_address` if arrays are laid out as NumPy's headers say, else
    `stated_address`."""
    if sys.implementation.name != "cpython":
        return stated_address
    probe = np.arange(7, dtype=np.int16)
    parts = (probe, probe[3:], probe[::-2], probe.reshape(7, 1))
    same = all(read_address(part) == stated_address(part) for part in parts)
    return read_address if same else stated_address


address_of = way_to_address()


def may_clash(signature: Signature) -> list[tuple[int, int]]:
    """Pairs of buffers of which at least one is written, each pair once."""
    at = [(n, p) for n, p in enumerate(signature.params) if isinstance(p, BufferArg)]
    pairs = []
    for n, a in at:
        for m, b in at:
            if a.written and m != n and not (b.written and m < n):
                pairs.append((n, m))
    return pairs


def quick_check(signature: Signature) -> Quick:
    """Make the quick check of a signature; it gives the values of the C call, or None if unsure."""
    if address_of is not read_address:
        return _never
    params = signature.params
    extents = [e for p in signature.buffers for e in p.shape]
    for param in params:
        if isinstance(param, BufferArg):
            size = DType(param.dtype).numpy.itemsize
            if not param.compact or size & (size - 1):
                return _never
        elif param.dtype not in _SCALARS:
            return _never
    if any(isinstance(e, tuple) or e == 0 for e in extents):
        return _never
    if len(signature.buffers) == len(params) and all(isinstance(e, int) for e in extents):
        return _of_constant_shapes(signature)
    return _of_plain_symbols(signature)


def _never(arguments: Sequence[Any]) -> None:
    """The quick check of a signature for which every call needs the complete check."""


def _of_constant_shapes(signature: Signature) -> Quick:
    rows: list[tuple[Any, Any, bool, int]] = []
    for param in signature.buffers:
        dtype = DType(param.dtype).numpy
        rows.append((dtype, param.shape, param.written, dtype.itemsize - 1))
    sizes = [math.prod(shape) * dtype.itemsize for dtype, shape, _, _ in rows]
    clashes = [(n, m, sizes[n], sizes[m]) for n, m in may_clash(signature)]
    count = len(rows)

    def check(arguments: Sequence[Any]) -> list[Any] | None:
        if len(arguments) != count:
            return None
        out = []
        for value, (dtype, shape, written, low_bits) in zip(arguments, rows):  # noqa: B905
            if type(value) is not _ndarray or value.dtype is not dtype or value.shape != shape:
                return None
            flags = value.flags
            if not flags.c_contiguous or (written and not flags.writeable):
                return None
            address = _word_at(id(value) + _HEAD).value  # `read_address` without its call
            if address & low_bits:
                return None
            out.append(address)
        for n, m, size, other in clashes:
            if out[n] < out[m] + other and out[m] < out[n] + size:
                return None
        return out

    return check


# Type of a scalar parameter -> the Python type of its argument; 16-bit floats are converted.
_SCALARS: dict[str, type] = {
    "float32": float, "float64": float,
    **{f"{sign}int{bits}": int for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip


def _of_plain_symbols(signature: Signature) -> Quick:
    rows = [_row(param) for param in signature.params]
    clashes, symbols, count = may_clash(signature), signature.symbols, len(rows)

    def check(arguments: Sequence[Any]) -> list[Any] | None:
        if len(arguments) != count:
            return None
        out: list[Any] = []
        values: dict[str, int] = {}
        for value, (kind, shape, written, rest) in zip(arguments, rows):  # noqa: B905
            if written is None:
                if type(value) is not kind or (rest and value not in rest):
                    return None
                if rest and values.setdefault(shape, value) != value:
                    return None
                out.append(value)
                continue
            if type(value) is not _ndarray or value.dtype is not kind or value.ndim != len(shape):
                return None
            for extent, number in zip(shape, value.shape):  # noqa: B905
                if extent != number and (
                    type(extent) is int or values.setdefault(extent, number) != number
                ):
                    return None
            flags = value.flags
            if not flags.c_contiguous or (written and not flags.writeable):
                return None
            address = _word_at(id(value) + _HEAD).value  # `read_address` without its call
            if address & rest:
                return None
            out.append(address)
        for n, m in clashes:
            size, other = arguments[n].nbytes, arguments[m].nbytes
            if out[n] < out[m] + other and out[m] < out[n] + size:
                return None
        for name in symbols:
            if name not in values:
                return None
            out.append(values[name])
        return out

    return check


def _row(param: BufferArg | ScalarArg) -> tuple[Any, Any, bool | None, Any]:
    """The attributes of an argument that are compared.

    Of an array: type, extents, whether it is written, and the bits of its address that must be 0.
    Of a number: type, name, None and range.
    """
    if isinstance(param, BufferArg):
        dtype = DType(param.dtype).numpy
        return dtype, param.shape, param.written, dtype.itemsize - 1
    kind = _SCALARS[param.dtype]
    if kind is float:
        return kind, param.name, None, _Single() if param.dtype == "float32" else ()
    low, high = DType(param.dtype).range
    return kind, param.name, None, range(low, high + 1)


class _Single:
    """The numbers that surely fit in a float32."""

    most = float(np.finfo(np.float32).max)

    def __contains__(self, number: float) -> bool:
        return -self.most <= number <= self.most

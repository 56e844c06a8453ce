"""Memory for a task's arrays in which an access out of bounds shows.

Each array stands between two red zones of known bytes, and those between two pages that cannot be
touched at all:

    | no access | red zone | array | red zone | no access | red zone | array | ...

A write that misses by less than a red zone is found afterwards, one that misses by more kills the
worker at once. A read from a red zone finds NaN or an absurd integer and spoils the result.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from metasched.errors import MeasureError
from metasched.ir.dtype import DType
from metasched.measure.data import Array

RED_ZONE = 64 << 10  # bytes on each side of an array
_STAGGER = 5 * 64  # so that arrays do not start at the same place in their pages
_PAGE = mmap.PAGESIZE


def poison(dtype: str) -> int:
    """The byte that fills what was never written: NaN in every float type, odd in integers."""
    return 0xFF if DType(dtype).is_float else 0x5B


class Arena:
    """The arrays of a task in guarded memory.

    Attributes:
        views: NumPy views of the arrays, in order.
        addresses: of their first elements.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        """Allocate and poison; MeasureError when there is not enough memory."""
        self._arrays = tuple(arrays)
        places, end = [], _PAGE
        for number, array in enumerate(self._arrays):
            start = end + RED_ZONE + number % 8 * _STAGGER
            places.append(start)
            used = start + array.nbytes + RED_ZONE
            end = (used + _PAGE - 1) // _PAGE * _PAGE + _PAGE
        try:
            self._memory = mmap.mmap(-1, end)
        except (OSError, ValueError) as error:
            raise MeasureError(f"no memory for the arrays ({end >> 20} MiB): {error}") from None
        self._bytes = np.frombuffer(self._memory, dtype=np.uint8)
        base: int = self._bytes.__array_interface__["data"][0]
        self.addresses = [base + place for place in places]
        self.views = [self._view(a, p) for a, p in zip(self._arrays, places, strict=True)]
        self._zones = []
        for array, start in zip(self._arrays, places, strict=True):
            stop = start + array.nbytes
            before, after = (start - RED_ZONE, start), (stop, stop + RED_ZONE)
            self._zones.append((self._bytes[slice(*before)], self._bytes[slice(*after)]))
            _forbid(base + (before[0] - _PAGE) // _PAGE * _PAGE)
            _forbid(base + (after[1] + _PAGE - 1) // _PAGE * _PAGE)
        self.reset_zones()

    def _view(self, array: Array, place: int) -> NDArray[np.generic]:
        dtype = DType(array.dtype).numpy
        strides = [s * dtype.itemsize for s in array.strides]
        raw = self._bytes[place : place + array.nbytes].view(dtype)
        return np.lib.stride_tricks.as_strided(raw, array.shape, strides)

    def reset_zones(self) -> None:
        """Fill the red zones."""
        for array, pair in zip(self._arrays, self._zones, strict=True):
            for zone in pair:
                zone.fill(poison(array.dtype))

    def poison(self, number: int) -> None:
        """Fill an array with what no program writes."""
        view = self.views[number]
        if view.size:
            raw = np.full(view.dtype.itemsize, poison(self._arrays[number].dtype), np.uint8)
            view[...] = raw.view(view.dtype)[0]

    def breach(self) -> str:
        """Which red zone was written, in words; empty when none was."""
        for array, pair in zip(self._arrays, self._zones, strict=True):
            value = poison(array.dtype)
            for zone, before in zip(pair, (True, False), strict=True):
                hit = np.flatnonzero(zone != value)
                if hit.size:
                    size = DType(array.dtype).numpy.itemsize
                    if before:
                        far = (RED_ZONE - int(hit[0]) + size - 1) // size
                        where = f"{far} elements before the start"
                    else:
                        where = f"{int(hit[-1]) // size + 1} elements past the end"
                    return f"wrote up to {where} of {array.name}"
        return ""


def _forbid(address: int) -> None:
    """Make a page inaccessible."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(_PAGE), 0):
        raise MeasureError(f"mprotect failed with errno {ctypes.get_errno()}")

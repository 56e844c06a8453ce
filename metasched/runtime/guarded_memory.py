"""Memory for a task's arrays in which accesses out of bounds are detected.

Each array lies between two red zones of known bytes; the red zones lie between two pages without
access rights:

    | no access | red zone | array | red zone | no access | red zone | array | ...

A write into a red zone is found after the run; a write beyond the red zone ends the worker at once.
A read from a red zone finds NaN or an odd integer, which spoils a result that depends on it. To
detect the other reads, an array can be moved to either end of its room. Then the page beside it
ends a worker that touches the page, even by a read whose value is dropped.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from metasched.errors import MeasureError
from metasched.ir.dtype import DType
from metasched.runtime.devices import ArrayLayout

APART, AT_START, AT_END = "apart", "at start", "at end"  # where arrays stand in their rooms
RED_ZONE = 64 << 10  # bytes on each side of an array
_STAGGER = 5 * 64  # so that arrays do not start at the same place in their pages
_PAGE = mmap.PAGESIZE


def poison(dtype: str) -> int:
    """The byte that fills memory which no program wrote: NaN in every float type, odd in
    integers."""
    return 0xFF if DType(dtype).is_float else 0x5B


class GuardedMemory:
    """The arrays of a task in guarded memory; see `devices.DeviceMemory`.

    Attributes:
        where: APART between red zones, AT_START or AT_END of the rooms.
        views: NumPy views of the arrays, in order.
        handles: the addresses of their first elements.
    """

    usual: str = APART

    def __init__(self, arrays: Sequence[ArrayLayout], where: str = APART) -> None:
        """Allocate and poison; MeasureError when there is not enough memory."""
        self._arrays = tuple(arrays)
        self._rooms, end = list[tuple[int, int]](), _PAGE
        for array in self._arrays:
            used = 2 * RED_ZONE + 8 * _STAGGER + array.nbytes
            self._rooms.append((end, end + (used + _PAGE - 1) // _PAGE * _PAGE))
            end = self._rooms[-1][1] + _PAGE
        try:
            self._memory = mmap.mmap(-1, end)
        except (OSError, ValueError) as error:
            raise MeasureError(f"no memory for the arrays ({end >> 20} MiB): {error}") from None
        self._bytes = np.frombuffer(self._memory, dtype=np.uint8)
        base: int = self._bytes.__array_interface__["data"][0]
        for begin, finish in self._rooms:
            _forbid(base + begin - _PAGE)
            _forbid(base + finish)
        self.place(where)

    def place(self, where: str) -> None:
        """Move the arrays in their rooms. Their contents are lost, and the red zones are filled
        again."""
        self.where = where
        self.handles: list[int] = []
        self.views: list[NDArray[np.generic]] = []
        self._zones: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]] = []
        base: int = self._bytes.__array_interface__["data"][0]
        for number, (array, (begin, finish)) in enumerate(
            zip(self._arrays, self._rooms, strict=True)
        ):
            start = begin if where == AT_START else begin + RED_ZONE + number % 8 * _STAGGER
            if where == AT_END:
                start = finish - array.nbytes
            self.handles.append(base + start)
            self.views.append(self._view(array, start))
            stop = start + array.nbytes
            self._zones.append((self._bytes[begin:start], self._bytes[stop:finish]))
        self.reset_zones()

    def _view(self, array: ArrayLayout, place: int) -> NDArray[np.generic]:
        dtype = DType(array.dtype).numpy
        strides = [s * dtype.itemsize for s in array.strides]
        # as_strided fails on float8_e5m2: it describes a type by its size and kind alone
        return np.ndarray(array.shape, dtype, self._bytes, place, strides)

    def write(self, number: int, values: NDArray[np.generic]) -> None:
        """Set the contents of an array."""
        self.views[number][...] = values

    def read(self, number: int) -> NDArray[np.generic]:
        """The array itself: its contents change with the next run."""
        return self.views[number]

    def reset_zones(self) -> None:
        """Fill the red zones."""
        for array, pair in zip(self._arrays, self._zones, strict=True):
            for zone in pair:
                zone.fill(poison(array.dtype))

    def poison(self, number: int) -> None:
        """Fill an array with a value that no program writes."""
        view = self.views[number]
        if view.size:
            raw = np.full(view.dtype.itemsize, poison(self._arrays[number].dtype), np.uint8)
            view[...] = raw.view(view.dtype)[0]

    def breach(self) -> str:
        """Name the red zone that was written; empty if none was."""
        for array, pair in zip(self._arrays, self._zones, strict=True):
            value = poison(array.dtype)
            for zone, before in zip(pair, (True, False), strict=True):
                hit = np.flatnonzero(zone != value)
                if hit.size:
                    size = DType(array.dtype).numpy.itemsize
                    if before:
                        far = (zone.size - int(hit[0]) + size - 1) // size
                        where = f"{far} elements before the start"
                    else:
                        where = f"{int(hit[-1]) // size + 1} elements past the end"
                    return f"wrote up to {where} of {array.name}"
        return ""


def _forbid(address: int) -> None:
    """Remove all access rights of a page."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(_PAGE), 0):
        raise MeasureError(f"mprotect failed with errno {ctypes.get_errno()}")

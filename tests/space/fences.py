"""Memory between pages that cannot be touched, for arguments and temporary buffers of kernels."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from metasched.codegen import load

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_PAGE = mmap.PAGESIZE


class Fenced:
    """Memory that ends (or begins) where a page begins (or ends) that cannot be touched."""

    def __init__(self, size: int, at_end: bool = True) -> None:
        inside = max(1, -(-size // _PAGE)) * _PAGE
        self.whole = inside + 2 * _PAGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.base = _LIBC.mmap(None, self.whole, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        self.start = self.base + _PAGE + (inside - size if at_end else 0)
        self.size, self.slack = size, inside - size
        self.canary = self.base + _PAGE if at_end else self.start + size
        ctypes.memset(self.base, 0xFF, self.whole)
        for page in (self.base, self.base + self.whole - _PAGE):
            assert _LIBC.mprotect(page, _PAGE, 0) == 0

    def array(self, like: np.ndarray) -> np.ndarray:
        """The memory as an array."""
        raw = (ctypes.c_uint8 * self.size).from_address(self.start)
        return np.frombuffer(raw, np.uint8).view(like.dtype).reshape(like.shape)

    def touched(self) -> bool:
        """Whether what lies beside the memory was written."""
        return ctypes.string_at(self.canary, self.slack).strip(b"\xff") != b""

    def free(self) -> None:
        _LIBC.munmap(self.base, self.whole)


_HEAP: dict[int, Fenced] = {}


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
def _allocate(align: int, size: int) -> int:
    # Of what a kernel asks for, at least the last 64 bytes are to spare.
    fenced = Fenced(size - 64)
    assert align == 64 and fenced.start % 64 == 0
    _HEAP[fenced.start] = fenced
    return fenced.start


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _free(pointer: int | None) -> None:
    if pointer:
        _HEAP.pop(pointer).free()


@contextmanager
def fenced_heap() -> Iterator[None]:
    """Kernels that are linked inside get their temporary buffers fenced, and filled with NaN."""
    real = load._address
    own = {"aligned_alloc": _allocate, "free": _free}

    def address(symbol: str) -> int:
        found = own.get(symbol)
        return real(symbol) if found is None else ctypes.cast(found, ctypes.c_void_p).value or 0

    load._address = address
    try:
        yield
    finally:
        load._address = real


def fenced_buffers() -> int:
    """The temporary buffers that were not freed."""
    return len(_HEAP)

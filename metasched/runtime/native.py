"""A C function in this process: its addresses with the prototypes its signature gives."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from metasched.codegen.compile import Compiled
from metasched.codegen.load import load
from metasched.codegen.signature import BufferArg, Signature
from metasched.errors import BuildError

_C_TYPES: dict[str, Any] = {
    "bool": ctypes.c_uint8, "float32": ctypes.c_float, "float64": ctypes.c_double,
    "float16": ctypes.c_uint16, "bfloat16": ctypes.c_uint16,
    "int8": ctypes.c_int8, "int16": ctypes.c_int16, "int32": ctypes.c_int32,
    "int64": ctypes.c_int64, "uint8": ctypes.c_uint8, "uint16": ctypes.c_uint16,
    "uint32": ctypes.c_uint32, "uint64": ctypes.c_uint64,
}  # fmt: skip


class Native:
    """`call(*values)` and `repeat(*values, n)` as ctypes functions; both return the failure code.

    The values are addresses, scalars and symbolic extents in the order of the C parameters.
    Python's lock is released while they run, and they may run in several threads at once.
    """

    __slots__ = ("call", "repeat", "_keepalive")

    def __init__(self, signature: Signature, call: int, repeat: int, keepalive: Any) -> None:
        types = [
            ctypes.c_void_p if isinstance(p, BufferArg) else _c_type(p.dtype)
            for p in signature.params
        ]
        types += [ctypes.c_int64] * len(signature.symbols)
        self.call = ctypes.CFUNCTYPE(ctypes.c_int32, *types)(call)
        self.repeat = ctypes.CFUNCTYPE(ctypes.c_int32, *types, ctypes.c_int64)(repeat)
        self._keepalive = keepalive

    @staticmethod
    def of(compiled: Compiled) -> Native:
        """Link an object into this process; BuildError when a foreign symbol is missing."""
        loaded = load(compiled)
        keep = loaded.keepalive
        return Native(compiled.signature, loaded.address, loaded.repeat_address, keep)

    @staticmethod
    def of_library(path: Path, signature: Signature) -> Native:
        """Open a shared library; OSError when it cannot be loaded."""
        library = ctypes.CDLL(str(path))
        try:
            found = [getattr(library, f"{signature.symbol}{tail}") for tail in ("", "_repeat")]
        except AttributeError as error:
            raise OSError(str(error)) from None
        addresses = [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in found]
        return Native(signature, addresses[0], addresses[1], library)


def _c_type(dtype: str) -> Any:
    try:
        return _C_TYPES[dtype]
    except KeyError:
        raise BuildError(f"a scalar parameter cannot be {dtype}") from None

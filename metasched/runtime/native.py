"""A compiled C function in this process, with the ctypes prototypes of its signature."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from metasched.codegen.compile import Compiled
from metasched.codegen.load import load
from metasched.codegen.signature import RECORD, BufferArg, Signature
from metasched.errors import BuildError

_C_TYPES: dict[str, Any] = {
    "bool": ctypes.c_uint8, "float32": ctypes.c_float, "float64": ctypes.c_double,
    "float16": ctypes.c_uint16, "bfloat16": ctypes.c_uint16,
    "float8_e4m3fn": ctypes.c_uint8, "float8_e5m2": ctypes.c_uint8,
    "int8": ctypes.c_int8, "int16": ctypes.c_int16, "int32": ctypes.c_int32,
    "int64": ctypes.c_int64, "uint8": ctypes.c_uint8, "uint16": ctypes.c_uint16,
    "uint32": ctypes.c_uint32, "uint64": ctypes.c_uint64,
}  # fmt: skip


class Native:
    """`call(*values)`, `repeat(*values, n)` and, where there are constant weights, `pack(*values)`
    as ctypes functions; all return the failure code.

    The values are addresses, scalars and symbolic extents in the order of the C parameters.
    Python's lock is released while they run, and they may run in several threads at once.
    """

    __slots__ = ("call", "repeat", "pack", "_seen", "_keepalive")

    def __init__(
        self, signature: Signature, call: int, repeat: int, pack: int, record: int, keepalive: Any
    ) -> None:
        types = _types(signature)
        packing = _types(signature.pack) if signature.pack else []
        again = [*types, ctypes.c_int64]
        self.call: Callable[..., int] = ctypes.CFUNCTYPE(ctypes.c_int32, *types)(call)
        self.repeat: Callable[..., int] = ctypes.CFUNCTYPE(ctypes.c_int32, *again)(repeat)
        self.pack: Callable[..., int] = ctypes.CFUNCTYPE(ctypes.c_int32, *packing)(pack)
        self._seen = threading.local()
        if record:
            held = (ctypes.c_int64 * signature.record).from_address(record)
            watch = partial(_watched, held, self._seen, threading.Lock())
            self.call, self.repeat, self.pack = map(watch, (self.call, self.repeat, self.pack))
        self._keepalive = keepalive

    def failure(self, signature: Signature, code: int) -> str:
        """The meaning of a return code other than 0, for the last call of this thread."""
        return signature.failure(code, getattr(self._seen, "record", ()))

    @staticmethod
    def of(compiled: Compiled) -> Native:
        """Link an object into this process; BuildError when a foreign symbol is missing."""
        loaded = load(compiled)
        places = (loaded.address, loaded.repeat_address, loaded.pack_address)
        return Native(compiled.signature, *places, loaded.record_address, loaded.keepalive)

    @staticmethod
    def of_library(path: Path, signature: Signature) -> Native:
        """Open a shared library; OSError when it cannot be loaded."""
        library = ctypes.CDLL(str(path))
        names = [signature.symbol, f"{signature.symbol}_repeat"]
        names += [signature.pack.symbol] if signature.pack else []
        names += [f"{signature.symbol}{RECORD}"] if signature.record else []
        try:
            found = [getattr(library, name) for name in names]
        except AttributeError as error:
            raise OSError(str(error)) from None
        addresses = [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in found]
        pack = addresses[2] if signature.pack else 0
        record = addresses[-1] if signature.record else 0
        return Native(signature, addresses[0], addresses[1], pack, record, library)


def _watched(
    record: Any, seen: threading.local, lock: threading.Lock, function: Callable[..., int]
) -> Callable[..., int]:
    """Let one thread at a time run `function`, and keep the failure record of each thread's last
    call."""

    def call(*values: Any) -> int:
        with lock:
            record[0] = 0
            code = function(*values)
            seen.record = tuple(record) if code else ()
        return code

    return call


def _types(signature: Signature) -> list[Any]:
    """The C types of a function's parameters."""
    params = signature.params
    types = [ctypes.c_void_p if isinstance(p, BufferArg) else _c_type(p.dtype) for p in params]
    return [*types, *[ctypes.c_int64] * len(signature.symbols)]


def _c_type(dtype: str) -> Any:
    try:
        return _C_TYPES[dtype]
    except KeyError:
        raise BuildError(f"a scalar parameter cannot be {dtype}") from None

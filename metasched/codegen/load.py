"""Object bytes to callable addresses in this process."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import itertools
from dataclasses import dataclass
from typing import Any

from metasched.codegen.compile import Compiled
from metasched.codegen.vectormath import LIBM_SYMBOLS
from metasched.errors import BuildError

_OPENMP = ("GOMP_parallel", "omp_get_num_threads", "omp_get_thread_num")
_SERIAL_NUMBER = itertools.count()


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel in memory: addresses of the C functions (of `pack` 0 when there is none);
    `keepalive` holds the code."""

    address: int
    repeat_address: int
    pack_address: int
    keepalive: Any


def openmp_runtime() -> ctypes.CDLL | None:
    """The OpenMP runtime of this machine (libgomp), None where there is none."""
    library = _library("libgomp.so.1")
    if library is None:  # only then: the search starts processes, which takes milliseconds
        name = _find_library("gomp")
        library = _library(name) if name else None
    return library


_find_library = functools.lru_cache(maxsize=4)(ctypes.util.find_library)


@functools.lru_cache(maxsize=16)
def _library(name: str | None) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _address(symbol: str) -> int:
    """Where a foreign symbol is; BuildError when no library in this process has it."""
    if symbol in _OPENMP:
        library = openmp_runtime()
        if library is None:
            raise BuildError("no OpenMP runtime (libgomp.so.1): build with parallel=False")
        places = [library]
    else:
        names = ["libm.so.6"] if symbol in LIBM_SYMBOLS else []
        places = [p for p in map(_library, [*names, None, "libgcc_s.so.1"]) if p is not None]
    for place in places:
        try:
            return ctypes.cast(getattr(place, symbol), ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    raise BuildError(f"the kernel calls {symbol}, which no loaded library has")


def load(compiled: Compiled) -> Loaded:
    """Link a compiled kernel into this process.

    Raises BuildError when a foreign symbol is missing.
    """
    symbol, pack = compiled.symbol, compiled.signature.pack
    names = [symbol, f"{symbol}_repeat", *([pack.symbol] if pack else [])]
    tracker = link(compiled.object, tuple(names), compiled.externs)
    addresses = [tracker[name] for name in names]
    return Loaded(addresses[0], addresses[1], addresses[2] if pack else 0, tracker)


@functools.lru_cache(maxsize=1)
def _jit() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler()


def link(obj: bytes, exports: tuple[str, ...], externs: tuple[str, ...] = ()) -> Any:
    """Link an object into this process; the result maps each exported name to its address."""
    import llvmlite.binding as llvm

    builder = llvm.JITLibraryBuilder().add_object_img(obj)
    for name in externs:
        builder = builder.import_symbol(name, _address(name))
    for name in exports:
        builder = builder.export_symbol(name)
    try:
        return builder.link(_jit(), f"metasched{next(_SERIAL_NUMBER)}")
    except RuntimeError as error:
        raise BuildError(f"the kernel cannot be linked: {error}") from None

"""Link object bytes into this process, and give the addresses of their functions."""

from __future__ import annotations

import ctypes
import functools
import itertools
from dataclasses import dataclass
from typing import Any

from metasched.codegen import openmp
from metasched.codegen.compile import Compiled
from metasched.codegen.signature import RECORD
from metasched.errors import BuildError, words
from metasched.ir.op import LIBM_SYMBOLS

_SERIAL_NUMBER = itertools.count()
_LARGE = (32 << 20) - (64 << 10)  # just below the largest block by which glibc raises its limits


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel in memory: the addresses of its C functions and of its record. The addresses of
    `pack` and of the record are 0 if there is none; `keepalive` holds the code."""

    address: int
    repeat_address: int
    pack_address: int
    record_address: int
    keepalive: Any


@functools.lru_cache(maxsize=16)
def _library(name: str | None) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _address(symbol: str) -> int:
    """The address of a foreign symbol; BuildError if no library in this process defines the
    symbol."""
    if symbol in openmp.SYMBOLS:
        runtime = openmp.openmp_runtime()
        if runtime is None:
            raise BuildError(
                "the kernel has parallel loops and no OpenMP runtime (libgomp.so.1) was found; "
                f"{openmp.REMEDY}, or build the kernel here"
            )
        openmp.serial_after_fork(runtime.library)
        places = [runtime.library]
    else:
        names = ["libm.so.6"] if symbol in LIBM_SYMBOLS else []
        places = [p for p in map(_library, [*names, None, "libgcc_s.so.1"]) if p is not None]
    for place in places:
        try:
            return ctypes.cast(getattr(place, symbol), ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    raise BuildError(f"the kernel calls {symbol}, which no loaded library defines")


def load(compiled: Compiled) -> Loaded:
    """Link a compiled kernel into this process.

    Raises BuildError when a foreign symbol is missing.
    """
    symbol, pack = compiled.symbol, compiled.signature.pack
    names = [symbol, f"{symbol}_repeat", *([pack.symbol] if pack else [])]
    record = [f"{symbol}{RECORD}"] if compiled.signature.record else []
    tracker = link(compiled.object, (*names, *record), compiled.externs)
    addresses = [tracker[name] for name in names]
    place = tracker[record[0]] if record else 0
    return Loaded(addresses[0], addresses[1], addresses[2] if pack else 0, place, tracker)


def _keep_freed_memory() -> None:
    """Let the C library keep freed memory for later calls.

    A kernel frees its temporaries at the end of a call. If their pages went back to the system, the
    next call would get them again one by one, which takes several times as long as many kernels.
    The GNU C library keeps more memory after the first free of a large block. No page of this block
    is touched, and limits that the user has set stay.
    """
    library = _library(None)
    if library is not None:
        library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
        library.free(library.malloc(_LARGE))


@functools.lru_cache(maxsize=1)
def _jit() -> Any:
    import llvmlite.binding as llvm

    _keep_freed_memory()
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
        raise BuildError(f"the kernel cannot be linked: {words(error)}") from None

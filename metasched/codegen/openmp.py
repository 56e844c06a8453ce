"""Find the OpenMP runtime that parallel loops call: the system's libgomp, or a copy that an
installed package brought.

The runtimes of GCC, LLVM and Intel all export the functions that GCC's code calls. A copy named
`libgomp.so.1` (PyTorch's) serves every library of this process once loaded, LightGBM too.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SYMBOLS = (
    "GOMP_parallel", "omp_get_max_threads", "omp_get_num_threads", "omp_get_thread_num",
)  # fmt: skip
"""The functions that kernels call."""

REMEDY = "install libgomp, for example by `apt-get install libgomp1`"

_SYSTEM = "libgomp.so.1"
_FAMILIES = ("libgomp", "libiomp5", "libomp")
_NAMES = ("libiomp5.so", "libomp.so.5", "libomp.so")  # Intel's and LLVM's, for the loader
# Where wheels put their own libraries, below a folder of packages.
_FOLDERS = ("*.libs", "*/lib", "*/libs", "*/.libs")


@dataclass(frozen=True, slots=True)
class Runtime:
    """An OpenMP runtime in this process.

    Attributes:
        library: its functions.
        file: the path of the library; empty when unknown.
    """

    library: ctypes.CDLL
    file: str

    @property
    def bundled(self) -> bool:
        """Whether the library is part of a Python package, where other programs do not find it."""
        return any(Path(self.file).is_relative_to(place) for place in _packages())


@functools.cache
def openmp_runtime() -> Runtime | None:
    """The OpenMP runtime of this process, None where none is installed.

    The system's libgomp comes first, then a runtime that this process has loaded, then copies
    inside installed packages, then runtimes of other compilers.
    """
    library = _opened(_SYSTEM)
    if library is not None:
        return Runtime(library, next(_loaded(), ""))
    for file in (*_loaded(), *_installed()):
        library = _opened(file)
        if library is not None:
            return Runtime(library, file)
    for name in _NAMES:
        library = _opened(name)
        if library is not None:
            return Runtime(library, next(_loaded(), ""))
    return None


@functools.cache
def serial_after_fork(library: ctypes.CDLL) -> None:
    """Let processes that are forked from this one run parallel loops on the forking thread alone.

    GCC's runtime keeps its threads for the next loop. A forked process has none of them, and its
    first parallel loop would wait for them for ever. Its new threads begin with a team of their
    own, and are not limited.
    """
    if hasattr(library, "omp_set_num_threads") and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=functools.partial(library.omp_set_num_threads, 1))


def _opened(name: str) -> ctypes.CDLL | None:
    """Load a library; None if it cannot be loaded or lacks a function that kernels call."""
    try:
        library = ctypes.CDLL(name)
    except OSError:
        return None
    return library if all(hasattr(library, symbol) for symbol in SYMBOLS) else None


def _loaded() -> Iterator[str]:
    """Files of OpenMP runtimes that are mapped into this process, GCC's first."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return
    files = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "/" in line)
    for family in _FAMILIES:
        yield from (file for file in files if Path(file).name.startswith(f"{family}."))
        yield from (file for file in files if Path(file).name.startswith(f"{family}-"))


def _installed() -> Iterator[str]:
    """Files of OpenMP runtimes inside installed packages and this environment, GCC's first."""
    for family in _FAMILIES:
        for folder in _FOLDERS:
            for place in _packages():
                yield from map(str, sorted(place.glob(f"{folder}/{family}[.-]*so*")))
        yield from map(str, sorted((Path(sys.prefix) / "lib").glob(f"{family}.so*")))


def _packages() -> list[Path]:
    """The folders that hold installed packages."""
    return [Path(entry) for entry in dict.fromkeys(sys.path) if Path(entry).is_absolute()]

"""Whether an OpenMP runtime is available, and how many threads a kernel gets."""

from __future__ import annotations

import ctypes
from dataclasses import replace

from metasched.codegen.openmp import REMEDY, openmp_runtime, serial_after_fork
from metasched.target import Target

SERIAL = f"no OpenMP runtime (libgomp) was found: parallel loops run serially; {REMEDY}"
"""The warning without an OpenMP runtime."""


def has_openmp() -> bool:
    """Whether parallel kernels can be built and run here; without it they are built serial."""
    return openmp_runtime() is not None


def usable(target: Target) -> Target:
    """The target that kernels can use in this process: one core without an OpenMP runtime. Times
    measured on one core must not count for the whole target."""
    return target if has_openmp() else replace(target, num_cores=1)


def max_threads() -> int:
    """How many threads a parallel loop may use; 1 without OpenMP."""
    runtime = openmp_runtime()
    return int(runtime.library.omp_get_max_threads()) if runtime is not None else 1


def library_file() -> str | None:
    """The file of the OpenMP runtime; None when there is none or it is hidden."""
    runtime = openmp_runtime()
    return (runtime.file or None) if runtime is not None else None


def linked() -> list[str]:
    """A linker's arguments for parallel loops: the file of the OpenMP runtime, and its folder if
    the file is part of a Python package."""
    runtime = openmp_runtime()
    if runtime is None or not runtime.file:
        return ["-lgomp"]
    folder = runtime.file.rpartition("/")[0]
    return [runtime.file, *([f"-Wl,-rpath,{folder}"] if runtime.bundled else [])]


def loader_finds_openmp() -> bool:
    """Whether a shared library that needs libgomp can be opened in this process."""
    openmp_runtime()  # a copy of libgomp that is loaded serves by its name
    try:
        serial_after_fork(ctypes.CDLL("libgomp.so.1"))
    except OSError:
        return False
    return True

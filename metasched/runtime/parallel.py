"""The OpenMP runtime (libgomp): whether it is there, and how many threads a kernel gets."""

from __future__ import annotations

from pathlib import Path

from metasched.codegen.load import openmp_runtime


def has_openmp() -> bool:
    """Whether parallel kernels can be built and run here; without it they are built serial."""
    return openmp_runtime() is not None


def max_threads() -> int:
    """Threads that a parallel loop gets if nothing limits it further; 1 without OpenMP."""
    library = openmp_runtime()
    return int(library.omp_get_max_threads()) if library is not None else 1


def library_file() -> str | None:
    """The file of the OpenMP runtime, for a linker; None when there is none or it is hidden."""
    if openmp_runtime() is None:
        return None
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    files = (line.split(maxsplit=5)[-1] for line in lines if "/" in line)
    return next((f for f in files if Path(f).name.startswith("libgomp")), None)

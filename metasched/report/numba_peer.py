"""Loops in Numba, compiled with parallel=True and fastmath=True: PolyBench, and the stencils."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from metasched import workloads
from metasched.report.peer_op import PeerOp, Shape
from metasched.runtime.arrays import aligned_empty

_POLYBENCH = tuple(f"polybench.numba_{kind}" for kind in ("products", "solvers", "stencils"))
_NAMES = {"2mm": "two_mm", "3mm": "three_mm"}


def numba_op(op: str, shape: Shape, arrays: list[Any], *, compiled: bool = True) -> PeerOp | None:
    """The kernel on its arrays; None if it is not among Numba's.

    Args:
        compiled: False gives the same loops run by Python.
    """
    poly = op.startswith("poly.")
    if poly:
        loops = _found(op.removeprefix("poly.").replace("-", "_"), _POLYBENCH)
    else:
        loops = _found(op, ("numba_stencils",))
    if loops is None:
        return None
    run = loops
    if compiled:
        run = importlib.import_module("numba").njit(parallel=True, fastmath=True)(loops)
    if poly:
        return PeerOp(lambda: run(shape, *arrays))
    result = workloads.get(op).output(shape)
    out = aligned_empty(result.shape, result.dtype)

    def call() -> Any:
        run(shape, *arrays, out)
        return out

    return PeerOp(call)


def _found(name: str, files: tuple[str, ...]) -> Callable[..., Any] | None:
    """The function of a kernel in the files of loops."""
    name = _NAMES.get(name, name)
    modules = [importlib.import_module(f"{__package__}.{file}") for file in files]
    return next((getattr(module, name) for module in modules if hasattr(module, name)), None)

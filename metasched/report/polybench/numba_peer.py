"""PolyBench in Numba, compiled with parallel=True and fastmath=True."""

from __future__ import annotations

import importlib
from typing import Any

from metasched.report.peer_op import PeerOp, Shape

_FILES = ("numba_products", "numba_solvers", "numba_stencils")


def numba_op(op: str, shape: Shape, arrays: list[Any], *, compiled: bool = True) -> PeerOp | None:
    """The kernel on its arrays; None if it is not among Numba's.

    Args:
        compiled: False gives the same loops run by Python.
    """
    name = op.removeprefix("poly.").replace("-", "_")
    name = {"2mm": "two_mm", "3mm": "three_mm"}.get(name, name)
    files = [importlib.import_module(f"{__package__}.{file}") for file in _FILES]
    loops = next((getattr(file, name) for file in files if hasattr(file, name)), None)
    if loops is None or not op.startswith("poly."):
        return None
    if compiled:
        loops = importlib.import_module("numba").njit(parallel=True, fastmath=True)(loops)
    return PeerOp(lambda: loops(shape, *arrays))

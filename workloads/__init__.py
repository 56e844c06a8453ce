"""Operators by name: builders `shape -> PrimFunc`, NumPy references, the usual shapes.

A user's own operators join through `register` or the entry-point group `metasched.workload`.
"""

from __future__ import annotations

from metasched.registry import Registry
from metasched.workloads import (
    capsule,
    conv,
    conv_fused,
    conv_grouped,
    conv_transposed,
    gmm,
    reduction,
)
from metasched.workloads.workload import Workload

__all__ = ["SUITE", "Workload", "get", "names", "register"]

# The thirteen operators on which tuners are compared.
SUITE = ("c1d", "c2d", "c3d", "gmm", "grp", "dil", "dep", "t2d", "cap", "nrm", "sfm", "cbr", "tbg")

_REGISTRY: Registry[Workload] = Registry("workload", Workload)
for _module in (gmm, conv, conv_grouped, conv_transposed, capsule, conv_fused, reduction):
    for _workload in _module.WORKLOADS:
        _REGISTRY.register(_workload.name, _workload)

register, get, names = _REGISTRY.register, _REGISTRY.get, _REGISTRY.names

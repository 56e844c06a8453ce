"""Operators by name: builders `shape -> PrimFunc`, NumPy references, the usual shapes.

A user's own operators join through `register` or the entry-point group `metasched.workload`.
"""

from __future__ import annotations

from metasched.frontend.workload import Workload
from metasched.registry import Registry
from metasched.workloads import (
    capsule,
    conv,
    conv_fused,
    conv_grouped,
    conv_transposed,
    gmm,
    normalisation,
    polybench,
    quantized,
    reduction,
    stencil,
)

__all__ = [
    "LOW_PRECISION",
    "NORMALISATIONS",
    "POLYBENCH",
    "REDUCTIONS",
    "STENCILS",
    "SUITE",
    "SUITES",
    "Workload",
    "get",
    "names",
    "register",
]

# The thirteen operators on which tuners are compared.
SUITE = ("c1d", "c2d", "c3d", "gmm", "grp", "dil", "dep", "t2d", "cap", "nrm", "sfm", "cbr", "tbg")
# Operators of low precision: products of bytes, requantized to bytes, bfloat16 and float16.
LOW_PRECISION = (
    "gmm_u8s8s32", "gmm_s8s8s32", "c2d_u8s8s32", "qgmm", "qc2d", "qdep",
    "gmm_bf16", "gmm_bf16io", "c2d_bf16io", "gmm_f16io", "c2d_f16io",
)  # fmt: skip
# Normalisations of rows, and products after them.
NORMALISATIONS = tuple(workload.name for workload in normalisation.WORKLOADS)
# Row reductions with two results in one block.
REDUCTIONS = ("argmax", "mean_variance")
# Chains of stencils, which tiles with recomputed borders keep in the cache.
STENCILS = tuple(workload.name for workload in stencil.WORKLOADS)
POLYBENCH = tuple(workload.name for workload in polybench.WORKLOADS)
SUITES = {
    "operators": SUITE,
    "low-precision": LOW_PRECISION,
    "normalisations": NORMALISATIONS,
    "polybench": POLYBENCH,
    "reductions": REDUCTIONS,
    "stencils": STENCILS,
}

_REGISTRY: Registry[Workload] = Registry("workload", Workload)
for _module in (
    gmm,
    conv,
    conv_grouped,
    conv_transposed,
    capsule,
    conv_fused,
    quantized,
    reduction,
    normalisation,
    stencil,
    polybench,
):
    for _workload in _module.WORKLOADS:
        _REGISTRY.register(_workload.name, _workload)

register, get, names = _REGISTRY.register, _REGISTRY.get, _REGISTRY.names

"""Row reductions: NRM (2-norm of each matrix of a batch) and SFM (softmax over the last axis)."""

from __future__ import annotations

import numpy as np

from metasched.ir.func import PrimFunc
from metasched.script import tir as T
from metasched.workloads.workload import Shape, Workload


def nrm(shape: Shape) -> PrimFunc:
    """Y[b] = sqrt of the sum of squares of X[b,:,:]."""
    b, m, n = shape

    @T.prim_func
    def nrm(X: T.Buffer((b, m, n), "float32"), Y: T.Buffer((b,), "float32")):
        T.func_attr({"global_symbol": "nrm", "tir.noalias": True})
        S = T.alloc_buffer((b,), "float32")
        for i0, i1, i2 in T.grid(b, m, n):
            with T.block("sum"):
                vb, vm, vn = T.axis.remap("SRR", [i0, i1, i2])
                with T.init():
                    S[vb] = T.float32(0)
                S[vb] = S[vb] + X[vb, vm, vn] * X[vb, vm, vn]
        for i0 in range(b):
            with T.block("sqrt"):
                vb = T.axis.spatial(b, i0)
                Y[vb] = T.sqrt(S[vb])

    return nrm


def nrm_reference(shape: Shape, x: np.ndarray) -> np.ndarray:
    return np.sqrt(np.einsum("bmn,bmn->b", x, x))


def nrm_flops(shape: Shape) -> float:
    b, m, n = shape
    return 2.0 * b * m * n


def sfm(shape: Shape) -> PrimFunc:
    """Y[m,n] = exp(X[m,n] - max) / sum, with the maximum and the sum of each row."""
    m, n = shape

    @T.prim_func
    def sfm(X: T.Buffer((m, n), "float32"), Y: T.Buffer((m, n), "float32")):
        T.func_attr({"global_symbol": "sfm", "tir.noalias": True})
        M = T.alloc_buffer((m,), "float32")
        E = T.alloc_buffer((m, n), "float32")
        S = T.alloc_buffer((m,), "float32")
        for i0, i1 in T.grid(m, n):
            with T.block("max"):
                vm, vn = T.axis.remap("SR", [i0, i1])
                with T.init():
                    M[vm] = T.min_value("float32")
                M[vm] = T.max(M[vm], X[vm, vn])
        for i0, i1 in T.grid(m, n):
            with T.block("exp"):
                vm, vn = T.axis.remap("SS", [i0, i1])
                E[vm, vn] = T.exp(X[vm, vn] - M[vm])
        for i0, i1 in T.grid(m, n):
            with T.block("sum"):
                vm, vn = T.axis.remap("SR", [i0, i1])
                with T.init():
                    S[vm] = T.float32(0)
                S[vm] = S[vm] + E[vm, vn]
        for i0, i1 in T.grid(m, n):
            with T.block("normalize"):
                vm, vn = T.axis.remap("SS", [i0, i1])
                Y[vm, vn] = E[vm, vn] / S[vm]

    return sfm


def sfm_reference(shape: Shape, x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def sfm_flops(shape: Shape) -> float:
    """Four for each element: compare, exponential, add, divide."""
    m, n = shape
    return 4.0 * m * n


WORKLOADS = (
    Workload(
        "nrm", "B M N", nrm, nrm_reference,
        ((1, 1024, 1024), (1, 256, 256), (1, 512, 512), (1, 4096, 1024)), nrm_flops,
    ),
    Workload(
        "sfm", "M N", sfm, sfm_reference,
        ((1024, 1024), (256, 256), (512, 512), (2048, 2048)), sfm_flops,
    ),
)  # fmt: skip

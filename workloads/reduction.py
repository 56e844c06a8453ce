"""Row reductions: NRM (2-norm of each matrix of a batch) and SFM (softmax over the last axis)."""

from __future__ import annotations

import numpy as np

from metasched.frontend import te
from metasched.ir.func import PrimFunc
from metasched.workloads.workload import Shape, Workload


def nrm(shape: Shape) -> PrimFunc:
    """Y[b] = sqrt of the sum of squares of X[b,:,:]."""
    b, m, n = shape
    X = te.placeholder((b, m, n), name="X")
    i, j = te.reduce_axis((0, m), "m"), te.reduce_axis((0, n), "n")
    S = te.compute((b,), lambda b: te.sum(X[b, i, j] * X[b, i, j], axis=[i, j]), "S", block="sum")
    Y = te.compute((b,), lambda b: te.sqrt(S[b]), "Y", block="sqrt")
    return te.create_prim_func([X, Y], "nrm")


def nrm_reference(shape: Shape, x: np.ndarray) -> np.ndarray:
    return np.sqrt(np.einsum("bmn,bmn->b", x, x))


def nrm_flops(shape: Shape) -> float:
    b, m, n = shape
    return 2.0 * b * m * n


def sfm(shape: Shape) -> PrimFunc:
    """Y[m,n] = exp(X[m,n] - max) / sum, with the maximum and the sum of each row."""
    m, n = shape
    X = te.placeholder((m, n), name="X")
    j = te.reduce_axis((0, n), "n")
    M = te.compute((m,), lambda m: te.max(X[m, j], axis=j), "M", block="max")
    E = te.compute((m, n), lambda m, n: te.exp(X[m, n] - M[m]), "E", block="exp")
    S = te.compute((m,), lambda m: te.sum(E[m, j], axis=j), "S", block="sum")
    Y = te.compute((m, n), lambda m, n: E[m, n] / S[m], "Y", block="normalize")
    return te.create_prim_func([X, Y], "sfm")


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

"""Row reductions: NRM (2-norm of each matrix of a batch), SFM (softmax over the last axis), and two
with two results in one block: ARGMAX, and MEAN_VARIANCE of each row."""

from __future__ import annotations

import numpy as np

from metasched.frontend import te
from metasched.frontend.workload import Shape, Workload
from metasched.ir.func import PrimFunc
from metasched.script import tir as T


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
    """Four operations for each element: compare, exponential, add, divide."""
    m, n = shape
    return 4.0 * m * n


def argmax(shape: Shape) -> PrimFunc:
    """Y[m] = where row m has its first maximum; a NaN is no maximum."""
    m, n = shape

    @T.prim_func
    def argmax(X: T.Buffer((m, n), "float32"), Y: T.Buffer((m,), "int64")):
        best = T.alloc_buffer((m,))
        for i, j in T.grid(m, n):
            with T.block("argmax"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    best[vi] = -T.infinity("float32")
                    Y[vi] = T.int64(0)
                if X[vi, vj] > best[vi]:
                    best[vi] = X[vi, vj]
                    Y[vi] = T.Cast("int64", vj)

    return argmax


def argmax_reference(shape: Shape, x: np.ndarray) -> np.ndarray:
    return x.argmax(axis=1)


def mean_variance(shape: Shape) -> PrimFunc:
    """The mean and the variance of each row, in one pass.

    The sums are over the distances from the first value of the row, so that a large mean costs no
    digits of the variance (Chan, Golub and LeVeque 1983: shifted data).
    """
    m, n = shape

    @T.prim_func
    def mean_variance(
        X: T.Buffer((m, n), "float32"), M: T.Buffer((m,), "float32"), V: T.Buffer((m,), "float32")
    ):
        S = T.alloc_buffer((m,))
        Q = T.alloc_buffer((m,))
        for i, j in T.grid(m, n):
            with T.block("sums"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    S[vi] = T.float32(0)
                    Q[vi] = T.float32(0)
                d = X[vi, vj] - X[vi, 0]
                S[vi] = S[vi] + d
                Q[vi] = Q[vi] + d * d
        for i in range(m):
            with T.block("mean"):
                M[i] = X[i, 0] + S[i] * T.float32(1 / n)
        for i in range(m):
            with T.block("variance"):
                V[i] = (Q[i] - S[i] * S[i] * T.float32(1 / n)) * T.float32(1 / n)

    return mean_variance


def mean_variance_reference(shape: Shape, x: np.ndarray, mean: np.ndarray, var: np.ndarray) -> None:
    mean[:], var[:] = x.mean(axis=1), x.var(axis=1)


def mean_variance_flops(shape: Shape) -> float:
    """Four for each element: subtract, multiply, add, add."""
    m, n = shape
    return 4.0 * m * n


_ROWS = ((1024, 1024), (256, 256), (512, 512), (2048, 2048))
WORKLOADS = (
    Workload(
        "nrm", "B M N", nrm, nrm_reference,
        ((1, 1024, 1024), (1, 256, 256), (1, 512, 512), (1, 4096, 1024)), nrm_flops,
    ),
    Workload(
        "sfm", "M N", sfm, sfm_reference,
        _ROWS, sfm_flops,
    ),
    Workload("argmax", "M N", argmax, argmax_reference, _ROWS, lambda s: 1.0 * s[0] * s[1]),
    Workload(
        "mean_variance", "M N", mean_variance, mean_variance_reference, _ROWS,
        mean_variance_flops, in_place=True,
    ),
)  # fmt: skip

"""PolyBench in SciPy: routines of BLAS and LAPACK without copies, Levinson's recursion, filters.

BLAS reads matrices by columns, so each routine gets the transposes of the arrays: for C = A · B it
computes C^T = B^T · A^T in place. A factorisation leaves the factors of A^T.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from metasched.report.peer_op import PeerOp, Shape
from metasched.workloads.polybench.medley import deriche_constants

ALPHA, BETA = 1.5, 1.2
Array = np.ndarray[Any, Any]
Maker = Callable[[Any, Shape, list[Array]], PeerOp]


def scipy_op(op: str, shape: Shape, arrays: list[Array]) -> PeerOp | None:
    """The kernel on its arrays; None if SciPy lacks the operation."""
    return OPS[op](importlib.import_module("scipy"), shape, arrays) if op in OPS else None


def _gemm(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    A, B, C = (each.T for each in a)
    dgemm = scipy.linalg.blas.dgemm
    return PeerOp(lambda: dgemm(ALPHA, B, A, BETA, C, overwrite_c=1))


def _gemver(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    A, u1, v1, u2, v2, w, x, y, z = (each.T for each in a)
    dger, dgemv = scipy.linalg.blas.dger, scipy.linalg.blas.dgemv

    def call() -> None:
        dger(1.0, v1, u1, a=A, overwrite_a=1)
        dger(1.0, v2, u2, a=A, overwrite_a=1)
        dgemv(BETA, A, y, 1.0, x, overwrite_y=1)
        np.add(x, z, out=x)
        dgemv(ALPHA, A, x, 1.0, w, trans=1, overwrite_y=1)

    return PeerOp(call)


def _gesummv(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    A, B, x, y = (each.T for each in a)
    dgemv = scipy.linalg.blas.dgemv

    def call() -> None:
        dgemv(ALPHA, A, x, 0.0, y, trans=1, overwrite_y=1)
        dgemv(BETA, B, x, 1.0, y, trans=1, overwrite_y=1)

    return PeerOp(call)


def _symm(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    A, B, C = (each.T for each in a)
    dsymm = scipy.linalg.blas.dsymm
    return PeerOp(lambda: dsymm(ALPHA, A, B, BETA, C, side=1, overwrite_c=1))


def _syrk(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    A, C = (each.T for each in a)
    dsyrk = scipy.linalg.blas.dsyrk
    return PeerOp(lambda: dsyrk(ALPHA, A, BETA, C, trans=1, overwrite_c=1))


def _syr2k(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    A, B, C = (each.T for each in a)
    dsyr2k = scipy.linalg.blas.dsyr2k
    return PeerOp(lambda: dsyr2k(ALPHA, A, B, BETA, C, trans=1, overwrite_c=1))


def _trmm(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    A, B = (each.T for each in a)
    dtrmm = scipy.linalg.blas.dtrmm
    return PeerOp(lambda: dtrmm(ALPHA, A, B, side=1, trans_a=1, diag=1, overwrite_b=1))


def _two_mm(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    A, B, C, D = (each.T for each in a)
    dgemm = scipy.linalg.blas.dgemm
    return PeerOp(lambda: dgemm(1.0, C, dgemm(ALPHA, B, A), BETA, D, overwrite_c=1))


def _three_mm(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    A, B, C, D, G = (each.T for each in a)
    dgemm = scipy.linalg.blas.dgemm
    return PeerOp(lambda: dgemm(1.0, dgemm(1.0, D, C), dgemm(1.0, B, A), 0.0, G, overwrite_c=1))


def _atax(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    A, x, y = (each.T for each in a)
    dgemv = scipy.linalg.blas.dgemv
    return PeerOp(lambda: dgemv(1.0, A, dgemv(1.0, A, x, trans=1), 0.0, y, overwrite_y=1))


def _bicg(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    A, p, r, s, q = (each.T for each in a)
    dgemv = scipy.linalg.blas.dgemv

    def call() -> None:
        dgemv(1.0, A, r, 0.0, s, overwrite_y=1)
        dgemv(1.0, A, p, 0.0, q, trans=1, overwrite_y=1)

    return PeerOp(call)


def _doitgen(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    A, C4 = a
    rows = A.reshape(-1, A.shape[-1]).T
    dgemm = scipy.linalg.blas.dgemm

    def call() -> None:
        rows[:] = dgemm(1.0, C4.T, rows)

    return PeerOp(call)


def _mvt(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    A, x1, x2, y1, y2 = (each.T for each in a)
    dgemv = scipy.linalg.blas.dgemv

    def call() -> None:
        dgemv(1.0, A, y1, 1.0, x1, trans=1, overwrite_y=1)
        dgemv(1.0, A, y2, 1.0, x2, overwrite_y=1)

    return PeerOp(call)


def _cholesky(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    """Each call starts from the same matrix: LAPACK returns at once where a pivot is negative, as
    in the factor of a factor."""
    dpotrf, A, before = scipy.linalg.lapack.dpotrf, a[0].T, a[0].T.copy(order="F")

    def call() -> None:
        A[:] = before
        dpotrf(A, clean=0, overwrite_a=1)

    return PeerOp(call)


def _durbin(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    r, y = a
    column = np.concatenate([np.ones(1), r[:-1]])
    solve = scipy.linalg.solve_toeplitz

    def call() -> None:
        y[:] = solve(column, -r)

    return PeerOp(call)


def _gramschmidt(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    """Householder's QR: the columns of Q and the rows of R may have the other sign."""
    A, R, Q = a
    dgeqrf, dorgqr = scipy.linalg.lapack.dgeqrf, scipy.linalg.lapack.dorgqr

    def call() -> None:
        factors, tau, _, _ = dgeqrf(A)
        R[:] = np.triu(factors[: len(R)])
        Q[:] = dorgqr(factors, tau, overwrite_a=1)[0]

    return PeerOp(call)


def _lu(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    dgetrf, A = scipy.linalg.lapack.dgetrf, a[0].T
    return PeerOp(lambda: dgetrf(A, overwrite_a=1))


def _ludcmp(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    A, b, x, _ = (each.T for each in a)
    dgetrf, dgetrs = scipy.linalg.lapack.dgetrf, scipy.linalg.lapack.dgetrs

    def call() -> None:
        factors, pivots, _ = dgetrf(A, overwrite_a=1)
        x[:] = b
        dgetrs(factors, pivots, x, trans=1, overwrite_b=1)

    return PeerOp(call)


def _trisolv(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    L, x, b = (each.T for each in a)
    dtrsv = scipy.linalg.blas.dtrsv

    def call() -> None:
        x[:] = b
        dtrsv(L, x, trans=1, overwrite_x=1)

    return PeerOp(call)


def _covariance(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    data, cov = a
    dsyrk, below = scipy.linalg.blas.dsyrk, np.tril_indices(shape[0], -1)

    def call() -> None:
        np.subtract(data, data.mean(axis=0), out=data)
        dsyrk(1.0 / (shape[1] - 1), data.T, 0.0, cov.T, lower=1, overwrite_c=1)
        cov[below] = cov.T[below]

    return PeerOp(call)


def _correlation(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    data, corr = a
    dsyrk, below = scipy.linalg.blas.dsyrk, np.tril_indices(shape[0], -1)

    def call() -> None:
        deviation = data.std(axis=0)
        deviation[deviation <= 0.1] = 1.0
        np.subtract(data, data.mean(axis=0), out=data)
        np.divide(data, np.sqrt(shape[1]) * deviation, out=data)
        dsyrk(1.0, data.T, 0.0, corr.T, lower=1, overwrite_c=1)
        corr[below] = corr.T[below]
        np.fill_diagonal(corr, 1.0)

    return PeerOp(call)


def _deriche(scipy: Any, shape: Shape, a: list[Array]) -> PeerOp:
    image, out = a
    lfilter = importlib.import_module("scipy.signal").lfilter
    a1, a2, a3, a4, b1, b2 = deriche_constants()
    forward, backward, poles = (
        np.array(each, "float32") for each in ([a1, a2], [0, a3, a4], [1, -b1, -b2])
    )

    def both_ways(x: Array, axis: int) -> Array:
        left = np.flip(lfilter(backward, poles, np.flip(x, axis), axis), axis)
        return np.asarray(lfilter(forward, poles, x, axis) + left)

    def call() -> None:
        out[:] = both_ways(both_ways(image, 1), 0)

    return PeerOp(call)


OPS: dict[str, Maker] = {
    "poly.gemm": _gemm, "poly.gemver": _gemver, "poly.gesummv": _gesummv, "poly.symm": _symm,
    "poly.syr2k": _syr2k, "poly.syrk": _syrk, "poly.trmm": _trmm, "poly.2mm": _two_mm,
    "poly.3mm": _three_mm, "poly.atax": _atax, "poly.bicg": _bicg, "poly.doitgen": _doitgen,
    "poly.mvt": _mvt, "poly.cholesky": _cholesky, "poly.durbin": _durbin,
    "poly.gramschmidt": _gramschmidt, "poly.lu": _lu, "poly.ludcmp": _ludcmp,
    "poly.trisolv": _trisolv, "poly.correlation": _correlation, "poly.covariance": _covariance,
    "poly.deriche": _deriche,
}  # fmt: skip

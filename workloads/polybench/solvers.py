"""PolyBench: the solvers cholesky, durbin, gramschmidt, lu, ludcmp and trisolv."""

from __future__ import annotations

import numpy as np

from metasched.frontend.workload import Shape, Workload
from metasched.ir.func import PrimFunc
from metasched.script import tir as T


def cholesky(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """The factor L of A = L · L^T, over the lower triangle of A."""
    (N,) = shape

    @T.prim_func
    def cholesky(A: T.Buffer((N, N), dtype)):
        for i in range(N):
            for j in range(i):
                for k in range(j):
                    with T.block("update"):
                        vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                        A[vi, vj] -= A[vi, vk] * A[vj, vk]
                with T.block("divide"):
                    A[i, j] = A[i, j] / A[j, j]
            for k in range(i):
                with T.block("diagonal"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    A[vi, vi] -= A[vi, vk] * A[vi, vk]
            with T.block("sqrt"):
                A[i, i] = T.sqrt(A[i, i])

    return cholesky


def cholesky_reference(shape: Shape, A: np.ndarray) -> None:
    A[:] = np.linalg.cholesky(A) + np.triu(A, 1)


def durbin(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """The solution y of the Yule-Walker equations with the autocorrelation r."""
    (N,) = shape

    @T.prim_func
    def durbin(r: T.Buffer((N,), dtype), y: T.Buffer((N,), dtype)):
        z = T.alloc_buffer((N,), dtype)
        alpha = T.alloc_buffer((1,), dtype)
        beta = T.alloc_buffer((1,), dtype)
        total = T.alloc_buffer((1,), dtype)
        with T.block("start"):
            y[0] = -r[0]
            beta[0] = 1.0
            alpha[0] = -r[0]
        for k in range(1, N):
            with T.block("beta"):
                beta[0] = (1.0 - alpha[0] * alpha[0]) * beta[0]
                total[0] = 0.0
            for i in range(k):
                with T.block("total"):
                    vk = T.axis.opaque((1, N), k)
                    vi = T.axis.reduce(N, i)
                    total[0] += r[vk - vi - 1] * y[vi]
            with T.block("alpha"):
                alpha[0] = -(r[k] + total[0]) / beta[0]
            for i in range(k):
                with T.block("z"):
                    z[i] = y[i] + alpha[0] * y[k - i - 1]
            for i in range(k):
                with T.block("y"):
                    y[i] = z[i]
            with T.block("last"):
                y[k] = alpha[0]

    return durbin


def durbin_reference(shape: Shape, r: np.ndarray, y: np.ndarray) -> None:
    y[0] = alpha = -r[0]
    beta = 1.0
    for k in range(1, shape[0]):
        beta *= 1.0 - alpha * alpha
        alpha = -(r[k] + np.dot(r[k - 1 :: -1], y[:k])) / beta
        y[:k] += alpha * y[k - 1 :: -1]
        y[k] = alpha


def gramschmidt(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """A = Q · R with orthonormal columns of Q; A is used up."""
    M, N = shape
    if N > M:
        raise ValueError(f"{N} columns of {M} elements cannot all be orthonormal")

    @T.prim_func
    def gramschmidt(
        A: T.Buffer((M, N), dtype), R: T.Buffer((N, N), dtype), Q: T.Buffer((M, N), dtype)
    ):
        norm = T.alloc_buffer((N,), dtype)
        for k in range(N):
            for i in range(M):
                with T.block("norm"):
                    vk, vi = T.axis.remap("SR", [k, i])
                    with T.init():
                        norm[vk] = 0.0
                    norm[vk] += A[vi, vk] * A[vi, vk]
            with T.block("diagonal"):
                R[k, k] = T.sqrt(norm[k])
            for i in range(M):
                with T.block("Q"):
                    Q[i, k] = A[i, k] / R[k, k]
            for j in range(k + 1, N):
                for i in range(M):
                    with T.block("R"):
                        vk, vj, vi = T.axis.remap("SSR", [k, j, i])
                        with T.init():
                            R[vk, vj] = 0.0
                        R[vk, vj] += Q[vi, vk] * A[vi, vj]
                for i in range(M):
                    with T.block("A"):
                        A[i, j] -= Q[i, k] * R[k, j]

    return gramschmidt


def gramschmidt_reference(shape: Shape, A: np.ndarray, R: np.ndarray, Q: np.ndarray) -> None:
    for k in range(shape[1]):
        R[k, k] = np.sqrt(np.dot(A[:, k], A[:, k]))
        Q[:, k] = A[:, k] / R[k, k]
        R[k, k + 1 :] = Q[:, k] @ A[:, k + 1 :]
        A[:, k + 1 :] -= np.outer(Q[:, k], R[k, k + 1 :])


def lu(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """A = L · U without pivoting; A holds both factors afterwards."""
    (N,) = shape

    @T.prim_func
    def lu(A: T.Buffer((N, N), dtype)):
        for i in range(N):
            for j in range(i):
                for k in range(j):
                    with T.block("lower"):
                        vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                        A[vi, vj] -= A[vi, vk] * A[vk, vj]
                with T.block("divide"):
                    A[i, j] = A[i, j] / A[j, j]
            for j in range(i, N):
                for k in range(i):
                    with T.block("upper"):
                        vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                        A[vi, vj] -= A[vi, vk] * A[vk, vj]

    return lu


def lu_reference(shape: Shape, A: np.ndarray) -> None:
    for k in range(shape[0] - 1):
        A[k + 1 :, k] /= A[k, k]
        A[k + 1 :, k + 1 :] -= np.outer(A[k + 1 :, k], A[k, k + 1 :])


def ludcmp(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """The solution x of A · x = b by a factorisation of A in place."""
    (N,) = shape

    @T.prim_func
    def ludcmp(
        A: T.Buffer((N, N), dtype),
        b: T.Buffer((N,), dtype),
        x: T.Buffer((N,), dtype),
        y: T.Buffer((N,), dtype),
    ):
        w = T.alloc_buffer((1,), dtype)
        for i in range(N):
            for j in range(i):
                with T.block("take_lower"):
                    w[0] = A[i, j]
                for k in range(j):
                    with T.block("lower"):
                        vk = T.axis.reduce(N, k)
                        w[0] -= A[i, vk] * A[vk, j]
                with T.block("divide"):
                    A[i, j] = w[0] / A[j, j]
            for j in range(i, N):
                with T.block("take_upper"):
                    w[0] = A[i, j]
                for k in range(i):
                    with T.block("upper"):
                        vk = T.axis.reduce(N, k)
                        w[0] -= A[i, vk] * A[vk, j]
                with T.block("put_upper"):
                    A[i, j] = w[0]
        for i in range(N):
            with T.block("take_y"):
                w[0] = b[i]
            for j in range(i):
                with T.block("forward"):
                    vj = T.axis.reduce(N, j)
                    w[0] -= A[i, vj] * y[vj]
            with T.block("y"):
                y[i] = w[0]
        for i in range(N):
            with T.block("take_x"):
                w[0] = y[N - 1 - i]
            for j in range(N - i, N):
                with T.block("backward"):
                    vj = T.axis.reduce(N, j)
                    w[0] -= A[N - 1 - i, vj] * x[vj]
            with T.block("x"):
                x[N - 1 - i] = w[0] / A[N - 1 - i, N - 1 - i]

    return ludcmp


def ludcmp_reference(
    shape: Shape, A: np.ndarray, b: np.ndarray, x: np.ndarray, y: np.ndarray
) -> None:
    lu_reference(shape, A)
    for i in range(shape[0]):
        y[i] = b[i] - A[i, :i] @ y[:i]
    for i in reversed(range(shape[0])):
        x[i] = (y[i] - A[i, i + 1 :] @ x[i + 1 :]) / A[i, i]


def trisolv(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """The solution x of L · x = b for a lower triangular L."""
    (N,) = shape

    @T.prim_func
    def trisolv(L: T.Buffer((N, N), dtype), x: T.Buffer((N,), dtype), b: T.Buffer((N,), dtype)):
        for i in range(N):
            with T.block("take"):
                x[i] = b[i]
            for j in range(i):
                with T.block("update"):
                    vi, vj = T.axis.remap("SR", [i, j])
                    x[vi] -= L[vi, vj] * x[vj]
            with T.block("divide"):
                x[i] = x[i] / L[i, i]

    return trisolv


def trisolv_reference(shape: Shape, L: np.ndarray, x: np.ndarray, b: np.ndarray) -> None:
    for i in range(shape[0]):
        x[i] = (b[i] - L[i, :i] @ x[:i]) / L[i, i]


def _dominant(rng: np.random.Generator, shape: Shape, *vectors: int) -> list[np.ndarray]:
    """A positive definite, diagonally dominant matrix, and vectors of as many elements."""
    (n,) = shape
    half = rng.uniform(-1, 1, (n, n))
    return [half + half.T + 4 * n * np.eye(n), *(rng.uniform(-1, 1, (n,)) for _ in vectors)]


def _decaying(rng: np.random.Generator, shape: Shape) -> list[np.ndarray]:
    """An autocorrelation of positive, decreasing values below 1."""
    return [rng.uniform(0.9, 1) / np.arange(2.0, shape[0] + 2) ** 2, np.zeros(shape)]


WORKLOADS = (
    Workload(
        "poly.cholesky", "N", cholesky, cholesky_reference, ((400,),),
        lambda s: s[0] ** 3 / 3, "float64", in_place=True, draw=_dominant,
    ),
    Workload(
        "poly.durbin", "N", durbin, durbin_reference, ((400,),),
        lambda s: 2.0 * s[0] ** 2, "float64", in_place=True, draw=_decaying,
    ),
    Workload(
        # PolyBench's 200 rows of 240 columns have dependent columns: rounding errors as results.
        "poly.gramschmidt", "M N", gramschmidt, gramschmidt_reference, ((240, 200),),
        lambda s: 2.0 * s[0] * s[1] ** 2, "float64", in_place=True,
    ),
    Workload(
        "poly.lu", "N", lu, lu_reference, ((400,),),
        lambda s: 2 * s[0] ** 3 / 3, "float64", in_place=True, draw=_dominant,
    ),
    Workload(
        "poly.ludcmp", "N", ludcmp, ludcmp_reference, ((400,),),
        lambda s: 2 * s[0] ** 3 / 3 + 2 * s[0] ** 2, "float64", in_place=True,
        draw=lambda rng, s: _dominant(rng, s, 1, 2, 3),
    ),
    Workload(
        "poly.trisolv", "N", trisolv, trisolv_reference, ((400,),),
        lambda s: 1.0 * s[0] ** 2, "float64", in_place=True,
        draw=lambda rng, s: _dominant(rng, s, 1, 2),
    ),
)  # fmt: skip

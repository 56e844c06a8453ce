"""PolyBench: the BLAS routines gemm, gemver, gesummv, symm, syr2k, syrk and trmm."""

from __future__ import annotations

import numpy as np

from metasched.frontend.workload import Shape, Workload
from metasched.ir.func import PrimFunc
from metasched.script import tir as T

ALPHA, BETA = 1.5, 1.2


def gemm(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """C = beta * C + alpha * A · B."""
    NI, NJ, NK = shape
    alpha, beta = ALPHA, BETA

    @T.prim_func
    def gemm(
        A: T.Buffer((NI, NK), dtype), B: T.Buffer((NK, NJ), dtype), C: T.Buffer((NI, NJ), dtype)
    ):
        for i in range(NI):
            for j in range(NJ):
                with T.block("scale"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] *= beta
            for k, j in T.grid(NK, NJ):
                with T.block("product"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    C[vi, vj] += alpha * A[vi, vk] * B[vk, vj]

    return gemm


def gemm_reference(shape: Shape, A: np.ndarray, B: np.ndarray, C: np.ndarray) -> None:
    C[:] = ALPHA * A @ B + BETA * C


def gemver(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """A gets two outer products; x += beta * A^T · y + z; w += alpha * A · x."""
    (N,) = shape
    alpha, beta = ALPHA, BETA

    @T.prim_func
    def gemver(
        A: T.Buffer((N, N), dtype),
        u1: T.Buffer((N,), dtype),
        v1: T.Buffer((N,), dtype),
        u2: T.Buffer((N,), dtype),
        v2: T.Buffer((N,), dtype),
        w: T.Buffer((N,), dtype),
        x: T.Buffer((N,), dtype),
        y: T.Buffer((N,), dtype),
        z: T.Buffer((N,), dtype),
    ):
        for i, j in T.grid(N, N):
            with T.block("A"):
                vi, vj = T.axis.remap("SS", [i, j])
                A[vi, vj] += u1[vi] * v1[vj] + u2[vi] * v2[vj]
        for i, j in T.grid(N, N):
            with T.block("x"):
                vi, vj = T.axis.remap("SR", [i, j])
                x[vi] += beta * A[vj, vi] * y[vj]
        for i in range(N):
            with T.block("z"):
                vi = T.axis.spatial(N, i)
                x[vi] += z[vi]
        for i, j in T.grid(N, N):
            with T.block("w"):
                vi, vj = T.axis.remap("SR", [i, j])
                w[vi] += alpha * A[vi, vj] * x[vj]

    return gemver


def gemver_reference(
    shape: Shape,
    A: np.ndarray,
    u1: np.ndarray,
    v1: np.ndarray,
    u2: np.ndarray,
    v2: np.ndarray,
    w: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    z: np.ndarray,
) -> None:
    A += np.outer(u1, v1) + np.outer(u2, v2)
    x += BETA * y @ A + z
    w += ALPHA * A @ x


def gesummv(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """y = alpha * A · x + beta * B · x."""
    (N,) = shape
    alpha, beta = ALPHA, BETA

    @T.prim_func
    def gesummv(
        A: T.Buffer((N, N), dtype),
        B: T.Buffer((N, N), dtype),
        x: T.Buffer((N,), dtype),
        y: T.Buffer((N,), dtype),
    ):
        tmp = T.alloc_buffer((N,), dtype)
        for i in range(N):
            with T.block("zero"):
                vi = T.axis.spatial(N, i)
                tmp[vi] = 0.0
                y[vi] = 0.0
            for j in range(N):
                with T.block("sums"):
                    vi, vj = T.axis.remap("SR", [i, j])
                    tmp[vi] += A[vi, vj] * x[vj]
                    y[vi] += B[vi, vj] * x[vj]
            with T.block("y"):
                vi = T.axis.spatial(N, i)
                y[vi] = alpha * tmp[vi] + beta * y[vi]

    return gesummv


def gesummv_reference(
    shape: Shape, A: np.ndarray, B: np.ndarray, x: np.ndarray, y: np.ndarray
) -> None:
    y[:] = ALPHA * A @ x + BETA * B @ x


def symm(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """C = beta * C + alpha * A · B, where the lower triangle of A holds a symmetric matrix."""
    M, N = shape
    alpha, beta = ALPHA, BETA

    @T.prim_func
    def symm(A: T.Buffer((M, M), dtype), B: T.Buffer((M, N), dtype), C: T.Buffer((M, N), dtype)):
        temp = T.alloc_buffer((M, N), dtype)
        for i, j in T.grid(M, N):
            with T.block("zero"):
                vi, vj = T.axis.remap("SS", [i, j])
                temp[vi, vj] = 0.0
            for k in range(i):
                with T.block("upper"):
                    vk, vj, vi = T.axis.remap("SSR", [k, j, i])
                    C[vk, vj] += alpha * B[vi, vj] * A[vi, vk]
                with T.block("lower"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    temp[vi, vj] += B[vk, vj] * A[vi, vk]
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = beta * C[vi, vj] + alpha * B[vi, vj] * A[vi, vi] + alpha * temp[vi, vj]

    return symm


def symm_reference(shape: Shape, A: np.ndarray, B: np.ndarray, C: np.ndarray) -> None:
    lower = np.tril(A)
    C[:] = BETA * C + ALPHA * (lower + np.tril(A, -1).T) @ B


def syr2k(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """The lower triangle of C = beta * C + alpha * (A · B^T + B · A^T)."""
    M, N = shape
    alpha, beta = ALPHA, BETA

    @T.prim_func
    def syr2k(A: T.Buffer((N, M), dtype), B: T.Buffer((N, M), dtype), C: T.Buffer((N, N), dtype)):
        for i in range(N):
            for j in range(i + 1):
                with T.block("scale"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] *= beta
            for k in range(M):
                for j in range(i + 1):
                    with T.block("product"):
                        vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                        C[vi, vj] += A[vj, vk] * alpha * B[vi, vk] + B[vj, vk] * alpha * A[vi, vk]

    return syr2k


def syr2k_reference(shape: Shape, A: np.ndarray, B: np.ndarray, C: np.ndarray) -> None:
    half = A @ B.T
    C[:] = np.tril(BETA * C + ALPHA * (half + half.T)) + np.triu(C, 1)


def syrk(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """The lower triangle of C = beta * C + alpha * A · A^T."""
    M, N = shape
    alpha, beta = ALPHA, BETA

    @T.prim_func
    def syrk(A: T.Buffer((N, M), dtype), C: T.Buffer((N, N), dtype)):
        for i in range(N):
            for j in range(i + 1):
                with T.block("scale"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] *= beta
            for k in range(M):
                for j in range(i + 1):
                    with T.block("product"):
                        vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                        C[vi, vj] += alpha * A[vi, vk] * A[vj, vk]

    return syrk


def syrk_reference(shape: Shape, A: np.ndarray, C: np.ndarray) -> None:
    C[:] = np.tril(BETA * C + ALPHA * A @ A.T) + np.triu(C, 1)


def trmm(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """B = alpha * A^T · B in place, where A is unit lower triangular."""
    M, N = shape
    alpha = ALPHA

    @T.prim_func
    def trmm(A: T.Buffer((M, M), dtype), B: T.Buffer((M, N), dtype)):
        for i, j in T.grid(M, N):
            for k in range(i + 1, M):
                with T.block("product"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    B[vi, vj] += A[vk, vi] * B[vk, vj]
            with T.block("scale"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] *= alpha

    return trmm


def trmm_reference(shape: Shape, A: np.ndarray, B: np.ndarray) -> None:
    B[:] = ALPHA * (B + np.tril(A, -1).T @ B)


WORKLOADS = (
    Workload(
        "poly.gemm", "NI NJ NK", gemm, gemm_reference, ((200, 220, 240),),
        lambda s: 2.0 * s[0] * s[1] * s[2] + s[0] * s[1], "float64", in_place=True,
    ),
    Workload(
        "poly.gemver", "N", gemver, gemver_reference, ((400,),),
        lambda s: 8.0 * s[0] ** 2 + s[0], "float64", in_place=True,
    ),
    Workload(
        "poly.gesummv", "N", gesummv, gesummv_reference, ((250,),),
        lambda s: 4.0 * s[0] ** 2 + 3 * s[0], "float64", in_place=True,
    ),
    Workload(
        "poly.symm", "M N", symm, symm_reference, ((200, 240),),
        lambda s: 2.0 * s[0] ** 2 * s[1] + 4 * s[0] * s[1], "float64", in_place=True,
    ),
    Workload(
        "poly.syr2k", "M N", syr2k, syr2k_reference, ((200, 240),),
        lambda s: 2.0 * s[0] * s[1] * (s[1] + 1), "float64", in_place=True,
    ),
    Workload(
        "poly.syrk", "M N", syrk, syrk_reference, ((200, 240),),
        lambda s: 1.0 * s[0] * s[1] * (s[1] + 1), "float64", in_place=True,
    ),
    Workload(
        "poly.trmm", "M N", trmm, trmm_reference, ((200, 240),),
        lambda s: 1.0 * s[0] ** 2 * s[1], "float64", in_place=True,
    ),
)  # fmt: skip

"""PolyBench: the linear algebra kernels 2mm, 3mm, atax, bicg, doitgen and mvt."""

from __future__ import annotations

import numpy as np

from metasched.frontend.workload import Shape, Workload
from metasched.ir.func import PrimFunc
from metasched.script import tir as T

ALPHA, BETA = 1.5, 1.2


def two_mm(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """D = alpha * A · B · C + beta * D."""
    NI, NJ, NK, NL = shape
    alpha, beta = ALPHA, BETA

    @T.prim_func
    def two_mm(
        A: T.Buffer((NI, NK), dtype),
        B: T.Buffer((NK, NJ), dtype),
        C: T.Buffer((NJ, NL), dtype),
        D: T.Buffer((NI, NL), dtype),
    ):
        tmp = T.alloc_buffer((NI, NJ), dtype)
        for i, j, k in T.grid(NI, NJ, NK):
            with T.block("tmp"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    tmp[vi, vj] = 0.0
                tmp[vi, vj] += alpha * A[vi, vk] * B[vk, vj]
        for i, j in T.grid(NI, NL):
            with T.block("scale"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] *= beta
            for k in range(NJ):
                with T.block("D"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    D[vi, vj] += tmp[vi, vk] * C[vk, vj]

    return two_mm


def two_mm_reference(
    shape: Shape, A: np.ndarray, B: np.ndarray, C: np.ndarray, D: np.ndarray
) -> None:
    D[:] = ALPHA * A @ B @ C + BETA * D


def three_mm(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """G = (A · B) · (C · D)."""
    NI, NJ, NK, NL, NM = shape

    @T.prim_func
    def three_mm(
        A: T.Buffer((NI, NK), dtype),
        B: T.Buffer((NK, NJ), dtype),
        C: T.Buffer((NJ, NM), dtype),
        D: T.Buffer((NM, NL), dtype),
        G: T.Buffer((NI, NL), dtype),
    ):
        E = T.alloc_buffer((NI, NJ), dtype)
        F = T.alloc_buffer((NJ, NL), dtype)
        for i, j, k in T.grid(NI, NJ, NK):
            with T.block("E"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    E[vi, vj] = 0.0
                E[vi, vj] += A[vi, vk] * B[vk, vj]
        for i, j, k in T.grid(NJ, NL, NM):
            with T.block("F"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    F[vi, vj] = 0.0
                F[vi, vj] += C[vi, vk] * D[vk, vj]
        for i, j, k in T.grid(NI, NL, NJ):
            with T.block("G"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    G[vi, vj] = 0.0
                G[vi, vj] += E[vi, vk] * F[vk, vj]

    return three_mm


def three_mm_reference(
    shape: Shape, A: np.ndarray, B: np.ndarray, C: np.ndarray, D: np.ndarray, G: np.ndarray
) -> None:
    G[:] = A @ B @ (C @ D)


def atax(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """y = A^T · (A · x)."""
    M, N = shape

    @T.prim_func
    def atax(A: T.Buffer((M, N), dtype), x: T.Buffer((N,), dtype), y: T.Buffer((N,), dtype)):
        tmp = T.alloc_buffer((M,), dtype)
        for i in range(N):
            with T.block("zero"):
                vi = T.axis.spatial(N, i)
                y[vi] = 0.0
        for i in range(M):
            for j in range(N):
                with T.block("tmp"):
                    vi, vj = T.axis.remap("SR", [i, j])
                    with T.init():
                        tmp[vi] = 0.0
                    tmp[vi] += A[vi, vj] * x[vj]
            for j in range(N):
                with T.block("y"):
                    vj, vi = T.axis.remap("SR", [j, i])
                    y[vj] += A[vi, vj] * tmp[vi]

    return atax


def atax_reference(shape: Shape, A: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    y[:] = (A @ x) @ A


def bicg(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """s = A^T · r and q = A · p, in one pass over A."""
    M, N = shape

    @T.prim_func
    def bicg(
        A: T.Buffer((N, M), dtype),
        p: T.Buffer((M,), dtype),
        r: T.Buffer((N,), dtype),
        s: T.Buffer((M,), dtype),
        q: T.Buffer((N,), dtype),
    ):
        for i in range(M):
            with T.block("zero"):
                vi = T.axis.spatial(M, i)
                s[vi] = 0.0
        for i in range(N):
            with T.block("start"):
                vi = T.axis.spatial(N, i)
                q[vi] = 0.0
            for j in range(M):
                with T.block("bicg"):
                    vi, vj = T.axis.remap("RR", [i, j])
                    s[vj] += r[vi] * A[vi, vj]
                    q[vi] += A[vi, vj] * p[vj]

    return bicg


def bicg_reference(
    shape: Shape, A: np.ndarray, p: np.ndarray, r: np.ndarray, s: np.ndarray, q: np.ndarray
) -> None:
    s[:] = r @ A
    q[:] = A @ p


def doitgen(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """Each row of A times C4, in place."""
    NQ, NR, NP = shape

    @T.prim_func
    def doitgen(A: T.Buffer((NR, NQ, NP), dtype), C4: T.Buffer((NP, NP), dtype)):
        total = T.alloc_buffer((NP,), dtype)
        for r, q in T.grid(NR, NQ):
            for p, s in T.grid(NP, NP):
                with T.block("total"):
                    vr, vq, vp, vs = T.axis.remap("SSSR", [r, q, p, s])
                    with T.init():
                        total[vp] = 0.0
                    total[vp] += A[vr, vq, vs] * C4[vs, vp]
            for p in range(NP):
                with T.block("A"):
                    vr, vq, vp = T.axis.remap("SSS", [r, q, p])
                    A[vr, vq, vp] = total[vp]

    return doitgen


def doitgen_reference(shape: Shape, A: np.ndarray, C4: np.ndarray) -> None:
    A[:] = A @ C4


def mvt(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """x1 += A · y1 and x2 += A^T · y2."""
    (N,) = shape

    @T.prim_func
    def mvt(
        A: T.Buffer((N, N), dtype),
        x1: T.Buffer((N,), dtype),
        x2: T.Buffer((N,), dtype),
        y1: T.Buffer((N,), dtype),
        y2: T.Buffer((N,), dtype),
    ):
        for i, j in T.grid(N, N):
            with T.block("x1"):
                vi, vj = T.axis.remap("SR", [i, j])
                x1[vi] += A[vi, vj] * y1[vj]
        for i, j in T.grid(N, N):
            with T.block("x2"):
                vi, vj = T.axis.remap("SR", [i, j])
                x2[vi] += A[vj, vi] * y2[vj]

    return mvt


def mvt_reference(
    shape: Shape, A: np.ndarray, x1: np.ndarray, x2: np.ndarray, y1: np.ndarray, y2: np.ndarray
) -> None:
    x1 += A @ y1
    x2 += y2 @ A


WORKLOADS = (
    Workload(
        "poly.2mm", "NI NJ NK NL", two_mm, two_mm_reference, ((180, 190, 210, 220),),
        lambda s: 2.0 * s[0] * s[1] * (s[2] + s[3]), "float64", in_place=True,
    ),
    Workload(
        "poly.3mm", "NI NJ NK NL NM", three_mm, three_mm_reference, ((180, 190, 200, 210, 220),),
        lambda s: 2.0 * (s[0] * s[1] * s[2] + s[1] * s[3] * s[4] + s[0] * s[3] * s[1]),
        "float64", in_place=True,
    ),
    Workload(
        "poly.atax", "M N", atax, atax_reference, ((390, 410),),
        lambda s: 4.0 * s[0] * s[1], "float64", in_place=True,
    ),
    Workload(
        "poly.bicg", "M N", bicg, bicg_reference, ((390, 410),),
        lambda s: 4.0 * s[0] * s[1], "float64", in_place=True,
    ),
    Workload(
        "poly.doitgen", "NQ NR NP", doitgen, doitgen_reference, ((40, 50, 60),),
        lambda s: 2.0 * s[0] * s[1] * s[2] ** 2, "float64", in_place=True,
    ),
    Workload(
        "poly.mvt", "N", mvt, mvt_reference, ((400,),),
        lambda s: 4.0 * s[0] ** 2, "float64", in_place=True,
    ),
)  # fmt: skip

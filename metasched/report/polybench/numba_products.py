"""PolyBench's products and its data mining as loops for Numba.

Rows run in parallel, and the innermost loop runs along rows, so that LLVM makes vectors of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from metasched.report.peer_op import Shape

ALPHA, BETA = 1.5, 1.2
BLOCKS = 4  # parallel blocks of columns where rows depend on each other


def gemm(shape: Shape, A: Any, B: Any, C: Any) -> None:
    NI, NJ, NK = shape
    for i in prange(NI):
        for j in range(NJ):
            C[i, j] *= BETA
        for k in range(NK):
            for j in range(NJ):
                C[i, j] += ALPHA * A[i, k] * B[k, j]


def gemver(
    shape: Shape, A: Any, u1: Any, v1: Any, u2: Any, v2: Any, w: Any, x: Any, y: Any, z: Any
) -> None:
    (N,) = shape
    for i in prange(N):
        for j in range(N):
            A[i, j] += u1[i] * v1[j] + u2[i] * v2[j]
    for block in prange(BLOCKS):
        first, last = block * N // BLOCKS, (block + 1) * N // BLOCKS
        for j in range(N):
            for i in range(first, last):
                x[i] += BETA * A[j, i] * y[j]
        for i in range(first, last):
            x[i] += z[i]
    for i in prange(N):
        total = 0.0
        for j in range(N):
            total += A[i, j] * x[j]
        w[i] += ALPHA * total


def gesummv(shape: Shape, A: Any, B: Any, x: Any, y: Any) -> None:
    (N,) = shape
    for i in prange(N):
        by_a = by_b = 0.0
        for j in range(N):
            by_a += A[i, j] * x[j]
            by_b += B[i, j] * x[j]
        y[i] = ALPHA * by_a + BETA * by_b


def symm(shape: Shape, A: Any, B: Any, C: Any) -> None:
    M, N = shape
    for i in prange(M):
        for j in range(N):
            C[i, j] *= BETA
        for k in range(i + 1):
            for j in range(N):
                C[i, j] += ALPHA * A[i, k] * B[k, j]
        for k in range(i + 1, M):
            for j in range(N):
                C[i, j] += ALPHA * A[k, i] * B[k, j]


def syr2k(shape: Shape, A: Any, B: Any, C: Any) -> None:
    M, N = shape
    for i in prange(N):
        for j in range(i + 1):
            total = 0.0
            for k in range(M):
                total += A[j, k] * B[i, k] + B[j, k] * A[i, k]
            C[i, j] = BETA * C[i, j] + ALPHA * total


def syrk(shape: Shape, A: Any, C: Any) -> None:
    M, N = shape
    for i in prange(N):
        for j in range(i + 1):
            total = 0.0
            for k in range(M):
                total += A[i, k] * A[j, k]
            C[i, j] = BETA * C[i, j] + ALPHA * total


def trmm(shape: Shape, A: Any, B: Any) -> None:
    M, N = shape
    for block in prange(BLOCKS):
        first, last = block * N // BLOCKS, (block + 1) * N // BLOCKS
        for i in range(M):
            for k in range(i + 1, M):
                for j in range(first, last):
                    B[i, j] += A[k, i] * B[k, j]
            for j in range(first, last):
                B[i, j] *= ALPHA


def two_mm(shape: Shape, A: Any, B: Any, C: Any, D: Any) -> None:
    NI, NJ, NK, NL = shape
    for i in prange(NI):
        row = np.zeros(NJ)
        for k in range(NK):
            for j in range(NJ):
                row[j] += ALPHA * A[i, k] * B[k, j]
        for j in range(NL):
            D[i, j] *= BETA
        for k in range(NJ):
            for j in range(NL):
                D[i, j] += row[k] * C[k, j]


def three_mm(shape: Shape, A: Any, B: Any, C: Any, D: Any, G: Any) -> None:
    NI, NJ, NK, NL, NM = shape
    F = np.zeros((NJ, NL))
    for i in prange(NJ):
        for k in range(NM):
            for j in range(NL):
                F[i, j] += C[i, k] * D[k, j]
    for i in prange(NI):
        row = np.zeros(NJ)
        for k in range(NK):
            for j in range(NJ):
                row[j] += A[i, k] * B[k, j]
        for j in range(NL):
            G[i, j] = 0.0
        for k in range(NJ):
            for j in range(NL):
                G[i, j] += row[k] * F[k, j]


def atax(shape: Shape, A: Any, x: Any, y: Any) -> None:
    M, N = shape
    product = np.empty(M)
    for i in prange(M):
        total = 0.0
        for j in range(N):
            total += A[i, j] * x[j]
        product[i] = total
    for block in prange(BLOCKS):
        first, last = block * N // BLOCKS, (block + 1) * N // BLOCKS
        for j in range(first, last):
            y[j] = 0.0
        for i in range(M):
            for j in range(first, last):
                y[j] += A[i, j] * product[i]


def bicg(shape: Shape, A: Any, p: Any, r: Any, s: Any, q: Any) -> None:
    M, N = shape
    for block in prange(BLOCKS):
        first, last = block * M // BLOCKS, (block + 1) * M // BLOCKS
        for j in range(first, last):
            s[j] = 0.0
        for i in range(N):
            for j in range(first, last):
                s[j] += r[i] * A[i, j]
    for i in prange(N):
        total = 0.0
        for j in range(M):
            total += A[i, j] * p[j]
        q[i] = total


def doitgen(shape: Shape, A: Any, C4: Any) -> None:
    NQ, NR, NP = shape
    for r in prange(NR):
        total = np.empty(NP)
        for q in range(NQ):
            for p in range(NP):
                total[p] = 0.0
            for s in range(NP):
                for p in range(NP):
                    total[p] += A[r, q, s] * C4[s, p]
            for p in range(NP):
                A[r, q, p] = total[p]


def mvt(shape: Shape, A: Any, x1: Any, x2: Any, y1: Any, y2: Any) -> None:
    (N,) = shape
    for i in prange(N):
        total = 0.0
        for j in range(N):
            total += A[i, j] * y1[j]
        x1[i] += total
    for block in prange(BLOCKS):
        first, last = block * N // BLOCKS, (block + 1) * N // BLOCKS
        for j in range(N):
            for i in range(first, last):
                x2[i] += A[j, i] * y2[j]


def correlation(shape: Shape, data: Any, corr: Any) -> None:
    M, N = shape
    root = np.sqrt(N)
    for block in prange(BLOCKS):
        first, last = block * M // BLOCKS, (block + 1) * M // BLOCKS
        mean, deviation = np.zeros(M), np.zeros(M)
        for i in range(N):
            for j in range(first, last):
                mean[j] += data[i, j]
        for j in range(first, last):
            mean[j] /= N
        for i in range(N):
            for j in range(first, last):
                data[i, j] -= mean[j]
                deviation[j] += data[i, j] * data[i, j]
        for j in range(first, last):
            deviation[j] = np.sqrt(deviation[j] / N)
            if deviation[j] <= 0.1:
                deviation[j] = 1.0
            deviation[j] = 1.0 / (root * deviation[j])
        for i in range(N):
            for j in range(first, last):
                data[i, j] *= deviation[j]
    for i in prange(M):
        for j in range(i, M):
            corr[i, j] = 0.0
        for k in range(N):
            for j in range(i, M):
                corr[i, j] += data[k, i] * data[k, j]
        corr[i, i] = 1.0
        for j in range(i + 1, M):
            corr[j, i] = corr[i, j]


def covariance(shape: Shape, data: Any, cov: Any) -> None:
    M, N = shape
    for block in prange(BLOCKS):
        first, last = block * M // BLOCKS, (block + 1) * M // BLOCKS
        mean = np.zeros(M)
        for i in range(N):
            for j in range(first, last):
                mean[j] += data[i, j]
        for j in range(first, last):
            mean[j] /= N
        for i in range(N):
            for j in range(first, last):
                data[i, j] -= mean[j]
    for i in prange(M):
        for j in range(i, M):
            cov[i, j] = 0.0
        for k in range(N):
            for j in range(i, M):
                cov[i, j] += data[k, i] * data[k, j]
        for j in range(i, M):
            cov[i, j] /= N - 1
            cov[j, i] = cov[i, j]

"""PolyBench's solvers and its dynamic programming as loops for Numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from metasched.report.peer_op import Shape


def cholesky(shape: Shape, A: Any) -> None:
    """Column by column; the rows below the diagonal run in parallel."""
    (N,) = shape
    for j in range(N):
        total = A[j, j]
        for k in range(j):
            total -= A[j, k] * A[j, k]
        A[j, j] = np.sqrt(total)
        for i in prange(j + 1, N):
            total = A[i, j]
            for k in range(j):
                total -= A[i, k] * A[j, k]
            A[i, j] = total / A[j, j]


def durbin(shape: Shape, r: Any, y: Any) -> None:
    """No parallel loop: a step has at most 400 elements."""
    (N,) = shape
    z = np.empty(N)
    alpha = -r[0]
    y[0] = alpha
    beta = 1.0
    for k in range(1, N):
        beta *= 1.0 - alpha * alpha
        total = 0.0
        for i in range(k):
            total += r[k - i - 1] * y[i]
        alpha = -(r[k] + total) / beta
        for i in range(k):
            z[i] = y[i] + alpha * y[k - i - 1]
        for i in range(k):
            y[i] = z[i]
        y[k] = alpha


def gramschmidt(shape: Shape, A: Any, R: Any, Q: Any) -> None:
    """Blocks of the columns to the right run in parallel, each along its rows."""
    M, N = shape
    for k in range(N):
        total = 0.0
        for i in range(M):
            total += A[i, k] * A[i, k]
        R[k, k] = np.sqrt(total)
        for i in range(M):
            Q[i, k] = A[i, k] / R[k, k]
        left = N - k - 1
        for block in prange(2):
            first, last = k + 1 + block * left // 2, k + 1 + (block + 1) * left // 2
            for j in range(first, last):
                R[k, j] = 0.0
            for i in range(M):
                for j in range(first, last):
                    R[k, j] += Q[i, k] * A[i, j]
            for i in range(M):
                for j in range(first, last):
                    A[i, j] -= Q[i, k] * R[k, j]


def lu(shape: Shape, A: Any) -> None:
    """The rows below each pivot run in parallel."""
    (N,) = shape
    for k in range(N - 1):
        for i in prange(k + 1, N):
            factor = A[i, k] / A[k, k]
            A[i, k] = factor
            for j in range(k + 1, N):
                A[i, j] -= factor * A[k, j]


def ludcmp(shape: Shape, A: Any, b: Any, x: Any, y: Any) -> None:
    (N,) = shape
    for k in range(N - 1):
        for i in prange(k + 1, N):
            factor = A[i, k] / A[k, k]
            A[i, k] = factor
            for j in range(k + 1, N):
                A[i, j] -= factor * A[k, j]
    for i in range(N):
        total = b[i]
        for j in range(i):
            total -= A[i, j] * y[j]
        y[i] = total
    for i in range(N - 1, -1, -1):
        total = y[i]
        for j in range(i + 1, N):
            total -= A[i, j] * x[j]
        x[i] = total / A[i, i]


def trisolv(shape: Shape, L: Any, x: Any, b: Any) -> None:
    """No parallel loop: a row has at most 400 elements."""
    (N,) = shape
    for i in range(N):
        total = b[i]
        for j in range(i):
            total -= L[i, j] * x[j]
        x[i] = total / L[i, i]


def floyd_warshall(shape: Shape, path: Any) -> None:
    (N,) = shape
    for k in range(N):
        for i in prange(N):
            start = path[i, k]
            for j in range(N):
                path[i, j] = min(path[i, j], start + path[k, j])


def nussinov(shape: Shape, seq: Any, table: Any) -> None:
    """Pieces of the same length run in parallel."""
    (N,) = shape
    for length in range(1, N):
        for i in prange(N - length):
            j = i + length
            pairs = 1 if length > 1 and seq[i] + seq[j] == 3 else 0
            best = max(table[i, j], table[i, j - 1], table[i + 1, j])
            best = max(best, table[i + 1, j - 1] + pairs)
            for k in range(i + 1, j):
                best = max(best, table[i, k] + table[k + 1, j])
            table[i, j] = best

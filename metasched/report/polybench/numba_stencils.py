"""PolyBench's stencils and its recursive filter as loops for Numba; rows run in parallel."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from metasched.report.peer_op import Shape
from metasched.workloads.polybench.medley import deriche_constants

COEFFICIENTS = deriche_constants()


def adi(shape: Shape, u: Any) -> None:
    STEPS, N = shape
    a, d = -((1.0 / STEPS) * N**2), -((0.5 / STEPS) * N**2)
    b, e = 1.0 - 2.0 * a, 1.0 - 2.0 * d
    v, p, q = np.zeros((N, N)), np.zeros((N, N)), np.zeros((N, N))
    for _ in range(STEPS):
        for i in prange(1, N - 1):
            v[0, i] = 1.0
            p[i, 0] = 0.0
            q[i, 0] = 1.0
            for j in range(1, N - 1):
                below = a * p[i, j - 1] + b
                p[i, j] = -a / below
                mean = -d * u[j, i - 1] + (1.0 + 2.0 * d) * u[j, i] - d * u[j, i + 1]
                q[i, j] = (mean - a * q[i, j - 1]) / below
            v[N - 1, i] = 1.0
            for j in range(N - 2, 0, -1):
                v[j, i] = p[i, j] * v[j + 1, i] + q[i, j]
        for i in prange(1, N - 1):
            u[i, 0] = 1.0
            p[i, 0] = 0.0
            q[i, 0] = 1.0
            for j in range(1, N - 1):
                below = d * p[i, j - 1] + e
                p[i, j] = -d / below
                mean = -a * v[i - 1, j] + (1.0 + 2.0 * a) * v[i, j] - a * v[i + 1, j]
                q[i, j] = (mean - d * q[i, j - 1]) / below
            u[i, N - 1] = 1.0
            for j in range(N - 2, 0, -1):
                u[i, j] = p[i, j] * u[i, j + 1] + q[i, j]


def fdtd_2d(shape: Shape, ex: Any, ey: Any, hz: Any, source: Any) -> None:
    STEPS, NX, NY = shape
    for t in range(STEPS):
        for i in prange(NX):
            if i == 0:
                for j in range(NY):
                    ey[0, j] = source[t]
            else:
                for j in range(NY):
                    ey[i, j] -= 0.5 * (hz[i, j] - hz[i - 1, j])
            for j in range(1, NY):
                ex[i, j] -= 0.5 * (hz[i, j] - hz[i, j - 1])
        for i in prange(NX - 1):
            for j in range(NY - 1):
                hz[i, j] -= 0.7 * (ex[i, j + 1] - ex[i, j] + ey[i + 1, j] - ey[i, j])


def heat_3d(shape: Shape, A: Any, B: Any) -> None:
    STEPS, N = shape
    for t in range(2 * STEPS):
        old, new = (A, B) if t % 2 == 0 else (B, A)
        for i in prange(1, N - 1):
            for j in range(1, N - 1):
                for k in range(1, N - 1):
                    new[i, j, k] = (
                        0.125 * (old[i + 1, j, k] - 2.0 * old[i, j, k] + old[i - 1, j, k])
                        + 0.125 * (old[i, j + 1, k] - 2.0 * old[i, j, k] + old[i, j - 1, k])
                        + 0.125 * (old[i, j, k + 1] - 2.0 * old[i, j, k] + old[i, j, k - 1])
                        + old[i, j, k]
                    )


def jacobi_1d(shape: Shape, A: Any, B: Any) -> None:
    """No parallel loop: a step has 400 elements."""
    STEPS, N = shape
    for _ in range(STEPS):
        for i in range(1, N - 1):
            B[i] = 0.33333 * (A[i - 1] + A[i] + A[i + 1])
        for i in range(1, N - 1):
            A[i] = 0.33333 * (B[i - 1] + B[i] + B[i + 1])


def jacobi_2d(shape: Shape, A: Any, B: Any) -> None:
    STEPS, N = shape
    for t in range(2 * STEPS):
        old, new = (A, B) if t % 2 == 0 else (B, A)
        for i in prange(1, N - 1):
            for j in range(1, N - 1):
                sides = old[i, j - 1] + old[i, j + 1] + old[i + 1, j] + old[i - 1, j]
                new[i, j] = 0.2 * (old[i, j] + sides)


def seidel_2d(shape: Shape, A: Any) -> None:
    """No parallel loop: each element needs the new values to the left and above."""
    STEPS, N = shape
    sides = np.empty(N)
    for _ in range(STEPS):
        for i in range(1, N - 1):
            for j in range(1, N - 1):
                above = A[i - 1, j - 1] + A[i - 1, j] + A[i - 1, j + 1]
                below = A[i + 1, j - 1] + A[i + 1, j] + A[i + 1, j + 1]
                sides[j] = (above + below + A[i, j] + A[i, j + 1]) * (1.0 / 9.0)
            for j in range(1, N - 1):
                A[i, j] = sides[j] + A[i, j - 1] * (1.0 / 9.0)


def deriche(shape: Shape, image: Any, out: Any) -> None:
    """Rows run in parallel, then blocks of columns along their rows."""
    W, H = shape
    a1, a2, a3, a4, b1, b2 = (np.float32(each) for each in COEFFICIENTS)
    smooth = np.empty((W, H), np.float32)
    for i in prange(W):
        x1, y1, y2 = np.float32(0), np.float32(0), np.float32(0)
        for j in range(H):
            y = a1 * image[i, j] + a2 * x1 + b1 * y1 + b2 * y2
            smooth[i, j] = y
            x1, y2, y1 = image[i, j], y1, y
        x1, x2, y1, y2 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for j in range(H - 1, -1, -1):
            y = a3 * x1 + a4 * x2 + b1 * y1 + b2 * y2
            x2, x1, y2, y1 = x1, image[i, j], y1, y
            smooth[i, j] += y
    for block in prange(4):
        first, last = block * H // 4, (block + 1) * H // 4
        width = last - first
        p, q = np.zeros(width, np.float32), np.zeros(width, np.float32)
        for i in range(W):
            for j in range(width):
                y = a1 * smooth[i, first + j] + b1 * p[j] + b2 * q[j]
                if i > 0:
                    y += a2 * smooth[i - 1, first + j]
                q[j] = p[j]
                p[j] = y
                out[i, first + j] = y
        p[:] = 0
        q[:] = 0
        for i in range(W - 1, -1, -1):
            for j in range(width):
                y = b1 * p[j] + b2 * q[j]
                if i + 1 < W:
                    y += a3 * smooth[i + 1, first + j]
                if i + 2 < W:
                    y += a4 * smooth[i + 2, first + j]
                q[j] = p[j]
                p[j] = y
                out[i, first + j] += y

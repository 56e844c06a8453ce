"""PolyBench: the stencils adi, fdtd-2d, heat-3d, jacobi-1d, jacobi-2d and seidel-2d."""

from __future__ import annotations

import numpy as np

from metasched.frontend.workload import Shape, Workload
from metasched.ir.func import PrimFunc
from metasched.script import tir as T


def _adi_constants(steps: int, size: int) -> tuple[float, float, float, float]:
    """The coefficients a (= c), b, d (= f) and e of adi."""
    mul1, mul2 = 2.0 / steps * size**2, 1.0 / steps * size**2
    return -mul1 / 2, 1 + mul1, -mul2 / 2, 1 + mul2


def adi(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """Alternating direction implicit integration of a heat equation."""
    STEPS, N = shape
    a, b, d, e = _adi_constants(STEPS, N)
    middle_d, middle_a = 1.0 + 2.0 * d, 1.0 + 2.0 * a

    @T.prim_func
    def adi(u: T.Buffer((N, N), dtype)):
        v = T.alloc_buffer((N, N), dtype)
        p = T.alloc_buffer((N, N), dtype)
        q = T.alloc_buffer((N, N), dtype)
        for t in range(STEPS):
            for i in range(1, N - 1):
                with T.block("column_start"):
                    v[0, i] = 1.0
                    p[i, 0] = 0.0
                    q[i, 0] = 1.0
                for j in range(1, N - 1):
                    with T.block("column_forward"):
                        p[i, j] = -a / (a * p[i, j - 1] + b)
                        q[i, j] = (
                            -d * u[j, i - 1]
                            + middle_d * u[j, i]
                            - d * u[j, i + 1]
                            - a * q[i, j - 1]
                        ) / (a * p[i, j - 1] + b)
                with T.block("column_end"):
                    v[N - 1, i] = 1.0
                for j in range(1, N - 1):
                    with T.block("column_backward"):
                        v[N - 1 - j, i] = p[i, N - 1 - j] * v[N - j, i] + q[i, N - 1 - j]
            for i in range(1, N - 1):
                with T.block("row_start"):
                    u[i, 0] = 1.0
                    p[i, 0] = 0.0
                    q[i, 0] = 1.0
                for j in range(1, N - 1):
                    with T.block("row_forward"):
                        p[i, j] = -d / (d * p[i, j - 1] + e)
                        q[i, j] = (
                            -a * v[i - 1, j]
                            + middle_a * v[i, j]
                            - a * v[i + 1, j]
                            - d * q[i, j - 1]
                        ) / (d * p[i, j - 1] + e)
                with T.block("row_end"):
                    u[i, N - 1] = 1.0
                for j in range(1, N - 1):
                    with T.block("row_backward"):
                        u[i, N - 1 - j] = p[i, N - 1 - j] * u[i, N - j] + q[i, N - 1 - j]

    return adi


def adi_reference(shape: Shape, u: np.ndarray) -> None:
    steps, n = shape
    a, b, d, e = _adi_constants(steps, n)
    v, p, q = np.zeros_like(u), np.zeros_like(u), np.zeros_like(u)
    inner = slice(1, n - 1)
    for _ in range(steps):
        v[0, inner], p[inner, 0], q[inner, 0] = 1, 0, 1
        for j in range(1, n - 1):
            below = a * p[inner, j - 1] + b
            p[inner, j] = -a / below
            u0, u1, u2 = u[j, : n - 2], u[j, inner], u[j, 2:]
            q[inner, j] = (-d * u0 + (1 + 2 * d) * u1 - d * u2 - a * q[inner, j - 1]) / below
        v[n - 1, inner] = 1
        for j in range(n - 2, 0, -1):
            v[j, inner] = p[inner, j] * v[j + 1, inner] + q[inner, j]
        u[inner, 0], p[inner, 0], q[inner, 0] = 1, 0, 1
        for j in range(1, n - 1):
            below = d * p[inner, j - 1] + e
            p[inner, j] = -d / below
            v0, v1, v2 = v[: n - 2, j], v[inner, j], v[2:, j]
            q[inner, j] = (-a * v0 + (1 + 2 * a) * v1 - a * v2 - d * q[inner, j - 1]) / below
        u[inner, n - 1] = 1
        for j in range(n - 2, 0, -1):
            u[inner, j] = p[inner, j] * u[inner, j + 1] + q[inner, j]


def fdtd_2d(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """Finite differences in the time domain for an electromagnetic field in two dimensions."""
    STEPS, NX, NY = shape

    @T.prim_func
    def fdtd_2d(
        ex: T.Buffer((NX, NY), dtype),
        ey: T.Buffer((NX, NY), dtype),
        hz: T.Buffer((NX, NY), dtype),
        source: T.Buffer((STEPS,), dtype),
    ):
        for t in range(STEPS):
            for j in range(NY):
                with T.block("edge"):
                    ey[0, j] = source[t]
            for i, j in T.grid(NX - 1, NY):
                with T.block("ey"):
                    ey[i + 1, j] -= 0.5 * (hz[i + 1, j] - hz[i, j])
            for i, j in T.grid(NX, NY - 1):
                with T.block("ex"):
                    ex[i, j + 1] -= 0.5 * (hz[i, j + 1] - hz[i, j])
            for i, j in T.grid(NX - 1, NY - 1):
                with T.block("hz"):
                    hz[i, j] -= 0.7 * (ex[i, j + 1] - ex[i, j] + ey[i + 1, j] - ey[i, j])

    return fdtd_2d


def fdtd_2d_reference(
    shape: Shape, ex: np.ndarray, ey: np.ndarray, hz: np.ndarray, source: np.ndarray
) -> None:
    for value in source:
        ey[0] = value
        ey[1:] -= 0.5 * (hz[1:] - hz[:-1])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])


def heat_3d(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """The heat equation in three dimensions, two half steps at a time."""
    STEPS, N = shape

    @T.prim_func
    def heat_3d(A: T.Buffer((N, N, N), dtype), B: T.Buffer((N, N, N), dtype)):
        for t in range(STEPS):
            for i, j, k in T.grid((1, N - 1), (1, N - 1), (1, N - 1)):
                with T.block("B"):
                    B[i, j, k] = (
                        0.125 * (A[i + 1, j, k] - 2.0 * A[i, j, k] + A[i - 1, j, k])
                        + 0.125 * (A[i, j + 1, k] - 2.0 * A[i, j, k] + A[i, j - 1, k])
                        + 0.125 * (A[i, j, k + 1] - 2.0 * A[i, j, k] + A[i, j, k - 1])
                        + A[i, j, k]
                    )
            for i, j, k in T.grid((1, N - 1), (1, N - 1), (1, N - 1)):
                with T.block("A"):
                    A[i, j, k] = (
                        0.125 * (B[i + 1, j, k] - 2.0 * B[i, j, k] + B[i - 1, j, k])
                        + 0.125 * (B[i, j + 1, k] - 2.0 * B[i, j, k] + B[i, j - 1, k])
                        + 0.125 * (B[i, j, k + 1] - 2.0 * B[i, j, k] + B[i, j, k - 1])
                        + B[i, j, k]
                    )

    return heat_3d


def heat_3d_reference(shape: Shape, A: np.ndarray, B: np.ndarray) -> None:
    m = slice(1, -1)
    for _ in range(shape[0]):
        for old, new in ((A, B), (B, A)):
            middle = old[m, m, m]
            new[m, m, m] = (
                0.125 * (old[2:, m, m] - 2 * middle + old[:-2, m, m])
                + 0.125 * (old[m, 2:, m] - 2 * middle + old[m, :-2, m])
                + 0.125 * (old[m, m, 2:] - 2 * middle + old[m, m, :-2])
                + middle
            )


def jacobi_1d(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """Means of three neighbours, from A to B and back at each step."""
    STEPS, N = shape

    @T.prim_func
    def jacobi_1d(A: T.Buffer((N,), dtype), B: T.Buffer((N,), dtype)):
        for t in range(STEPS):
            for i in range(1, N - 1):
                with T.block("B"):
                    B[i] = 0.33333 * (A[i - 1] + A[i] + A[i + 1])
            for i in range(1, N - 1):
                with T.block("A"):
                    A[i] = 0.33333 * (B[i - 1] + B[i] + B[i + 1])

    return jacobi_1d


def jacobi_1d_reference(shape: Shape, A: np.ndarray, B: np.ndarray) -> None:
    for _ in range(shape[0]):
        B[1:-1] = 0.33333 * (A[:-2] + A[1:-1] + A[2:])
        A[1:-1] = 0.33333 * (B[:-2] + B[1:-1] + B[2:])


def jacobi_2d(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """Means of five neighbours, from A to B and back at each step."""
    STEPS, N = shape

    @T.prim_func
    def jacobi_2d(A: T.Buffer((N, N), dtype), B: T.Buffer((N, N), dtype)):
        for t in range(STEPS):
            for i, j in T.grid((1, N - 1), (1, N - 1)):
                with T.block("B"):
                    B[i, j] = 0.2 * (
                        A[i, j] + A[i, j - 1] + A[i, j + 1] + A[i + 1, j] + A[i - 1, j]
                    )
            for i, j in T.grid((1, N - 1), (1, N - 1)):
                with T.block("A"):
                    A[i, j] = 0.2 * (
                        B[i, j] + B[i, j - 1] + B[i, j + 1] + B[i + 1, j] + B[i - 1, j]
                    )

    return jacobi_2d


def jacobi_2d_reference(shape: Shape, A: np.ndarray, B: np.ndarray) -> None:
    m = slice(1, -1)
    for _ in range(shape[0]):
        for old, new in ((A, B), (B, A)):
            sides = old[m, m] + old[m, :-2] + old[m, 2:] + old[2:, m] + old[:-2, m]
            new[m, m] = 0.2 * sides


def seidel_2d(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """Means of nine neighbours in place, row by row."""
    STEPS, N = shape

    @T.prim_func
    def seidel_2d(A: T.Buffer((N, N), dtype)):
        for t in range(STEPS):
            for i, j in T.grid((1, N - 1), (1, N - 1)):
                with T.block("A"):
                    A[i, j] = (
                        A[i - 1, j - 1] + A[i - 1, j] + A[i - 1, j + 1]
                        + A[i, j - 1] + A[i, j] + A[i, j + 1]
                        + A[i + 1, j - 1] + A[i + 1, j] + A[i + 1, j + 1]
                    ) / 9.0  # fmt: skip

    return seidel_2d


def seidel_2d_reference(shape: Shape, A: np.ndarray) -> None:
    steps, n = shape
    for _ in range(steps):
        for i in range(1, n - 1):
            above = A[i - 1, :-2] + A[i - 1, 1:-1] + A[i - 1, 2:]
            below = A[i + 1, :-2] + A[i + 1, 1:-1] + A[i + 1, 2:]
            others = above + A[i, 1:-1] + A[i, 2:] + below
            for j in range(1, n - 1):
                A[i, j] = (others[j - 1] + A[i, j - 1]) / 9.0


WORKLOADS = (
    Workload(
        "poly.adi", "TSTEPS N", adi, adi_reference, ((100, 200),),
        lambda s: 30.0 * s[0] * (s[1] - 2) ** 2, "float64", in_place=True,
    ),
    Workload(
        "poly.fdtd-2d", "TMAX NX NY", fdtd_2d, fdtd_2d_reference, ((100, 200, 240),),
        lambda s: 11.0 * s[0] * s[1] * s[2], "float64", in_place=True,
    ),
    Workload(
        "poly.heat-3d", "TSTEPS N", heat_3d, heat_3d_reference, ((100, 40),),
        lambda s: 30.0 * s[0] * (s[1] - 2) ** 3, "float64", in_place=True,
    ),
    Workload(
        "poly.jacobi-1d", "TSTEPS N", jacobi_1d, jacobi_1d_reference, ((100, 400),),
        lambda s: 6.0 * s[0] * (s[1] - 2), "float64", in_place=True,
    ),
    Workload(
        "poly.jacobi-2d", "TSTEPS N", jacobi_2d, jacobi_2d_reference, ((100, 250),),
        lambda s: 10.0 * s[0] * (s[1] - 2) ** 2, "float64", in_place=True,
    ),
    Workload(
        "poly.seidel-2d", "TSTEPS N", seidel_2d, seidel_2d_reference, ((100, 400),),
        lambda s: 9.0 * s[0] * (s[1] - 2) ** 2, "float64", in_place=True,
    ),
)  # fmt: skip

"""PolyBench: deriche (an edge filter), floyd-warshall (shortest paths) and nussinov (folding)."""

from __future__ import annotations

import math

import numpy as np

from metasched.frontend.workload import Shape, Workload
from metasched.ir.func import PrimFunc
from metasched.script import tir as T


def deriche_constants() -> tuple[float, float, float, float, float, float]:
    """The coefficients a1, a2, a3, a4, b1 and b2 of the filter for alpha = 0.25."""
    alpha = 0.25
    e = math.exp(-alpha)
    k = (1 - e) ** 2 / (1 + 2 * alpha * e - math.exp(2 * alpha))
    return k, k * e * (alpha - 1), k * e * (alpha + 1), -k * e * e, 2.0**-alpha, -e * e


def deriche(shape: Shape, dtype: str = "float32") -> PrimFunc:
    """A recursive filter along the rows, both ways, then along the columns."""
    W, H = shape
    a1, a2, a3, a4, b1, b2 = deriche_constants()

    @T.prim_func
    def deriche(image: T.Buffer((W, H), dtype), out: T.Buffer((W, H), dtype)):
        y1 = T.alloc_buffer((W, H), dtype)
        y2 = T.alloc_buffer((W, H), dtype)
        smooth = T.alloc_buffer((W, H), dtype)
        z1 = T.alloc_buffer((W, H), dtype)
        z2 = T.alloc_buffer((W, H), dtype)
        for i, j in T.grid(W, H):
            with T.block("y1"):
                vi = T.axis.spatial(W, i)
                vj = T.axis.opaque(H, j)
                y1[vi, vj] = (
                    a1 * image[vi, vj]
                    + T.if_then_else(vj >= 1, a2 * image[vi, vj - 1] + b1 * y1[vi, vj - 1], 0.0)
                    + T.if_then_else(vj >= 2, b2 * y1[vi, vj - 2], 0.0)
                )
        for i, j in T.grid(W, H):
            with T.block("y2"):
                vi = T.axis.spatial(W, i)
                vj = T.axis.opaque(H, H - 1 - j)
                y2[vi, vj] = T.if_then_else(
                    vj < H - 1, a3 * image[vi, vj + 1] + b1 * y2[vi, vj + 1], 0.0
                ) + T.if_then_else(vj < H - 2, a4 * image[vi, vj + 2] + b2 * y2[vi, vj + 2], 0.0)
        for i, j in T.grid(W, H):
            with T.block("smooth"):
                vi, vj = T.axis.remap("SS", [i, j])
                smooth[vi, vj] = y1[vi, vj] + y2[vi, vj]
        for j, i in T.grid(H, W):
            with T.block("z1"):
                vj = T.axis.spatial(H, j)
                vi = T.axis.opaque(W, i)
                z1[vi, vj] = (
                    a1 * smooth[vi, vj]
                    + T.if_then_else(vi >= 1, a2 * smooth[vi - 1, vj] + b1 * z1[vi - 1, vj], 0.0)
                    + T.if_then_else(vi >= 2, b2 * z1[vi - 2, vj], 0.0)
                )
        for j, i in T.grid(H, W):
            with T.block("z2"):
                vj = T.axis.spatial(H, j)
                vi = T.axis.opaque(W, W - 1 - i)
                z2[vi, vj] = T.if_then_else(
                    vi < W - 1, a3 * smooth[vi + 1, vj] + b1 * z2[vi + 1, vj], 0.0
                ) + T.if_then_else(vi < W - 2, a4 * smooth[vi + 2, vj] + b2 * z2[vi + 2, vj], 0.0)
        for i, j in T.grid(W, H):
            with T.block("out"):
                vi, vj = T.axis.remap("SS", [i, j])
                out[vi, vj] = z1[vi, vj] + z2[vi, vj]

    return deriche


def deriche_reference(shape: Shape, image: np.ndarray, out: np.ndarray) -> None:
    out[:] = _filtered(_filtered(image).T).T


def _filtered(x: np.ndarray) -> np.ndarray:
    """The sum of the filter from left to right and the filter from right to left."""
    a1, a2, a3, a4, b1, b2 = deriche_constants()
    rows, size = x.shape
    right, left = np.zeros((rows, size + 2), x.dtype), np.zeros((rows, size + 2), x.dtype)
    for j in range(size):
        right[:, j + 2] = a1 * x[:, j] + b1 * right[:, j + 1] + b2 * right[:, j]
        right[:, j + 2] += a2 * x[:, j - 1] if j else 0
    for j in reversed(range(size)):
        left[:, j] = b1 * left[:, j + 1] + b2 * left[:, j + 2]
        left[:, j] += a3 * x[:, j + 1] if j + 1 < size else 0
        left[:, j] += a4 * x[:, j + 2] if j + 2 < size else 0
    return right[:, 2:] + left[:, :size]


def floyd_warshall(shape: Shape, dtype: str = "int32") -> PrimFunc:
    """The lengths of the shortest paths between all pairs of nodes, in place."""
    (N,) = shape

    @T.prim_func
    def floyd_warshall(path: T.Buffer((N, N), dtype)):
        for k, i, j in T.grid(N, N, N):
            with T.block("path"):
                path[i, j] = T.min(path[i, j], path[i, k] + path[k, j])

    return floyd_warshall


def floyd_warshall_reference(shape: Shape, path: np.ndarray) -> None:
    for k in range(shape[0]):
        np.minimum(path, path[:, k, None] + path[k], out=path)


def nussinov(shape: Shape, dtype: str = "int32") -> PrimFunc:
    """The most base pairs of each piece of a sequence: dynamic programming over a triangle."""
    (N,) = shape

    @T.prim_func
    def nussinov(seq: T.Buffer((N,), "int8"), table: T.Buffer((N, N), dtype)):
        for r in range(N):
            for j in range(N - r, N):
                with T.block("ends"):
                    vi = T.axis.opaque(N, N - 1 - r)
                    vj = T.axis.opaque(N, j)
                    table[vi, vj] = T.max(
                        table[vi, vj], T.max(table[vi, vj - 1], table[vi + 1, vj])
                    )
                with T.block("pair"):
                    vi = T.axis.opaque(N, N - 1 - r)
                    vj = T.axis.opaque(N, j)
                    table[vi, vj] = T.max(
                        table[vi, vj],
                        table[vi + 1, vj - 1]
                        + T.if_then_else(
                            T.And(
                                vi < vj - 1, T.cast(seq[vi], dtype) + T.cast(seq[vj], dtype) == 3
                            ),
                            1,
                            0,
                        ),
                    )
                for k in range(N - r, j):
                    with T.block("split"):
                        vi = T.axis.opaque(N, N - 1 - r)
                        vj = T.axis.opaque(N, j)
                        vk = T.axis.reduce(N, k)
                        table[vi, vj] = T.max(table[vi, vj], table[vi, vk] + table[vk + 1, vj])

    return nussinov


def nussinov_reference(shape: Shape, seq: np.ndarray, table: np.ndarray) -> None:
    (n,) = shape
    for i in reversed(range(n)):
        for j in range(i + 1, n):
            pairs = int(i < j - 1 and int(seq[i]) + int(seq[j]) == 3)
            best = max(table[i, j], table[i, j - 1], table[i + 1, j], table[i + 1, j - 1] + pairs)
            if j > i + 1:
                best = max(best, (table[i, i + 1 : j] + table[i + 2 : j + 1, j]).max())
            table[i, j] = best


def _graph(rng: np.random.Generator, shape: Shape) -> list[np.ndarray]:
    """Positive lengths, many of them far longer than a path through other nodes."""
    (n,) = shape
    return [np.where(rng.random((n, n)) < 0.3, rng.integers(1, 99, (n, n)), 999).astype("int32")]


def _sequence(rng: np.random.Generator, shape: Shape) -> list[np.ndarray]:
    (n,) = shape
    return [rng.integers(0, 4, n).astype("int8"), np.zeros((n, n), "int32")]


WORKLOADS = (
    Workload(
        "poly.deriche", "W H", deriche, deriche_reference, ((720, 480),),
        lambda s: 32.0 * s[0] * s[1], "float32", in_place=True,
    ),
    Workload(
        "poly.floyd-warshall", "N", floyd_warshall, floyd_warshall_reference, ((500,),),
        lambda s: 2.0 * s[0] ** 3, "int32", in_place=True, draw=_graph,
    ),
    Workload(
        "poly.nussinov", "N", nussinov, nussinov_reference, ((500,),),
        lambda s: s[0] ** 3 / 3, "int8", in_place=True, draw=_sequence,
    ),
)  # fmt: skip

"""Stencils in stages: a blur of two passes, three Jacobi sweeps, and Harris corners.

Each stage computes fewer rows and columns than the stage before, so that no border is padded.
"""

from __future__ import annotations

from functools import partial, reduce
from operator import add

import numpy as np

from metasched.frontend import te
from metasched.frontend.workload import Shape, Workload
from metasched.ir.expr import Expr
from metasched.ir.func import PrimFunc


def blur(shape: Shape, dtype: str = "float32") -> PrimFunc:
    """Means of three neighbours along rows, then along columns (Halide's first example)."""
    h, w = shape
    X = te.placeholder((h + 2, w + 2), dtype, "X")

    def mean(a: te.Tensor, i: Expr, j: Expr, di: int, dj: int) -> Expr:
        total = a[i, j] + a[i + di, j + dj] + a[i + 2 * di, j + 2 * dj]
        return total // te.cast(3, dtype) if dtype == "uint16" else total * te.cast(1 / 3, dtype)

    A = te.compute((h + 2, w), lambda i, j: mean(X, i, j, 0, 1), "A", block="rows")
    Y = te.compute((h, w), lambda i, j: mean(A, i, j, 1, 0), "Y", block="columns")
    return te.create_prim_func([X, Y], "blur")


def blur_reference(shape: Shape, x: np.ndarray) -> np.ndarray:
    def mean(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        total = a + b + c
        return total // x.dtype.type(3) if x.dtype.kind == "u" else total * x.dtype.type(1 / 3)

    rows = mean(x[:, :-2], x[:, 1:-1], x[:, 2:])
    return mean(rows[:-2], rows[1:-1], rows[2:])


def blur_flops(shape: Shape) -> float:
    """Two additions and a multiplication for each element of both stages."""
    h, w = shape
    return 3.0 * (h + 2) * w + 3.0 * h * w


def jac3(shape: Shape) -> PrimFunc:
    """Three sweeps: each element becomes the mean of itself and its four neighbours."""
    h, w = shape
    first = last = te.placeholder((h + 6, w + 6), name="X")
    for n, name in enumerate("ABY", 1):
        around = partial(_around, last)
        size = (h + 6 - 2 * n, w + 6 - 2 * n)
        last = te.compute(size, around, name, block=f"sweep{n}")
    return te.create_prim_func([first, last], "jac3")


def _around(a: te.Tensor, i: Expr, j: Expr) -> Expr:
    total = a[i, j + 1] + a[i + 1, j] + a[i + 1, j + 1] + a[i + 1, j + 2] + a[i + 2, j + 1]
    return total * te.cast(0.2, "float32")


def jac3_reference(shape: Shape, x: np.ndarray) -> np.ndarray:
    for _ in range(3):
        total = x[:-2, 1:-1] + x[1:-1, :-2] + x[1:-1, 1:-1] + x[1:-1, 2:] + x[2:, 1:-1]
        x = total * np.float32(0.2)
    return x


def jac3_flops(shape: Shape) -> float:
    h, w = shape
    return sum(5.0 * (h + n) * (w + n) for n in (0, 2, 4))


def harris(shape: Shape) -> PrimFunc:
    """Corner strengths (Harris and Stephens 1988): gradients, sums of their products over windows
    of 3 x 3, and a score of the sums."""
    h, w = shape
    X = te.placeholder((h + 4, w + 4), name="X")

    def gradient(name: str, di: int, dj: int) -> te.Tensor:
        """Sobel's difference along one axis, smoothed along the other."""

        def at(i: Expr, j: Expr) -> Expr:
            ends = [
                X[i + 2 * dj + n * di, j + 2 * di + n * dj] * te.cast(weight, "float32")
                - X[i + n * di, j + n * dj] * te.cast(weight, "float32")
                for n, weight in enumerate((1 / 12, 2 / 12, 1 / 12))
            ]
            return ends[0] + ends[1] + ends[2]

        return te.compute((h + 2, w + 2), at, name, block=name)

    dx, dy = gradient("dx", 1, 0), gradient("dy", 0, 1)

    def window(name: str, a: te.Tensor, b: te.Tensor) -> te.Tensor:
        def at(i: Expr, j: Expr) -> Expr:
            places = [(i + n // 3, j + n % 3) for n in range(9)]
            return reduce(add, [a[place] * b[place] for place in places])

        return te.compute((h, w), at, name, block=name)

    xx, xy, yy = window("xx", dx, dx), window("xy", dx, dy), window("yy", dy, dy)

    def score(i: Expr, j: Expr) -> Expr:
        trace = xx[i, j] + yy[i, j]
        determinant = xx[i, j] * yy[i, j] - xy[i, j] * xy[i, j]
        return determinant - trace * trace * te.cast(0.04, "float32")

    Y = te.compute((h, w), score, "Y", block="score")
    return te.create_prim_func([X, Y], "harris")


def harris_reference(shape: Shape, x: np.ndarray) -> np.ndarray:
    across, down = x[:, 2:] - x[:, :-2], x[2:] - x[:-2]
    dx = (across[:-2] + 2 * across[1:-1] + across[2:]) / np.float32(12)
    dy = (down[:, :-2] + 2 * down[:, 1:-1] + down[:, 2:]) / np.float32(12)

    def window(a: np.ndarray) -> np.ndarray:
        rows = a[:-2] + a[1:-1] + a[2:]
        return rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]

    xx, xy, yy = window(dx * dx), window(dx * dy), window(dy * dy)
    trace = xx + yy
    return xx * yy - xy * xy - np.float32(0.04) * trace * trace


def harris_flops(shape: Shape) -> float:
    """Eleven operations for each of two gradients, 17 for each of three sums, 7 for the score."""
    h, w = shape
    return 22.0 * (h + 2) * (w + 2) + 58.0 * h * w


def _pixels(generator: np.random.Generator, shape: Shape) -> list[np.ndarray]:
    """Pixel values, of which three add up without overflow in 16 bits."""
    h, w = shape
    return [generator.integers(0, 1 << 14, (h + 2, w + 2)).astype("uint16")]


_IMAGES = ((1024, 1024), (256, 256), (512, 512), (2048, 2048))
WORKLOADS = (
    Workload("blur", "H W", blur, blur_reference, _IMAGES, blur_flops),
    Workload(
        "blur_u16", "H W", partial(blur, dtype="uint16"), blur_reference, _IMAGES, blur_flops,
        "uint16", draw=_pixels,
    ),
    Workload("jac3", "H W", jac3, jac3_reference, _IMAGES, jac3_flops),
    Workload("harris", "H W", harris, harris_reference, _IMAGES, harris_flops),
)  # fmt: skip

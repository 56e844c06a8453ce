"""The stencils in stages as loops for Numba, with their results as last argument; rows run in
parallel."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from metasched.report.peer_op import Shape

_THIRD, _FIFTH, _TWELFTH, _WEIGHT = (np.float32(x) for x in (1 / 3, 1 / 5, 1 / 12, 0.04))


def blur(shape: Shape, x: Any, out: Any) -> None:
    """In one pass: two passes take 1.2 times as long."""
    h, w = shape
    for i in prange(h):
        for j in range(w):
            total = (x[i, j] + x[i, j + 1] + x[i, j + 2]) * _THIRD
            total += (x[i + 1, j] + x[i + 1, j + 1] + x[i + 1, j + 2]) * _THIRD
            total += (x[i + 2, j] + x[i + 2, j + 1] + x[i + 2, j + 2]) * _THIRD
            out[i, j] = total * _THIRD


def blur_u16(shape: Shape, x: Any, out: Any) -> None:
    h, w = shape
    for i in prange(h):
        rows = np.empty((3, w), np.uint16)
        for r in range(3):
            for j in range(w):
                rows[r, j] = np.uint16(x[i + r, j] + x[i + r, j + 1] + x[i + r, j + 2]) // 3
        for j in range(w):
            out[i, j] = np.uint16(rows[0, j] + rows[1, j] + rows[2, j]) // 3


def jac3(shape: Shape, x: Any, out: Any) -> None:
    h, w = shape
    a, b = np.empty((h + 4, w + 4), np.float32), np.empty((h + 2, w + 2), np.float32)
    for i in prange(h + 4):
        for j in range(w + 4):
            sides = x[i, j + 1] + x[i + 1, j] + x[i + 1, j + 2] + x[i + 2, j + 1]
            a[i, j] = (sides + x[i + 1, j + 1]) * _FIFTH
    for i in prange(h + 2):
        for j in range(w + 2):
            sides = a[i, j + 1] + a[i + 1, j] + a[i + 1, j + 2] + a[i + 2, j + 1]
            b[i, j] = (sides + a[i + 1, j + 1]) * _FIFTH
    for i in prange(h):
        for j in range(w):
            sides = b[i, j + 1] + b[i + 1, j] + b[i + 1, j + 2] + b[i + 2, j + 1]
            out[i, j] = (sides + b[i + 1, j + 1]) * _FIFTH


def harris(shape: Shape, x: Any, out: Any) -> None:
    """Each row adds up the gradients of three rows, so that no gradient passes through memory."""
    h, w = shape
    for i in prange(h):
        sums = np.zeros((3, w + 2), np.float32)
        for r in range(i, i + 3):
            for j in range(w + 2):
                down = x[r + 2, j] - x[r, j] + x[r + 2, j + 2] - x[r, j + 2]
                dx = (down + 2 * (x[r + 2, j + 1] - x[r, j + 1])) * _TWELFTH
                across = x[r, j + 2] - x[r, j] + x[r + 2, j + 2] - x[r + 2, j]
                dy = (across + 2 * (x[r + 1, j + 2] - x[r + 1, j])) * _TWELFTH
                sums[0, j] += dx * dx
                sums[1, j] += dx * dy
                sums[2, j] += dy * dy
        for j in range(w):
            xx = sums[0, j] + sums[0, j + 1] + sums[0, j + 2]
            xy = sums[1, j] + sums[1, j + 1] + sums[1, j + 2]
            yy = sums[2, j] + sums[2, j + 1] + sums[2, j + 2]
            out[i, j] = xx * yy - xy * xy - _WEIGHT * (xx + yy) * (xx + yy)

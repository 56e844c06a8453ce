"""Transposed convolution T2D, NHWC, weight [kh,kw,CI,CO].

Output position h receives X[i] * W[kh] for i * stride + kh - pad = h. If the stride divides the
kernel, each output position has kernel / stride of these taps along a dimension, and the program
sums exactly these taps. Otherwise zeros are inserted between the inputs, and a plain convolution
with the flipped kernel follows.
"""

from __future__ import annotations

import numpy as np

from metasched.frontend import te
from metasched.frontend.workload import Shape, Workload
from metasched.ir.expr import Expr
from metasched.ir.func import PrimFunc
from metasched.lower.passes.zeros import FINITE
from metasched.workloads.padding import all_of, filled_around, within


def t2d(shape: Shape) -> PrimFunc:
    """The transposed convolution of `shape`; the form depends on stride and kernel (above)."""
    _, h, w, _, _, k, s, p = shape
    if min(_out(h, k, s, p), _out(w, k, s, p)) < 1 or p >= k:
        raise ValueError(f"t2d: padding {p} is too large for kernel {k}")
    return _by_phase(shape) if k % s == 0 else _with_zeros(shape)


def _out(size: int, kernel: int, stride: int, pad: int) -> int:
    return (size - 1) * stride - 2 * pad + kernel


def _by_phase(shape: Shape) -> PrimFunc:
    n, h, w, ci, co, k, s, p = shape
    ho, wo, t = _out(h, k, s, p), _out(w, k, s, p), k // s
    # Output h uses inputs (h + pad) // stride - t for t below kernel / stride. With `lead` zeros in
    # front, the smallest index is 0.
    lead = t - 1 - p // s
    hp, wp = (ho - 1 + p) // s + lead + 1, (wo - 1 + p) // s + lead + 1
    X, W = te.placeholder((n, h, w, ci), name="X"), te.placeholder((k, k, ci, co), name="W")
    P = filled_around(X, {1: hp, 2: wp}, lead)
    i, j, c = te.reduce_axis((0, t), "i"), te.reduce_axis((0, t), "j"), te.reduce_axis((0, ci), "c")

    def element(n: Expr, h: Expr, w: Expr, o: Expr) -> te.Reduction:
        window = P[n, (h + p) // s - i + lead, (w + p) // s - j + lead, c]
        return te.sum(window * W[(h + p) % s + i * s, (w + p) % s + j * s, c, o], axis=[i, j, c])

    Y = te.compute((n, ho, wo, co), element, "Y", block="conv")
    return te.create_prim_func([X, W, Y], "t2d", {FINITE: True})


def _with_zeros(shape: Shape) -> PrimFunc:
    n, h, w, ci, co, k, s, p = shape
    ho, wo, lead = _out(h, k, s, p), _out(w, k, s, p), k - 1 - p
    ends = [(size - 1) * s + 1 + lead for size in (h, w)]
    X, W = te.placeholder((n, h, w, ci), name="X"), te.placeholder((k, k, ci, co), name="W")
    i, j, c = te.reduce_axis((0, k), "i"), te.reduce_axis((0, k), "j"), te.reduce_axis((0, ci), "c")

    def apart(n: Expr, h: Expr, w: Expr, c: Expr) -> Expr:
        inside = all_of([within(v, lead, end) for v, end in zip((h, w), ends, strict=True)])
        hit = all_of([te.EQ((v - lead) % s, 0) for v in (h, w)])
        element = X[n, (h - lead) // s, (w - lead) // s, c]
        return te.if_then_else(te.all(inside, hit), element, te.float32(0))

    P = te.compute((n, ho + k - 1, wo + k - 1, ci), apart, "P", block="pad")

    def element(n: Expr, h: Expr, w: Expr, o: Expr) -> te.Reduction:
        return te.sum(P[n, h + i, w + j, c] * W[k - 1 - i, k - 1 - j, c, o], axis=[i, j, c])

    Y = te.compute((n, ho, wo, co), element, "Y", block="conv")
    return te.create_prim_func([X, W, Y], "t2d", {FINITE: True})


def t2d_reference(shape: Shape, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The reference of T2D: scatter each input over the output, then cut the padding off."""
    n, h, wd, _, co, k, s, p = shape
    full = np.zeros((n, (h - 1) * s + k, (wd - 1) * s + k, co), x.dtype)
    for i in range(k):
        for j in range(k):
            full[:, i : i + (h - 1) * s + 1 : s, j : j + (wd - 1) * s + 1 : s] += x @ w[i, j]
    return full[:, p : full.shape[1] - p, p : full.shape[2] - p]


def t2d_flops(shape: Shape) -> float:
    n, h, w, ci, co, k, s, p = shape

    def inside(size: int) -> int:
        at = np.arange(size)[:, None] * s + np.arange(k) - p
        return int(np.count_nonzero((at >= 0) & (at < _out(size, k, s, p))))

    return 2.0 * n * ci * co * inside(h) * inside(w)


WORKLOADS = (
    Workload(
        "t2d", "N H W CI CO kernel stride pad", t2d, t2d_reference,
        ((1, 8, 8, 256, 128, 4, 2, 1), (1, 4, 4, 512, 256, 4, 2, 1),
         (1, 16, 16, 128, 64, 4, 2, 1), (1, 32, 32, 64, 3, 4, 2, 1)),
        t2d_flops, weights=(1,),
    ),
)  # fmt: skip

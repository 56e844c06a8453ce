"""Capsule convolution CAP: a convolution whose elements are 4x4 matrices, [N,H,W,CI,4,4]."""

from __future__ import annotations

import numpy as np

from metasched.frontend import te
from metasched.frontend.workload import Shape, Workload
from metasched.ir.expr import Expr
from metasched.ir.func import PrimFunc
from metasched.workloads.padding import convolution, out_size, pad_array, padded, taps

CAPSULE = 4


def cap(shape: Shape) -> PrimFunc:
    """Y[n,h,w,co,i,j] = sum of P[n, h*stride + kh, ..., ci,i,m] * W[kh,kw,ci,co,m,j]."""
    n, h, w, ci, co, k, s, p = shape
    e = CAPSULE
    X = te.placeholder((n, h, w, ci, e, e), name="X")
    W = te.placeholder((k, k, ci, co, e, e), name="W")
    P = padded(X, (1, 2), p)
    i, j = te.reduce_axis((0, k), "i"), te.reduce_axis((0, k), "j")
    c, m = te.reduce_axis((0, ci), "c"), te.reduce_axis((0, e), "m")

    def element(n: Expr, h: Expr, w: Expr, o: Expr, x: Expr, y: Expr) -> te.Reduction:
        window = P[n, h * s + i, w * s + j, c, x, m]
        return te.sum(window * W[i, j, c, o, m, y], axis=[i, j, c, m])

    out = (n, out_size(h, k, s, p), out_size(w, k, s, p), co, e, e)
    return convolution("cap", X, W, te.compute(out, element, "Y", block="conv"), p)


def cap_reference(shape: Shape, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    n, h, wd, _, co, k, s, p = shape
    x = pad_array(x, (1, 2), p)
    ho, wo = out_size(h, k, s, p), out_size(wd, k, s, p)
    y = np.zeros((n, ho, wo, co, CAPSULE, CAPSULE), x.dtype)
    for i in range(k):
        for j in range(k):
            window = x[:, i : i + (ho - 1) * s + 1 : s, j : j + (wo - 1) * s + 1 : s]
            y += np.einsum("nhwcxm,comy->nhwoxy", window, w[i, j], optimize=True)
    return y


def cap_flops(shape: Shape) -> float:
    n, h, w, ci, co, k, s, p = shape
    return 2.0 * n * ci * co * CAPSULE**3 * taps((h, w), k, s, p)


WORKLOADS = (
    Workload(
        "cap", "N H W CI CO kernel stride pad", cap, cap_reference,
        ((1, 8, 8, 32, 32, 3, 1, 1), (1, 16, 16, 32, 32, 3, 2, 1),
         (1, 16, 16, 8, 16, 3, 2, 1), (1, 8, 8, 16, 16, 3, 1, 1)),
        cap_flops, weights=(1,),
    ),
)  # fmt: skip

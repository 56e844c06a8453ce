"""CBR: convolution, bias, batch normalisation (scale and shift) and ReLU, NHWC."""

from __future__ import annotations

import numpy as np

from metasched.frontend import te
from metasched.frontend.workload import Shape, Workload
from metasched.ir.expr import Expr
from metasched.ir.func import PrimFunc
from metasched.lower.passes.zeros import FINITE
from metasched.workloads.conv import C2D_PARAMETERS, c2d_flops, conv_reference
from metasched.workloads.padding import out_size, padded


def cbr(shape: Shape) -> PrimFunc:
    """Y = max((conv(X, W) + B) * S + O, 0), one block for each step; B, S, O are per channel."""
    n, h, w, ci, co, k, s, p = shape
    X, W = te.placeholder((n, h, w, ci), name="X"), te.placeholder((k, k, ci, co), name="W")
    B, S, O = (te.placeholder((co,), name=name) for name in "BSO")
    P = padded(X, (1, 2), p)
    i, j, c = te.reduce_axis((0, k), "i"), te.reduce_axis((0, k), "j"), te.reduce_axis((0, ci), "c")

    def conv(n: Expr, h: Expr, w: Expr, o: Expr) -> te.Reduction:
        return te.sum(P[n, h * s + i, w * s + j, c] * W[i, j, c, o], axis=[i, j, c])

    out = (n, out_size(h, k, s, p), out_size(w, k, s, p), co)
    C = te.compute(out, conv, "C", block="conv")
    CB = te.compute(out, lambda n, h, w, o: C[n, h, w, o] + B[o], "CB", block="bias")
    CS = te.compute(out, lambda n, h, w, o: CB[n, h, w, o] * S[o], "CS", block="scale")
    CO = te.compute(out, lambda n, h, w, o: CS[n, h, w, o] + O[o], "CO", block="shift")
    Y = te.compute(out, lambda n, h, w, o: te.max(CO[n, h, w, o], 0), "Y", block="relu")
    return te.create_prim_func([X, W, B, S, O, Y], "cbr", {FINITE: True} if p else None)


def cbr_reference(
    shape: Shape, x: np.ndarray, w: np.ndarray, b: np.ndarray, s: np.ndarray, o: np.ndarray
) -> np.ndarray:
    return np.maximum((conv_reference(shape, x, w) + b) * s + o, np.float32(0))


WORKLOADS = (
    Workload(
        "cbr", C2D_PARAMETERS, cbr, cbr_reference,
        ((1, 28, 28, 128, 256, 1, 2, 0), (1, 224, 224, 3, 64, 7, 2, 3),
         (1, 56, 56, 64, 128, 3, 2, 1), (1, 7, 7, 512, 512, 3, 1, 1)),
        c2d_flops, weights=(1,),
    ),
)  # fmt: skip

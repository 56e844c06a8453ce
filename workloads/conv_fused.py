"""CBR: convolution, bias, batch normalisation (scale and shift) and ReLU, NHWC."""

from __future__ import annotations

import numpy as np

from metasched.ir.func import PrimFunc
from metasched.script import tir as T
from metasched.workloads.conv import C2D_PARAMETERS, c2d_flops, conv_reference
from metasched.workloads.padding import finished, out_size
from metasched.workloads.workload import Shape, Workload


def cbr(shape: Shape) -> PrimFunc:
    """Y = max((conv(X, W) + B) * S + O, 0), one block for each step; B, S, O are per channel."""
    n, h, w, ci, co, k, s, p = shape
    hp, wp = h + 2 * p, w + 2 * p
    ho, wo = out_size(h, k, s, p), out_size(w, k, s, p)

    @T.prim_func
    def cbr(
        X: T.Buffer((n, h, w, ci), "float32"),
        W: T.Buffer((k, k, ci, co), "float32"),
        B: T.Buffer((co,), "float32"),
        S: T.Buffer((co,), "float32"),
        O: T.Buffer((co,), "float32"),
        Y: T.Buffer((n, ho, wo, co), "float32"),
    ):
        T.func_attr({"global_symbol": "cbr", "tir.noalias": True})
        P = T.alloc_buffer((n, hp, wp, ci), "float32")
        C = T.alloc_buffer((n, ho, wo, co), "float32")
        CB = T.alloc_buffer((n, ho, wo, co), "float32")
        CS = T.alloc_buffer((n, ho, wo, co), "float32")
        CO = T.alloc_buffer((n, ho, wo, co), "float32")
        for i0, i1, i2, i3 in T.grid(n, hp, wp, ci):
            with T.block("pad"):
                vn, vh, vw, vc = T.axis.remap("SSSS", [i0, i1, i2, i3])
                P[vn, vh, vw, vc] = T.if_then_else(
                    T.And(T.And(p <= vh, vh < h + p), T.And(p <= vw, vw < w + p)),
                    X[vn, vh - p, vw - p, vc],
                    T.float32(0),
                )
        for i0, i1, i2, i3, i4, i5, i6 in T.grid(n, ho, wo, co, k, k, ci):
            with T.block("conv"):
                vn, vh, vw, vo, vi, vj, vc = T.axis.remap("SSSSRRR", [i0, i1, i2, i3, i4, i5, i6])
                with T.init():
                    C[vn, vh, vw, vo] = T.float32(0)
                C[vn, vh, vw, vo] = (
                    C[vn, vh, vw, vo] + P[vn, vh * s + vi, vw * s + vj, vc] * W[vi, vj, vc, vo]
                )
        for i0, i1, i2, i3 in T.grid(n, ho, wo, co):
            with T.block("bias"):
                vn, vh, vw, vo = T.axis.remap("SSSS", [i0, i1, i2, i3])
                CB[vn, vh, vw, vo] = C[vn, vh, vw, vo] + B[vo]
        for i0, i1, i2, i3 in T.grid(n, ho, wo, co):
            with T.block("scale"):
                vn, vh, vw, vo = T.axis.remap("SSSS", [i0, i1, i2, i3])
                CS[vn, vh, vw, vo] = CB[vn, vh, vw, vo] * S[vo]
        for i0, i1, i2, i3 in T.grid(n, ho, wo, co):
            with T.block("shift"):
                vn, vh, vw, vo = T.axis.remap("SSSS", [i0, i1, i2, i3])
                CO[vn, vh, vw, vo] = CS[vn, vh, vw, vo] + O[vo]
        for i0, i1, i2, i3 in T.grid(n, ho, wo, co):
            with T.block("relu"):
                vn, vh, vw, vo = T.axis.remap("SSSS", [i0, i1, i2, i3])
                Y[vn, vh, vw, vo] = T.max(CO[vn, vh, vw, vo], T.float32(0))

    return finished(cbr, p)


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

"""Capsule convolution CAP: a convolution whose elements are 4x4 matrices, [N,H,W,CI,4,4]."""

from __future__ import annotations

import numpy as np

from metasched.ir.func import PrimFunc
from metasched.script import tir as T
from metasched.workloads.padding import finished, out_size, pad_array, taps
from metasched.workloads.workload import Shape, Workload

CAPSULE = 4


def cap(shape: Shape) -> PrimFunc:
    """Y[n,h,w,co,i,j] = sum of P[n, h*stride + kh, ..., ci,i,m] * W[kh,kw,ci,co,m,j]."""
    n, h, w, ci, co, k, s, p = shape
    c = CAPSULE
    hp, wp = h + 2 * p, w + 2 * p
    ho, wo = out_size(h, k, s, p), out_size(w, k, s, p)

    @T.prim_func
    def cap(
        X: T.Buffer((n, h, w, ci, c, c), "float32"),
        W: T.Buffer((k, k, ci, co, c, c), "float32"),
        Y: T.Buffer((n, ho, wo, co, c, c), "float32"),
    ):
        T.func_attr({"global_symbol": "cap", "tir.noalias": True})
        P = T.alloc_buffer((n, hp, wp, ci, c, c), "float32")
        for i0, i1, i2, i3, i4, i5 in T.grid(n, hp, wp, ci, c, c):
            with T.block("pad"):
                vn, vh, vw, vc, vx, vy = T.axis.remap("SSSSSS", [i0, i1, i2, i3, i4, i5])
                P[vn, vh, vw, vc, vx, vy] = T.if_then_else(
                    T.And(T.And(p <= vh, vh < h + p), T.And(p <= vw, vw < w + p)),
                    X[vn, vh - p, vw - p, vc, vx, vy],
                    T.float32(0),
                )
        for i0, i1, i2, i3, i4, i5, i6, i7, i8, i9 in T.grid(n, ho, wo, co, c, c, k, k, ci, c):
            with T.block("conv"):
                vn, vh, vw, vo, vx, vy, vi, vj, vc, vm = T.axis.remap(
                    "SSSSSSRRRR", [i0, i1, i2, i3, i4, i5, i6, i7, i8, i9]
                )
                with T.init():
                    Y[vn, vh, vw, vo, vx, vy] = T.float32(0)
                Y[vn, vh, vw, vo, vx, vy] = (
                    Y[vn, vh, vw, vo, vx, vy]
                    + P[vn, vh * s + vi, vw * s + vj, vc, vx, vm] * W[vi, vj, vc, vo, vm, vy]
                )

    return finished(cap, p)


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

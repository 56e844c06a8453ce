"""Transposed convolution T2D, NHWC, weight [kh,kw,CI,CO].

Output position h receives X[i] * W[kh] where i * stride + kh - pad = h. When the stride divides
the kernel, each output position has kernel/stride such taps along a dimension, and the program
sums exactly these; otherwise zeros are inserted between the inputs and a plain convolution with
the flipped kernel follows.
"""

from __future__ import annotations

import numpy as np

from metasched.ir.func import PrimFunc
from metasched.lower.passes.zeros import FINITE
from metasched.script import tir as T
from metasched.workloads.workload import Shape, Workload


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
    # Output h uses inputs (h + pad) // stride - t for t below kernel / stride; `lead` zeros make
    # the smallest of them 0.
    lead = t - 1 - p // s
    hp, wp = (ho - 1 + p) // s + lead + 1, (wo - 1 + p) // s + lead + 1

    @T.prim_func
    def t2d(
        X: T.Buffer((n, h, w, ci), "float32"),
        W: T.Buffer((k, k, ci, co), "float32"),
        Y: T.Buffer((n, ho, wo, co), "float32"),
    ):
        T.func_attr({"global_symbol": "t2d", "tir.noalias": True})
        P = T.alloc_buffer((n, hp, wp, ci), "float32")
        for i0, i1, i2, i3 in T.grid(n, hp, wp, ci):
            with T.block("pad"):
                vn, vh, vw, vc = T.axis.remap("SSSS", [i0, i1, i2, i3])
                P[vn, vh, vw, vc] = T.if_then_else(
                    T.And(T.And(lead <= vh, vh < h + lead), T.And(lead <= vw, vw < w + lead)),
                    X[vn, vh - lead, vw - lead, vc],
                    T.float32(0),
                )
        for i0, i1, i2, i3, i4, i5, i6 in T.grid(n, ho, wo, co, t, t, ci):
            with T.block("conv"):
                vn, vh, vw, vo, vi, vj, vc = T.axis.remap("SSSSRRR", [i0, i1, i2, i3, i4, i5, i6])
                with T.init():
                    Y[vn, vh, vw, vo] = T.float32(0)
                Y[vn, vh, vw, vo] = (
                    Y[vn, vh, vw, vo]
                    + P[vn, (vh + p) // s - vi + lead, (vw + p) // s - vj + lead, vc]
                    * W[(vh + p) % s + vi * s, (vw + p) % s + vj * s, vc, vo]
                )

    return t2d.with_attr(FINITE, True)


def _with_zeros(shape: Shape) -> PrimFunc:
    n, h, w, ci, co, k, s, p = shape
    ho, wo, lead = _out(h, k, s, p), _out(w, k, s, p), k - 1 - p
    hp, wp = ho + k - 1, wo + k - 1
    hs, ws = (h - 1) * s + 1, (w - 1) * s + 1

    @T.prim_func
    def t2d(
        X: T.Buffer((n, h, w, ci), "float32"),
        W: T.Buffer((k, k, ci, co), "float32"),
        Y: T.Buffer((n, ho, wo, co), "float32"),
    ):
        T.func_attr({"global_symbol": "t2d", "tir.noalias": True})
        P = T.alloc_buffer((n, hp, wp, ci), "float32")
        for i0, i1, i2, i3 in T.grid(n, hp, wp, ci):
            with T.block("pad"):
                vn, vh, vw, vc = T.axis.remap("SSSS", [i0, i1, i2, i3])
                P[vn, vh, vw, vc] = T.if_then_else(
                    T.And(
                        T.And(T.And(lead <= vh, vh < hs + lead), T.And(lead <= vw, vw < ws + lead)),
                        T.And(T.EQ((vh - lead) % s, 0), T.EQ((vw - lead) % s, 0)),
                    ),
                    X[vn, (vh - lead) // s, (vw - lead) // s, vc],
                    T.float32(0),
                )
        for i0, i1, i2, i3, i4, i5, i6 in T.grid(n, ho, wo, co, k, k, ci):
            with T.block("conv"):
                vn, vh, vw, vo, vi, vj, vc = T.axis.remap("SSSSRRR", [i0, i1, i2, i3, i4, i5, i6])
                with T.init():
                    Y[vn, vh, vw, vo] = T.float32(0)
                Y[vn, vh, vw, vo] = (
                    Y[vn, vh, vw, vo]
                    + P[vn, vh + vi, vw + vj, vc] * W[k - 1 - vi, k - 1 - vj, vc, vo]
                )

    return t2d.with_attr(FINITE, True)


def t2d_reference(shape: Shape, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Each input scattered over the output, then the padding cut off."""
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

"""Convolutions, channels last: C1D, C2D, DIL (dilated) and C3D; padding is a stage of its own."""

from __future__ import annotations

from itertools import product

import numpy as np

from metasched.ir.func import PrimFunc
from metasched.script import tir as T
from metasched.workloads.gmm import accumulator
from metasched.workloads.padding import finished, out_size, pad_array, taps
from metasched.workloads.workload import Shape, Workload


def c1d(shape: Shape) -> PrimFunc:
    """Y[n,l,co] = sum over kernel and ci of P[n, l*stride + k, ci] * W[k,ci,co]; P is X padded."""
    n, length, ci, co, k, s, p = shape
    lp, lo = length + 2 * p, out_size(length, k, s, p)

    @T.prim_func
    def c1d(
        X: T.Buffer((n, length, ci), "float32"),
        W: T.Buffer((k, ci, co), "float32"),
        Y: T.Buffer((n, lo, co), "float32"),
    ):
        T.func_attr({"global_symbol": "c1d", "tir.noalias": True})
        P = T.alloc_buffer((n, lp, ci), "float32")
        for i0, i1, i2 in T.grid(n, lp, ci):
            with T.block("pad"):
                vn, vl, vc = T.axis.remap("SSS", [i0, i1, i2])
                P[vn, vl, vc] = T.if_then_else(
                    T.And(p <= vl, vl < length + p), X[vn, vl - p, vc], T.float32(0)
                )
        for i0, i1, i2, i3, i4 in T.grid(n, lo, co, k, ci):
            with T.block("conv"):
                vn, vl, vo, vk, vc = T.axis.remap("SSSRR", [i0, i1, i2, i3, i4])
                with T.init():
                    Y[vn, vl, vo] = T.float32(0)
                Y[vn, vl, vo] = Y[vn, vl, vo] + P[vn, vl * s + vk, vc] * W[vk, vc, vo]

    return finished(c1d, p)


def c2d(shape: Shape, x: str = "float32", w: str = "float32", y: str = "float32") -> PrimFunc:
    """Y[n,h,w,co] = sum of P[n, h*stride + kh*dilation, ..., ci] * W[kh,kw,ci,co]; P is X padded.

    The shape may end with a dilation. Products are accumulated in the type of Y.
    """
    n, h, wd, ci, co, k, s, p, d = (*shape, 1)[:9]
    hp, wp = h + 2 * p, wd + 2 * p
    ho, wo = out_size(h, k, s, p, d), out_size(wd, k, s, p, d)

    @T.prim_func
    def c2d(
        X: T.Buffer((n, h, wd, ci), x),
        W: T.Buffer((k, k, ci, co), w),
        Y: T.Buffer((n, ho, wo, co), y),
    ):
        T.func_attr({"global_symbol": "c2d", "tir.noalias": True})
        P = T.alloc_buffer((n, hp, wp, ci), x)
        for i0, i1, i2, i3 in T.grid(n, hp, wp, ci):
            with T.block("pad"):
                vn, vh, vw, vc = T.axis.remap("SSSS", [i0, i1, i2, i3])
                P[vn, vh, vw, vc] = T.if_then_else(
                    T.And(T.And(p <= vh, vh < h + p), T.And(p <= vw, vw < wd + p)),
                    X[vn, vh - p, vw - p, vc],
                    T.cast(0, x),
                )
        for i0, i1, i2, i3, i4, i5, i6 in T.grid(n, ho, wo, co, k, k, ci):
            with T.block("conv"):
                vn, vh, vw, vo, vi, vj, vc = T.axis.remap("SSSSRRR", [i0, i1, i2, i3, i4, i5, i6])
                with T.init():
                    Y[vn, vh, vw, vo] = T.cast(0, y)
                Y[vn, vh, vw, vo] = Y[vn, vh, vw, vo] + T.cast(
                    P[vn, vh * s + vi * d, vw * s + vj * d, vc], y
                ) * T.cast(W[vi, vj, vc, vo], y)

    return finished(c2d, p)


def c3d(shape: Shape) -> PrimFunc:
    """Y[n,d,h,w,co] = sum of P[n, d*stride + kd, h*stride + kh, ..., ci] * W[kd,kh,kw,ci,co]."""
    n, d, h, w, ci, co, k, s, p = shape
    dp, hp, wp = d + 2 * p, h + 2 * p, w + 2 * p
    do, ho, wo = (out_size(size, k, s, p) for size in (d, h, w))

    @T.prim_func
    def c3d(
        X: T.Buffer((n, d, h, w, ci), "float32"),
        W: T.Buffer((k, k, k, ci, co), "float32"),
        Y: T.Buffer((n, do, ho, wo, co), "float32"),
    ):
        T.func_attr({"global_symbol": "c3d", "tir.noalias": True})
        P = T.alloc_buffer((n, dp, hp, wp, ci), "float32")
        for i0, i1, i2, i3, i4 in T.grid(n, dp, hp, wp, ci):
            with T.block("pad"):
                vn, vd, vh, vw, vc = T.axis.remap("SSSSS", [i0, i1, i2, i3, i4])
                P[vn, vd, vh, vw, vc] = T.if_then_else(
                    T.And(
                        T.And(p <= vd, vd < d + p),
                        T.And(T.And(p <= vh, vh < h + p), T.And(p <= vw, vw < w + p)),
                    ),
                    X[vn, vd - p, vh - p, vw - p, vc],
                    T.float32(0),
                )
        for i0, i1, i2, i3, i4, i5, i6, i7, i8 in T.grid(n, do, ho, wo, co, k, k, k, ci):
            with T.block("conv"):
                vn, vd, vh, vw, vo, vr, vi, vj, vc = T.axis.remap(
                    "SSSSSRRRR", [i0, i1, i2, i3, i4, i5, i6, i7, i8]
                )
                with T.init():
                    Y[vn, vd, vh, vw, vo] = T.float32(0)
                Y[vn, vd, vh, vw, vo] = (
                    Y[vn, vd, vh, vw, vo]
                    + P[vn, vd * s + vr, vh * s + vi, vw * s + vj, vc] * W[vr, vi, vj, vc, vo]
                )

    return finished(c3d, p)


def _dims(shape: Shape, rank: int) -> tuple[tuple[int, ...], int, int, int, int, int, int]:
    """(spatial sizes, CI, CO, kernel, stride, pad, dilation) of a convolution's shape."""
    ci, co, k, s, p, d = (*shape[rank + 1 :], 1)[:6]
    return shape[1 : rank + 1], ci, co, k, s, p, d


def conv_reference(shape: Shape, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Any of the four: one matrix product for each position of the kernel."""
    rank = x.ndim - 2
    sizes, _, co, k, s, p, d = _dims(shape, rank)
    wide = accumulator(x)
    x, w = pad_array(x, tuple(range(1, rank + 1)), p).astype(wide), w.astype(wide)
    out = [out_size(size, k, s, p, d) for size in sizes]
    y = np.zeros((x.shape[0], *out, co), wide)
    for tap in product(range(k), repeat=rank):
        window = [slice(t * d, t * d + (o - 1) * s + 1, s) for t, o in zip(tap, out, strict=True)]
        y += x[(slice(None), *window)] @ w[tap]
    return y


def conv_flops(rank: int, shape: Shape) -> float:
    """Two for each tap inside the input, input channel and output channel."""
    sizes, ci, co, k, s, p, d = _dims(shape, rank)
    return 2.0 * shape[0] * ci * co * taps(sizes, k, s, p, d)


C2D_PARAMETERS = "N H W CI CO kernel stride pad"
C2D_SHAPES = (
    (1, 14, 14, 256, 256, 3, 1, 1), (1, 224, 224, 3, 64, 7, 2, 3),
    (1, 56, 56, 64, 64, 1, 1, 0), (1, 7, 7, 512, 512, 3, 1, 1),
)  # fmt: skip


def c2d_flops(shape: Shape) -> float:
    return conv_flops(2, shape)


def _low_precision(name: str, x: str, w: str, y: str) -> Workload:
    return Workload(
        name,
        C2D_PARAMETERS,
        lambda s: c2d(s, x, w, y),
        conv_reference,
        C2D_SHAPES,
        c2d_flops,
        x,
        weights=(1,),
    )


WORKLOADS = (
    Workload(
        "c1d", "N L CI CO kernel stride pad", c1d, conv_reference,
        ((1, 256, 64, 128, 3, 2, 1), (1, 128, 128, 256, 1, 2, 0),
         (1, 64, 256, 256, 5, 1, 2), (1, 32, 512, 512, 3, 1, 1)),
        lambda shape: conv_flops(1, shape), weights=(1,),
    ),
    Workload(
        "c2d", C2D_PARAMETERS, c2d, conv_reference, C2D_SHAPES, c2d_flops, weights=(1,),
    ),
    Workload(
        "c3d", "N D H W CI CO kernel stride pad", c3d, conv_reference,
        ((1, 16, 14, 14, 256, 256, 3, 1, 1), (1, 16, 224, 224, 3, 64, 7, 2, 3),
         (1, 16, 56, 56, 64, 64, 1, 1, 0), (1, 16, 7, 7, 512, 512, 3, 1, 1)),
        lambda shape: conv_flops(3, shape), weights=(1,),
    ),
    Workload(
        "dil", C2D_PARAMETERS + " dilation", c2d, conv_reference,
        tuple((*shape, 2) for shape in C2D_SHAPES), c2d_flops, weights=(1,),
    ),
    _low_precision("c2d_u8s8s32", "uint8", "int8", "int32"),
    _low_precision("c2d_s8s8s32", "int8", "int8", "int32"),
    _low_precision("c2d_bf16", "bfloat16", "bfloat16", "float32"),
    _low_precision("c2d_f16", "float16", "float16", "float32"),
)  # fmt: skip

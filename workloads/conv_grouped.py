"""Convolutions by groups of channels: GRP (grouped) and DEP (depthwise), NHWC."""

from __future__ import annotations

import numpy as np

from metasched.ir.func import PrimFunc
from metasched.script import tir as T
from metasched.workloads.conv import conv_reference
from metasched.workloads.padding import finished, out_size, pad_array, taps
from metasched.workloads.workload import Shape, Workload


def grp(shape: Shape) -> PrimFunc:
    """Output channel co reads the input channels of its group; W is [kh,kw,CI/groups,CO]."""
    n, h, w, ci, co, k, s, p, d, g = shape
    if ci % g or co % g:
        raise ValueError(f"grp: {ci} and {co} channels do not divide into {g} groups")
    hp, wp, cg, og = h + 2 * p, w + 2 * p, ci // g, co // g
    ho, wo = out_size(h, k, s, p, d), out_size(w, k, s, p, d)

    @T.prim_func
    def grp(
        X: T.Buffer((n, h, w, ci), "float32"),
        W: T.Buffer((k, k, cg, co), "float32"),
        Y: T.Buffer((n, ho, wo, co), "float32"),
    ):
        T.func_attr({"global_symbol": "grp", "tir.noalias": True})
        P = T.alloc_buffer((n, hp, wp, ci), "float32")
        for i0, i1, i2, i3 in T.grid(n, hp, wp, ci):
            with T.block("pad"):
                vn, vh, vw, vc = T.axis.remap("SSSS", [i0, i1, i2, i3])
                P[vn, vh, vw, vc] = T.if_then_else(
                    T.And(T.And(p <= vh, vh < h + p), T.And(p <= vw, vw < w + p)),
                    X[vn, vh - p, vw - p, vc],
                    T.float32(0),
                )
        for i0, i1, i2, i3, i4, i5, i6 in T.grid(n, ho, wo, co, k, k, cg):
            with T.block("conv"):
                vn, vh, vw, vo, vi, vj, vc = T.axis.remap("SSSSRRR", [i0, i1, i2, i3, i4, i5, i6])
                with T.init():
                    Y[vn, vh, vw, vo] = T.float32(0)
                Y[vn, vh, vw, vo] = (
                    Y[vn, vh, vw, vo]
                    + P[vn, vh * s + vi * d, vw * s + vj * d, vo // og * cg + vc]
                    * W[vi, vj, vc, vo]
                )

    return finished(grp, p)


def grp_reference(shape: Shape, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The groups one by one."""
    n, h, wd, ci, co, k, s, p, d, g = shape
    part = (n, h, wd, ci // g, co // g, k, s, p, d)
    xs, ws = np.split(x, g, axis=3), np.split(w, g, axis=3)
    return np.concatenate([conv_reference(part, a, b) for a, b in zip(xs, ws, strict=True)], axis=3)


def grp_flops(shape: Shape) -> float:
    n, h, w, ci, co, k, s, p, d, g = shape
    return 2.0 * n * (ci // g) * co * taps((h, w), k, s, p, d)


def dep(shape: Shape) -> PrimFunc:
    """Y[n,h,w,c] = sum of P[n, h*stride + kh, w*stride + kw, c] * W[kh,kw,c]; P is X padded."""
    n, h, w, c, k, s, p = shape
    hp, wp = h + 2 * p, w + 2 * p
    ho, wo = out_size(h, k, s, p), out_size(w, k, s, p)

    @T.prim_func
    def dep(
        X: T.Buffer((n, h, w, c), "float32"),
        W: T.Buffer((k, k, c), "float32"),
        Y: T.Buffer((n, ho, wo, c), "float32"),
    ):
        T.func_attr({"global_symbol": "dep", "tir.noalias": True})
        P = T.alloc_buffer((n, hp, wp, c), "float32")
        for i0, i1, i2, i3 in T.grid(n, hp, wp, c):
            with T.block("pad"):
                vn, vh, vw, vc = T.axis.remap("SSSS", [i0, i1, i2, i3])
                P[vn, vh, vw, vc] = T.if_then_else(
                    T.And(T.And(p <= vh, vh < h + p), T.And(p <= vw, vw < w + p)),
                    X[vn, vh - p, vw - p, vc],
                    T.float32(0),
                )
        for i0, i1, i2, i3, i4, i5 in T.grid(n, ho, wo, c, k, k):
            with T.block("conv"):
                vn, vh, vw, vc, vi, vj = T.axis.remap("SSSSRR", [i0, i1, i2, i3, i4, i5])
                with T.init():
                    Y[vn, vh, vw, vc] = T.float32(0)
                Y[vn, vh, vw, vc] = (
                    Y[vn, vh, vw, vc] + P[vn, vh * s + vi, vw * s + vj, vc] * W[vi, vj, vc]
                )

    return finished(dep, p)


def dep_reference(shape: Shape, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    n, h, wd, c, k, s, p = shape
    x = pad_array(x, (1, 2), p)
    ho, wo = out_size(h, k, s, p), out_size(wd, k, s, p)
    y = np.zeros((n, ho, wo, c), x.dtype)
    for i in range(k):
        for j in range(k):
            y += x[:, i : i + (ho - 1) * s + 1 : s, j : j + (wo - 1) * s + 1 : s] * w[i, j]
    return y


def dep_flops(shape: Shape) -> float:
    n, h, w, c, k, s, p = shape
    return 2.0 * n * c * taps((h, w), k, s, p)


WORKLOADS = (
    Workload(
        "grp", "N H W CI CO kernel stride pad dilation groups", grp, grp_reference,
        ((1, 14, 14, 256, 256, 3, 1, 1, 1, 4), (1, 56, 56, 64, 128, 3, 2, 1, 1, 4),
         (1, 56, 56, 64, 64, 1, 1, 0, 1, 4), (1, 7, 7, 512, 512, 3, 1, 1, 1, 4)),
        grp_flops, weights=(1,),
    ),
    Workload(
        "dep", "N H W C kernel stride pad", dep, dep_reference,
        ((1, 112, 112, 32, 3, 1, 1), (1, 112, 112, 64, 3, 2, 1),
         (1, 14, 14, 512, 3, 2, 1), (1, 7, 7, 1024, 3, 1, 1)),
        dep_flops, weights=(1,),
    ),
)  # fmt: skip

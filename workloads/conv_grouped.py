"""Convolutions by groups of channels: GRP (grouped) and DEP (depthwise), NHWC."""

from __future__ import annotations

import numpy as np

from metasched.frontend import te
from metasched.frontend.workload import Shape, Workload
from metasched.ir.expr import Expr
from metasched.ir.func import PrimFunc
from metasched.workloads.conv import conv_reference
from metasched.workloads.padding import convolution, out_size, pad_array, padded, taps


def grp(shape: Shape) -> PrimFunc:
    """Output channel co reads the input channels of its group; W is [kh,kw,CI/groups,CO]."""
    n, h, w, ci, co, k, s, p, d, g = shape
    if ci % g or co % g:
        raise ValueError(f"grp: {ci} and {co} channels do not divide into {g} groups")
    cg, og = ci // g, co // g
    X, W = te.placeholder((n, h, w, ci), name="X"), te.placeholder((k, k, cg, co), name="W")
    P = padded(X, (1, 2), p)
    i, j, c = te.reduce_axis((0, k), "i"), te.reduce_axis((0, k), "j"), te.reduce_axis((0, cg), "c")

    def element(n: Expr, h: Expr, w: Expr, o: Expr) -> te.Reduction:
        window = P[n, h * s + i * d, w * s + j * d, o // og * cg + c]
        return te.sum(window * W[i, j, c, o], axis=[i, j, c])

    out = (n, out_size(h, k, s, p, d), out_size(w, k, s, p, d), co)
    return convolution("grp", X, W, te.compute(out, element, "Y", block="conv"), p)


def grp_reference(shape: Shape, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The reference of GRP: one convolution for each group."""
    n, h, wd, ci, co, k, s, p, d, g = shape
    part = (n, h, wd, ci // g, co // g, k, s, p, d)
    xs, ws = np.split(x, g, axis=3), np.split(w, g, axis=3)
    return np.concatenate([conv_reference(part, a, b) for a, b in zip(xs, ws, strict=True)], axis=3)


def grp_flops(shape: Shape) -> float:
    n, h, w, ci, co, k, s, p, d, g = shape
    return 2.0 * n * (ci // g) * co * taps((h, w), k, s, p, d)


def dep(shape: Shape) -> PrimFunc:
    """Y[n,h,w,c] = sum of P[n, h*stride + kh, w*stride + kw, c] * W[kh,kw,c]; P is X padded."""
    return convolution("dep", *depthwise(shape), shape[-1])


def depthwise(
    shape: Shape, x: str = "float32", w: str = "float32", y: str = "float32", fill: int = 0,
    name: str = "Y",
) -> tuple[te.Tensor, te.Tensor, te.Tensor]:  # fmt: skip
    """The data, the weights and the result of a depthwise convolution, padded with `fill`."""
    n, h, wd, c, k, s, p = shape
    X, W = te.placeholder((n, h, wd, c), x, "X"), te.placeholder((k, k, c), w, "W")
    P = padded(X, (1, 2), p, fill)
    i, j = te.reduce_axis((0, k), "i"), te.reduce_axis((0, k), "j")

    def element(n: Expr, h: Expr, w: Expr, c: Expr) -> te.Reduction:
        window = te.cast(P[n, h * s + i, w * s + j, c], y)
        return te.sum(window * te.cast(W[i, j, c], y), axis=[i, j])

    out = (n, out_size(h, k, s, p), out_size(wd, k, s, p), c)
    return X, W, te.compute(out, element, name, block="conv")


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


DEP_PARAMETERS = "N H W C kernel stride pad"
DEP_SHAPES = (
    (1, 112, 112, 32, 3, 1, 1), (1, 112, 112, 64, 3, 2, 1),
    (1, 14, 14, 512, 3, 2, 1), (1, 7, 7, 1024, 3, 1, 1),
)  # fmt: skip

WORKLOADS = (
    Workload(
        "grp", "N H W CI CO kernel stride pad dilation groups", grp, grp_reference,
        ((1, 14, 14, 256, 256, 3, 1, 1, 1, 4), (1, 56, 56, 64, 128, 3, 2, 1, 1, 4),
         (1, 56, 56, 64, 64, 1, 1, 0, 1, 4), (1, 7, 7, 512, 512, 3, 1, 1, 1, 4)),
        grp_flops, weights=(1,),
    ),
    Workload(
        "dep", DEP_PARAMETERS, dep, dep_reference, DEP_SHAPES, dep_flops, weights=(1,)
    ),
)  # fmt: skip

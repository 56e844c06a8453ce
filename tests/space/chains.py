"""Programs of several stages with NumPy references, for the fuzz of the space: shape -> program.

Beside the operators of `metasched.workloads` these are what users write: products with epilogues,
normalisations, attention, pooling, stencils, reductions over several axes, other layouts and types.
"""

from __future__ import annotations

import math
from itertools import product

import ml_dtypes
import numpy as np

from metasched.frontend.workload import Shape, Workload
from metasched.ir.func import PrimFunc
from metasched.script import tir as T
from metasched.workloads.conv import conv_reference
from metasched.workloads.padding import out_size, pad_array


def dense_gelu(shape: Shape) -> PrimFunc:
    n, m, k = shape

    @T.prim_func
    def dense_gelu(
        X: T.Buffer((n, k), "float32"),
        W: T.Buffer((k, m), "float32"),
        B: T.Buffer((m,), "float32"),
        Y: T.Buffer((n, m), "float32"),
    ):
        C = T.alloc_buffer((n, m), "float32")
        D = T.alloc_buffer((n, m), "float32")
        for i, j, r in T.grid(n, m, k):
            with T.block("C"):
                vi, vj, vr = T.axis.remap("SSR", [i, j, r])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + X[vi, vr] * W[vr, vj]
        for i, j in T.grid(n, m):
            with T.block("D"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = C[vi, vj] + B[vj]
        for i, j in T.grid(n, m):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = (
                    T.float32(0.5) * D[vi, vj]
                    * (T.float32(1) + T.erf(D[vi, vj] * T.float32(0.70710678)))
                )  # fmt: skip

    return dense_gelu


def dense_gelu_reference(shape: Shape, x, w, b):
    d = (x @ w + b).astype(np.float64)
    return (0.5 * d * (1 + np.vectorize(math.erf)(d * 0.70710678))).astype(np.float32)


def two_products(shape: Shape) -> PrimFunc:
    n, m, k, l = shape

    @T.prim_func
    def two_products(
        A: T.Buffer((n, k), "float32"),
        B: T.Buffer((k, m), "float32"),
        C: T.Buffer((m, l), "float32"),
        E: T.Buffer((n, l), "float32"),
    ):
        D = T.alloc_buffer((n, m), "float32")
        for i, j, r in T.grid(n, m, k):
            with T.block("D"):
                vi, vj, vr = T.axis.remap("SSR", [i, j, r])
                with T.init():
                    D[vi, vj] = T.float32(0)
                D[vi, vj] = D[vi, vj] + A[vi, vr] * B[vr, vj]
        for i, j, r in T.grid(n, l, m):
            with T.block("E"):
                vi, vj, vr = T.axis.remap("SSR", [i, j, r])
                with T.init():
                    E[vi, vj] = T.float32(0)
                E[vi, vj] = E[vi, vj] + D[vi, vr] * C[vr, vj]

    return two_products


def product_into(shape: Shape) -> PrimFunc:
    """C += A @ B' with B stored by columns, in place, over any type."""
    n, m, k, kind = shape
    dtype = KINDS[kind % len(KINDS)]

    @T.prim_func
    def product_into(
        A: T.Buffer((n, k), dtype), B: T.Buffer((m, k), dtype), C: T.Buffer((n, m), dtype)
    ):
        for i, j, r in T.grid(n, m, k):
            with T.block("C"):
                vi, vj, vr = T.axis.remap("SSR", [i, j, r])
                C[vi, vj] = C[vi, vj] + A[vi, vr] * B[vj, vr]

    return product_into


KINDS = ("float32", "float64", "int32", "int8", "uint8", "int64", "int16")


def product_into_reference(shape: Shape, a, b, c):
    return (c + a @ b.T).astype(c.dtype)


def product_of_bytes(shape: Shape) -> PrimFunc:
    """uint8 times int8 with both stored along the depth, then shifted, scaled and clipped."""
    n, m, k = shape

    @T.prim_func
    def product_of_bytes(
        A: T.Buffer((n, k), "uint8"), B: T.Buffer((m, k), "int8"), Y: T.Buffer((n, m), "int8")
    ):
        C = T.alloc_buffer((n, m), "int32")
        for i, j, r in T.grid(n, m, k):
            with T.block("C"):
                vi, vj, vr = T.axis.remap("SSR", [i, j, r])
                with T.init():
                    C[vi, vj] = 0
                C[vi, vj] = C[vi, vj] + T.cast(A[vi, vr], "int32") * T.cast(B[vj, vr], "int32")
        for i, j in T.grid(n, m):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = T.cast(T.max(T.min(C[vi, vj] // 3, 127), -128), "int8")

    return product_of_bytes


def product_of_bytes_reference(shape: Shape, a, b):
    c = a.astype(np.int32) @ b.astype(np.int32).T
    return np.clip(c // 3, -128, 127).astype(np.int8)


def softmax_of_columns(shape: Shape) -> PrimFunc:
    """Over the first axis, of rows that are shorter and shorter: what is above counts nothing."""
    m, n = shape

    @T.prim_func
    def softmax_of_columns(X: T.Buffer((m, n), "float32"), Y: T.Buffer((m, n), "float32")):
        Z = T.alloc_buffer((m, n), "float32")
        M = T.alloc_buffer((n,), "float32")
        S = T.alloc_buffer((n,), "float32")
        for i, j in T.grid(m, n):
            with T.block("Z"):
                vi, vj = T.axis.remap("SS", [i, j])
                Z[vi, vj] = T.Select(vj <= vi + n - 1, X[vi, vj] * T.float32(0.25), T.float32(-9))
        for j, i in T.grid(n, m):
            with T.block("M"):
                vj, vi = T.axis.remap("SR", [j, i])
                with T.init():
                    M[vj] = T.min_value("float32")
                M[vj] = T.max(M[vj], Z[vi, vj])
        for j, i in T.grid(n, m):
            with T.block("S"):
                vj, vi = T.axis.remap("SR", [j, i])
                with T.init():
                    S[vj] = T.float32(0)
                S[vj] = S[vj] + T.exp(Z[vi, vj] - M[vj])
        for i, j in T.grid(m, n):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = T.exp(Z[vi, vj] - M[vj]) / S[vj]

    return softmax_of_columns


def softmax_of_columns_reference(shape: Shape, x):
    z = x * np.float32(0.25)
    e = np.exp(z - z.max(0))
    return e / e.sum(0)


def layer_norm(shape: Shape) -> PrimFunc:
    m, n = shape

    @T.prim_func
    def layer_norm(
        X: T.Buffer((m, n), "float32"),
        G: T.Buffer((n,), "float32"),
        B: T.Buffer((n,), "float32"),
        Y: T.Buffer((m, n), "float32"),
    ):
        S = T.alloc_buffer((m,), "float32")
        V = T.alloc_buffer((m,), "float32")
        for i, j in T.grid(m, n):
            with T.block("S"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    S[vi] = T.float32(0)
                S[vi] = S[vi] + X[vi, vj]
        for i, j in T.grid(m, n):
            with T.block("V"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    V[vi] = T.float32(0)
                V[vi] = V[vi] + (X[vi, vj] - S[vi] / T.float32(n)) * (
                    X[vi, vj] - S[vi] / T.float32(n)
                )
        for i, j in T.grid(m, n):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = (X[vi, vj] - S[vi] / T.float32(n)) * T.rsqrt(
                    V[vi] / T.float32(n) + T.float32(1)
                ) * G[vj] + B[vj]

    return layer_norm


def layer_norm_reference(shape: Shape, x, g, b):
    x = x.astype(np.float64)
    d = x - x.mean(1, keepdims=True)
    return (d / np.sqrt((d * d).mean(1, keepdims=True) + 1) * g + b).astype(np.float32)


def conv_pool(shape: Shape) -> PrimFunc:
    """Convolution, scale and shift, ReLU, and the maximum of windows of 2x2 that may overlap."""
    n, h, w, ci, co, k, s, p, q = shape
    hp, wp = h + 2 * p, w + 2 * p
    ho, wo = out_size(h, k, s, p), out_size(w, k, s, p)
    hq, wq = out_size(ho, 2, q, 0), out_size(wo, 2, q, 0)

    @T.prim_func
    def conv_pool(
        X: T.Buffer((n, h, w, ci), "float32"),
        W: T.Buffer((k, k, ci, co), "float32"),
        S: T.Buffer((co,), "float32"),
        O: T.Buffer((co,), "float32"),
        Y: T.Buffer((n, hq, wq, co), "float32"),
    ):
        T.func_attr({"tir.finite": True})
        P = T.alloc_buffer((n, hp, wp, ci), "float32")
        C = T.alloc_buffer((n, ho, wo, co), "float32")
        R = T.alloc_buffer((n, ho, wo, co), "float32")
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
            with T.block("relu"):
                vn, vh, vw, vo = T.axis.remap("SSSS", [i0, i1, i2, i3])
                R[vn, vh, vw, vo] = T.max(C[vn, vh, vw, vo] * S[vo] + O[vo], T.float32(0))
        for i0, i1, i2, i3, i4, i5 in T.grid(n, hq, wq, co, 2, 2):
            with T.block("pool"):
                vn, vh, vw, vo, vi, vj = T.axis.remap("SSSSRR", [i0, i1, i2, i3, i4, i5])
                with T.init():
                    Y[vn, vh, vw, vo] = T.float32(-1)
                Y[vn, vh, vw, vo] = T.max(Y[vn, vh, vw, vo], R[vn, vh * q + vi, vw * q + vj, vo])

    return conv_pool


def conv_pool_reference(shape: Shape, x, w, s, o):
    r = np.maximum(conv_reference(shape[:8], x, w) * s + o, 0)
    q, (_, h, wd, _) = shape[8], r.shape
    hq, wq = out_size(h, 2, q, 0), out_size(wd, 2, q, 0)
    views = [
        r[:, i : i + (hq - 1) * q + 1 : q, j : j + (wq - 1) * q + 1 : q]
        for i, j in product(range(2), repeat=2)
    ]
    return np.max(views, axis=0).astype(np.float32)


def conv_channels_first(shape: Shape) -> PrimFunc:
    """NCHW with weights OIHW; the padding is inside of the sum."""
    n, ci, h, w, co, k, s, p = shape
    ho, wo = out_size(h, k, s, p), out_size(w, k, s, p)

    @T.prim_func
    def conv_channels_first(
        X: T.Buffer((n, ci, h, w), "float32"),
        W: T.Buffer((co, ci, k, k), "float32"),
        B: T.Buffer((co,), "float32"),
        Y: T.Buffer((n, co, ho, wo), "float32"),
    ):
        C = T.alloc_buffer((n, co, ho, wo), "float32")
        for i0, i1, i2, i3, i4, i5, i6 in T.grid(n, co, ho, wo, ci, k, k):
            with T.block("conv"):
                vn, vo, vh, vw, vc, vi, vj = T.axis.remap("SSSSRRR", [i0, i1, i2, i3, i4, i5, i6])
                with T.init():
                    C[vn, vo, vh, vw] = T.float32(0)
                C[vn, vo, vh, vw] = (
                    C[vn, vo, vh, vw]
                    + T.if_then_else(
                        T.And(
                            T.And(p <= vh * s + vi, vh * s + vi < h + p),
                            T.And(p <= vw * s + vj, vw * s + vj < w + p),
                        ),
                        X[vn, vc, vh * s + vi - p, vw * s + vj - p],
                        T.float32(0),
                    )
                    * W[vo, vc, vi, vj]
                )
        for i0, i1, i2, i3 in T.grid(n, co, ho, wo):
            with T.block("bias"):
                vn, vo, vh, vw = T.axis.remap("SSSS", [i0, i1, i2, i3])
                Y[vn, vo, vh, vw] = C[vn, vo, vh, vw] + B[vo]

    return conv_channels_first


def conv_channels_first_reference(shape: Shape, x, w, b):
    n, ci, h, wd, co, k, s, p = shape
    plain = (n, h, wd, ci, co, k, s, p)
    y = conv_reference(plain, x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0)) + b
    return np.ascontiguousarray(y.transpose(0, 3, 1, 2)).astype(np.float32)


def attention(shape: Shape) -> PrimFunc:
    """One head after the other: products, softmax, products, the heads side by side."""
    b, s, h, d = shape

    @T.prim_func
    def attention(
        Q: T.Buffer((b, s, h, d), "float32"),
        K: T.Buffer((b, s, h, d), "float32"),
        V: T.Buffer((b, s, h, d), "float32"),
        O: T.Buffer((b, s, h * d), "float32"),
    ):
        S = T.alloc_buffer((b, h, s, s), "float32")
        M = T.alloc_buffer((b, h, s), "float32")
        E = T.alloc_buffer((b, h, s, s), "float32")
        N = T.alloc_buffer((b, h, s), "float32")
        R = T.alloc_buffer((b, h, s, d), "float32")
        for i0, i1, i2, i3, i4 in T.grid(b, h, s, s, d):
            with T.block("S"):
                vb, vh, vi, vj, vd = T.axis.remap("SSSSR", [i0, i1, i2, i3, i4])
                with T.init():
                    S[vb, vh, vi, vj] = T.float32(0)
                S[vb, vh, vi, vj] = S[vb, vh, vi, vj] + Q[vb, vi, vh, vd] * K[vb, vj, vh, vd]
        for i0, i1, i2, i3 in T.grid(b, h, s, s):
            with T.block("M"):
                vb, vh, vi, vj = T.axis.remap("SSSR", [i0, i1, i2, i3])
                with T.init():
                    M[vb, vh, vi] = T.min_value("float32")
                M[vb, vh, vi] = T.max(M[vb, vh, vi], S[vb, vh, vi, vj])
        for i0, i1, i2, i3 in T.grid(b, h, s, s):
            with T.block("E"):
                vb, vh, vi, vj = T.axis.remap("SSSS", [i0, i1, i2, i3])
                E[vb, vh, vi, vj] = T.exp((S[vb, vh, vi, vj] - M[vb, vh, vi]) * T.float32(0.125))
        for i0, i1, i2, i3 in T.grid(b, h, s, s):
            with T.block("N"):
                vb, vh, vi, vj = T.axis.remap("SSSR", [i0, i1, i2, i3])
                with T.init():
                    N[vb, vh, vi] = T.float32(0)
                N[vb, vh, vi] = N[vb, vh, vi] + E[vb, vh, vi, vj]
        for i0, i1, i2, i3, i4 in T.grid(b, h, s, d, s):
            with T.block("R"):
                vb, vh, vi, vd, vj = T.axis.remap("SSSSR", [i0, i1, i2, i3, i4])
                with T.init():
                    R[vb, vh, vi, vd] = T.float32(0)
                R[vb, vh, vi, vd] = (
                    R[vb, vh, vi, vd] + E[vb, vh, vi, vj] / N[vb, vh, vi] * V[vb, vj, vh, vd]
                )
        for i0, i1, i2 in T.grid(b, s, h * d):
            with T.block("O"):
                vb, vi, vo = T.axis.remap("SSS", [i0, i1, i2])
                O[vb, vi, vo] = R[vb, vo // d, vi, vo % d]

    return attention


def attention_reference(shape: Shape, q, k, v):
    b, s, h, d = shape
    q, k, v = (x.transpose(0, 2, 1, 3).astype(np.float64) for x in (q, k, v))
    scores = q @ k.transpose(0, 1, 3, 2)
    e = np.exp((scores - scores.max(-1, keepdims=True)) * 0.125)
    out = e / e.sum(-1, keepdims=True) @ v
    return out.transpose(0, 2, 1, 3).reshape(b, s, h * d).astype(np.float32)


def sum_of_axes(shape: Shape) -> PrimFunc:
    """The sum over the outer and the inner axis, added to the least of each slice."""
    a, b, c = shape

    @T.prim_func
    def sum_of_axes(X: T.Buffer((a, b, c), "int32"), Y: T.Buffer((b,), "int32")):
        S = T.alloc_buffer((b,), "int32")
        L = T.alloc_buffer((b,), "int32")
        for i, j, k in T.grid(b, a, c):
            with T.block("S"):
                vi, vj, vk = T.axis.remap("SRR", [i, j, k])
                with T.init():
                    S[vi] = 0
                S[vi] = S[vi] + X[vj, vi, vk]
        for k, i, j in T.grid(c, b, a):
            with T.block("L"):
                vk, vi, vj = T.axis.remap("RSR", [k, i, j])
                with T.init():
                    L[vi] = T.max_value("int32")
                L[vi] = T.min(L[vi], X[vj, vi, vk])
        for i in range(b):
            with T.block("Y"):
                vi = T.axis.spatial(b, i)
                Y[vi] = S[vi] + L[vi] * 1000

    return sum_of_axes


def sum_of_axes_reference(shape: Shape, x):
    return (x.sum((0, 2)) + x.min((0, 2)) * 1000).astype(np.int32)


def whole_sum(shape: Shape) -> PrimFunc:
    """Everything to one number, through the sums of rows."""
    a, b = shape

    @T.prim_func
    def whole_sum(
        X: T.Buffer((a, b), "float32"), Z: T.Buffer((a, b), "float32"), Y: T.Buffer((1,), "float32")
    ):
        for i, j in T.grid(a, b):
            with T.block("Y"):
                vi, vj = T.axis.remap("RR", [i, j])
                with T.init():
                    Y[0] = T.float32(0)
                Y[0] = Y[0] + X[vi, vj] * Z[vi, vj]

    return whole_sum


def blur(shape: Shape) -> PrimFunc:
    """Three by three in two stages, then the difference to what it was of."""
    h, w = shape

    @T.prim_func
    def blur(X: T.Buffer((h + 2, w + 2), "float32"), Y: T.Buffer((h, w), "float32")):
        A = T.alloc_buffer((h + 2, w), "float32")
        B = T.alloc_buffer((h, w), "float32")
        for i, j in T.grid(h + 2, w):
            with T.block("A"):
                vi, vj = T.axis.remap("SS", [i, j])
                A[vi, vj] = X[vi, vj] + X[vi, vj + 1] * T.float32(2) + X[vi, vj + 2]
        for i, j in T.grid(h, w):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] + A[vi + 1, vj] * T.float32(2) + A[vi + 2, vj]
        for i, j in T.grid(h, w):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = T.max(B[vi, vj] - X[vi + 1, vj + 1], T.float32(0))

    return blur


def blur_reference(shape: Shape, x):
    a = x[:, :-2] + 2 * x[:, 1:-1] + x[:, 2:]
    b = a[:-2] + 2 * a[1:-1] + a[2:]
    return np.maximum(b - x[1:-1, 1:-1], 0)


def separable(shape: Shape) -> PrimFunc:
    """A depthwise convolution with padding, then a product over the channels, then a residual."""
    h, w, c, k = shape
    p = k // 2

    @T.prim_func
    def separable(
        X: T.Buffer((h, w, c), "float32"),
        D: T.Buffer((k, k, c), "float32"),
        W: T.Buffer((c, c), "float32"),
        Y: T.Buffer((h, w, c), "float32"),
    ):
        A = T.alloc_buffer((h, w, c), "float32")
        B = T.alloc_buffer((h, w, c), "float32")
        for i0, i1, i2, i3, i4 in T.grid(h, w, c, k, k):
            with T.block("A"):
                vh, vw, vc, vi, vj = T.axis.remap("SSSRR", [i0, i1, i2, i3, i4])
                with T.init():
                    A[vh, vw, vc] = T.float32(0)
                A[vh, vw, vc] = A[vh, vw, vc] + D[vi, vj, vc] * T.if_then_else(
                    T.And(
                        T.And(p <= vh + vi, vh + vi < h + p), T.And(p <= vw + vj, vw + vj < w + p)
                    ),
                    X[vh + vi - p, vw + vj - p, vc],
                    T.float32(0),
                )
        for i0, i1, i2, i3 in T.grid(h, w, c, c):
            with T.block("B"):
                vh, vw, vo, vc = T.axis.remap("SSSR", [i0, i1, i2, i3])
                with T.init():
                    B[vh, vw, vo] = T.float32(0)
                B[vh, vw, vo] = B[vh, vw, vo] + A[vh, vw, vc] * W[vc, vo]
        for i0, i1, i2 in T.grid(h, w, c):
            with T.block("Y"):
                vh, vw, vc = T.axis.remap("SSS", [i0, i1, i2])
                Y[vh, vw, vc] = T.max(B[vh, vw, vc], T.float32(0)) + X[vh, vw, vc]

    return separable


def separable_reference(shape: Shape, x, d, w):
    h, wd, _, k = shape
    p = k // 2
    padded = pad_array(x, (0, 1), p)
    a = sum(padded[i : i + h, j : j + wd] * d[i, j] for i, j in product(range(k), repeat=2))
    return np.maximum(a @ w, 0) + x


def embedding(shape: Shape) -> PrimFunc:
    """Rows that a table of numbers chooses, and a product with them."""
    rows, n, m, k = shape

    @T.prim_func
    def embedding(
        I: T.Buffer((n,), "int32"),
        X: T.Buffer((rows, k), "float32"),
        W: T.Buffer((k, m), "float32"),
        Y: T.Buffer((n, m), "float32"),
    ):
        G = T.alloc_buffer((n, k), "float32")
        for i, j in T.grid(n, k):
            with T.block("G"):
                vi, vj = T.axis.remap("SS", [i, j])
                G[vi, vj] = X[I[vi], vj]
        for i, j, r in T.grid(n, m, k):
            with T.block("Y"):
                vi, vj, vr = T.axis.remap("SSR", [i, j, r])
                with T.init():
                    Y[vi, vj] = T.float32(0)
                Y[vi, vj] = Y[vi, vj] + G[vi, vr] * W[vr, vj]

    return embedding


def rearranged(shape: Shape) -> PrimFunc:
    """Every second row turned round, columns side by side with another table's, in place after."""
    n, m, l = shape

    @T.prim_func
    def rearranged(
        A: T.Buffer((n, 2 * m), "float32"),
        B: T.Buffer((l, n), "float32"),
        Y: T.Buffer((n, m + l), "float32"),
    ):
        for i, j in T.grid(n, m + l):
            with T.block("side"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = T.if_then_else(
                    vj < m, A[n - 1 - vi, vj * 2 + 1], B[vj - m, vi] * T.float32(2)
                )
        for i, j in T.grid(n, m + l):
            with T.block("more"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = Y[vi, vj] + T.float32(1)

    return rearranged


def rearranged_reference(shape: Shape, a, b):
    return np.concatenate([a[::-1, 1::2], b.T * 2], axis=1) + 1


def product_of_bfloats(shape: Shape) -> PrimFunc:
    """bfloat16 with sums in float32, a bias, and the result rounded to bfloat16 again."""
    n, m, k = shape

    @T.prim_func
    def product_of_bfloats(
        A: T.Buffer((n, k), "bfloat16"),
        B: T.Buffer((k, m), "bfloat16"),
        D: T.Buffer((m,), "float32"),
        Y: T.Buffer((n, m), "bfloat16"),
    ):
        C = T.alloc_buffer((n, m), "float32")
        for i, j, r in T.grid(n, m, k):
            with T.block("C"):
                vi, vj, vr = T.axis.remap("SSR", [i, j, r])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + T.cast(A[vi, vr], "float32") * T.cast(B[vr, vj], "float32")
        for i, j in T.grid(n, m):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = T.cast(C[vi, vj] + D[vj], "bfloat16")

    return product_of_bfloats


def product_of_bfloats_reference(shape: Shape, a, b, d):
    return (a.astype(np.float32) @ b.astype(np.float32) + d).astype(ml_dtypes.bfloat16)


def _chain(name, parameters, build, reference, cost, **more) -> Workload:
    return Workload(name, parameters, build, reference, ((),), cost, **more)


def _volume(*axes: int):
    return lambda shape: 2.0 * math.prod(shape[a] for a in axes)


CHAINS = (
    _chain("dense_gelu", "N M K", dense_gelu, dense_gelu_reference, _volume(0, 1, 2), weights=(1,)),
    _chain("two_products", "N M K L", two_products, lambda s, a, b, c: a @ b @ c,
           lambda s: 2.0 * s[0] * s[1] * (s[2] + s[3]), weights=(1, 2)),
    _chain("product_into", "N M K kind", product_into, product_into_reference, _volume(0, 1, 2)),
    _chain("product_of_bytes", "N M K", product_of_bytes, product_of_bytes_reference,
           _volume(0, 1, 2), weights=(1,)),
    _chain("softmax_of_columns", "M N", softmax_of_columns, softmax_of_columns_reference,
           _volume(0, 1)),
    _chain("layer_norm", "M N", layer_norm, layer_norm_reference, _volume(0, 1)),
    _chain("conv_pool", "N H W CI CO kernel stride pad pool", conv_pool, conv_pool_reference,
           _volume(0, 1, 2, 3, 4, 5, 5), weights=(1,)),
    _chain("conv_channels_first", "N CI H W CO kernel stride pad", conv_channels_first,
           conv_channels_first_reference, _volume(0, 1, 2, 3, 4, 5, 5), weights=(1,)),
    _chain("attention", "batch sequence heads dim", attention, attention_reference,
           lambda s: 4.0 * s[0] * s[1] ** 2 * s[2] * s[3]),
    _chain("sum_of_axes", "A B C", sum_of_axes, sum_of_axes_reference, _volume(0, 1, 2)),
    _chain("whole_sum", "A B", whole_sum, lambda s, x, z: (x * z).sum().reshape(1), _volume(0, 1)),
    _chain("blur", "H W", blur, blur_reference, _volume(0, 1)),
    _chain("separable", "H W C kernel", separable, separable_reference, _volume(0, 1, 2, 2),
           weights=(1, 2)),
    _chain("embedding", "rows N M K", embedding, lambda s, i, x, w: x[i] @ w, _volume(1, 2, 3)),
    _chain("rearranged", "N M L", rearranged, rearranged_reference, _volume(0, 1, 2)),
    _chain("product_of_bfloats", "N M K", product_of_bfloats, product_of_bfloats_reference,
           _volume(0, 1, 2), weights=(1,)),
)  # fmt: skip

"""Normalisations and what follows them: ATTENTION (products, softmax, products of each head), LSE
(log-sum-exp of each row), LNM (layer normalisation of rows, then a product), and RMS (division of
rows by their root mean square)."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from metasched.frontend import te
from metasched.frontend.workload import Shape, Workload
from metasched.ir.expr import Expr, Var
from metasched.ir.func import PrimFunc

_EPSILON = 1e-5  # added to variances and mean squares


def attention(shape: Shape, causal: bool = False) -> PrimFunc:
    """Y[h] = softmax(Q[h] @ K[h].T / sqrt(d)) @ V[h]; where `causal`, row m sees m + 1 columns."""
    h, s, d = shape
    Q, K, V = (te.placeholder((h, s, d), name=name) for name in "QKV")
    c, j, k = te.reduce_axis((0, d), "c"), te.reduce_axis((0, s), "j"), te.reduce_axis((0, s), "k")
    P = te.compute(
        (h, s, s), lambda h, m, n: te.sum(Q[h, m, c] * K[h, n, c], axis=c), "P", block="scores"
    )

    def scaled(h: Var, m: Var, n: Var) -> Expr:
        score = P[h, m, n] * (1 / math.sqrt(d))
        return te.if_then_else(n <= m, score, float("-inf")) if causal else score

    S = te.compute((h, s, s), scaled, "S", block="scaled")
    M = te.compute((h, s), lambda h, m: te.max(S[h, m, j], axis=j), "M", block="max")
    E = te.compute((h, s, s), lambda h, m, n: te.exp(S[h, m, n] - M[h, m]), "E", block="exp")
    N = te.compute((h, s), lambda h, m: te.sum(E[h, m, k], axis=k), "N", block="sum")
    W = te.compute((h, s, s), lambda h, m, n: E[h, m, n] / N[h, m], "W", block="weights")
    r = te.reduce_axis((0, s), "r")
    Y = te.compute(
        (h, s, d), lambda h, m, d: te.sum(W[h, m, r] * V[h, r, d], axis=r), "Y", block="values"
    )
    return te.create_prim_func([Q, K, V, Y], "causal" if causal else "attention")


def attention_reference(
    shape: Shape, q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool = False
) -> np.ndarray:
    scores = q @ k.transpose(0, 2, 1) * np.float32(1 / math.sqrt(shape[2]))
    if causal:
        scores[:, *np.triu_indices(shape[1], 1)] = -np.inf
    e = np.exp(scores - scores.max(axis=2, keepdims=True))
    return (e / e.sum(axis=2, keepdims=True)) @ v


def attention_flops(shape: Shape) -> float:
    """Two products, and five operations a score: scale, compare, exponential, add, divide."""
    h, s, d = shape
    return 4.0 * h * s * s * d + 5.0 * h * s * s


def log_sum_exp(shape: Shape) -> PrimFunc:
    """Y[m] = log(sum of exp(X[m, n])), with the maximum taken out."""
    m, n = shape
    X = te.placeholder((m, n), name="X")
    j, k = te.reduce_axis((0, n), "j"), te.reduce_axis((0, n), "k")
    M = te.compute((m,), lambda m: te.max(X[m, j], axis=j), "M", block="max")
    S = te.compute((m,), lambda m: te.sum(te.exp(X[m, k] - M[m]), axis=k), "S", block="sum")
    Y = te.compute((m,), lambda m: M[m] + te.log(S[m]), "Y", block="log")
    return te.create_prim_func([X, Y], "lse")


def log_sum_exp_reference(shape: Shape, x: np.ndarray) -> np.ndarray:
    largest = x.max(axis=1)
    return largest + np.log(np.exp(x - largest[:, None]).sum(axis=1))


def layer_norm_product(shape: Shape) -> PrimFunc:
    """Y = ((X - mean) / sqrt(variance + epsilon)) @ W, with mean and variance of each row of X."""
    m, n, k = shape
    X, W = te.placeholder((m, k), name="X"), te.placeholder((k, n), name="W")
    i, j, r = (te.reduce_axis((0, k), name) for name in "ijr")
    S = te.compute((m,), lambda m: te.sum(X[m, i], axis=i), "S", block="sum")
    D = te.compute((m, k), lambda m, k: X[m, k] - S[m] * (1 / shape[2]), "D", block="difference")
    Q = te.compute((m,), lambda m: te.sum(D[m, j] * D[m, j], axis=j), "Q", block="squares")
    F = te.compute(
        (m,), lambda m: 1.0 / te.sqrt(Q[m] * (1 / shape[2]) + _EPSILON), "F", block="factor"
    )
    L = te.compute((m, k), lambda m, k: D[m, k] * F[m], "L", block="normalised")
    Y = te.compute((m, n), lambda m, n: te.sum(L[m, r] * W[r, n], axis=r), "Y", block="product")
    return te.create_prim_func([X, W, Y], "lnm")


def layer_norm_product_reference(shape: Shape, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    difference = x - x.mean(axis=1, keepdims=True)
    variance = (difference * difference).mean(axis=1, keepdims=True)
    return (difference / np.sqrt(variance + np.float32(_EPSILON))) @ w


def layer_norm_product_flops(shape: Shape) -> float:
    """The product, and five operations for each element: add, subtract, square (2), multiply."""
    m, n, k = shape
    return 2.0 * m * n * k + 5.0 * m * k


def rms_norm(shape: Shape) -> PrimFunc:
    """Y[m, n] = X[m, n] / sqrt(mean square of row m + epsilon)."""
    m, n = shape
    X = te.placeholder((m, n), name="X")
    j = te.reduce_axis((0, n), "j")
    S = te.compute((m,), lambda m: te.sum(X[m, j] * X[m, j], axis=j), "S", block="squares")
    F = te.compute(
        (m,), lambda m: 1.0 / te.sqrt(S[m] * (1 / shape[1]) + _EPSILON), "F", block="factor"
    )
    Y = te.compute((m, n), lambda m, n: X[m, n] * F[m], "Y", block="normalised")
    return te.create_prim_func([X, Y], "rms")


def rms_norm_reference(shape: Shape, x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(_EPSILON))


WORKLOADS = (
    Workload(
        "attention", "H S D", attention, attention_reference,
        ((12, 384, 64), (12, 128, 64), (12, 1024, 64), (12, 4096, 64)), attention_flops,
    ),
    Workload(
        "causal", "H S D", partial(attention, causal=True),
        partial(attention_reference, causal=True), ((12, 1024, 64), (12, 384, 64), (12, 4096, 64)),
        lambda s: attention_flops(s) * (s[1] + 1) / (2 * s[1]),
    ),
    Workload(
        "lse", "M N", log_sum_exp, log_sum_exp_reference, ((1024, 1024), (512, 512), (4096, 512)),
        lambda s: 4.0 * s[0] * s[1],
    ),
    Workload(
        "lnm", "M N K", layer_norm_product, layer_norm_product_reference,
        ((512, 768, 768), (128, 3072, 768)), layer_norm_product_flops, weights=(1,),
    ),
    Workload(
        "rms", "M N", rms_norm, rms_norm_reference, ((1024, 1024), (512, 4096)),
        lambda s: 3.0 * s[0] * s[1],
    ),
)  # fmt: skip

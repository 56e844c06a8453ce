"""Matrix products: GMM (batched matmul) and TBG (transpose, then batched matmul)."""

from __future__ import annotations

import numpy as np

from metasched.frontend import te
from metasched.ir.func import PrimFunc
from metasched.workloads.workload import Shape, Workload


def gmm(shape: Shape, x: str = "float32", y: str = "float32", z: str = "float32") -> PrimFunc:
    """Z[b,n,m] = sum_k X[b,n,k] * Y[b,k,m], accumulated in the type of Z."""
    b, n, m, k = shape
    X, Y = te.placeholder((b, n, k), x, "X"), te.placeholder((b, k, m), y, "Y")
    r = te.reduce_axis((0, k), "k")
    product = lambda b, n, m: te.sum(te.cast(X[b, n, r], z) * te.cast(Y[b, r, m], z), axis=r)  # noqa: E731
    return te.create_prim_func([X, Y, te.compute((b, n, m), product, "Z")], "gmm")


def gmm_reference(shape: Shape, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """np.matmul in the accumulator's type."""
    wide = accumulator(x)
    return np.matmul(x.astype(wide, copy=False), y.astype(wide, copy=False))


def accumulator(x: np.ndarray) -> type:
    """The type sums of products of `x` are formed in."""
    return np.int32 if np.issubdtype(x.dtype, np.integer) else np.float32


def gmm_flops(shape: Shape) -> float:
    b, n, m, k = shape
    return 2.0 * b * n * m * k


def tbg(shape: Shape) -> PrimFunc:
    """S[b,h,i,j] = sum_d Q[b,i,h,d] * K[b,j,h,d], through two transposed copies."""
    b, s, h, d = shape
    Q, K = te.placeholder((b, s, h, d), name="Q"), te.placeholder((b, s, h, d), name="K")
    QT = te.compute((b, h, s, d), lambda b, h, s, d: Q[b, s, h, d], "QT")
    KT = te.compute((b, h, d, s), lambda b, h, d, s: K[b, s, h, d], "KT")
    r = te.reduce_axis((0, d), "d")
    product = lambda b, h, i, j: te.sum(QT[b, h, i, r] * KT[b, h, r, j], axis=r)  # noqa: E731
    return te.create_prim_func([Q, K, te.compute((b, h, s, s), product, "S")], "tbg")


def tbg_reference(shape: Shape, q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return np.matmul(q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1))


def tbg_flops(shape: Shape) -> float:
    b, s, h, d = shape
    return 2.0 * b * h * s * s * d


GMM_SHAPES = ((1, 1024, 1024, 1024), (1, 128, 128, 128), (1, 512, 32, 512), (1, 512, 512, 512))
TBG_SHAPES = ((1, 128, 16, 64), (1, 128, 12, 64), (1, 64, 12, 128), (1, 128, 12, 128))


def _low_precision(name: str, x: str, y: str, z: str) -> Workload:
    return Workload(
        name,
        "B N M K",
        lambda s: gmm(s, x, y, z),
        gmm_reference,
        GMM_SHAPES,
        gmm_flops,
        x,
        weights=(1,),
    )


WORKLOADS = (
    Workload("gmm", "B N M K", gmm, gmm_reference, GMM_SHAPES, gmm_flops, weights=(1,)),
    Workload("tbg", "batch sequence heads dim", tbg, tbg_reference, TBG_SHAPES, tbg_flops),
    _low_precision("gmm_u8s8s32", "uint8", "int8", "int32"),
    _low_precision("gmm_s8s8s32", "int8", "int8", "int32"),
    _low_precision("gmm_bf16", "bfloat16", "bfloat16", "float32"),
    _low_precision("gmm_f16", "float16", "float16", "float32"),
)

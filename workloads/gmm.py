"""Matrix products: GMM (batched matmul) and TBG (transpose, then batched matmul)."""

from __future__ import annotations

import numpy as np

from metasched.ir.func import PrimFunc
from metasched.script import tir as T
from metasched.workloads.workload import Shape, Workload


def gmm(shape: Shape, x: str = "float32", y: str = "float32", z: str = "float32") -> PrimFunc:
    """Z[b,n,m] = sum_k X[b,n,k] * Y[b,k,m], accumulated in the type of Z."""
    b, n, m, k = shape

    @T.prim_func
    def gmm(X: T.Buffer((b, n, k), x), Y: T.Buffer((b, k, m), y), Z: T.Buffer((b, n, m), z)):
        T.func_attr({"global_symbol": "gmm", "tir.noalias": True})
        for i0, i1, i2, i3 in T.grid(b, n, m, k):
            with T.block("Z"):
                vb, vn, vm, vk = T.axis.remap("SSSR", [i0, i1, i2, i3])
                with T.init():
                    Z[vb, vn, vm] = T.cast(0, z)
                Z[vb, vn, vm] = Z[vb, vn, vm] + T.cast(X[vb, vn, vk], z) * T.cast(Y[vb, vk, vm], z)

    return gmm


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

    @T.prim_func
    def tbg(
        Q: T.Buffer((b, s, h, d), "float32"),
        K: T.Buffer((b, s, h, d), "float32"),
        S: T.Buffer((b, h, s, s), "float32"),
    ):
        T.func_attr({"global_symbol": "tbg", "tir.noalias": True})
        QT = T.alloc_buffer((b, h, s, d), "float32")
        KT = T.alloc_buffer((b, h, d, s), "float32")
        for i0, i1, i2, i3 in T.grid(b, h, s, d):
            with T.block("QT"):
                vb, vh, vs, vd = T.axis.remap("SSSS", [i0, i1, i2, i3])
                QT[vb, vh, vs, vd] = Q[vb, vs, vh, vd]
        for i0, i1, i2, i3 in T.grid(b, h, d, s):
            with T.block("KT"):
                vb, vh, vd, vs = T.axis.remap("SSSS", [i0, i1, i2, i3])
                KT[vb, vh, vd, vs] = K[vb, vs, vh, vd]
        for i0, i1, i2, i3, i4 in T.grid(b, h, s, s, d):
            with T.block("S"):
                vb, vh, vi, vj, vd = T.axis.remap("SSSSR", [i0, i1, i2, i3, i4])
                with T.init():
                    S[vb, vh, vi, vj] = T.float32(0)
                S[vb, vh, vi, vj] = S[vb, vh, vi, vj] + QT[vb, vh, vi, vd] * KT[vb, vh, vd, vj]

    return tbg


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

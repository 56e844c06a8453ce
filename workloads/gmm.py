"""Matrix products: GMM (batched matmul) and TBG (transpose, then batched matmul).

The names of low precision give the types. `gmm_u8s8s32` names both operands and the result.
`gmm_bf16` names the operands; the result is float32. Operands and result of `gmm_bf16io` are
bfloat16. Sums are in int32 or float32.
"""

from __future__ import annotations

import numpy as np

from metasched.frontend import te
from metasched.frontend.workload import Shape, Workload
from metasched.ir.func import PrimFunc


def gmm(shape: Shape, x: str = "float32", y: str = "float32", z: str = "float32") -> PrimFunc:
    """Z[b,n,m] = sum_k X[b,n,k] * Y[b,k,m], accumulated in the type of Z."""
    return te.create_prim_func([*products(shape, x, y, z, ("X", "Y", "Z"))], "gmm")


def products(
    shape: Shape, x: str, y: str, z: str, names: tuple[str, str, str]
) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """Both operands and the result of a batched matrix product, accumulated in type `z`."""
    b, n, m, k = shape
    X, Y = te.placeholder((b, n, k), x, names[0]), te.placeholder((b, k, m), y, names[1])
    r = te.reduce_axis((0, k), "k")
    product = lambda b, n, m: te.sum(te.cast(X[b, n, r], z) * te.cast(Y[b, r, m], z), axis=r)  # noqa: E731
    return X, Y, te.compute((b, n, m), product, names[2])


def gmm_io(shape: Shape, kind: str) -> PrimFunc:
    """Z in the type of X and Y, rounded once from sums in float32."""
    X, Y, C = products(shape, kind, kind, "float32", ("X", "Y", "C"))
    Z = te.compute(C.shape, lambda b, n, m: te.cast(C[b, n, m], kind), "Z")
    return te.create_prim_func([X, Y, Z], "gmm")


def gmm_reference(shape: Shape, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """np.matmul in the accumulator's type."""
    wide = accumulator(x)
    return np.matmul(x.astype(wide, copy=False), y.astype(wide, copy=False))


def gmm_io_reference(shape: Shape, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return gmm_reference(shape, x, y).astype(x.dtype)


def accumulator(x: np.ndarray) -> type:
    """The type of sums of products of `x`."""
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
LOW_SHAPES = (
    *GMM_SHAPES,
    (1, 1, 4096, 4096), (1, 127, 257, 131), (1, 384, 3072, 768), (1, 384, 768, 3072),
    (1, 128, 768, 768), (1, 128, 2304, 768), (1, 197, 768, 768), (12, 128, 128, 64),
    (12, 384, 384, 64), (12, 384, 64, 384),
)  # fmt: skip
"""The usual shapes of low precision, with shapes of transformers, heads in batches, odd sizes."""
TBG_SHAPES = ((1, 128, 16, 64), (1, 128, 12, 64), (1, 64, 12, 128), (1, 128, 12, 128))


GMM_PARAMETERS = "B N M K"


def _low_precision(name: str, x: str, y: str, z: str) -> Workload:
    return Workload(
        name, GMM_PARAMETERS, lambda s: gmm(s, x, y, z), gmm_reference, LOW_SHAPES, gmm_flops, x,
        weights=(1,),
    )  # fmt: skip


def _in_and_out(name: str, kind: str) -> Workload:
    return Workload(
        name, GMM_PARAMETERS, lambda s: gmm_io(s, kind), gmm_io_reference, LOW_SHAPES, gmm_flops,
        kind, weights=(1,),
    )  # fmt: skip


WORKLOADS = (
    Workload("gmm", GMM_PARAMETERS, gmm, gmm_reference, GMM_SHAPES, gmm_flops, weights=(1,)),
    Workload("tbg", "batch sequence heads dim", tbg, tbg_reference, TBG_SHAPES, tbg_flops),
    _low_precision("gmm_u8s8s32", "uint8", "int8", "int32"),
    _low_precision("gmm_s8s8s32", "int8", "int8", "int32"),
    _low_precision("gmm_bf16", "bfloat16", "bfloat16", "float32"),
    _low_precision("gmm_f16", "float16", "float16", "float32"),
    _in_and_out("gmm_bf16io", "bfloat16"),
    _in_and_out("gmm_f16io", "float16"),
)

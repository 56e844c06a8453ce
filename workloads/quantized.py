"""Quantized operators: byte operands, sums in int32, requantized to bytes in the same function.

QGMM, QC2D and QDEP are ONNX's QLinearMatMul and QLinearConv, and PyTorch's quantized linear and
conv2d: uint8 or int8 activations, int8 weights with a scale for each output channel o.

    Y[.., o] = saturate(round((sum of X * W + B[o]) * S[o]) + zero point of Y)

`round` rounds halves to even. The inputs S and B follow from the parameters of a network:

    S[o] = scale of X * scale of W[o] / scale of Y
    B[o] = bias[o] - zero point of X * (sum of W over all but o)        # `folded_bias`

The zero point of the weights is 0. The offset of X costs nothing in the kernel: its part of the sum
is constant, and X is padded with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from metasched.frontend import te
from metasched.frontend.workload import Shape, Workload
from metasched.ir.dtype import DType
from metasched.ir.expr import Expr
from metasched.ir.func import PrimFunc
from metasched.workloads.conv import (
    C2D_PARAMETERS,
    C2D_SHAPES,
    c2d_flops,
    conv_reference,
    convolved,
)
from metasched.workloads.conv_grouped import (
    DEP_PARAMETERS,
    DEP_SHAPES,
    dep_flops,
    dep_reference,
    depthwise,
)
from metasched.workloads.gmm import (
    GMM_PARAMETERS,
    LOW_SHAPES,
    gmm_flops,
    gmm_reference,
    products,
)
from metasched.workloads.padding import pad_array

ZEROS = {"uint8": (121, 113), "int8": (-7, 5)}
"""Zero points of X and Y by their type, as the calibration of a network finds them."""
Channels = Callable[[Sequence[Expr]], tuple[Expr, ...]]


def qgmm(shape: Shape, kind: str) -> PrimFunc:
    """X[b,n,k] times W[b,k,m], requantized; scales S[b,m] and biases B[b,m]."""
    b, _, m, _ = shape
    X, W, C = products(shape, kind, "int8", "int32", ("X", "W", "C"))
    return _requantized("qgmm", (X, W, C), (b, m), lambda at: (at[0], at[-1]), kind)


def qc2d(shape: Shape, kind: str) -> PrimFunc:
    """The convolution of X, padded with its zero point, requantized; S[co] and B[co]."""
    X, W, C = convolved(2, shape, kind, "int8", "int32", ZEROS[kind][0], "C")
    return _requantized("qc2d", (X, W, C), (shape[4],), lambda at: (at[-1],), kind)


def qdep(shape: Shape, kind: str) -> PrimFunc:
    """The depthwise convolution of X, padded with its zero point, requantized; S[c] and B[c]."""
    X, W, C = depthwise(shape, kind, "int8", "int32", ZEROS[kind][0], "C")
    return _requantized("qdep", (X, W, C), (shape[3],), lambda at: (at[-1],), kind)


def _requantized(
    name: str, tensors: Sequence[te.Tensor], sizes: Shape, channels: Channels, kind: str
) -> PrimFunc:
    """Bias, scale, rounding with the zero point, and saturation, a block each."""
    X, W, C = tensors
    B, S = te.placeholder(sizes, "int32", "B"), te.placeholder(sizes, "float32", "S")
    names = [i.name for i in C.indices]
    low, high = DType(kind).range

    def stage(tensor: str, block: str, element: Callable[..., Expr]) -> te.Tensor:
        return te.compute(C.shape, element, tensor, block=block, varargs_names=names)

    CB = stage("CB", "bias", lambda *i: C[i] + B[channels(i)])
    CS = stage("CS", "scale", lambda *i: te.cast(CB[i], "float32") * S[channels(i)])
    CR = stage("CR", "round", lambda *i: te.nearbyint(CS[i]) + float(ZEROS[kind][1]))
    Y = stage("Y", "saturate", lambda *i: te.cast(_clip(CR[i], low, high), kind))
    return te.create_prim_func([X, W, B, S, Y], name)


def _clip(value: Expr, low: int, high: int) -> Any:
    return te.min(te.max(value, float(low)), float(high))


def folded_bias(bias: np.ndarray, w: np.ndarray, x_zero: int) -> np.ndarray:
    """The input B: the int32 `bias`, less what the zero point of X adds to each sum.

    `bias` has the shape of B, and `w` are the weights.
    """
    over = (1,) if bias.ndim == 2 else tuple(range(w.ndim - 1))
    return bias - np.int32(x_zero) * w.astype(np.int32).sum(over, dtype=np.int32)


def requantize(sums: np.ndarray, s: np.ndarray, kind: str) -> np.ndarray:
    """`sums` times `s` in float32, rounded, moved by the zero point of Y, saturated to its type."""
    rounded = np.rint(sums.astype(np.float32) * s) + np.float32(ZEROS[kind][1])
    return np.clip(rounded, *DType(kind).range).astype(kind)


def qgmm_reference(
    shape: Shape, x: np.ndarray, w: np.ndarray, b: np.ndarray, s: np.ndarray
) -> np.ndarray:
    sums = gmm_reference(shape, x, w) + b[:, None, :]
    return requantize(sums, s[:, None, :], str(x.dtype))


def qc2d_reference(
    shape: Shape, x: np.ndarray, w: np.ndarray, b: np.ndarray, s: np.ndarray
) -> np.ndarray:
    large = _with_border(shape, x)
    sums = conv_reference((*large.shape, *shape[4:7], 0), large, w)
    return requantize(sums + b, s, str(x.dtype))


def qdep_reference(
    shape: Shape, x: np.ndarray, w: np.ndarray, b: np.ndarray, s: np.ndarray
) -> np.ndarray:
    large = _with_border(shape, x).astype(np.int32)
    sums = dep_reference((*large.shape, *shape[4:6], 0), large, w.astype(np.int32))
    return requantize(sums + b, s, str(x.dtype))


def _with_border(shape: Shape, x: np.ndarray) -> np.ndarray:
    return pad_array(x, (1, 2), shape[-1], ZEROS[str(x.dtype)][0])


def _draw(
    build: Callable[[Shape], PrimFunc], rng: np.random.Generator, shape: Shape
) -> list[np.ndarray]:
    """Inputs like a network's: bytes of all values, and scales that fill the range of Y."""
    X, W, B, _ = build(shape).buffers[:-1]
    kind, sizes = str(X.dtype), B.constant_shape() or ()
    low, high = X.dtype.range
    x = rng.integers(low, high + 1, X.constant_shape(), dtype=kind)
    w = rng.integers(-128, 128, W.constant_shape(), dtype=np.int8)
    bias = rng.integers(-1000, 1001, sizes, dtype=np.int32)
    deviation = 74.0**2 * math.sqrt(w.size / bias.size)  # standard deviation of the sums
    s = (rng.uniform(20.0, 60.0, sizes) / deviation).astype(np.float32)
    return [x, w, folded_bias(bias, w, ZEROS[kind][0]), s]


def _workload(
    name: str, parameters: str, make: Callable[[Shape, str], PrimFunc],
    reference: Callable[..., np.ndarray], shapes: tuple[Shape, ...],
    flops: Callable[[Shape], float], kind: str,
) -> Workload:  # fmt: skip
    def build(shape: Shape) -> PrimFunc:
        return make(shape, kind)

    return Workload(
        name, parameters, build, reference, shapes, flops, kind, (1,), partial(_draw, build)
    )


WORKLOADS = tuple(
    _workload(name + end, *rest, kind)
    for end, kind in (("", "uint8"), ("_s8", "int8"))
    for name, *rest in (
        ("qgmm", GMM_PARAMETERS, qgmm, qgmm_reference, LOW_SHAPES, gmm_flops),
        ("qc2d", C2D_PARAMETERS, qc2d, qc2d_reference, C2D_SHAPES, c2d_flops),
        ("qdep", DEP_PARAMETERS, qdep, qdep_reference, DEP_SHAPES, dep_flops),
    )
)

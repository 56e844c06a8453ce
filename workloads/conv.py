"""Convolutions, channels last: C1D, C2D, DIL (dilated) and C3D; padding is a separate stage."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np

from metasched.frontend import te
from metasched.frontend.workload import Shape, Workload
from metasched.ir.expr import Expr
from metasched.ir.func import PrimFunc
from metasched.workloads.gmm import accumulator
from metasched.workloads.padding import convolution, out_size, pad_array, padded, taps


def conv(
    name: str, rank: int, shape: Shape, x: str = "float32", w: str = "float32", y: str = "float32"
) -> PrimFunc:
    """Y[n,...,co] = sum of P[n, h*stride + kh*dilation, ..., ci] * W[kh,...,ci,co]; P is X padded.

    The shape may end with a dilation. Products are accumulated in the type of Y.
    """
    X, W, Y = convolved(rank, shape, x, w, y)
    return convolution(name, X, W, Y, _dims(shape, rank)[5])


def convolved(
    rank: int, shape: Shape, x: str, w: str, y: str, fill: int = 0, name: str = "Y"
) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """The data, the weights and the result of a convolution, whose data is padded with `fill`."""
    sizes, ci, co, k, s, p, d = _dims(shape, rank)
    X = te.placeholder((shape[0], *sizes, ci), x, "X")
    W = te.placeholder((*[k] * rank, ci, co), w, "W")
    P = padded(X, range(1, rank + 1), p, fill)
    tap = [te.reduce_axis((0, k), name) for name in "rij"[-rank:]]
    c = te.reduce_axis((0, ci), "c")

    def element(n: Expr, *at: Expr) -> te.Reduction:
        window = [v * s + t * d for v, t in zip(at[:-1], tap, strict=True)]
        product = te.cast(P[n, *window, c], y) * te.cast(W[*tap, c, at[-1]], y)
        return te.sum(product, axis=[*tap, c])

    out = (shape[0], *(out_size(size, k, s, p, d) for size in sizes), co)
    names = ["n", *"dhw"[-rank:], "o"]
    return X, W, te.compute(out, element, name, block="conv", varargs_names=names)


def c2d_io(shape: Shape, kind: str) -> PrimFunc:
    """C2D with data, weights and result of one type; sums in float32 are rounded once."""
    X, W, C = convolved(2, shape, kind, kind, "float32", name="C")
    Y = te.compute(C.shape, lambda n, h, w, o: te.cast(C[n, h, w, o], kind), "Y", block="narrow")
    return convolution("c2d", X, W, Y, _dims(shape, 2)[5])


def _dims(shape: Shape, rank: int) -> tuple[tuple[int, ...], int, int, int, int, int, int]:
    """(spatial sizes, CI, CO, kernel, stride, pad, dilation) of a convolution's shape."""
    ci, co, k, s, p, d = (*shape[rank + 1 :], 1)[:6]
    return shape[1 : rank + 1], ci, co, k, s, p, d


def conv_reference(shape: Shape, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The reference of all convolutions: one matrix product for each position of the kernel."""
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


def c2d_io_reference(shape: Shape, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return conv_reference(shape, x, w).astype(x.dtype)


def conv_flops(rank: int, shape: Shape) -> float:
    """Two operations for each tap inside the input, input channel and output channel."""
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
        name, C2D_PARAMETERS, lambda s: conv("c2d", 2, s, x, w, y), conv_reference, C2D_SHAPES,
        c2d_flops, x, weights=(1,),
    )  # fmt: skip


def _in_and_out(name: str, kind: str) -> Workload:
    return Workload(
        name, C2D_PARAMETERS, lambda s: c2d_io(s, kind), c2d_io_reference, C2D_SHAPES, c2d_flops,
        kind, weights=(1,),
    )  # fmt: skip


WORKLOADS = (
    Workload(
        "c1d", "N L CI CO kernel stride pad", partial(conv, "c1d", 1), conv_reference,
        ((1, 256, 64, 128, 3, 2, 1), (1, 128, 128, 256, 1, 2, 0),
         (1, 64, 256, 256, 5, 1, 2), (1, 32, 512, 512, 3, 1, 1)),
        lambda shape: conv_flops(1, shape), weights=(1,),
    ),
    Workload(
        "c2d", C2D_PARAMETERS, partial(conv, "c2d", 2), conv_reference, C2D_SHAPES, c2d_flops,
        weights=(1,),
    ),
    Workload(
        "c3d", "N D H W CI CO kernel stride pad", partial(conv, "c3d", 3), conv_reference,
        ((1, 16, 14, 14, 256, 256, 3, 1, 1), (1, 16, 224, 224, 3, 64, 7, 2, 3),
         (1, 16, 56, 56, 64, 64, 1, 1, 0), (1, 16, 7, 7, 512, 512, 3, 1, 1)),
        lambda shape: conv_flops(3, shape), weights=(1,),
    ),
    Workload(
        "dil", C2D_PARAMETERS + " dilation", partial(conv, "c2d", 2), conv_reference,
        tuple((*shape, 2) for shape in C2D_SHAPES), c2d_flops, weights=(1,),
    ),
    _low_precision("c2d_u8s8s32", "uint8", "int8", "int32"),
    _low_precision("c2d_s8s8s32", "int8", "int8", "int32"),
    _low_precision("c2d_bf16", "bfloat16", "bfloat16", "float32"),
    _low_precision("c2d_f16", "float16", "float16", "float32"),
    _in_and_out("c2d_bf16io", "bfloat16"),
    _in_and_out("c2d_f16io", "float16"),
)  # fmt: skip

"""Padding around convolutions: sizes, taps inside the input, and the padding stage.

Tensors are batches of channels-last images: dimensions 1 and so on are padded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from metasched.frontend import te
from metasched.ir.expr import Expr, as_int
from metasched.ir.func import PrimFunc
from metasched.lower.passes.zeros import FINITE


def out_size(size: int, kernel: int, stride: int, pad: int, dilation: int = 1) -> int:
    """Extent of a convolution's output along one dimension."""
    found = (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
    if found < 1:
        raise ValueError(f"a kernel of {kernel} (dilation {dilation}) exceeds {size} + 2*{pad}")
    return found


def taps(sizes: tuple[int, ...], kernel: int, stride: int, pad: int, dilation: int = 1) -> int:
    """How many pairs of output position and kernel position fall inside an input of `sizes`."""
    return prod(_taps(size, kernel, stride, pad, dilation) for size in sizes)


def _taps(size: int, kernel: int, stride: int, pad: int, dilation: int) -> int:
    out = np.arange(out_size(size, kernel, stride, pad, dilation))[:, None] * stride
    at = out + np.arange(kernel) * dilation - pad
    return int(np.count_nonzero((at >= 0) & (at < size)))


def pad_array(x: np.ndarray, dims: tuple[int, ...], pad: int, fill: int = 0) -> np.ndarray:
    """Pad an array on both sides of each of `dims` by `pad` elements of value `fill`."""
    widths = [(pad, pad) if d in dims else (0, 0) for d in range(x.ndim)]
    return np.pad(x, widths, constant_values=fill)


def padded(x: te.Tensor, dims: Sequence[int], pad: int, fill: int = 0) -> te.Tensor:
    """Pad a tensor on both sides of each of `dims` by `pad` elements: a stage unless `pad` is 0."""
    sizes = {d: as_int(x.shape[d]) + 2 * pad for d in dims}
    return filled_around(x, sizes, pad, fill) if pad else x


def filled_around(x: te.Tensor, sizes: Mapping[int, int], lead: int, fill: int = 0) -> te.Tensor:
    """Put `lead` elements of value `fill` before a tensor, and as many behind as `sizes` asks for.

    Args:
        sizes: the extents of the result in the dimensions that are padded.
    """

    def element(*at: Expr) -> Expr:
        inside = [within(at[d], lead, lead + as_int(x.shape[d])) for d in sizes]
        moved = [v - lead if d in sizes else v for d, v in enumerate(at)]
        return te.if_then_else(all_of(inside), x[tuple(moved)], te.cast(fill, str(x.dtype)))

    shape = [sizes.get(d, extent) for d, extent in enumerate(x.shape)]
    names = ["n", *"dhw"[-len(sizes) :], "c", "x", "y"][: x.ndim]
    return te.compute(shape, element, "P", block="pad", varargs_names=names)


def all_of(conditions: Sequence[Expr]) -> Expr:
    """Whether all of some conditions hold."""
    *first, last = conditions
    for condition in reversed(first):
        last = te.all(condition, last)
    return last


def within(value: Expr, low: int, high: int) -> Expr:
    """low <= value < high."""
    return te.all(te.LE(low, value), te.LT(value, high))


def convolution(name: str, x: te.Tensor, w: te.Tensor, y: te.Tensor, pad: int) -> PrimFunc:
    """The function of a padded convolution; its zeros say that no element is infinite."""
    return te.create_prim_func([x, w, y], name, {FINITE: True} if pad else None)

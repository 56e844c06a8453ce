"""What a workload is: an operator with a builder, a NumPy reference, its shapes and its cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from metasched.ir.buffer import Buffer
from metasched.ir.func import LAYOUT_FREE, PrimFunc

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """One operator of the suite.

    Attributes:
        name: what the command line calls it.
        parameters: the names of the numbers that make up a shape, in order.
        build: shape -> the program; its buffers are the inputs, then the one output.
        reference: (shape, *inputs) -> the output, by NumPy.
        shapes: the usual shapes; a short benchmark runs the first.
        flops: shape -> floating-point (or integer) operations; a multiply-add counts as 2, and
            only taps inside the input count.
        dtype: type of the inputs (of the first, where they differ).
        weights: positions of the inputs that are the same in every call of a trained network.
    """

    name: str
    parameters: str
    build: Callable[[Shape], PrimFunc]
    reference: Callable[..., np.ndarray]
    shapes: tuple[Shape, ...]
    flops: Callable[[Shape], float]
    dtype: str = "float32"
    weights: tuple[int, ...] = ()

    def shape_of(self, values: Shape | None = None) -> Shape:
        """`values` checked against the parameters; None gives the first usual shape.

        Raises ValueError for a wrong number of values or one that is negative.
        """
        if values is None:
            return self.shapes[0]
        names = self.parameters.split()
        if len(values) != len(names):
            given = ",".join(map(str, values))
            raise ValueError(f"{self.name} takes {len(names)} numbers ({self.parameters}): {given}")
        for name, value in zip(names, values, strict=True):
            if value < (0 if name == "pad" else 1):
                raise ValueError(f"{self.name}: {name} cannot be {value}")
        return tuple(int(v) for v in values)

    def func(self, shape: Shape | None = None, constant_weights: bool = False) -> PrimFunc:
        """The program for a shape (default: the first usual one).

        Args:
            constant_weights: mark the weights as constant, so that a schedule may have them packed
                ahead of time.

        Raises ValueError for a wrong shape, and for constant weights where there are none.
        """
        func = self.build(self.shape_of(shape))
        if not constant_weights:
            return func
        if not self.weights:
            raise ValueError(f"{self.name} has no weights that could be constant")
        return func.with_attr(LAYOUT_FREE, list(self.weights))

    def inputs(self, shape: Shape | None = None, seed: int = 0, integers: bool = True) -> list[Any]:
        """Arrays for the inputs: small integers (sums are exact) or normally distributed values."""
        rng = np.random.default_rng(seed)
        return [random_array(rng, b, integers) for b in self.func(shape).buffers[:-1]]

    def output(self, shape: Shape | None = None) -> np.ndarray:
        """A zeroed array for the output."""
        buffer = self.func(shape).buffers[-1]
        return np.zeros(buffer.constant_shape() or (), buffer.dtype.numpy)


def random_array(rng: np.random.Generator, buffer: Buffer, integers: bool) -> np.ndarray:
    """Values for a buffer: integers in [-4, 4] (from 0 for unsigned), or standard normal."""
    shape = buffer.constant_shape() or ()
    if integers or not buffer.dtype.is_float:
        low = 0 if buffer.dtype.kind in ("uint", "bool") else -4
        return rng.integers(low, 5, shape).astype(buffer.dtype.numpy)
    return rng.standard_normal(shape).astype(buffer.dtype.numpy)

"""Workload: an operator with a builder, a NumPy reference, its usual shapes and its operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        reference: (shape, *inputs) -> the output, by NumPy; with `in_place`, (shape, *arrays)
            writes into the arrays.
        shapes: the usual shapes; a short benchmark runs the first.
        flops: shape -> floating-point (or integer) operations; a multiply-add counts as 2, and
            only taps inside the input count.
        dtype: type of the inputs (of the first input if they differ).
        weights: positions of the inputs that are the same in every call of a trained network.
        draw: (generator, shape) -> inputs, for operators that need other inputs than small integers
            or normally distributed values.
        in_place: whether the program, and the reference, may read and write each of the buffers.
            The inputs are then arrays for all buffers.
    """

    name: str
    parameters: str
    build: Callable[[Shape], PrimFunc]
    reference: Callable[..., np.ndarray | None]
    shapes: tuple[Shape, ...]
    flops: Callable[[Shape], float]
    dtype: str = "float32"
    weights: tuple[int, ...] = ()
    draw: Callable[[np.random.Generator, Shape], list[Any]] | None = None
    in_place: bool = False

    def shape_of(self, values: Shape | None = None) -> Shape:
        """`values` checked against the parameters; None gives the first usual shape.

        Raises ValueError for a wrong number of values and for a negative value.
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
        """The program for a shape (default: the first usual shape).

        Args:
            constant_weights: mark the weights as constant, so that a schedule may have them packed
                ahead of time.

        Raises ValueError for a wrong shape, and for constant weights of an operator without any.
        """
        func = self.build(self.shape_of(shape))
        if not constant_weights:
            return func
        if not self.weights:
            raise ValueError(f"{self.name} has no weights that could be constant")
        return func.with_attr(LAYOUT_FREE, list(self.weights))

    def inputs(self, shape: Shape | None = None, seed: int = 0, integers: bool = True) -> list[Any]:
        """The arrays that the reference takes: small integers (sums are exact) or normally
        distributed values; if the operator has `draw`, its values."""
        rng = np.random.default_rng(seed)
        if self.draw is not None:
            return self.draw(rng, self.shape_of(shape))
        buffers = self.func(shape).buffers
        taken = buffers if self.in_place else buffers[:-1]
        return [random_array(rng, b, integers) for b in taken]

    def arguments(self, inputs: Sequence[np.ndarray], shape: Shape | None = None) -> list[Any]:
        """The arrays that the program takes: copies of the `inputs`, and a zeroed output."""
        copies = [array.copy() for array in inputs]
        return copies if self.in_place else [*copies, self.output(shape)]

    def expected(self, inputs: Sequence[np.ndarray], shape: Shape | None = None) -> list[Any]:
        """The contents of the arrays of `arguments` after the program has run, by the reference."""
        arrays = [array.copy() for array in inputs]
        result = self.reference(self.shape_of(shape), *arrays)
        return arrays if self.in_place else [*arrays, result]

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

"""Hard data for the fuzz of the space: what test data of a task leaves out.

Integers take all values of their type, floats infinities, NaN and both
zeros here and there. Indices and bounds stay inside, as in `metasched.measure.data`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from metasched.ir.dtype import DType
from metasched.ir.func import FINITE, PrimFunc
from metasched.measure.data import Array, Task, fill
from metasched.measure.indices import index_data

SHARES = (0.01, 0.05, 0.3)  # of the elements that are special


class HardData:
    """Draws the contents of arrays of one program, as `fill` does."""

    def __init__(self, func: PrimFunc) -> None:
        indices = index_data(func)
        self.plain = [buffer not in indices for buffer in func.buffers]
        self.finite = bool(dict(func.attrs).get(FINITE) or func.liberties)

    def __call__(self, array: Array, task: Task, position: int) -> Any:
        usual, dtype = fill(array, task, position), DType(array.dtype)
        if not self.plain[position] or dtype.is_bool:
            return usual
        rng = np.random.default_rng([task.seed, position, 2])
        chosen = rng.random(usual.shape) < rng.choice(SHARES)
        special = specials(dtype, finite=self.finite)
        if dtype.is_int:
            low, high = dtype.range
            usual = rng.integers(low, high, usual.shape, dtype.numpy, endpoint=True)
        return np.where(chosen, rng.choice(special, usual.shape), usual).astype(dtype.numpy)

    def nudged(self, array: Array, task: Task, position: int) -> Any:
        """The same contents, each finite float moved up or down by one rounding error."""
        values = self(array, task, position)
        if not DType(array.dtype).is_float:
            return values
        signs = np.random.default_rng([task.seed, position, 1]).choice([-1, 1], values.shape)
        return (values.astype(np.float64) * (1 + array.eps * signs)).astype(values.dtype)


def specials(dtype: DType, finite: bool) -> Any:
    """The values of a type at which programs go wrong."""
    if dtype.is_int:
        low, high = dtype.range
        return np.array([low, low + 1, 0, 1, high - 1, high], dtype.numpy)
    values = [0.0, -0.0] if finite else [0.0, -0.0, np.inf, -np.inf, np.nan]
    return np.array(values).astype(dtype.numpy)

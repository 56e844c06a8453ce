"""Pack the constant weights of a kernel once, before its calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from metasched.codegen.signature import Signature, extent_value
from metasched.errors import KernelError
from metasched.ir.dtype import DType
from metasched.runtime.arguments import Checker
from metasched.runtime.arrays import aligned_empty
from metasched.runtime.native import Native


class Packed(np.ndarray[Any, Any]):
    """A packed weight that names its kernel by the hash of the kernel's program.

    A copy as a plain array, for example read from a file, has no hash; only its shape is checked.
    """

    def __array_finalize__(self, source: Any) -> None:
        self.layout: str | None = getattr(source, "layout", None)


class Packer:
    """The pack function of a kernel on NumPy arrays."""

    def __init__(self, signature: Signature, native: Native, layout: str) -> None:
        assert signature.pack is not None
        self._signature, self._native, self._layout = signature.pack, native, layout
        self._count = len(signature.weights)
        weights = replace(signature.pack, params=signature.pack.params[: self._count])
        self._check = Checker(weights, f"{signature.symbol}.pack")

    def __call__(self, weights: Sequence[Any]) -> tuple[np.ndarray[Any, Any], ...]:
        """Make new arrays with the weights in the kernel's layout.

        Raises KernelError naming the weight that does not fit.
        """
        pack, (arrays, _, held) = self._signature, self._check.complete(weights)
        values = self._check(arrays)
        given, symbols = values[: self._count], values[self._count :]
        extents = dict(zip(pack.symbols, symbols, strict=True))
        made = [
            aligned_empty([extent_value(e, extents) for e in p.shape], DType(p.dtype).numpy)
            for p in pack.buffers[self._count :]
        ]
        places = [array.__array_interface__["data"][0] for array in made]
        code = self._native.pack(*given, *places, *symbols)
        del held
        if code:
            raise KernelError(f"{pack.symbol}: {self._native.failure(pack, code)}")
        found = tuple([array.view(Packed) for array in made])
        for array in found:
            array.layout = self._layout
        return found

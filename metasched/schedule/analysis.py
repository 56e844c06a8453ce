"""What a schedule can ask about a program, under the names that TVM has for it.

suggest_index_map(A, [j0 * 8 + j1, k], loops over j0, k, j1, TRUE)
-> (j, k) -> (j // 8, k, j % 8): the loops read A from its first to its last element
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from metasched.arith.indexmap import IndexMap
from metasched.arith.iterform import NotAffine, Reader
from metasched.ir.buffer import Buffer
from metasched.ir.expr import TRUE, Expr, Var, as_int
from metasched.ir.stmt import For
from metasched.ir.visit import free_vars
from metasched.schedule.auto_tensorize import (
    AutoTensorizeMappingInfo,
    TensorizeMapping,
    get_auto_tensorize_mapping_info,
    tensorize_mappings,
)
from metasched.schedule.rebind import ranges_of
from metasched.schedule.tensorize_mapping import (
    TensorizeInfo,
    get_tensorize_loop_mapping,
    tile_with_tensor_intrin,
)

__all__ = [
    "AutoTensorizeMappingInfo",
    "Digit",
    "TensorizeInfo",
    "TensorizeMapping",
    "digits_of",
    "first_loop",
    "get_auto_tensorize_mapping_info",
    "get_tensorize_loop_mapping",
    "suggest_index_map",
    "tensorize_mappings",
    "tile_with_tensor_intrin",
]


class Digit(NamedTuple):
    """(index // scale) % extent, and where loops run over it.

    Attributes:
        place: the position of the loop, and of the digit among those of the loop, outermost first.
        axis: which index it is a digit of.
        scale, extent: see above.
    """

    place: tuple[int, int]
    axis: int
    scale: int
    extent: int

    def of(self, value: Expr, size: int) -> Expr:
        """The digit of an index of `size` values."""
        digit = value // self.scale if self.scale > 1 else value
        return digit if self.scale * self.extent >= size else digit % self.extent


def suggest_index_map(
    buffer: Buffer, indices: Sequence[Expr], loops: Sequence[For], predicate: Expr = TRUE
) -> IndexMap | None:
    """The layout of a buffer in which loops access it from the first to the last element.

    An index is read as a number whose digits are loops, or digits of loops. The new indices are
    the digits, in the order of the loops. The idea is TVM's SuggestIndexMap, whose digits are those
    of the flattened index.

    Args:
        buffer: a buffer of constant shape.
        indices: of the access, over the variables of the loops.
        loops: around the access, outermost first; they have constant extents.
        predicate: the condition under which the access runs. Without one, the digits have to fill
            each dimension exactly.

    Returns a map for `transform_layout`, or None where an index is no such number, where two
    dimensions use one digit of a loop, or where an element is not accessed.
    """
    digits: list[Digit] = []
    inputs = tuple(Var(f"i{n}") for n in range(buffer.ndim))
    sizes = [as_int(size) for size in buffer.shape]
    for n, (index, size) in enumerate(zip(indices, sizes, strict=True)):
        found = None if size is None else digits_of(index, size, n, loops)
        if found is None:
            return None
        reach = 1
        for digit in found:
            reach *= digit.extent
        if reach != size and predicate is TRUE:
            return None
        digits += found
    digits.sort()
    if not digits or len({digit.place for digit in digits}) < len(digits):
        return None
    return IndexMap(inputs, tuple(d.of(inputs[d.axis], sizes[d.axis] or 1) for d in digits))


def digits_of(value: Expr, size: int, axis: int, loops: Sequence[For]) -> list[Digit] | None:
    """The digits, each of one loop, of an index with values from 0 to `size`; None where the index
    is no number with such digits, or where they do not reach all values."""
    places = {loop.var: n for n, loop in enumerate(loops)}
    try:
        splits, base = Reader(ranges_of(loops), keep_units=False).read(value)
    except NotAffine:
        return None
    found: list[Digit] = []
    for split in splits:
        numbers = (split.lower, split.extent, split.scale)
        if not isinstance(split.mark.source, Var) or not all(isinstance(n, int) for n in numbers):
            return None
        lower, extent, scale = (int(n) for n in numbers)  # type: ignore[arg-type]
        if extent > 1:
            found.append(Digit((places[split.mark.source], -lower), axis, scale, extent))
    reach = 1
    for digit in sorted(found, key=lambda d: d.scale):
        if digit.scale != reach:
            return None
        reach *= digit.extent
    exact = base.const == 0 and not base.terms and reach >= size
    return found if exact else None


def first_loop(value: Expr, loops: Sequence[For]) -> int:
    """The position of the outermost loop that a value uses, 0 for none."""
    return next((n for n, loop in enumerate(loops) if loop.var in free_vars(value)), 0)

"""Functions that inspect a program for a schedule, under TVM's names; and `suggest_index_map`.

suggest_index_map(A, [j0 * 8 + j1, k], loops over j0, k, j1, TRUE)
-> (j, k) -> (j // 8, k, j % 8): in this layout the loops read A from first to last element
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
    """A digit of an index, (index // scale) % extent, that a loop or a part of a loop runs over.

    Attributes:
        place: the position of the loop, then a number that orders the digits of one loop; both
            grow from the outermost inwards.
        axis: the dimension whose index has this digit.
        scale, extent: the numbers in the formula above.
    """

    place: tuple[int, int]
    axis: int
    scale: int
    extent: int

    def of(self, value: Expr, size: int) -> Expr:
        """This digit of the index `value`, which is below `size`."""
        digit = value // self.scale if self.scale > 1 else value
        return digit if self.scale * self.extent >= size else digit % self.extent


def suggest_index_map(
    buffer: Buffer, indices: Sequence[Expr], loops: Sequence[For], predicate: Expr = TRUE
) -> IndexMap | None:
    """Find the layout in which loops access a buffer from its first to its last element.

    Each index is written as a number whose digits are loops, or digits of loops. The new indices
    are the digits, in the order of the loops. The idea is TVM's SuggestIndexMap, which cuts the
    flattened index into digits.

    Args:
        buffer: a buffer of constant shape.
        indices: the indices of the access, over the variables of the loops.
        loops: the loops around the access, outermost first, with constant extents.
        predicate: the condition under which the access runs. If it is TRUE, the digits have to
            fill each dimension exactly.

    Returns a map for `transform_layout`. Returns None if an index has no such digits, if two
    dimensions use the same digit of a loop, or if the loops do not access all elements.
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
    """Cut an index with values from 0 to `size` into digits, each of one loop.

    Args:
        value: the index, over the variables of the loops.
        size: the extent of the dimension.
        axis: the dimension, which each digit keeps as its `axis`.
        loops: the loops around the access, outermost first, with constant extents.

    Returns None if the index is no sum of such digits, or if the digits do not reach all values.
    """
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
    """The position of the outermost loop that a value uses; 0 if it uses none."""
    return next((n for n, loop in enumerate(loops) if loop.var in free_vars(value)), 0)

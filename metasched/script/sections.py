"""Slices of buffers in scripts, with NumPy's meaning.

As an argument of T.reads, T.writes or T.match_buffer a section is a region. As a value it is a
vector, or one element in the loops of the assignment that contains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metasched.arith.analyzer import Analyzer
from metasched.arith.intset import relax
from metasched.errors import TypeMismatchError
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.equal import structural_equal
from metasched.ir.expr import LE, Expr, IntImm, Var, add, as_expr, as_int, compare, mul
from metasched.ir.op import Ramp


class NoVector(Exception):
    """Raised when a section in an assignment is no vector; the assignment then becomes loops."""


# A slice of more elements than this becomes a loop: machine vectors are shorter.
LONGEST_VECTOR = 64


@dataclass(frozen=True)
class Axis:
    """One dimension of the values in an assignment: the loop's variable and its extent."""

    var: Var
    extent: Expr


@dataclass(frozen=True)
class Section:
    """`buffer[...]` with a slice among the indices.

    The step of a dimension with a single index is 0. `stops` holds, for a dimension, the bound
    after the last element if the script writes it as a number.
    """

    buffer: Buffer
    ranges: tuple[Range, ...]
    steps: tuple[int, ...]
    stops: tuple[int | None, ...]

    @property
    def extents(self) -> list[Expr]:
        """NumPy's shape of the section."""
        return [r.extent for r, s in zip(self.ranges, self.steps, strict=True) if s]

    @property
    def region(self) -> BufferRegion:
        """The section as a box; raises TypeMismatchError if the section skips elements."""
        if max(self.steps) > 1:
            raise TypeMismatchError("a region has no step")
        return BufferRegion(self.buffer, self.ranges)

    def checked(self) -> Section:
        """The section as a value; the extent is zero if the stop is before the start.

        Raises TypeMismatchError if the section certainly leaves the buffer, or if a bound counts
        from the buffer's end.
        """
        ranges: list[Range] = []
        for k, (r, step) in enumerate(zip(self.ranges, self.steps, strict=True)):
            low, count, size = as_int(r.min), as_int(r.extent), as_int(self.buffer.shape[k])
            stop = self.stops[k]
            if step and ((stop is not None and stop < 0) or (low is not None and low < 0)):
                raise TypeMismatchError(
                    f"a negative bound of a slice counts from the end in Python; {self.buffer.name}"
                    f" has {_size(self.buffer.shape[k])} elements in dimension {k}: write the "
                    "bound from its start"
                )
            if step and low is not None and count is not None and size is not None:
                last = low + (count - 1) * step
                if count > 0 and last >= size:
                    raise TypeMismatchError(
                        f"elements {low} to {last} of dimension {k} are asked for, "
                        f"{self.buffer.name} has {size}; NumPy would cut the slice short"
                    )
            empty = step and count is not None and count < 0
            ranges.append(Range(r.min, as_expr(0, r.extent.dtype)) if empty else r)
        return Section(self.buffer, tuple(ranges), self.steps, self.stops)

    def vector(self) -> BufferLoad:
        """The section as a vector; dimensions of extent one are dropped."""
        wide = [e for e in self.extents if as_int(e) != 1]
        if len(wide) > 1:
            raise TypeMismatchError(
                f"a slice of {len(wide)} dimensions has a value only in an assignment to a slice: "
                "write B[0:8, 0:8] = A[0:8, 0:8], or loops"
            )
        if not self.is_vector:
            raise TypeMismatchError(
                f"a slice is a vector of 1 to {LONGEST_VECTOR} elements of the last dimension "
                "where it is no assignment to a slice; write a loop"
            )
        indices: list[Expr] = []
        for r, step in zip(self.ranges, self.steps, strict=True):
            lanes = as_int(r.extent)
            if not step or lanes is None or lanes == 1:
                indices.append(r.min)
            else:
                indices.append(Ramp(r.min, as_expr(step, r.min.dtype), lanes))
        return BufferLoad(self.buffer, indices)

    @property
    def is_vector(self) -> bool:
        """Whether one vector of a machine's size holds the section."""
        pairs = zip(self.ranges, self.steps, strict=True)
        *outer, last = (as_int(r.extent) if step else 1 for r, step in pairs)
        return outer.count(1) == len(outer) and last is not None and 0 < last <= LONGEST_VECTOR

    def element(self, axes: Sequence[Axis]) -> BufferLoad:
        """The element for one iteration of the loops `axes`: NumPy's rule of broadcasting.

        Dimensions are matched from the last; a dimension of extent 1 is repeated.
        """
        indices: list[Expr] = []
        left = list(axes)
        for r, step in reversed(list(zip(self.ranges, self.steps, strict=True))):
            if not step:
                indices.append(r.min)
                continue
            axis = left.pop() if left else None
            if as_int(r.extent) == 1 and (axis is None or as_int(axis.extent) != 1):
                indices.append(r.min)
            elif axis is None or not same_extent(axis.extent, r.extent):
                want = "1" if axis is None else _size(axis.extent)
                raise TypeMismatchError(
                    f"{self.buffer.name} is sliced to extent {_size(r.extent)} where the target "
                    f"of the assignment has extent {want}: extents are equal or 1"
                )
            else:
                offset = axis.var if step == 1 else mul(axis.var, step)
                indices.append(add(r.min, offset))
        return BufferLoad(self.buffer, indices[::-1])


def same_extent(a: Expr, b: Expr) -> bool:
    """Whether two extents are equal for certain."""
    x, y = as_int(a), as_int(b)
    if x is not None or y is not None:
        return x == y
    return a is b or structural_equal(a, b) or (a.dtype is b.dtype and Analyzer().equal(a, b))


def apart(a: BufferLoad, b: BufferLoad, axes: Sequence[Axis]) -> bool:
    """Whether two accesses to one buffer touch different elements in all iterations of `axes`."""
    if any(i.dtype.lanes > 1 for i in (*a.indices, *b.indices)):
        return False
    dom = {x.var: Range(IntImm(x.var.dtype, 0), x.extent) for x in axes}
    one, two = (relax(BufferRegion.point(n.buffer, n.indices), dom) for n in (a, b))
    an = Analyzer()
    return any(
        an.prove(compare(LE, add(x.min, x.extent), y.min))
        or an.prove(compare(LE, add(y.min, y.extent), x.min))
        for x, y in zip(one.region, two.region, strict=True)
    )


def _size(extent: Expr) -> str:
    value = as_int(extent)
    return repr(extent) if value is None else str(value)

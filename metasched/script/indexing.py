"""Subscripts of buffers: indices, slices, ranges."""

from __future__ import annotations

import ast
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.dtype import DType
from metasched.ir.equal import structural_equal
from metasched.ir.expr import Add, Expr, FloorDiv, IntImm, Mul, Sub, as_expr, as_int, cast, sub
from metasched.script.builder import typed
from metasched.script.diagnostics import Source
from metasched.script.sections import Axis, NoVector, Section


class Slice:
    """start:stop:step inside a subscript, parts None where absent."""

    def __init__(self, start: Any, stop: Any, step: Any) -> None:
        self.start, self.stop, self.step = start, stop, step


def place_key(access: BufferLoad | BufferRegion) -> Any:
    """The key under which an access is noted; regions are not interned, so their parts are used."""
    if isinstance(access, BufferLoad):
        return access
    return access.buffer, *((r.min, r.extent) for r in access.region)


class Indexing(ABC):
    """Reads subscripts of buffers as loads, sections and ranges."""

    source: Source
    places: dict[Any, tuple[Source, ast.AST]]  # where accesses, loops and statements were read
    axes: Sequence[Axis] | None = None  # loops of the assignment being read
    may_loop = False  # whether the assignment being read may still become loops

    @abstractmethod
    def value(self, node: ast.AST) -> Any:
        """Evaluate `node`."""

    @abstractmethod
    def guard(self, node: ast.AST, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of metasched and report its error at `node`."""

    @abstractmethod
    def fail(self, node: ast.AST, message: str, hint: str = "") -> NoReturn:
        """Report an error at `node`."""

    def note(self, key: Any, node: ast.AST) -> None:
        """Remember where a key was read, for errors that are found later."""
        self.places.setdefault(key, (self.source, node))

    def slice(self, node: ast.Slice) -> Slice:
        parts = (node.lower, node.upper, node.step)
        return Slice(*(None if p is None else self.value(p) for p in parts))

    def access(self, node: ast.Subscript, buffer: Buffer) -> BufferLoad | Section:
        """buffer[...]: a load, or a section when a slice is among the indices."""
        items = self.value(node.slice)
        parts = tuple(items) if isinstance(items, (tuple, list)) else (items,)
        if len(parts) != len(buffer.shape):
            self.fail(node, f"{buffer.name} has {len(buffer.shape)} dimensions, {len(parts)} given",
                      f"write {buffer.name}[{', '.join('ijklmnopq'[: buffer.ndim])}] with an index "
                      f"or a slice for each dimension, not {buffer.name}[i][j]")  # fmt: skip
        if not any(isinstance(p, Slice) for p in parts):
            found = BufferLoad(buffer, [self.index(node, p) for p in parts])
            self.note(found, node)
            return found
        pairs = zip(parts, buffer.shape, strict=True)
        ranges, steps = zip(*(self._range(node, p, size) for p, size in pairs), strict=True)
        stops = tuple(as_int(p.stop) if isinstance(p, Slice) else None for p in parts)
        self.note(place_key(BufferRegion(buffer, ranges)), node)
        return Section(buffer, ranges, steps, stops)

    def index(self, node: ast.AST, value: Any) -> Expr:
        found = self.guard(node, typed, value)
        if not found.dtype.is_int:
            self.fail(node, f"an index is an integer, not {found.dtype}",
                      "write T.int32(x), which cuts the fraction off")  # fmt: skip
        return found  # type: ignore[no-any-return]

    def _range(self, node: ast.AST, part: Any, whole: Expr) -> tuple[Range, int]:
        """The range that an index or slice selects, and the step of the slice (0 for an index)."""
        if not isinstance(part, Slice):
            low = self.index(node, part)
            return Range(low, as_expr(1, low.dtype)), 0
        step = 1 if part.step is None else as_int(part.step)
        if step is None or step < 1:
            self.fail(node, "the step of a slice is a positive number", "write a loop")
        start = part.start if part.start is not None else as_expr(0, whole.dtype)
        stop = part.stop if part.stop is not None else whole
        low, size = self.extent(node, start, stop, None if step == 1 else step)
        return Range(low, size), step

    def extent(self, node: ast.AST, start: Any, stop: Any, step: Any = None) -> tuple[Expr, Expr]:
        """Start and number of steps of start:stop[:step]; inverts what the printer writes."""
        low, high = self._bounds(node, start, stop)
        stride = None if step is None else self.guard(node, typed, step, high.dtype)
        width = 1 if stride is None else as_int(stride)
        if width == 0:
            self.fail(node, "a step is not 0", "the loop would never end")
        if isinstance(low, IntImm) and isinstance(high, IntImm) and width is not None:
            count = -((low.value - high.value) // width)
            return low, self.guard(node, IntImm, high.dtype, count)
        if low.dtype is not high.dtype:
            return low, high
        if stride is not None and width is None:  # rounds up for both signs of the step
            return low, sub(as_expr(0, low.dtype), FloorDiv(sub(low, high), stride))
        if width is not None and width < 0:
            back = self.guard(node, Analyzer().simplify, sub(low, high))
            return low, back if width == -1 else (back + (-width - 1)) // -width
        if isinstance(low, IntImm) and low.value == 0:
            reach: Expr = high
        elif isinstance(high, Add) and _same(high.a, low):
            reach = high.b
        elif isinstance(high, Add) and high.b is low:
            reach = high.a
        else:
            reach = self.guard(node, Analyzer().simplify, sub(high, low))
        if stride is None:
            return low, reach
        if isinstance(reach, Mul) and reach.b is stride:
            return low, reach.a
        return low, FloorDiv(Sub(Add(reach, stride), as_expr(1, stride.dtype)), stride)

    def domain(
        self, node: ast.AST, start: Any, stop: Any, step: Any = None, as_python: bool = False
    ) -> tuple[Expr, Expr]:
        """Start and `extent` of a loop or an iterator; raises for a negative extent.

        With `as_python`, a stop before the start gives an extent of zero.
        """
        low, size = self.extent(node, start, stop, step)
        count = as_int(size)
        if count is not None and count < 0:
            if as_python:
                return low, as_expr(0, size.dtype)
            self.fail(node, f"{count} iterations: an extent is 0 or more", "swap its bounds, or "
                      "write `for i in range(start, stop)`, which is empty then")  # fmt: skip
        return low, size

    def _bounds(self, node: ast.AST, start: Any, stop: Any) -> tuple[Expr, Expr]:
        start, stop = _wide_end(start), _wide_end(stop)
        if isinstance(start, Expr):
            low = self.index(node, start)
            return low, self.index(node, self.guard(node, typed, stop, low.dtype))
        high = self.index(node, stop)
        return self.index(node, self.guard(node, typed, start, high.dtype)), high

    def lanes(self, node: ast.AST, value: Any) -> Any:
        """A section as a value: a vector, or one element inside the loops of an assignment."""
        if not isinstance(value, Section):
            return value
        value = self.guard(node, value.checked)
        if self.axes is None and self.may_loop and not value.is_vector:
            raise NoVector
        how = value.vector if self.axes is None else functools.partial(value.element, self.axes)
        found = self.guard(node, how)
        self.note(found, node)
        return found


def _same(a: Expr, b: Expr) -> bool:
    """Whether two expressions are equal up to the variables that a Let binds anew at each
    reading."""
    return a is b or (type(a) is type(b) and structural_equal(a, b))


def _wide_end(end: Any) -> Any:
    """An end of a loop that is known at run time only, in a type in which the number of iterations
    does not wrap: of `uint8`, 3 - 5 is 254."""
    if not isinstance(end, Expr) or not end.dtype.is_int or isinstance(end, IntImm):
        return end
    if end.dtype.lanes > 1 or end.dtype in ("int32", "int64"):
        return end
    return cast(DType("int32" if end.dtype.bits < 32 else "int64"), end)

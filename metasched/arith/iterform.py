"""Reads integer expressions as sums of digits of iterators (mixed radix).

A mark is a variable, or a dense sum of digits, that runs over [0, extent). A split is one digit of
a mark, (mark // lower) % extent, times a scale. The idea is TVM's iter_affine_map.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from metasched.arith.affine import as_written
from metasched.arith.analyzer import Analyzer
from metasched.arith.linear import Linear, emit, factors, multiply, product, without
from metasched.ir.buffer import Range
from metasched.ir.describe import show_expr
from metasched.ir.dtype import INT64, DType
from metasched.ir.expr import Expr, FloorDiv, FloorMod, IntImm, Mul, Var
from metasched.ir.visit import free_vars

Size: TypeAlias = "int | Expr"


class IterMark(NamedTuple):
    """A variable (less its minimum) or a dense sum of digits that runs over [0, extent)."""

    source: Var | IterSum
    extent: Size


class IterSplit(NamedTuple):
    """A digit of a mark with its scale: (mark // lower) % extent * scale."""

    mark: IterMark
    lower: Size
    extent: Size
    scale: Size

    def scale_expr(self, dtype: DType) -> Expr:
        """The scale as an expression."""
        return size_expr(self.scale, dtype)

    def extent_expr(self, dtype: DType) -> Expr:
        """The number of values as an expression."""
        return size_expr(self.extent, dtype)


class IterSum(NamedTuple):
    """The sum of digits, and a base that does not depend on the iterators."""

    splits: tuple[IterSplit, ...]
    base: Expr


class NotAffine(Exception):
    """An expression is no sum of digits; the text names the expression and the reason."""


def size_expr(size: Size, dtype: DType) -> Expr:
    """A size as an expression of type `dtype`."""
    return IntImm(dtype, size) if isinstance(size, int) else size.astype(dtype)


class Reader:
    """Reads expressions as sums of digits of the iterators in `ranges`.

    `literal` reads quotients without simplification, because simplified (i*6 + j) // 4 is no longer
    a quotient of one dense sum.
    """

    def __init__(
        self, ranges: Mapping[Var, Range], keep_units: bool, literal: bool = False
    ) -> None:
        self.literal = literal
        self.an = Analyzer(ranges, keep_units=keep_units)
        self.ranges = ranges
        self.keep_units = keep_units
        self.marks: dict[Expr, tuple[IterMark, Expr]] = {}  # variable -> mark and minimum
        self.groups: list[Group] = []
        for var, r in ranges.items():
            extent = r.extent.value if type(r.extent) is IntImm else self.an.simplify(r.extent)
            self.marks[var] = (IterMark(var, size_of(extent)), r.min)
        self.iters = frozenset(ranges)

    # ---- arithmetic on sizes -------------------------------------------------------------

    def same(self, a: Size, b: Size) -> bool:
        """Whether two sizes are certainly equal."""
        if isinstance(a, int) and isinstance(b, int):
            return a == b
        return self.an.is_zero(self.lin(a).plus(self.lin(b), -1))

    def at_most(self, a: Size, b: Size) -> bool:
        """Whether a <= b certainly holds."""
        if isinstance(a, int) and isinstance(b, int):
            return a <= b
        return self.an.proves_nonnegative(self.lin(b).plus(self.lin(a), -1))

    def lin(self, a: Size) -> Linear:
        """A size as a linear form."""
        return Linear({}, a) if isinstance(a, int) else self.an.linear(a)

    def times(self, a: Size, b: Size) -> Size:
        """a * b."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        return self.back(multiply(self.lin(a), self.lin(b)), a, b)

    def back(self, value: Linear, *like: Size) -> Size:
        """A linear form as a size, typed like one of the arguments."""
        value = self.an.normal(value, INT64)
        if not value.terms:
            return value.const
        dtype = next(x.dtype for x in like if not isinstance(x, int))
        result = emit(value, dtype)
        if result is None:
            raise NotAffine("a size is too large for its type")
        return result

    def ceildiv(self, a: Size, b: Size) -> Size:
        """ceil(a / b)."""
        if isinstance(a, int) and isinstance(b, int):
            return -(-a // b)
        if b == 1:
            return a
        dtype = next(x.dtype for x in (a, b) if not isinstance(x, int))
        x, y = size_expr(a, dtype), size_expr(b, dtype)
        return size_of(self.an.simplify(FloorDiv(x + y - 1, y)))

    def divides(self, a: Size, b: Size) -> bool:
        """Whether a certainly divides b."""
        if isinstance(a, int) and isinstance(b, int):
            return a != 0 and b % a == 0
        if a == 1:
            return True
        dtype = next(x.dtype for x in (a, b) if not isinstance(x, int))
        rest = self.an.simplify(FloorMod(size_expr(b, dtype), size_expr(a, dtype)))
        return type(rest) is IntImm and rest.value == 0

    # ---- expressions ---------------------------------------------------------------------

    def read(self, expr: Expr) -> tuple[list[IterSplit], Linear]:
        """The digits and the base of an expression. Raises NotAffine."""
        return self.read_linear(as_written(expr) if self.literal else self.an.linear(expr))

    def read_linear(self, value: Linear) -> tuple[list[IterSplit], Linear]:
        """The digits and the base of a linear form. Raises NotAffine."""
        splits: dict[tuple[IterMark, Size, Size], Size] = {}
        base = Linear({}, value.const)
        for atom, c in value.terms.items():
            found = self.marks.get(atom)
            key: tuple[IterMark, Size, Size]
            if found is not None:
                mark, low = found
                key = (mark, 1, mark.extent)
                splits[key] = self.plus(splits[key], c) if key in splits else c
                if type(low) is not IntImm or low.value:
                    base = base.plus(self.an.linear(low), c)
            elif free_vars(atom).isdisjoint(self.iters):
                base = base.plus(Linear({atom: 1}, 0), c)
            else:
                for split in self._digits(atom):
                    key = split[:3]
                    scale = self.times(split.scale, c)
                    splits[key] = self.plus(splits[key], scale) if key in splits else scale
        return [IterSplit(*key, scale) for key, scale in splits.items() if scale != 0], base

    def plus(self, a: Size, b: Size) -> Size:
        """a + b."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return self.back(self.lin(a).plus(self.lin(b)), a, b)

    def _digits(self, atom: Expr) -> list[IterSplit]:
        """The digits of a quotient, remainder or product that mentions iterators."""
        if type(atom) is Mul:
            running = [f for f in factors(atom) if not free_vars(f).isdisjoint(self.iters)]
            if len(running) == 1:
                scale = product(without(atom, running) or [])
                splits, base = self.read_linear(Linear({running[0]: 1}, 0))
                if scale is not None and not base.terms and base.const == 0:
                    return [s._replace(scale=self.times(s.scale, scale)) for s in splits]
            raise NotAffine(f"{show_expr(atom)} is a product of iterators")
        if not isinstance(atom, (FloorDiv, FloorMod)):
            raise NotAffine(f"{show_expr(atom)} is not affine in the iterators")
        if not free_vars(atom.b).isdisjoint(self.iters):
            raise NotAffine(f"{show_expr(atom)} divides by an iterator")
        d: Size = atom.b.value if type(atom.b) is IntImm else atom.b
        if isinstance(d, int) and d == 0:
            raise NotAffine(f"{show_expr(atom)} divides by zero")
        splits, base = self.read(atom.a)
        split, offset = self.fuse(splits, atom.a)
        base = base.plus(offset)
        if base.terms or base.const:
            raise NotAffine(f"{show_expr(atom)} divides an iterator that does not start at zero")
        if split is None:
            return []
        return [self._quotient(split, d) if type(atom) is FloorDiv else self._rest(split, d)]

    def _quotient(self, s: IterSplit, d: Size) -> IterSplit:
        """s // d."""
        s, d, _ = self._unscaled(s, d)
        if not self.divides(d, s.extent) and not self._is_top(s):
            s = self._alone(s)
        return IterSplit(s.mark, self.times(s.lower, d), self.ceildiv(s.extent, d), 1)

    def _rest(self, s: IterSplit, d: Size) -> IterSplit:
        """s % d."""
        s, d, factor = self._unscaled(s, d)
        if self.at_most(s.extent, d):
            return s._replace(scale=factor)
        if not self.divides(d, s.extent) and not self._is_top(s):
            s = self._alone(s)
        if not self.at_most(d, s.extent):
            raise NotAffine("a remainder by a number that may exceed the iterator's extent")
        return IterSplit(s.mark, s.lower, d, factor)

    def _unscaled(self, s: IterSplit, d: Size) -> tuple[IterSplit, Size, Size]:
        """Apply (k*x) // d = x // (d/k) and (k*x) % d = k*(x % (d/k)), if k divides d."""
        k = s.scale
        if k == 1:
            return s, d, 1
        if isinstance(k, int) and isinstance(d, int) and k > 0 and d % k == 0:
            return s._replace(scale=1), d // k, k
        raise NotAffine("an iterator with a stride is divided by what the stride does not divide")

    def _is_top(self, s: IterSplit) -> bool:
        """Whether this digit is the highest digit of its mark."""
        return self.at_most(s.mark.extent, self.times(s.lower, s.extent))

    def _alone(self, s: IterSplit) -> IterSplit:
        """The digit as an iterator of its own."""
        mark = IterMark(IterSum((s,), IntImm(INT64, 0)), s.extent)
        return IterSplit(mark, 1, s.extent, 1)

    # ---- fusing --------------------------------------------------------------------------

    def fuse(self, splits: list[IterSplit], whole: Expr) -> tuple[IterSplit | None, Linear]:
        """The sum as one digit and an offset (None for no digit). Raises NotAffine."""
        offset = Linear({}, 0)
        units = [s for s in splits if s.extent == 1]
        left = [s for s in splits if s.extent != 1] if units else list(splits)
        if not left:
            return (units[0] if units and self.keep_units else None), offset
        if len(left) == 1 and not units:
            return left[0], offset
        scale, order, offset = self.order(left, whole)
        if units and self.keep_units:
            order = _with_units(order, units)
        joined = self._join(order)
        if len(joined) == 1:
            return joined[0]._replace(scale=scale), offset
        extent: Size = 1
        for s in joined:
            extent = self.times(extent, s.extent)
        mark = IterMark(IterSum(tuple(reversed(joined)), IntImm(INT64, 0)), extent)
        return IterSplit(mark, 1, extent, scale), offset

    def order(self, left: list[IterSplit], whole: Expr) -> tuple[Size, list[IterSplit], Linear]:
        """Order digits from the smallest; each scale must be the product of the smaller extents.

        Returns the common scale, the digits with scales relative to the common scale, and the
        offset of limited groups. Raises NotAffine.
        """
        start = self._smallest(left)
        if start is None:
            raise NotAffine(f"{show_expr(whole)} mixes iterators whose strides are not ordered")
        expected: Size = start.scale
        if isinstance(expected, int) and expected < 0:
            raise NotAffine(f"{show_expr(whole)} runs backwards")
        relative: Size = 1
        order: list[IterSplit] = []
        offset = Linear({}, 0)
        while left:
            group = self._matching_group(left, expected)
            if group is not None:
                member, left = group
                offset = offset.plus(multiply(self.lin(member.low), self.lin(expected)))
                extent = member.count(self)
                digit = IterSplit(member.mark(), 1, extent, relative)
            else:
                found = next((s for s in left if self.same(s.scale, expected)), None)
                if found is None:
                    raise NotAffine(
                        f"{show_expr(whole)}: no iterator has the stride {show_expr(expected)} "
                        "that the smaller iterators fill"
                    )
                left = [s for s in left if s is not found]
                digit = found._replace(scale=relative)
            order.append(digit)
            expected = self.times(expected, digit.extent)
            relative = self.times(relative, digit.extent)
        return start.scale, order, offset

    def _smallest(self, left: list[IterSplit]) -> IterSplit | None:
        constant = [s for s in left if isinstance(s.scale, int)]
        if constant:
            return min(constant, key=lambda s: s.scale)
        for s in left:
            if all(self.divides(s.scale, t.scale) for t in left):
                return s
        return None

    def _matching_group(
        self, left: list[IterSplit], expected: Size
    ) -> tuple[Group, list[IterSplit]] | None:
        for group in self.groups:
            rest = list(left)
            for member in group.order:
                scale = self.times(member.scale, expected)
                key = member[:3]
                found = next((s for s in rest if s[:3] == key and self.same(s.scale, scale)), None)
                if found is None:
                    break
                rest.remove(found)
            else:
                return group, rest
        return None

    def _join(self, order: list[IterSplit]) -> list[IterSplit]:
        """Join neighbouring digits of one mark into one digit."""
        result: list[IterSplit] = []
        for s in order:
            if result:
                t = result[-1]
                if t.mark == s.mark and self.same(s.lower, self.times(t.lower, t.extent)):
                    result[-1] = t._replace(extent=self.times(t.extent, s.extent))
                    continue
            result.append(s)
        return result


class Group:
    """A dense sum of digits that a predicate limits to [low, high)."""

    __slots__ = ("_mark", "high", "low", "order")

    def __init__(self, order: list[IterSplit], high: Size) -> None:
        self.order = order
        self.low: Size = 0
        self.high = high
        self._mark: IterMark | None = None

    def narrow(self, low: Size, high: Size) -> None:
        """Set the limits. Raises NotAffine where a digit of the group was already taken."""
        if self._mark is not None and (low != self.low or high != self.high):
            raise NotAffine("a predicate bounds a sum of iterators after a digit of that sum")
        self.low, self.high = low, high

    def count(self, reader: Reader) -> Size:
        """The number of values within the limits, which cannot be narrowed afterwards."""
        if self._mark is None:
            if isinstance(self.low, int) and isinstance(self.high, int):
                extent: Size = self.high - self.low
            else:
                low, high = reader.lin(self.low), reader.lin(self.high)
                extent = reader.back(high.plus(low, -1), self.low, self.high)
            base = size_expr(self.low, INT64)
            base = IntImm(INT64, 0) if self.low == 0 else reader.an.simplify(-base)
            self._mark = IterMark(IterSum(tuple(reversed(self.order)), base), extent)
        return self._mark.extent

    def mark(self) -> IterMark:
        """The limited sum as a mark; call `count` before."""
        assert self._mark is not None
        return self._mark


def _with_units(order: list[IterSplit], units: list[IterSplit]) -> list[IterSplit]:
    """Insert iterators of extent one at the place of their scale, so that they stay visible."""
    result = list(order)
    for unit in units:
        place = 0
        while place < len(result) and _before(result[place], unit):
            place += 1
        scale = result[place].scale if place < len(result) else unit.scale
        result.insert(place, unit._replace(scale=scale))
    return result


def _before(a: IterSplit, b: IterSplit) -> bool:
    return not (isinstance(a.scale, int) and isinstance(b.scale, int)) or a.scale < b.scale


def size_of(value: Size) -> Size:
    """Integer constants as Python integers."""
    return value.value if type(value) is IntImm else value

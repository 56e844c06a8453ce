"""Subspace division: splits bindings into a part for the outer and a part for the inner loops."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from metasched.arith.analyzer import Analyzer
from metasched.arith.conditions import conjuncts
from metasched.arith.iterform import IterMark, IterSplit, IterSum, Size, size_expr
from metasched.arith.itermap import Level, detect_iter_map, split_expr
from metasched.ir.buffer import Range
from metasched.ir.dtype import DType
from metasched.ir.expr import TRUE, Expr, FloorDiv, FloorMod, IntImm, Var, as_int, logical_and
from metasched.ir.visit import free_vars, substitute


@dataclass(frozen=True, slots=True)
class Divided:
    """One binding as outer * inner_extent + inner, `inner` in [0, inner_extent)."""

    outer: Expr
    outer_extent: Expr
    inner: Expr
    inner_extent: Expr

    @property
    def is_outer(self) -> bool:
        """Whether the binding does not depend on the inner loops."""
        return isinstance(self.inner_extent, IntImm) and self.inner_extent.value == 1

    @property
    def is_inner(self) -> bool:
        """Whether the binding does not depend on the outer loops."""
        return isinstance(self.outer_extent, IntImm) and self.outer_extent.value == 1


@dataclass(frozen=True, slots=True)
class Division:
    """All bindings divided; the predicate holds where both predicates do."""

    bindings: tuple[Divided, ...]
    outer_predicate: Expr
    inner_predicate: Expr


class _Halves(NamedTuple):
    """value = outer * inner_extent + inner."""

    outer: Expr
    outer_extent: Size
    inner: Expr
    inner_extent: Size


class _Indivisible(Exception):
    pass


def subspace_divide(
    bindings: Sequence[Expr],
    ranges: Mapping[Var, Range],
    inner_vars: Collection[Var],
    predicate: Expr = TRUE,
    level: Level = "surjective",
) -> Division | None:
    """Divide bindings into a part over the outer loops and a part over the inner loops.

    Every binding becomes outer * inner_extent + inner, where `inner` mentions inner variables only,
    and `outer` mentions none. The idea is TVM's SubspaceDivide; `blockize` uses the function.

    Args:
        bindings: the values of a block's iterators.
        ranges: the ranges of all loop variables.
        inner_vars: the variables of the inner loops.
        predicate: the predicate of the block.
        level: as for `itermap.detect_iter_map`.

    Returns None if the bindings are no affine map or do not divide. They do not divide if an inner
    variable has a larger stride than an outer variable, or if a condition uses both.
    """
    found = detect_iter_map(bindings, ranges, predicate, level)
    if found.error is not None:
        return None
    divider = _Divider(ranges, frozenset(inner_vars), found.ranges)
    try:
        parts = [divider.binding(s, e.dtype) for s, e in zip(found.sums, bindings, strict=True)]
        return Division(tuple(parts), *divider.predicates(predicate))
    except _Indivisible:
        return None


class _Divider:
    def __init__(
        self, ranges: Mapping[Var, Range], inner: frozenset[Var], counted: Mapping[Var, Range]
    ) -> None:
        self.ranges = counted  # the marks count from these minima
        self.inner = inner
        self.single = {v: r.min for v, r in ranges.items() if as_int(r.extent) == 1}
        self.an = Analyzer(ranges)
        self.outer_conditions: dict[Expr, None] = {}
        self.inner_conditions: dict[Expr, None] = {}

    def binding(self, total: IterSum, dtype: DType) -> Divided:
        """Divide one sum; the base goes to the side that the sum belongs to."""
        zero, one = IntImm(dtype, 0), IntImm(dtype, 1)
        base = total.base.astype(dtype)
        if not total.splits:
            return Divided(base, one, zero, one)
        split = total.splits[0]
        halves = self.split(split, dtype)
        plain = isinstance(base, IntImm) and base.value == 0
        outer, inner = halves.outer, halves.inner
        if halves.inner_extent == 1:
            outer = outer + base
        elif halves.outer_extent == 1:
            inner = inner + base
        elif not plain:
            raise _Indivisible
        simplify = self.an.simplify
        return Divided(
            simplify(outer),
            simplify(size_expr(halves.outer_extent, dtype)),
            simplify(inner),
            simplify(size_expr(halves.inner_extent, dtype)),
        )

    def split(self, s: IterSplit, dtype: DType) -> _Halves:
        """Divide one digit with its scale."""
        scale = size_expr(s.scale, dtype)
        side = self._side(s.mark)
        zero = IntImm(dtype, 0)
        if side is not None:
            self._whole_conditions(s.mark, side == "inner", dtype)
            value = split_expr(s, self.ranges, dtype)
            if side == "outer":
                return _Halves(value, s.extent, zero, 1)
            return _Halves(zero, 1, value, s.extent)
        h = self._mark(s.mark, dtype)
        if s.lower == 1 and s.extent == s.mark.extent:
            return _Halves(h.outer * scale, h.outer_extent, h.inner * scale, h.inner_extent)
        return self._digit(s, h, dtype)

    def _digit(self, s: IterSplit, h: _Halves, dtype: DType) -> _Halves:
        """Divide (outer * b + inner) // lower % extent; raises if the digit crosses the border
        b."""
        lower, extent, b = s.lower, s.extent, h.inner_extent
        zero = IntImm(dtype, 0)
        scale = size_expr(s.scale, dtype)
        if not (isinstance(lower, int) and isinstance(extent, int) and isinstance(b, int)):
            raise _Indivisible
        if lower % b == 0:
            value = FloorMod(FloorDiv(h.outer, _n(lower // b, dtype)), _n(extent, dtype))
            return _Halves(value * scale, extent, zero, 1)
        if b % lower == 0 and b % (lower * extent) == 0:
            value = FloorMod(FloorDiv(h.inner, _n(lower, dtype)), _n(extent, dtype))
            return _Halves(zero, 1, value * scale, extent)
        if b % lower == 0 and extent % (b // lower) == 0:
            part = b // lower
            outer = FloorMod(h.outer, _n(extent // part, dtype))
            inner = FloorDiv(h.inner, _n(lower, dtype))
            return _Halves(outer * scale, extent // part, inner * scale, part)
        raise _Indivisible

    def _mark(self, mark: IterMark, dtype: DType) -> _Halves:
        """Divide a mark; a sum must have its inner digits below its outer digits."""
        source = mark.source
        assert isinstance(source, IterSum)
        if not (isinstance(source.base, IntImm) and source.base.value == 0):
            raise _Indivisible
        outer: Expr = IntImm(dtype, 0)
        inner: Expr = IntImm(dtype, 0)
        outer_extent: Size = 1
        inner_extent: Size = 1
        for s in reversed(source.splits):  # from the smallest
            h = self.split(s._replace(scale=1), dtype)
            if h.inner_extent != 1:
                if outer_extent != 1:
                    raise _Indivisible  # an inner digit above an outer one
                inner = inner + h.inner * size_expr(inner_extent, dtype)
                inner_extent = self._times(inner_extent, h.inner_extent, dtype)
            if h.outer_extent != 1:
                outer = outer + h.outer * size_expr(outer_extent, dtype)
                outer_extent = self._times(outer_extent, h.outer_extent, dtype)
        whole = self._times(outer_extent, inner_extent, dtype)
        if not self._same(whole, mark.extent, dtype):
            outer_extent = self._limited(mark, outer, inner_extent, dtype)
        return _Halves(outer, outer_extent, inner, inner_extent)

    def _limited(self, mark: IterMark, outer: Expr, b: Size, dtype: DType) -> Size:
        """Divide the limit outer * b + inner < extent; b must divide the extent."""
        if not (isinstance(b, int) and isinstance(mark.extent, int) and mark.extent % b == 0):
            raise _Indivisible
        self.outer_conditions[self.an.simplify(outer < mark.extent // b)] = None
        return mark.extent // b

    def _whole_conditions(self, mark: IterMark, inner: bool, dtype: DType) -> None:
        """Add the limits inside a mark to the side that the mark belongs to."""
        source = mark.source
        if isinstance(source, Var):
            return
        whole: Size = 1
        for s in source.splits:
            self._whole_conditions(s.mark, inner, dtype)
            whole = self._times(whole, s.extent, dtype)
        if not self._same(whole, mark.extent, dtype):
            value = split_expr(IterSplit(mark, 1, mark.extent, 1), self.ranges, dtype)
            into = self.inner_conditions if inner else self.outer_conditions
            into[self.an.simplify(value < size_expr(mark.extent, dtype))] = None
            into[self.an.simplify(value >= 0)] = None

    def predicates(self, predicate: Expr) -> tuple[Expr, Expr]:
        """The predicates of the outer and inner part, whose conjunction equals `predicate`."""
        outer: Expr = TRUE
        inner: Expr = TRUE
        for cond in self.outer_conditions:
            outer = logical_and(outer, cond)
        for cond in self.inner_conditions:
            inner = logical_and(inner, cond)
        if predicate is not TRUE:
            known = self.an.assume(outer).assume(inner)
            for cond in conjuncts(predicate):
                if known.prove(cond):
                    continue
                used = free_vars(cond) & self.ranges.keys()
                if not used.isdisjoint(self.inner):  # a loop of one iteration is on no side
                    cond = substitute(cond, self.single)
                    used = free_vars(cond) & self.ranges.keys()
                if used.isdisjoint(
                    self.inner
                ):  # also conditions on variables that are fixed around all loops
                    outer = logical_and(outer, cond)
                elif used <= self.inner:
                    inner = logical_and(inner, cond)
                else:
                    raise _Indivisible
        return outer, inner

    def _side(self, mark: IterMark) -> str | None:
        if isinstance(mark.source, Var):
            return "inner" if mark.source in self.inner else "outer"
        sides = {self._side(s.mark) for s in mark.source.splits}
        return sides.pop() if len(sides) == 1 else None

    def _times(self, a: Size, b: Size, dtype: DType) -> Size:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        return self.an.simplify(size_expr(a, dtype) * size_expr(b, dtype))

    def _same(self, a: Size, b: Size, dtype: DType) -> bool:
        if isinstance(a, int) and isinstance(b, int):
            return a == b
        return self.an.equal(size_expr(a, dtype), size_expr(b, dtype))


def _n(value: int, dtype: DType) -> Expr:
    return IntImm(dtype, value)

"""IndexMap: a map from indices to indices; applied, inverted (padding included), compared."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import lcm
from typing import Any, TypeAlias

from metasched.arith.analyzer import Analyzer
from metasched.arith.intset import region_of
from metasched.arith.inverse import left_inverse
from metasched.arith.itermap import detect_iter_map, inverse_iter_map
from metasched.errors import MetaschedError
from metasched.ir.buffer import Range
from metasched.ir.expr import (
    FALSE,
    BinaryOp,
    Cast,
    Expr,
    ExprLike,
    FloorDiv,
    FloorMod,
    IntImm,
    Var,
    as_expr,
    as_int,
    logical_or,
    match_types,
)
from metasched.ir.visit import substitute, walk_exprs

MapLike: TypeAlias = "IndexMap | Callable[..., Any]"


@dataclass(frozen=True, slots=True, eq=False)
class IndexMap:
    """outputs = f(inputs), for integer indices.

    Attributes:
        inputs: the variables that stand for the input indices.
        outputs: the output indices, in terms of `inputs`.
        inverse_map: a known inverse, used instead of deriving one.
    """

    inputs: tuple[Var, ...]
    outputs: tuple[Expr, ...]
    inverse_map: IndexMap | None = None

    @staticmethod
    def of(source: MapLike, ndim: int | None = None, inverse: MapLike | None = None) -> IndexMap:
        """A map from a function of index variables (also `*indices`), or a map as it is.

        Args:
            source: the function returns one index or a list or tuple of indices. Parameters that
                it takes by name only stand for the last indices.
            ndim: how many indices `*indices` stands for.
            inverse: a known inverse, given the same way.

        Raises MetaschedError when the number of indices is unknown or wrong.
        """
        if isinstance(source, IndexMap):
            if ndim is not None and len(source.inputs) != ndim:
                raise MetaschedError(f"an index map of {len(source.inputs)} indices for {ndim}")
            return source
        names, by_name = _parameters(source, ndim)
        inputs = tuple(Var(name) for name in (*names, *by_name))
        named = dict(zip(by_name, inputs[len(names) :], strict=True))
        result = source(*inputs[: len(names)], **named)
        items = list(result) if isinstance(result, (list, tuple)) else [result]
        outputs = tuple(as_expr(x, "int32") for x in items)
        back = None if inverse is None else IndexMap.of(inverse, len(outputs))
        return IndexMap(inputs, outputs, back)

    def __call__(self, *indices: ExprLike) -> list[Expr]:
        """The output indices for these input indices."""
        return self.apply(indices)

    def apply(self, indices: Sequence[ExprLike], analyzer: Analyzer | None = None) -> list[Expr]:
        """The output indices for these input indices, simplified.

        Raises MetaschedError when their number is wrong.
        """
        self._check_count(len(indices))
        an = analyzer or Analyzer()
        given = [as_expr(i) for i in indices]
        values = dict(zip(self.inputs, given, strict=True))
        return [an.simplify(replaced(o, values)) for o in self.outputs]

    def map_ranges(self, ranges: Sequence[Range], analyzer: Analyzer | None = None) -> list[Range]:
        """The box of output indices for input indices in a box (exact for affine maps).

        Raises MetaschedError when an output has no bound.
        """
        self._check_count(len(ranges))
        box = _box if analyzer is None else _box.__wrapped__
        ends = [(r.min, r.extent) for r in ranges]
        return list(box(self.inputs, self.outputs, analyzer, *ends))

    def map_shape(self, shape: Sequence[ExprLike], analyzer: Analyzer | None = None) -> list[Expr]:
        """The shape that holds the outputs for inputs within `shape`; each index from zero."""
        an = analyzer or Analyzer()
        box = self.map_ranges([Range.of(0, s) for s in shape], analyzer)
        return [an.simplify(r.min + r.extent) for r in box]

    # ---- inverse -------------------------------------------------------------------------

    def inverse(self, shape: Sequence[ExprLike]) -> IndexMap:
        """The map back, for inputs within `shape`.

        Raises MetaschedError when the map is not bijective onto a box that begins at zero.
        """
        self._check_count(len(shape))
        if self.inverse_map is not None:
            return self.inverse_map
        axes, back = _inverted(self.inputs, self.outputs, *map(as_expr, shape))
        return IndexMap(axes, back, self)

    def non_surjective_inverse(self, shape: Sequence[ExprLike]) -> tuple[IndexMap, Expr]:
        """The map back and the padding predicate, for maps that pad.

        The inputs run over `shape`, whose extents need not be what the map's divisors divide.
        The predicate, over the inverse's inputs, holds for the output indices that stand for no
        input. Raises MetaschedError when the map is not affine.
        """
        self._check_count(len(shape))
        sizes = zip(self.inputs, shape, strict=True)
        padded = {v: _padded(v, as_int(s), self.outputs) for v, s in sizes}
        fresh = {v: Var(v.name, v.dtype) for v in self.inputs}
        moved = {v: fresh[v] + padded[v][0] for v in self.inputs}
        outputs = [substitute(o, moved) for o in self.outputs]
        ranges = {fresh[v]: Range.of(0, padded[v][1]) for v in self.inputs}
        axes, values = _solved(outputs, ranges)
        box = IndexMap(tuple(fresh.values()), tuple(outputs)).map_ranges(list(ranges.values()))
        known = {v: Range.of(0, r.min + r.extent) for v, r in zip(axes, box, strict=True)}
        an = Analyzer(known)
        back = []
        outside: Expr = FALSE
        for axis, r in zip(axes, box, strict=True):  # indices from zero, where the map never goes
            outside = logical_or(outside, logical_or(axis < r.min, axis >= r.min + r.extent))
        for v, size in zip(self.inputs, shape, strict=True):
            index = an.simplify(values.get(fresh[v], IntImm(v.dtype, 0)) + padded[v][0])
            back.append(index)
            outside = logical_or(outside, logical_or(index < 0, index >= as_expr(size)))
        return IndexMap(axes, tuple(back), self), an.simplify(outside)

    def _check_count(self, given: int) -> None:
        if given != len(self.inputs):
            raise MetaschedError(f"the index map takes {len(self.inputs)} indices, not {given}")

    # ---- comparison ----------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        """Same outputs for the same inputs, whatever the variables are called."""
        if not isinstance(other, IndexMap):
            return NotImplemented
        if len(self.inputs) != len(other.inputs) or len(self.outputs) != len(other.outputs):
            return False
        an = Analyzer()
        theirs = other.apply(self.inputs)
        return all(an.equal(a, b) for a, b in zip(self.outputs, theirs, strict=True))

    def __hash__(self) -> int:
        return hash((len(self.inputs), len(self.outputs)))


@lru_cache(maxsize=1 << 9)
def _box(
    ins: tuple[Var, ...], outputs: tuple[Expr, ...], an: Analyzer | None, *ends: tuple[Expr, Expr]
) -> list[Range]:
    """See `map_ranges`; cached, since replays repeat the same maps."""
    typed = {v: Var(v.name, low.dtype) for v, (low, _) in zip(ins, ends, strict=True)}
    moved = [replaced(o, typed) for o in outputs]
    known = {v: Range(*pair) for v, pair in zip(typed.values(), ends, strict=True)}
    box = region_of(moved, known, None, an)
    if box is None:
        raise MetaschedError("the index map has an output without bounds")
    return box


@lru_cache(maxsize=1 << 9)
def _inverted(
    inputs: tuple[Var, ...], outputs: tuple[Expr, ...], *shape: Expr
) -> tuple[tuple[Var, ...], tuple[Expr, ...]]:
    """The inputs and outputs of the map back; see `IndexMap.inverse`."""
    ranges = {v: Range.of(0, s) for v, s in zip(inputs, shape, strict=True)}
    axes = tuple(Var(f"axis{k}") for k in range(len(outputs)))
    values = left_inverse(outputs, ranges, axes)
    if isinstance(values, str):
        raise MetaschedError(f"the index map has no inverse: {values}")
    box = IndexMap(inputs, outputs).map_ranges(list(ranges.values()))
    if any(as_int(r.min) != 0 for r in box) or not _equally_many(shape, box):
        raise MetaschedError(
            "the index map has no inverse: some of its new indices stand for no old ones"
        )
    return axes, tuple(values.get(v, IntImm(v.dtype, 0)) for v in inputs)


def _solved(
    outputs: Sequence[Expr], ranges: Mapping[Var, Range]
) -> tuple[tuple[Var, ...], dict[Var, Expr]]:
    """Variables for the outputs, and the inputs as expressions of these variables."""
    found = detect_iter_map(outputs, ranges, level="bijective")
    if found.error is not None:
        raise MetaschedError(f"the index map has no inverse: {found.error}")
    axes = tuple(Var(f"axis{k}") for k in range(len(outputs)))
    return axes, inverse_iter_map(found.sums, axes)


def _equally_many(shape: Sequence[ExprLike], box: Sequence[Range]) -> bool:
    """Whether the two have equally many points; for an injective map none is then left out."""
    before: Expr = IntImm("int64", 1)
    after: Expr = IntImm("int64", 1)
    for size in shape:
        before = before * as_expr(size).astype("int64")
    for r in box:
        after = after * r.extent.astype("int64")
    return Analyzer().equal(before, after)


def _parameters(source: Callable[..., Any], ndim: int | None) -> tuple[list[str], list[str]]:
    """The indices that a function takes by position, and after them those that it takes by name.

    Parameters with a default are no indices where there are enough without them.
    """
    positional: list[inspect.Parameter] = []
    by_name: list[str] = []
    rest: str | None = None
    try:
        parameters = inspect.signature(source).parameters.values()
    except (TypeError, ValueError):  # no function, or one that does not say what it takes
        raise MetaschedError(f"an index map is a function of indices, not {source!r:.60}") from None
    for p in parameters:
        if p.kind is p.VAR_KEYWORD:
            raise MetaschedError(f"**{p.name} stands for no indices: name them, or use *{p.name}")
        if p.kind is p.VAR_POSITIONAL:
            rest = p.name
        elif p.kind is not p.KEYWORD_ONLY:
            positional.append(p)
        elif p.default is p.empty:
            by_name.append(p.name)
    given = len(positional) + len(by_name)
    while ndim is not None and given > ndim and positional[-1:] and _optional(positional[-1]):
        positional.pop()
        given -= 1
    names = [p.name for p in positional]
    if rest is not None:
        if ndim is None:
            raise MetaschedError(f"how many indices *{rest} stands for must be given")
        names += [f"i{k}" for k in range(ndim - given)]
    if ndim is not None and len(names) + len(by_name) != ndim:
        count = len(names) + len(by_name)
        raise MetaschedError(f"the index map takes {count} indices, {ndim} are needed")
    return names, by_name


def _optional(p: inspect.Parameter) -> bool:
    return p.default is not p.empty


def replaced(expr: Expr, values: Mapping[Var, Expr]) -> Expr:
    """`expr` with the inputs replaced by values that may be of a wider type."""
    if isinstance(expr, Var):
        return values.get(expr, expr)
    if not expr.children:
        return expr
    parts = [replaced(c, values) for c in expr.children]
    if isinstance(expr, Cast):
        return parts[0].astype(expr.dtype)
    if isinstance(expr, BinaryOp) and parts[0].dtype is not parts[1].dtype:
        parts = list(match_types(parts[0], parts[1]))
    return expr.rebuild(parts)


def _padded(var: Var, extent: int | None, outputs: Sequence[Expr]) -> tuple[int, int]:
    """(start, length) of the smallest run that holds [0, extent) and that all divisors divide."""
    if extent is None:
        raise MetaschedError("padding needs constant extents")
    an = Analyzer()
    step, offset = 1, 0
    for output in outputs:
        for node in walk_exprs(an.simplify(output)):
            if isinstance(node, (FloorDiv, FloorMod)) and isinstance(node.b, IntImm):
                inner = an.linear(node.a)
                if inner.terms == {var: 1}:
                    step = lcm(step, abs(node.b.value))
                    offset = max(offset, inner.const)
                elif isinstance(node.a, FloorMod) and an.linear(node.a.a).terms == {var: 1}:
                    step = lcm(step, abs(node.b.value))
    first = offset // step * step
    last = -(-(extent + offset) // step) * step
    return first - offset, last - first

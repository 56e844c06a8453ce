"""IndexMap: a map from indices to indices that can be applied, inverted and compared."""

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
from metasched.ir.describe import show_expr
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
from metasched.ir.operators import users_code
from metasched.ir.visit import substitute, walk_exprs

MapLike: TypeAlias = "IndexMap | Callable[..., Any]"


@dataclass(frozen=True, slots=True, eq=False)
class IndexMap:
    """outputs = f(inputs), for integer indices.

    Attributes:
        inputs: the variables that stand for the input indices.
        outputs: the output indices, in terms of `inputs`.
        inverse_map: an inverse, used where none is derived; `inverse` proves it.
    """

    inputs: tuple[Var, ...]
    outputs: tuple[Expr, ...]
    inverse_map: IndexMap | None = None

    @staticmethod
    def of(
        source: MapLike,
        ndim: int | None = None,
        inverse: MapLike | None = None,
        *,
        index_dtype: str = "int32",
    ) -> IndexMap:
        """Make a map from a function of index variables; an IndexMap is returned unchanged.

        Args:
            source: a function that returns one index, or a list or tuple of indices. Its
                keyword-only parameters stand for the last indices.
            ndim: the number of indices, needed for a function of `*indices`.
            inverse: a known inverse, given as function or map.
            index_dtype: the type of the index variables (TVM's name).

        Raises MetaschedError when the number of indices is unknown or wrong.
        """
        if isinstance(source, IndexMap):
            if ndim is not None and len(source.inputs) != ndim:
                raise MetaschedError(f"an index map of {len(source.inputs)} indices for {ndim}")
            return source
        names, by_name = _parameters(source, ndim)
        inputs = tuple(Var(name, index_dtype) for name in (*names, *by_name))
        named = dict(zip(by_name, inputs[len(names) :], strict=True))
        own = str(getattr(source, "__module__", "")).startswith("metasched.")
        with users_code(hashes=not own):
            result = source(*inputs[: len(names)], **named)
        items = list(result) if isinstance(result, (list, tuple)) else [result]
        outputs = tuple(as_expr(x, "int32") for x in items)
        count = len(outputs)
        back = None if inverse is None else IndexMap.of(inverse, count, index_dtype=index_dtype)
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
        """The shape that holds the outputs for inputs within `shape`; all indices start at zero."""
        an = analyzer or Analyzer()
        box = self.map_ranges([Range.of(0, s) for s in shape], analyzer)
        return [an.simplify(r.min + r.extent) for r in box]

    # ---- inverse -------------------------------------------------------------------------

    def inverse(self, shape: Sequence[ExprLike]) -> IndexMap:
        """The map back, for inputs within `shape`.

        Raises MetaschedError when the map is not bijective onto a box that begins at zero, or when
        `inverse_map` is given and not proved to lead back.
        """
        self._check_count(len(shape))
        if self.inverse_map is not None:
            _check_inverse(self, self.inverse_map, shape)
            return self.inverse_map
        axes, back = _inverted(self.inputs, self.outputs, *map(as_expr, shape))
        return IndexMap(axes, back, self)

    def non_surjective_inverse(self, shape: Sequence[ExprLike]) -> tuple[IndexMap, Expr]:
        """The map back and the padding predicate, for a map whose outputs have padding.

        The inputs run over `shape`, whose extents need not be multiples of the map's divisors. The
        predicate, over the inverse's inputs, holds for output indices that correspond to no input.
        Raises MetaschedError when the map is not affine.
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
        """Whether both maps give the same outputs; names of variables do not matter."""
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
    """The box of `map_ranges`; cached, because replays repeat the same maps."""
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
    axes = tuple(Var(f"axis{k}", o.dtype) for k, o in enumerate(outputs))
    values = left_inverse(outputs, ranges, axes)
    if isinstance(values, str):
        raise MetaschedError(f"the index map has no inverse: {values}")
    _check_onto(IndexMap(inputs, outputs), shape)
    return axes, tuple(values.get(v, IntImm(v.dtype, 0)) for v in inputs)


def _check_onto(index_map: IndexMap, shape: Sequence[ExprLike]) -> None:
    """Raise MetaschedError unless the outputs of an injective map fill a box from zero."""
    box = index_map.map_ranges([Range.of(0, s) for s in shape])
    if any(as_int(r.min) != 0 for r in box) or not _equally_many(shape, box):
        raise MetaschedError(
            "the index map has no inverse: some new indices correspond to no old indices"
        )


def _check_inverse(index_map: IndexMap, back: IndexMap, shape: Sequence[ExprLike]) -> None:
    """Raise MetaschedError unless `back` is proved to be the inverse of a map of `shape`."""
    fresh = [Var(v.name, as_expr(s).dtype) for v, s in zip(index_map.inputs, shape, strict=True)]
    known = Analyzer({v: Range.of(0, s) for v, s in zip(fresh, shape, strict=True)})
    there = back.apply(index_map.apply(fresh, known), known)
    if len(there) != len(fresh):
        raise MetaschedError(f"the given inverse has {len(there)} outputs, not {len(fresh)}")
    for var, index in zip(fresh, there, strict=True):
        if not known.equal(index, var):
            raise MetaschedError(
                f"the given inverse is not proved to lead back: {var.name} becomes "
                f"{show_expr(index)}"
            )
    _check_onto(index_map, shape)


def _solved(
    outputs: Sequence[Expr], ranges: Mapping[Var, Range]
) -> tuple[tuple[Var, ...], dict[Var, Expr]]:
    """Variables for the outputs, and the inputs as expressions of these variables."""
    found = detect_iter_map(outputs, ranges, level="bijective")
    if found.error is not None:
        raise MetaschedError(f"the index map has no inverse: {found.error}")
    axes = tuple(Var(f"axis{k}", o.dtype) for k, o in enumerate(outputs))
    return axes, inverse_iter_map(found.sums, axes)


def _equally_many(shape: Sequence[ExprLike], box: Sequence[Range]) -> bool:
    """Whether a shape and a box have equally many points, so that an injective map is
    bijective."""
    before: Expr = IntImm("int64", 1)
    after: Expr = IntImm("int64", 1)
    for size in shape:
        before = before * as_expr(size).astype("int64")
    for r in box:
        after = after * r.extent.astype("int64")
    return Analyzer().equal(before, after)


def _parameters(source: Callable[..., Any], ndim: int | None) -> tuple[list[str], list[str]]:
    """The names of a function's positional index parameters, and of its keyword-only ones.

    Parameters with a default are indices only if the other parameters are fewer than `ndim`.
    """
    positional: list[inspect.Parameter] = []
    by_name: list[str] = []
    rest: str | None = None
    try:
        parameters = inspect.signature(source).parameters.values()
    except (TypeError, ValueError):  # no function, or a function without a signature
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
    """(start, length) of the smallest range that holds [0, extent) and whose ends are multiples of
    all divisors."""
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

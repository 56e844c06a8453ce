"""split: replaces one loop by a nest of loops that covers its range."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from math import prod
from operator import mul

from metasched.arith.analyzer import Analyzer
from metasched.arith.mixed_radix import mixed_radix
from metasched.errors import brief
from metasched.ir.buffer import Range
from metasched.ir.describe import show_expr
from metasched.ir.expr import TRUE, Expr, Var, as_expr, as_int, cast
from metasched.ir.stmt import Break, For
from metasched.ir.visit import substitute
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    in_view,
    known_here,
    refuse_jumps,
    require_plain_loop,
    require_serial,
    require_steady_ends,
)
from metasched.schedule.handles import LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.rebind import nest, ranges_of, rebind
from metasched.schedule.state import State


@primitive(of_loop=ways.plain([None, 2]))
def split(
    state: State,
    loop: LoopRV,
    factors: Sequence[int | Expr | None],
    preserve_unit_iters: bool = True,
    disable_predication: bool = False,
) -> list[LoopRV]:
    """Cut `loop` into len(factors) nested loops; one factor may be None (or -1) to be inferred.

    requires  the loop is serial, has no annotation and no thread binding; each factor is proved
              positive, or zero only where the loop has no iteration; the product covers the
              extent; no break leaves the loop, and nothing below writes what the loop's ends read
    rewrite   for i in range(128): S(i)
              ->
              for i_0, i_1 in T.grid(2, 64): S(i_0 * 64 + i_1)

    If the product exceeds the extent, a predicate `i_0 * 64 + i_1 < extent` guards the blocks
    below. With `disable_predication` there is no predicate, and out-of-range iterations run. The
    new loops start at zero; the start of `loop` is added where its variable is used.
    """
    node = require_plain_loop(state, loop, from_zero=False)
    require_serial(state, node)
    refuse_jumps(state, node, Break)
    require_steady_ends(state, [node])
    extents = _extents(state, node, factors)
    variables = [
        state.fresh_var(f"{node.var.name}_{n}", node.var.dtype) for n in range(len(extents))
    ]
    flat = mixed_radix(tuple(variables), extents)
    ranges = ranges_of(state.loops_above(node))
    zero = as_expr(0, node.var.dtype)
    ranges.update({v: Range(zero, e) for v, e in zip(variables, extents, strict=True)})
    guard: Expr = TRUE
    sizes = [as_int(e) for e in extents]
    exact = None not in sizes and prod(s for s in sizes if s is not None) == as_int(node.extent)
    if not exact and not disable_predication:
        analyzer = Analyzer(ranges)
        if not analyzer.prove(flat < node.extent):
            guard = analyzer.simplify(flat < node.extent)
    values = {node.var: from_start(node, flat)}
    body = rebind(node.body, values, ranges, guard, preserve_unit_iters=preserve_unit_iters)
    made = nest(list(zip(variables, extents, strict=True)), body)
    state.commit(edit.replace(node, made), same_order=exact or not disable_predication)
    return state.new_loops(variables)


def from_start(loop: For, position: Expr) -> Expr:
    """The value of a loop's variable at a position counted from zero."""
    return position if as_int(loop.min) == 0 else position + loop.min


def _extents(state: State, loop: For, factors: Sequence[int | Expr | None]) -> tuple[Expr, ...]:
    """The factors as expressions, with the factor None inferred."""
    extent = loop.extent
    if not factors:
        raise state.error("no-factors", "split needs at least one factor")
    known: list[Expr | None] = []
    for factor in factors:
        given = None if factor is None else state.expr(factor)
        if given is not None and not given.dtype.is_int:
            shown = show_expr(given) if isinstance(factor, Expr) else brief(factor)
            raise state.error("bad-factor", f"the factor {shown} is no integer")
        value = None if given is None else cast(extent.dtype, given)
        size = as_int(value)
        if value is not None and size is None:
            value = in_view(state, loop, value)
        if size == -1:
            value = None
        elif size is not None and size < 1:
            raise state.error("bad-factor", f"the factor {size} is not positive")
        known.append(value)
    if known.count(None) > 1:
        raise state.error("open-factors", "at most one factor may be None")
    _require_positive(state, loop, known)
    filled = _filled_in(extent, *known)
    if filled is None:
        product = Analyzer().simplify(reduce(mul, [f for f in known if f is not None]))
        raise state.error(
            "not-covering",
            f"the factors multiply to {show_expr(product)}, less than the extent "
            f"{show_expr(extent)} (or not proved to reach it)",
            hint="leave one factor None",
        )
    return filled


def _require_positive(state: State, loop: For, factors: Sequence[Expr | None]) -> None:
    """Refuse a factor that a call may make zero or less.

    Zero does no harm if all factors are given. Nor does it before the factor None, where the loop
    then has no iteration.
    """
    left = factors.index(None) if None in factors else len(factors)
    for at, factor in enumerate(factors):
        if factor is None or as_int(factor) is not None:
            continue
        known = known_here(state, loop)
        least = 1 if None in factors else 0
        if isinstance(factor, Var) and at < left:
            none = substitute(loop.extent, {factor: as_expr(0, factor.dtype)})
            least = 0 if known.prove(none <= 0) else least
        if not known.prove(factor >= least):
            shown = show_expr(factor)
            raise state.error(
                "bad-factor", f"the factor {shown} is not proved to be at least {least} here", loop,
                hint=f"write T.max({shown}, 1)",
            )  # fmt: skip


@lru_cache(maxsize=1 << 12)
def _filled_in(extent: Expr, *known: Expr | None) -> tuple[Expr, ...] | None:
    """The extents of the new loops; None unless they are proved to cover the old loop."""
    analyzer, given = Analyzer(), [f for f in known if f is not None]
    product = reduce(mul, given, as_expr(1, extent.dtype))
    if len(given) == len(known):
        return tuple(given) if analyzer.prove(product >= extent) else None
    rest = analyzer.simplify((extent + product - 1) // product)
    return tuple(rest if f is None else f for f in known)

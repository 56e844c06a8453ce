"""fuse: merges nested loops into one loop."""

from __future__ import annotations

import math
from collections.abc import Sequence

from metasched.ir.dtype import INT64, DType
from metasched.ir.expr import Expr, Var, as_expr, as_int, maximum
from metasched.ir.stmt import Break, For, ForKind
from metasched.ir.visit import free_vars
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    known_here,
    refuse_jumps,
    require_nested,
    require_plain_loop,
    require_serial,
    require_steady_ends,
)
from metasched.schedule.handles import LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.split import from_start
from metasched.schedule.rebind import ranges_of, rebind
from metasched.schedule.state import State


@primitive(of_loop=ways.with_child)
def fuse(state: State, *loops: LoopRV, preserve_unit_iters: bool = True) -> LoopRV:
    """Merge directly nested loops, outermost first, into one loop over the product of their
    extents.

    A single loop stays unchanged. If the product overflows the type of the loops, the new loop
    counts in int64. Of several extents that may be below zero, all but the first enter the product
    as `T.max(extent, 0)`.

    requires  each loop is the only statement of the loop before, is serial, and has no annotation
              or thread binding; no end uses another fused loop's variable, or memory that is
              written below; no break leaves a fused loop
    rewrite   for i, j in T.grid(4, 8): S(i, j)
              ->
              for i_j_fused in range(32): S(i_j_fused // 8, i_j_fused % 8)
    """
    if not loops:
        raise state.error("no-loops", "fuse needs at least one loop")
    if len(loops) == 1:
        return state.new_loop(state.loop(loops[0]).var)
    nodes = [require_plain_loop(state, rv, from_zero=False) for rv in loops]
    for node in nodes:
        require_serial(state, node)
    require_nested(state, nodes)
    refuse_jumps(state, nodes[-1], Break)
    require_steady_ends(state, nodes)
    variables = {n.var for n in nodes}
    for node in nodes:
        if not (free_vars(node.extent) | free_vars(node.min)).isdisjoint(variables):
            raise state.error(
                "dependent-extent",
                f"the range of {node.var.name} depends on a loop it would be fused with",
                node,
            )
    name = "_".join(n.var.name for n in nodes) + "_fused"
    extents = [as_int(n.extent) for n in nodes]
    wide = counter(state, nodes, math.prod(e for e in extents if e is not None))
    fused = state.fresh_var(name, wide)
    extent = _product(state, nodes, wide)
    values: dict[Var, Expr] = {}
    one = below = as_expr(1, wide)  # below: iterations of all loops inside this one
    for node in reversed(nodes):
        if as_int(node.extent) == 1:
            values[node.var] = node.min
            continue
        outermost = all(as_int(n.extent) == 1 for n in nodes[: nodes.index(node)])
        around = below * (one if as_int(node.extent) == 0 else node.extent)
        digit = (fused if outermost else fused % around) // below
        values[node.var] = from_start(node, digit.astype(node.var.dtype))
        below = around
    new = For(fused, as_expr(0, wide), extent, ForKind.SERIAL, nodes[-1].body)
    ranges = ranges_of([*state.loops_above(nodes[0]), new])
    body = rebind(nodes[-1].body, values, ranges, preserve_unit_iters=preserve_unit_iters)
    made = For(fused, new.min, extent, ForKind.SERIAL, body)
    state.commit(edit.replace(nodes[0], made), same_order=True)
    return state.new_loop(fused)


def _product(state: State, nodes: Sequence[For], dtype: DType) -> Expr:
    """The iterations of all loops; none, or a number below zero, if a loop has none.

    The product of two extents below zero would be above zero, so only one of them stays.
    """
    known = known_here(state, nodes[0])
    result: Expr = as_expr(1, dtype)
    kept = False
    for node in nodes:
        extent = node.extent
        if not known.prove(extent >= 0):
            extent = maximum(extent, as_expr(0, extent.dtype)) if kept else extent
            kept = True
        result = result * extent
    return result


def counter(state: State, nodes: Sequence[For], count: int) -> DType:
    """The type of a variable that counts so many iterations, made from these loops."""
    wide = max((n.var.dtype for n in nodes), key=lambda d: d.bits)
    if count <= wide.range[1]:
        return wide
    if count > INT64.range[1]:
        raise state.error(
            "too-many-iterations",
            f"the new loop would have {count} iterations, more than int64 counts",
            nodes[0],
            hint="fuse fewer loops, or skew by less",
        )
    return INT64

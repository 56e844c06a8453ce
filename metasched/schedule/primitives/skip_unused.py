"""skip_unused: shortens a loop to the iterations whose results are read.

    for i_0, j_0: tile of X[i, j], whole       # j_0 over all tiles of columns
    for i: for j in range(i + 1): read X[i, j]
    ->
    for i_0: for j_0 in range(the last tile with j <= i): tile of X[i, j]

A triangle that is computed over the square around it has tiles outside of the triangle. The tiles
on the diagonal stay whole.
"""

from __future__ import annotations

from itertools import permutations
from math import isfinite

from metasched.analysis.cover import loop_ranges
from metasched.analysis.dependence import Touch, place, touches
from metasched.analysis.polyhedra import meet_nowhere
from metasched.analysis.producers import self_contained
from metasched.analysis.scope import Scope
from metasched.analysis.written import written
from metasched.arith.affine import form_interval, linear
from metasched.arith.analyzer import Analyzer
from metasched.arith.linear import Linear
from metasched.ir.buffer import Buffer
from metasched.ir.expr import Expr, Max, Min, as_expr, floordiv, maximum, minimum
from metasched.ir.stmt import For, evolve
from metasched.ir.visit import free_vars
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    refuse_opaque,
    refuse_outside,
    require_plain_loop,
    require_serial,
    require_steady_ends,
)
from metasched.schedule.handles import LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.rebind import ranges_of
from metasched.schedule.state import State


@primitive(of_loop=ways.plain())
def skip_unused(state: State, loop: LoopRV) -> None:
    """Leave out iterations at the ends of `loop` whose results no block reads.

    The ends come from differences of two indices of a buffer, as in a triangle. The loop keeps its
    handle. Its new range depends on loops around it.

    requires  a serial loop without annotation and thread binding, which holds loops and blocks;
              below it, every buffer written is allocated by the block around, and is either used
              within one iteration, or read elsewhere by blocks alone; iterations at an end of the
              loop that write no element of these reads
    rewrite   for i: for j in range(8): X(X[i, j] = A[j])
              for i: for j: C(C[i, j] = X[i, j])
              ->
              for i: for j: X(X[i, j] = A[j])
              for i: for j: C(C[i, j] = X[i, j])
    """
    node = require_plain_loop(state, loop, from_zero=False)
    require_serial(state, node)
    require_steady_ends(state, [node])
    scope = state.scope(node)
    if any(node in above for _, above in scope.loose):
        text = f"the loop {node.var.name} holds more than loops and blocks"
        raise state.error("not-structured", text, node)
    pairs = [p for b in _results(state, scope, node) for p in _pairs(state, scope, node, b)]
    starts, ends = _candidates(node, pairs)
    low, high = node.min, node.min + node.extent
    known = Analyzer(ranges_of(state.loops_above(node)))
    changed = False
    for form in starts:
        if not known.prove(form <= low) and _is_unused(pairs, _below(node, form)):
            low, changed = form if known.prove(low <= form) else maximum(low, form), True
    for form in ends:
        if not known.prove(high <= form) and _is_unused(pairs, _above(node, form)):
            high, changed = form if known.prove(form <= high) else minimum(high, form), True
    if not changed:
        raise state.error(
            "all-used", f"no iteration at an end of {node.var.name} is proved to compute only what "
            "no block reads", node, hint="each iteration must write indices whose difference grows",
        )  # fmt: skip
    dtype = node.var.dtype
    extent = known.simplify(high - low)
    if not known.prove(extent >= 0):
        extent = maximum(extent, as_expr(0, extent.dtype))
    low, extent = known.simplify(low).astype(dtype), extent.astype(dtype)
    state.commit(edit.wrap(node, lambda s: evolve(s, min=low, extent=extent)))


def _results(state: State, scope: Scope, node: For) -> list[Buffer]:
    """The buffers written below a loop that blocks elsewhere read."""
    below = scope.under(node)
    found = []
    for buffer in dict.fromkeys(b for c in below for b in _in_order(written(c.block))):
        if buffer not in scope.block.alloc_buffers:
            raise state.error(
                "not-allocated", f"{buffer.name} is not allocated by the block around "
                f"{node.var.name}: it is read after the block", node,
            )  # fmt: skip
        if self_contained(buffer, scope, node):
            continue
        refuse_opaque(state, scope.block, buffer)
        refuse_outside(state, scope, buffer)
        found.append(buffer)
    return found


def _in_order(buffers: frozenset[Buffer]) -> list[Buffer]:
    return sorted(buffers, key=lambda b: b.name)


def _pairs(state: State, scope: Scope, node: For, buffer: Buffer) -> list[tuple[Touch, Touch]]:
    """The writes of a buffer below a loop, each with each access of a block elsewhere that reads
    the buffer. A block below the loop may read the elements that it writes itself."""
    below, among = scope.under(node), frozenset({buffer})
    tokens = {c.token for c in below}
    own = [t for c in below for t in touches(c, among)]  # but for loads of what the block writes
    other = next((t for t in own if not t.writes), None)
    if other is not None:
        text = f"{other.show()} below {node.var.name}, where it is not the element written"
        raise state.error("read-below", text, node)
    users = [c for c in scope.readers(buffer) if c.token not in tokens]
    return [(a, b) for a in own for c in users for b in touches(c, among)]


def _candidates(node: For, pairs: list[tuple[Touch, Touch]]) -> tuple[list[Expr], list[Expr]]:
    """Where the loop may begin and end, from differences of indices that the reads bound."""
    starts: dict[Expr, None] = {}
    ends: dict[Expr, None] = {}
    for write, read in pairs:
        inner = _loops_inside(write, node)
        for p, q in permutations(range(len(write.box)), 2):
            if any(touch.box[d][1] != 1 for touch in (write, read) for d in (p, q)):
                continue
            most = _most(read, read.box[p][0].plus(read.box[q][0], -1))
            if most is None:
                continue
            gap = write.box[p][0].plus(write.box[q][0], -1).shifted(-most)  # at most 0 if used
            moving = Linear({a: c for a, c in gap.terms.items() if not _fixed(a, inner)}, 0)
            least = form_interval(moving, loop_ranges(write.loops))[0]
            step = gap.terms.get(node.var, 0)
            rest = gap.plus(moving, -1).plus(Linear({node.var: 1}, 0), -step)
            if not isfinite(least) or not step or any(node.var in free_vars(a) for a in rest.terms):
                continue
            total = _as_expr(rest.shifted(int(least)), node)
            if step > 0:  # step * l + total <= 0
                ends[floordiv(-total, step) + 1] = None
            else:
                starts[-floordiv(-total, -step)] = None
    return list(starts), list(ends)


def _most(read: Touch, gap: Linear) -> int | None:
    """The largest value of a difference of two indices where a read happens, if a guard or the end
    of a loop states it."""
    forms = list(read.guards)
    for loop in read.loops:
        var, end = Linear({loop.var: 1}, 0), Analyzer().simplify(loop.min + loop.extent)
        forms += [linear(low).plus(var, -1) for low in _parts(loop.min, Max)]
        forms += [var.plus(linear(high), -1).shifted(1) for high in _parts(end, Min)]
    limits = [gap.const - f.const for f in forms if f.terms == gap.terms]
    return min(limits, default=None)


def _parts(bound: Expr, kind: type[Min] | type[Max]) -> list[Expr]:
    """The bounds of which a bound is the minimum, or the maximum."""
    if not isinstance(bound, kind):
        return [bound]
    return [*_parts(bound.a, kind), *_parts(bound.b, kind)]


def _loops_inside(touch: Touch, node: For) -> set[Expr]:
    """The variables of the loops below a loop around an access."""
    place = next(n for n, loop in enumerate(touch.loops) if loop.var is node.var)
    return {loop.var for loop in touch.loops[place + 1 :]}


def _fixed(atom: Expr, inner: set[Expr]) -> bool:
    return free_vars(atom).isdisjoint(inner)


def _as_expr(form: Linear, node: For) -> Expr:
    total = as_expr(form.const, node.var.dtype)
    for atom, c in form.terms.items():
        total = total + atom.astype(node.var.dtype) * c
    return total


def _below(node: For, start: Expr) -> Linear:
    """The form that is at most 0 in the iterations before a start."""
    return Linear({node.var: 1}, 1).plus(linear(start), -1)


def _above(node: For, end: Expr) -> Linear:
    """The form that is at most 0 in the iterations from an end on."""
    return linear(end).plus(Linear({node.var: 1}, 0), -1)


def _is_unused(pairs: list[tuple[Touch, Touch]], outside: Linear) -> bool:
    """Whether no read uses an element that is written where a form is at most 0."""
    for write, read in pairs:
        moving = {loop.var for t in (write, read) for loop in t.loops} | write.inner | read.inner
        outer = place(write)._replace(guards=(*write.guards, outside))
        if not meet_nowhere(outer, place(read), moving, []):
            return False
    return True

"""scatter_to_gather: sums that windows scatter over their places, gathered place by place.

    for i, k: Y[2 * i + k] += X[i] * W[k]
    ->
    for y, k_1:
        for i in the inputs whose windows hold the place, in their order:
            Y[2 * y + k_1] += X[i] * W[2 * (y - i) + k_1]

Windows that overlap add to the same elements, so neither loop has independent iterations. After the
window's loop is skewed by the input's loop, the new loops count elements of the result, and what an
element sums is a loop inside. The order of the terms of each sum stays (Stock et al. 2014 name the
two forms scatter and gather). Transposed convolutions, gradients of convolutions with respect to
their inputs, overlap-add and products of polynomials have this form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import NamedTuple

from metasched.analysis.block import TILED, is_leaf
from metasched.analysis.scope import Child
from metasched.arith.affine import linear
from metasched.arith.indexmap import IndexMap
from metasched.errors import ScheduleError
from metasched.ir.expr import Expr, Var, as_int
from metasched.ir.visit import free_vars
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import undo_to
from metasched.space.tiling import changed, untouched

WASTE = 1.5
"""Where places outside of the result are so many times as many as places inside, the program as
written is offered, too."""


class _Window(NamedTuple):
    """Two loops whose iterations meet at the same place, by their positions.

    Attributes:
        kept: the loop that orders the terms of an element's sum.
        moved: the loop that is skewed, to count elements of the result.
        cut: which of the two is first split by `step`.
        step: the quotient of their steps along the result.
        sign: 1 if both move the place in the same direction, otherwise -1.
        dim: the dimension of the result along which the two move.
    """

    kept: int
    moved: int
    cut: int
    step: int
    sign: int
    dim: int


@dataclass(frozen=True, slots=True)
class ScatterToGather:
    """Offer an update of overlapping windows with a loop nest over the elements of its result (see
    the file's docstring).

    For an untouched leaf block that updates one buffer in place; each of its loops meets at most
    one other loop at a place of the result.
    """

    @property
    def name(self) -> str:
        return "scatter_to_gather"

    def __call__(self, sch: Schedule, block: BlockRV) -> list[Schedule]:
        realize = sch.state.block(block)
        node = realize.block
        if sch.state.parent(realize) is None or TILED in node.annotations:
            return [sch]
        child = sch.state.scope(realize).child(node.token)
        if node.init is not None or is_leaf(node) is not None or not untouched(child):
            return [sch]
        windows = _windows(child)
        if not windows:
            return [sch]
        found = changed(sch, partial(_gathered, block, windows))
        return found if found and _wasted(child, windows) < WASTE else [*found, sch]


def _wasted(child: Child, windows: Sequence[_Window]) -> float:
    """How many times as many places the new loops count as the loops as written."""
    sizes = [as_int(loop.extent) or 1 for loop in child.loops]
    total = 1.0
    for w in windows:
        kept, moved = _parts(w, sizes).values()
        total *= min(kept, moved) * (kept + moved - 1) / (kept * moved)
    return total


def _windows(child: Child) -> list[_Window]:
    """The pairs of loops that meet at places of the result; empty where a loop is in two pairs, or
    where the block is no such update."""
    block, loops = child.block, child.loops
    updated = {r.buffer for r in block.reads} & {w.buffer for w in block.writes}
    if len(block.writes) != 1 or not updated:
        return []
    number = {loop.var: n for n, loop in enumerate(loops)}
    at: dict[Expr, int] = {
        v: number[x] for v, x in child.realize.bindings.items() if isinstance(x, Var)
    }
    sizes = [as_int(loop.extent) or 0 for loop in loops]
    found: list[_Window] = []
    for dim, place in enumerate(block.writes[0].region):
        terms = _steps(place.min, at)
        if terms is None or as_int(place.extent) != 1:
            return []
        for a in sorted(terms):
            for b in sorted(terms):
                if a < b and _meet(terms[a], terms[b], sizes[a], sizes[b]):
                    window = _window(a, terms[a], b, terms[b], dim)
                    if window is None:
                        return []
                    found.append(window)
    used = [n for w in found for n in (w.kept, w.moved)]
    return found if len(set(used)) == len(used) else []


def _steps(index: Expr, at: Mapping[Expr, int]) -> dict[int, int] | None:
    """The step of each loop, by its position, along an index; None for an index that is no sum of
    loops and of what stays in all of them."""
    moving = {a: step for a, step in linear(index).terms.items() if free_vars(a) & at.keys()}
    if not moving.keys() <= at.keys():
        return None
    return {at[v]: step for v, step in moving.items()}


def _meet(a: int, b: int, size_a: int, size_b: int) -> bool:
    """Whether different iterations of two loops with these steps meet at a place."""
    common = gcd(a, b)
    return abs(b) // common < size_a and abs(a) // common < size_b


def _window(a: int, step_a: int, b: int, step_b: int, dim: int) -> _Window | None:
    """The window of two loops with these steps along a dimension, the outer loop first; None where
    neither step divides the other.

    Of steps in one direction, the terms of an element stand in the order of the outer loop. Of
    steps in two directions, both loops count up from term to term.
    """
    far, near = max(abs(step_a), abs(step_b)), min(abs(step_a), abs(step_b))
    if far % near:
        return None
    cut = a if abs(step_a) < abs(step_b) else b
    if (step_a > 0) == (step_b > 0):
        return _Window(a, b, cut, far // near, 1, dim)
    kept, moved = (a, b) if step_b > 0 else (b, a)
    return _Window(kept, moved, cut, far // near, -1, dim)


def _gathered(block: BlockRV, windows: Sequence[_Window], sch: Schedule) -> None:
    realize = sch.state.block(block)
    loops = sch.get_loops(block)
    sizes = [as_int(loop.extent) or 0 for loop in sch.state.loops_above(realize)]
    spatial = [v.is_spatial for v in realize.block.iter_vars]
    places = {n: [loop] for n, loop in enumerate(loops) if spatial[n]}
    terms = {n: loop for n, loop in enumerate(loops) if not spatial[n]}
    for w in windows:
        first = min(w.kept, w.moved)
        kept, moved, rest = loops[w.kept], loops[w.moved], []
        if w.step > 1:
            quotient, remainder = sch.split(loops[w.cut], [None, w.step])
            kept, moved = (quotient, moved) if w.cut == w.kept else (kept, quotient)
            rest = [remainder]
        if w.kept > w.moved:
            sch.reorder(kept, moved)
        del terms[w.kept], terms[w.moved]
        places[w.moved] = [sch.skew(kept, moved, w.sign), *rest]
        terms[first] = kept
    order = [loop for n in sorted(places) for loop in places[n]]
    sch.reorder(*order, *[terms[n] for n in sorted(terms)])
    for w in windows:
        if _parts(w, sizes)[w.moved] < _parts(w, sizes)[w.kept]:
            sch.narrow_loop(terms[min(w.kept, w.moved)])
        places[w.moved][0] = _inside(sch, places[w.moved][0])
    count = len(order)
    made = _renewed(sch, block)
    if not all(v.is_spatial for v in sch.get(made).iter_vars[:count]):
        what = f"elements that {realize.block.name} updates are those of several places"
        raise ScheduleError("scatter_to_gather", "places-meet", what)
    steps = {w.dim: w.step for w in windows if w.step > 1}
    if steps:
        _side_by_side(sch, made, steps)


def _inside(sch: Schedule, places: LoopRV) -> LoopRV:
    """The loop over places of the result, without places that conditions leave out."""
    before = len(sch.trace)
    try:
        return sch.narrow_loop(places)
    except ScheduleError:
        undo_to(sch, before)
        return places


def _renewed(sch: Schedule, block: BlockRV) -> BlockRV:
    """The statement of a block in a block whose iterators are the loops around."""
    realize = sch.state.block(block)
    around, buffer = sch.state.scope_block(realize), realize.block.writes[0].buffer
    assert around is not None
    several = len(sch.mod.functions) > 1
    parent = sch.get_block(around.name, sch.state.func_of(realize)[0] if several else None)
    sch.unblockize(block)
    enclosed = sch.enclose(parent)
    found = [b for b in enclosed if any(r.buffer is buffer for r in sch.get(b).reads)]
    if len(found) != 1:
        what = f"statements outside of blocks in {around.name} read {buffer.name}, too"
        raise ScheduleError("scatter_to_gather", "read-outside", what)
    return found[0]


def _side_by_side(sch: Schedule, block: BlockRV, steps: Mapping[int, int]) -> None:
    """Sum into a buffer where neighbours in memory are `steps` places apart in the result."""
    copies = sch.cache_update(sch.get_loops(block)[0], "global", beyond=True)
    for first in sch.get_producers(copies[0]):  # the copy starts from what the result was set to
        before = len(sch.trace)
        try:
            sch.compute_inline(first)
        except ScheduleError:
            undo_to(sch, before)

    def apart(*place: Var) -> list[Expr]:
        first = [i % steps[n] for n, i in enumerate(place) if n in steps]
        return [*first, *(i // steps.get(n, 1) for n, i in enumerate(place))]

    mapping = IndexMap.of(apart, len(sch.get(block).writes[0].region))
    sch.transform_layout(block, ("write", 0), mapping)
    for copy in copies:
        sch.transform_block_layout(copy, mapping)


def _parts(w: _Window, sizes: Sequence[int]) -> dict[int, int]:
    """The iterations of the two loops of a window, by position, once the one is cut."""
    return {n: -(-sizes[n] // w.step) if n == w.cut else sizes[n] for n in (w.kept, w.moved)}

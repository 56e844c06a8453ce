"""Neighbours that share their loops over vectors: the second finds elements in registers."""

from __future__ import annotations

from collections.abc import Sequence

from metasched.analysis.block import loop_iter_kind
from metasched.analysis.scope import Child
from metasched.errors import ScheduleError
from metasched.ir.expr import as_int
from metasched.ir.op import Call
from metasched.ir.stmt import For, ForKind, IterKind
from metasched.ir.visit import substitute, walk
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import undo_to


def merge_vectors(sch: Schedule, first: Child, second: Child, func: str | None = None) -> bool:
    """Merge the nests of two vectorized blocks that touch the same buffer, so that the second block
    finds the elements in registers.

    Their loops down to the vectors run equally often. Either neither block reduces, or both reduce
    along the same loops and call a function of the same values, as the exp of a weighted sum and of
    the sum of its weights. Returns whether the nests were merged; otherwise the schedule is
    unchanged.
    """
    nests = [
        [(loop.kind, as_int(loop.extent)) for loop in _down_to_lanes(c)] for c in (first, second)
    ]
    *around, last = nests[0] or [(ForKind.SERIAL, None)]
    plain = all(kind is ForKind.SERIAL and extent is not None for kind, extent in around)
    if nests[0] != nests[1] or not around or not plain or last[0] is not ForKind.VECTORIZED:
        return False
    touched = [{r.buffer for r in (*c.block.reads, *c.block.writes)} for c in (first, second)]
    spatial = all(v.is_spatial for c in (first, second) for v in c.block.iter_vars)
    if touched[0].isdisjoint(touched[1]) or not (spatial or _reduce_alike(first, second)):
        return False
    before = len(sch.trace)
    try:
        place = len(around) - 1
        blocks = [sch.get_block(c.block.name, func) for c in (first, second)]
        sch.merge(*(sch.get_loops(block)[place] for block in blocks))
        return True
    except ScheduleError:
        undo_to(sch, before)
        return False


def _down_to_lanes(child: Child) -> Sequence[For]:
    """The loops above a block from the outermost to the vectorized one."""
    kinds = [loop.kind for loop in child.loops]
    found = ForKind.VECTORIZED in kinds
    return child.loops[: kinds.index(ForKind.VECTORIZED) + 1] if found else child.loops


def _reduce_alike(first: Child, second: Child) -> bool:
    """Whether two blocks reduce along the same loops and call a function of the same values."""
    kinds = [[loop_iter_kind(loop, (c,)) for loop in c.loops] for c in (first, second)]
    plain = {IterKind.SPATIAL, IterKind.REDUCE}.issuperset(kinds[0])
    if kinds[0] != kinds[1] or IterKind.REDUCE not in kinds[0] or not plain:
        return False
    same = {b.var: a.var for a, b in zip(first.loops, second.loops, strict=True)}
    calls = [
        {
            substitute(substitute(x, c.realize.bindings), same)
            for x in walk(c.block.body)
            if isinstance(x, Call) and x.op.name not in ("if_then_else", "abs")
        }
        for c in (first, second)
    ]
    return not calls[0].isdisjoint(calls[1])

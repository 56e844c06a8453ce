"""Why a design space offers nothing for a block: no tiles, no parallel loop, no vectors.

Reads the design spaces, not the modules. A block is named if no space has tiled it, or if no loop
over it can run in parallel or in vector lanes. Each sentence names the block and the first
condition that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metasched.analysis.access import SHUFFLED
from metasched.analysis.block import (
    FOLD,
    TILED,
    is_leaf,
    loop_iter_kind,
    needs_multi_level_tiling,
    reduction,
)
from metasched.analysis.dependence import carried_dependence
from metasched.analysis.failure import Failure
from metasched.analysis.scope import Child, Scope
from metasched.ir.expr import as_int
from metasched.ir.stmt import BufferStore, ForKind, IterKind
from metasched.ir.visit import free_vars, reads_memory
from metasched.schedule.primitives.enclose import stores_outside
from metasched.schedule.primitives.privatize_reduction import update_of
from metasched.schedule.schedule import Schedule
from metasched.space.loop_kinds import SMALL, SMALL_INSIDE, steps
from metasched.space.strides import contiguous, loads_run_along, walking

_MOST = 8  # design spaces that are looked at
_NOTHING_TO_TILE = ("no-reduction", "no-reuse", "already-tiled")


def reasons(source: Schedule, spaces: Sequence[Schedule]) -> list[str]:
    """A sentence for each block of a program and each thing that no design space gives the block.

    Blocks that some space inlines or tiles, and nests too small for several cores, are left out.

    Args:
        source: the program as written.
        spaces: the schedules from which the design spaces were taken.
    """
    found: list[str] = []
    for name, func in source.mod.functions.items():
        if not func.is_schedulable:
            continue
        plain = spaces and stores_outside(func.root.body)  # spaces put such statements into blocks
        root = spaces[-1].mod[name].root if plain else func.root
        for child in Scope.of(root).realizes:
            if is_leaf(child.block) is None and child.loops and steps(child.loops[0]) >= SMALL:
                found += _of_block(child, spaces[:_MOST])
    return found


def _of_block(child: Child, spaces: Sequence[Schedule]) -> list[str]:
    places: list[tuple[Child, Scope]] = []
    for sch in spaces:
        realize = sch.state.index.blocks.get(child.token)
        if realize is None or {TILED, FOLD} & realize.block.annotations.keys():
            return []
        scope = sch.state.scope(realize)
        places.append((scope.child(child.token), scope))
    found: list[str] = []
    for what, why in _RULES:
        first = why(*places[0])  # a distributed program comes first
        if first and all(why(*place) for place in places[1:]):
            found.append(f"block {child.block.name} {what}: {first}")
    return found


def _untiled(child: Child, scope: Scope) -> str:
    """Why a block that reuses data is not tiled; empty where there is nothing to tile."""
    reuse = needs_multi_level_tiling(scope, child.token)
    reduced = any(v.is_reduce for v in child.block.iter_vars)
    if not reduced or (reuse is not None and reuse.slug in _NOTHING_TO_TILE):
        return ""
    inside = [*child.loops[1:], child.realize]
    for loop, body in zip(child.loops, inside, strict=True):
        if loop.body is not body:
            return f"it shares loop {loop.var.name} with other blocks"
    variables = {loop.var for loop in child.loops}
    for loop in child.loops:
        if not variables.isdisjoint(free_vars(loop.extent) | free_vars(loop.min)):
            return f"the range of loop {loop.var.name} depends on a loop outside"
    failure = reduction(scope, child.token) or reuse
    return failure.message if failure is not None else ""


def _serial(child: Child, scope: Scope) -> str:
    """Why no loop over a block can run in parallel; empty where one can."""
    why = _outputs(child)
    for loop in child.loops:
        if loop.kind is ForKind.PARALLEL:
            return ""
        if as_int(loop.extent) == 1:
            continue
        failure = carried_dependence(loop, scope)
        kind = loop_iter_kind(loop, scope.under(loop))
        if failure is None and kind is not IterKind.REDUCE:
            if why and steps(loop) < SMALL_INSIDE:
                continue  # threads would wait for each other more than they work
            return ""
        text = _drives(loop.var.name, kind) if failure is None else _touches(child, failure)
        why = why or text
    return why


def _touches(child: Child, failure: Failure) -> str:
    """Which iterations may touch one element, and how to promise that they do not, where only
    memory can tell."""
    parts = [e for n in child.loops for e in n.exprs]
    parts += [e for r in child.block.writes for d in r.region for e in (d.min, d.extent)]
    if failure.slug != "carried-dependence" or not any(map(reads_memory, parts)):
        return failure.message
    return f"{failure.message}; if they never do, write the loop as T.parallel"


def _scalar(child: Child, scope: Scope) -> str:
    """Why no loop over a block can be vectorized; empty where one can."""
    if any(v.is_reduce and loads_run_along(child.block, v.var) for v in child.block.iter_vars):
        return ""
    why = ""
    for loop in child.loops:
        if loop.kind is ForKind.VECTORIZED:
            return ""
        if not contiguous(child, loop) and not walking(child, loop):
            continue
        failure = carried_dependence(loop, scope, private=False)
        if failure is None:
            return ""
        why = why or failure.message
    along = f"along no loop do all stores move by one element and all loads by -1 to {SHUFFLED}"
    return why or _outputs(child) or along


def _ordered(child: Child, scope: Scope) -> str:
    """How to permit another order of the terms of a sum; empty for other blocks."""
    store, kinds = child.block.body, {v.kind for v in child.block.iter_vars}
    kept = child.block.init is None and IterKind.OPAQUE in kinds
    if not kept or not isinstance(store, BufferStore) or update_of(store) is None:
        return ""
    return 'T.func_attr({"tir.fast_math": "reassoc"}), or T.axis.reduce in a block, permits any'


def _outputs(child: Child) -> str:
    names = sorted({r.buffer.name for r in child.block.writes})
    return f"it writes {len(names)} outputs, {' and '.join(names)}" if len(names) > 1 else ""


def _drives(name: str, kind: IterKind) -> str:
    return f"loop {name} drives {kind.value} iterators"


_RULES: tuple[tuple[str, Callable[[Child, Scope], str]], ...] = (
    ("is not tiled", _untiled),
    ("has no parallel loop", _serial),
    ("has no vector loop", _scalar),
    ("combines floats in one order", _ordered),
)

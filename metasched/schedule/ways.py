"""Ways: the arguments with which a primitive is tried on a loop or block.

`@primitive(of_loop=..., of_block=...)` names a way. `Schedule.legal` tries its argument lists in
turn until one is accepted; the random machine of the tests draws one. Every way takes the state and
the target loop or block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from metasched.analysis.scope import Scope
from metasched.ir.expr import as_int
from metasched.ir.stmt import For, Stmt
from metasched.ir.visit import free_vars, walk_stmts
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.instruction import Ways
from metasched.schedule.intrinsics import TensorIntrin
from metasched.schedule.state import State

Calls = Iterator[tuple[Any, ...]]


def plain(*rest: Any) -> Ways:
    """The target (the loop or block) and the constants `rest`."""

    def ways(state: State, rv: Any) -> Calls:
        yield (rv, *rest)

    return ways


def plain_or(*rest: Any) -> Ways:
    """The target alone, and the target with the constants `rest`."""

    def ways(state: State, rv: Any) -> Calls:
        yield (rv,)
        yield (rv, *rest)

    return ways


def with_intrinsics(state: State, rv: Any) -> Calls:
    """The target with each registered intrinsic."""
    yield from ((rv, name) for name in TensorIntrin.names())


# -- of a loop -----------------------------------------------------------------------------------


def with_child(state: State, rv: LoopRV) -> Calls:
    """The loop, then the loop directly inside it."""
    inner = state.loop(rv).body
    yield (rv, state.new_loop(inner.var)) if isinstance(inner, For) else (rv,)


def with_child_and(*rest: Any) -> Ways:
    """The loop with the one directly inside it, and these constants."""

    def ways(state: State, rv: LoopRV) -> Calls:
        yield from ((*pair, *rest) for pair in with_child(state, rv) if len(pair) == 2)

    return ways


def child_first(state: State, rv: LoopRV) -> Calls:
    """The loop directly inside, then the loop."""
    inner = state.loop(rv).body
    yield (state.new_loop(inner.var), rv) if isinstance(inner, For) else (rv, rv)


def with_loops_around(state: State, rv: LoopRV) -> Calls:
    """The loop with each loop around it, the nearest first."""
    for outer in reversed(state.loops_above(state.loop(rv))):
        yield (rv, state.new_loop(outer.var))


def with_siblings(state: State, rv: LoopRV) -> Calls:
    """The loop, with each of its sibling loops."""
    node = state.loop(rv)
    parent = state.parent(node)
    others = [s for s in parent.stmts if isinstance(s, For) and s is not node] if parent else []
    yield from ((rv, state.new_loop(s.var)) for s in others)
    if not others:
        yield (rv,)


def with_sibling(state: State, rv: LoopRV) -> Calls:
    """The loop and one of its sibling loops; nothing for a loop without siblings."""
    yield from (pair for pair in with_siblings(state, rv) if len(pair) == 2)


def with_following_nests(*rest: Any) -> Ways:
    """The loop alone, then with loops of its extent in the nests that follow, more and more."""

    def ways(state: State, rv: LoopRV) -> Calls:
        node = state.loop(rv)
        top: Stmt = node
        while isinstance(state.parent(top), For):
            top = state.parent(top)  # type: ignore[assignment]
        items = list(getattr(state.parent(top), "items", (top,)))
        found = [rv]
        yield (list(found), *rest)
        for item in items[items.index(top) + 1 :]:
            below = [s for s in walk_stmts(item) if isinstance(s, For)]
            same = [loop for loop in below if loop.extent is node.extent]
            if not same:
                return
            found.append(state.new_loop(same[-1].var))
            yield (list(found), *rest)

    return ways


def with_buffers_below(side: str) -> Ways:
    """The loop with each block below it and each buffer that the block reads or writes."""

    def ways(state: State, rv: LoopRV) -> Calls:
        loop = state.loop(rv)
        for child in state.scope(loop).under(loop):
            block = state.new_block(child.token)
            for n in range(len(child.block.reads if side == "read" else child.block.writes)):
                yield (rv, block, n, "local")

    return ways


# -- of a block ----------------------------------------------------------------------------------


def as_list(state: State, rv: BlockRV) -> Calls:
    """A list of the block alone."""
    yield ([rv],)


def with_loops_above(state: State, rv: BlockRV) -> Calls:
    """The block with each loop above it."""
    yield from ((rv, state.new_loop(n.var)) for n in state.loops_above(state.block(rv)))


def with_written_and_loops(state: State, rv: BlockRV) -> Calls:
    """The block with the position of each buffer that it writes and each loop above."""
    realize = state.block(rv)
    for n in range(len(realize.block.writes)):
        yield from ((rv, n, state.new_loop(loop.var)) for loop in state.loops_above(realize))


def with_other_loops(state: State, rv: BlockRV) -> Calls:
    """The block with each loop of its scope that is not above it."""
    realize = state.block(rv)
    mine = state.loops_above(realize)
    seen = {loop: None for child in state.scope(realize).realizes for loop in child.loops}
    yield from ((rv, state.new_loop(n.var)) for n in seen if n not in mine)


def with_buffers(side: str, *rest: Any) -> Ways:
    """The block with the position of each buffer it reads (or writes), and the constants `rest`."""

    def ways(state: State, rv: BlockRV) -> Calls:
        block = state.block(rv).block
        for n in range(len(block.reads if side == "read" else block.writes)):
            yield (rv, n, *rest)

    return ways


def with_accesses(*rest: Any) -> Ways:
    """The block with each buffer it accesses, as ("read", position) or ("write", position)."""

    def ways(state: State, rv: BlockRV) -> Calls:
        block = state.block(rv).block
        for side, regions in (("read", block.reads), ("write", block.writes)):
            yield from ((rv, (side, n), *rest) for n in range(len(regions)))

    return ways


def reductions_before(state: State, rv: BlockRV) -> Calls:
    """Each block that the block reads from, then the block."""
    scope: Scope = state.scope(state.block(rv))
    for child in scope.producers(state.value(rv)):
        yield (state.new_block(child.token), rv)


def with_twos(state: State, rv: BlockRV) -> Calls:
    """The block with 2 for each of its iterators."""
    yield (rv, [2] * len(state.block(rv).block.iter_vars))


def with_spatial_twos(state: State, rv: BlockRV) -> Calls:
    """The block with 2 for each spatial iterator that takes two values or more, 1 for others."""
    iters = state.block(rv).block.iter_vars
    yield (rv, [1 if v.is_reduce or (as_int(v.dom.extent) or 1) < 2 else 2 for v in iters])


def with_reversed_iters(state: State, rv: BlockRV) -> Calls:
    """The block with its iterators numbered from the last to the first."""
    yield (rv, list(reversed(range(len(state.block(rv).block.iter_vars)))))


def reversed_indices(*indices: Any) -> tuple[Any, ...]:
    """The index map that takes dimensions in reverse."""
    return tuple(reversed(indices))


def with_buffers_by_iterators(side: str) -> Ways:
    """The block with each buffer, laid out by the iterators that index it, in reverse."""

    def ways(state: State, rv: BlockRV) -> Calls:
        block = state.block(rv).block
        for n, region in enumerate(block.reads if side == "read" else block.writes):
            used = frozenset().union(*(free_vars(r.min) for r in region.region))
            kept = [k for k, v in enumerate(block.iter_vars) if v.var in used]
            yield (rv, n, "local", lambda *i, kept=kept: [i[k] for k in reversed(kept)])

    return ways

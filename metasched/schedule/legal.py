"""Questions to a schedule: which primitives apply here and why the others do not, what is touched.

A primitive is asked by trying it with plain arguments on a copy of the state, so the answer is
exactly what the step itself would say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from metasched.analysis.access import touched_bytes
from metasched.analysis.scope import Scope
from metasched.errors import ScheduleError
from metasched.ir.buffer import Buffer
from metasched.ir.expr import as_int
from metasched.ir.stmt import BlockRealize, For
from metasched.ir.visit import free_vars
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.instruction import PRIMITIVES
from metasched.schedule.intrinsics import TensorIntrin
from metasched.schedule.state import State

Ways: TypeAlias = "Callable[[State, Any], Iterator[tuple[Any, ...]]]"


def _plain(*rest: Any) -> Ways:
    """The target and these constants."""

    def ways(state: State, rv: Any) -> Iterator[tuple[Any, ...]]:
        yield (rv, *rest)

    return ways


def _with_child(state: State, rv: LoopRV) -> Iterator[tuple[Any, ...]]:
    inner = state.loop(rv).body
    yield (rv, state.new_loop(inner.var)) if isinstance(inner, For) else (rv,)


def _exchanged(state: State, rv: LoopRV) -> Iterator[tuple[Any, ...]]:
    inner = state.loop(rv).body
    yield (state.new_loop(inner.var), rv) if isinstance(inner, For) else (rv, rv)


def _siblings(state: State, rv: LoopRV) -> Iterator[tuple[Any, ...]]:
    node = state.loop(rv)
    parent = state.parent(node)
    others = [s for s in parent.stmts if isinstance(s, For) and s is not node] if parent else []
    yield from ((rv, state.new_loop(s.var)) for s in others)
    if not others:
        yield (rv,)


def _intrinsics(state: State, rv: Any) -> Iterator[tuple[Any, ...]]:
    yield from ((rv, name) for name in TensorIntrin.names())


def _axes(state: State, rv: LoopRV) -> Iterator[tuple[Any, ...]]:
    yield (rv, 0)


def _loops(state: State, rv: BlockRV) -> Iterator[tuple[Any, ...]]:
    """The block with each loop above it."""
    yield from ((rv, state.new_loop(n.var)) for n in state.loops_above(state.block(rv)))


def _elsewhere(state: State, rv: BlockRV) -> Iterator[tuple[Any, ...]]:
    """The block with each loop of the scope that is not above it."""
    realize = state.block(rv)
    mine = state.loops_above(realize)
    seen = {loop: None for child in state.scope(realize).realizes for loop in child.loops}
    yield from ((rv, state.new_loop(n.var)) for n in seen if n not in mine)


def _buffers(side: str, *rest: Any, pair: bool = False) -> Ways:
    """The block with each buffer it reads or writes."""

    def ways(state: State, rv: BlockRV) -> Iterator[tuple[Any, ...]]:
        block = state.block(rv).block
        for n in range(len(block.reads if side == "read" else block.writes)):
            yield (rv, (side, n) if pair else n, *rest)

    return ways


def _both_sides(state: State, rv: BlockRV) -> Iterator[tuple[Any, ...]]:
    yield from _buffers("read", pair=True)(state, rv)
    yield from _buffers("write", pair=True)(state, rv)


def _producers(state: State, rv: BlockRV) -> Iterator[tuple[Any, ...]]:
    """Reductions before the block, with the block as their epilogue."""
    scope: Scope = state.scope(state.block(rv))
    for child in scope.producers(state.value(rv)):
        yield (state.new_block(child.token), rv)


def _padding(state: State, rv: BlockRV) -> Iterator[tuple[Any, ...]]:
    yield (rv, [2] * len(state.block(rv).block.iter_vars))


def _reversed_iters(state: State, rv: BlockRV) -> Iterator[tuple[Any, ...]]:
    yield (rv, list(reversed(range(len(state.block(rv).block.iter_vars)))))


def _multiples(state: State, rv: BlockRV) -> Iterator[tuple[Any, ...]]:
    iters = state.block(rv).block.iter_vars
    yield (rv, [1 if v.is_reduce or (as_int(v.dom.extent) or 1) < 2 else 2 for v in iters])


def _backwards(*indices: Any) -> tuple[Any, ...]:
    return tuple(reversed(indices))


def _backwards_of(state: State, rv: BlockRV) -> Iterator[tuple[Any, ...]]:
    """The block with each buffer it accesses, its dimensions in reverse."""
    for choice in (*_both_sides(state, rv),):
        yield (*choice, _backwards)


def _by_iterators(side: str) -> Ways:
    """The block with each buffer, laid out by the iterators that index it, in reverse."""

    def ways(state: State, rv: BlockRV) -> Iterator[tuple[Any, ...]]:
        block = state.block(rv).block
        for n, region in enumerate(block.reads if side == "read" else block.writes):
            used = frozenset().union(*(free_vars(r.min) for r in region.region))
            kept = [k for k, v in enumerate(block.iter_vars) if v.var in used]
            yield (rv, n, "local", lambda *i, kept=kept: [i[k] for k in reversed(kept)])

    return ways


def _below(side: str) -> Ways:
    """The loop with each block below it and each buffer that the block reads or writes."""

    def ways(state: State, rv: LoopRV) -> Iterator[tuple[Any, ...]]:
        loop = state.loop(rv)
        for child in state.scope(loop).under(loop):
            block = state.new_block(child.token)
            for n in range(len(child.block.reads if side == "read" else child.block.writes)):
                yield (rv, block, n, "local")

    return ways


def _run_of_one(state: State, rv: BlockRV) -> Iterator[tuple[Any, ...]]:
    yield ([rv],)


OF_LOOPS: dict[str, Ways] = {
    "split": _plain([None, 2]), "fuse": _with_child, "merge": _siblings,
    "loop_partition": _plain([1]), "reorder": _exchanged, "add_unit_loop": _plain(),
    "parallel": _plain(), "vectorize": _plain(), "unroll": _plain(), "bind": _plain("threadIdx.x"),
    "rfactor": _axes, "blockize": _plain(), "tensorize": _intrinsics,
    "read_at": _below("read"), "write_at": _below("write"),
}  # fmt: skip
OF_BLOCKS: dict[str, Ways] = {
    "compute_at": _elsewhere, "reverse_compute_at": _elsewhere, "compute_inline": _plain(),
    "reverse_compute_inline": _plain(), "fuse_reduction_epilogue": _producers,
    "cache_read": _buffers("read", "local"), "cache_write": _buffers("write", "local"),
    "cache_inplace": _buffers("read", "local"), "cache_index": _plain("local"),
    "reindex": _both_sides, "set_scope": _buffers("write", "local"),
    "storage_align": _buffers("write", -1, 32, 8), "rolling_buffer": _buffers("write"),
    "decompose_reduction": _loops, "decompose_padding": _loops, "pad_einsum": _padding,
    "reorder_block_iter_var": _reversed_iters, "blockize": _run_of_one, "tensorize": _intrinsics,
    "add_unit_loop": _plain(), "overcompute": _multiples,
    "transform_layout": _backwards_of, "transform_block_layout": _plain(_backwards),
    "reindex_cache_read": _by_iterators("read"), "reindex_cache_write": _by_iterators("write"),
}  # fmt: skip


def legal(state: State, rv: BlockRV | LoopRV) -> dict[str, str | None]:
    """For each primitive None if it applies to a loop or block, else why it does not.

    A primitive that takes more than the target (another loop, a buffer, an intrinsic) applies when
    some choice works; otherwise the first refusal is told.
    """
    state.primitive = "legal"
    if isinstance(rv, LoopRV):
        state.loop(rv)
        table = OF_LOOPS
    else:
        state.block(rv)
        table = OF_BLOCKS
    return {n: _refusal(state, n, ways, rv) for n, ways in table.items() if n in PRIMITIVES}


def _refusal(state: State, name: str, ways: Ways, rv: Any) -> str | None:
    kind, first = PRIMITIVES.get(name), None
    try:
        chosen = state.copy_for_trial()
        for args in ways(chosen, rv):
            trial = chosen.copy_for_trial()
            values, _ = kind.bind(args, {})
            try:
                kind.call(trial, values, None, trial.snapshot())
            except ScheduleError as error:
                first = first or error.message
            else:
                return None
    except ScheduleError as error:  # the root block, for one, stands in no scope
        return error.message
    return first or "there is nothing to apply it to"


def footprint(state: State, rv: LoopRV) -> dict[str, int | None]:
    """Bytes of each buffer that the blocks below a loop touch while it runs once.

    By buffer name; None where there is no constant bound.
    """
    state.primitive = "footprint"
    loop = state.loop(rv)
    out: dict[str, int | None] = {}
    for buffer in _touched(state, loop):
        name, n = buffer.name, 0
        while name in out:
            n += 1
            name = f"{buffer.name}_{n}"
        out[name] = touched_bytes(loop, buffer)
    return out


def _touched(state: State, loop: For) -> dict[Buffer, None]:
    children: list[BlockRealize] = [c.realize for c in state.scope(loop).under(loop)]
    blocks = [realize.block for realize in children]
    return {r.buffer: None for b in blocks for r in (*b.reads, *b.writes)}

"""rewrite_reduction_block: initialises reductions before their loops, in the same kinds of loops."""

from __future__ import annotations

from dataclasses import dataclass

from metasched.ir.expr import as_int
from metasched.ir.stmt import BlockRealize, For, ForKind
from metasched.ir.visit import blocks_of, free_vars
from metasched.schedule.handles import LoopRV
from metasched.schedule.schedule import Schedule
from metasched.target import Target


@dataclass(frozen=True, slots=True)
class RewriteReductionBlock:
    """Decompose every reduction block at its outermost reduction loop.

    The loops of the init are vectorised and unrolled as those of the update are. Reductions over
    thread-bound loops, and those whose reduction loops have all gone, keep their init.
    """

    @property
    def name(self) -> str:
        return "rewrite_reduction_block"

    def __call__(self, sch: Schedule, target: Target) -> None:
        several = len(sch.mod.functions) > 1
        for name, func in sch.mod.functions.items():
            for realize in list(blocks_of(func.body)):
                if realize.block.init is not None:
                    self._decompose(sch, realize, name if several else None)

    def _decompose(self, sch: Schedule, realize: BlockRealize, func: str | None) -> None:
        now = sch.state.index.blocks[realize.block.token]
        loops = sch.state.loops_above(now)
        pairs = list(zip(now.block.iter_vars, now.iter_values, strict=True))
        reduced = frozenset().union(*(free_vars(e) for v, e in pairs if v.is_reduce))
        first = next((i for i, loop in enumerate(loops) if loop.var in reduced), None)
        if first is None or any(p.thread for p in loops if p.var in reduced):
            return
        spatial = frozenset().union(*(free_vars(e) for v, e in pairs if not v.is_reduce))
        kept = [loop for loop in loops[first:] if loop.var in spatial]
        block = sch.get_block(now.block.name, func)
        init = sch.decompose_reduction(block, sch.get_loops(block)[first])
        wanted = [k.kind in (ForKind.VECTORIZED, ForKind.UNROLLED) for k in kept]
        if not any(wanted):
            return
        handles = sch.get_loops(init)[-len(kept) :]
        for handle, loop in zip(handles, kept, strict=True):
            _same_kind(sch, handle, loop)


def _same_kind(sch: Schedule, handle: LoopRV, loop: For) -> None:
    if loop.kind is ForKind.VECTORIZED:
        sch.vectorize(handle)
    elif loop.kind is ForKind.UNROLLED and (as_int(loop.extent) or 0) > 1:
        sch.unroll(handle)

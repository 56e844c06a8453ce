"""separate_window: share the sums along one side of a window among the results that overlap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from metasched.analysis.reducer import Reduction, match_reducer
from metasched.arith.affine import linear
from metasched.arith.analyzer import Analyzer
from metasched.arith.regions import block_access_regions
from metasched.ir.buffer import BufferLoad, Range
from metasched.ir.describe import show_expr
from metasched.ir.expr import TRUE, Expr, Var, as_expr, as_int
from metasched.ir.stmt import Block, BlockRealize, BufferStore, For, IterVar, Stmt, evolve, seq
from metasched.ir.visit import blocks_of, free_vars, substitute
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    require_one_block,
    require_reduction,
    require_serial,
    require_set_once,
    require_stage_pipeline,
)
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.new_stage import own_loops, top_of, with_buffers
from metasched.schedule.rebind import nest
from metasched.schedule.state import State


@primitive(of_loop=ways.plain())
def separate_window(state: State, loop: LoopRV) -> BlockRV:
    """Reduce along the other sides of a window first, once for all results that share them.

    A window is a reduction whose value depends on a spatial iterator x and on the iterator of
    `loop`, k, only through s * x + k. A new buffer `X_window` holds the partial results for each
    value of s * x + k, in the dimension of x. Returns the block that computes the partial results.
    The old handle stands for the block that combines them along `loop`.

    requires  a serial loop that drives a reduce iterator of one reduction block in a stage
              pipeline, beside another reduce iterator; serial loops, one for each iterator, that
              hold nothing else; a commutative reduction of one result with its identity as init; a
              spatial iterator x that the value, like k, uses in no other way, of the same type and
              of a constant extent; a step s from 1 to the extent of `loop`, a constant, too
    rewrite   for i, k, l in T.grid(6, 3, 5): C(C[i] += A[i + k, l])
              ->
              for i, l in T.grid(8, 5): C_window(C_window[i] += A[i, l])
              for i, k in T.grid(6, 3): C(C[i] += C_window[i + k])
    """
    node = state.loop(loop)
    require_serial(state, node)
    realize = require_one_block(state, node)
    scope = require_stage_pipeline(state, realize)
    require_reduction(state, scope, realize)
    loops = own_loops(state, realize)
    for own in loops:
        require_serial(state, own)
    require_set_once(state, realize, loops)
    plan = _Window(state, realize, loops, loops.index(node))
    state.commit(
        edit.replace(top_of(state, realize), seq((plan.partial, plan.final))),
        edit.wrap(scope.block, with_buffers(plan.buffer)),
    )
    return state.new_block(next(blocks_of(plan.partial)).block.token)


class _Window:
    """The block of partial results, and the block that combines them, under their loops."""

    def __init__(self, state: State, realize: BlockRealize, loops: Sequence[For], at: int) -> None:
        self.state, self.realize, self.block = state, realize, realize.block
        self.loops = loops
        self.along = self.block.iter_vars[at]
        self.found = self._reducer()
        self.across, self.step = self._partner()
        extents = {v.var: v.dom.extent for v in self.block.iter_vars}
        last = self.step * (self._extent(self.across) - 1) + self._extent(self.along)
        extents[self.across.var] = as_expr(last, self.across.var.dtype)
        self.results = [v.var for v in self.block.iter_vars if v.is_spatial]
        self.extents = extents
        (result,) = self.found.buffers
        self.buffer = state.fresh_buffer(
            f"{result.name}_window",
            tuple(extents[v] for v in self.results),
            result.dtype,
            result.scope,
        )
        self.partial, self.final = self._partial(), self._final()

    def _extent(self, v: IterVar) -> int:
        found = as_int(v.dom.extent) or 0
        if found < 1:
            text = f"the extent of {v.var.name} of {self.block.name} is no constant of at least 1"
            raise self.state.error("no-limit", text, self.realize)
        return found

    def _reducer(self) -> Reduction:
        """The reduction of one result along the loop and along another iterator."""
        state, name, own = self.state, self.block.name, self.along
        found = match_reducer(self.block.init, self.block.body)
        single = found is not None and len(found.buffers) == 1 and found.commutative
        if found is None or not single or self.block.match_buffers:
            text = f"{name} is no commutative reduction of one result that starts from its identity"
            raise state.error("no-reducer", text, self.realize)
        others = [v for v in self.block.iter_vars if v.is_reduce and v is not own]
        if not own.is_reduce or all(as_int(v.dom.extent) == 1 for v in others):
            text = f"{own.var.name} is not one of several reduce iterators of {name}"
            raise state.error("not-a-side", text, self.realize)
        return found

    def _partner(self) -> tuple[IterVar, int]:
        """The spatial iterator x, and the step s, such that the value depends on s * x + k."""
        value, own = self.found.rhs[0], self.along
        for v in reversed(self.block.iter_vars):
            if v.is_spatial and v.var.dtype is own.var.dtype:
                steps = set(_steps(value, v.var, own.var))
                step = steps.pop() if len(steps) == 1 else None
                if step is not None and 1 <= step <= self._extent(own):
                    return v, step
        raise self.state.error(
            "no-window",
            f"no spatial iterator x of {self.block.name} is used only in sums "
            f"s * x + {own.var.name}, with one s from 1 to {show_expr(own.dom.extent)}",
            self.realize,
            hint="a window of weights, or of an operand that moves with x alone, shares no sums",
        )

    def _partial(self) -> Stmt:
        """The reduction along the other iterators, for each value of s * x + k."""
        state, block = self.state, self.block
        kept = [v for v in block.iter_vars if v is not self.along]
        fresh = {v.var: state.fresh_var(v.var.name, v.var.dtype) for v in kept}
        iters = tuple(
            IterVar(fresh[v.var], Range(v.dom.min, self.extents[v.var]), v.kind) for v in kept
        )
        moved: dict[Var, Expr] = {**fresh, self.along.var: fresh[self.across.var]}
        moved[self.across.var] = as_expr(0, self.across.var.dtype)
        analyzer = Analyzer({v.var: v.dom for v in iters})
        value = analyzer.simplify(substitute(self.found.rhs[0], moved))
        where = tuple(fresh[v] for v in self.results)
        (result,) = self.found.combine((BufferLoad(self.buffer, where),), (value,))
        name = state.fresh_block_name(f"{block.name}_window")
        init = BufferStore(self.buffer, self.found.identity[0], where)
        made = _with_regions(
            Block(name, iters, (), (), BufferStore(self.buffer, result, where), init)
        )
        loops = [
            (state.fresh_var(loop.var.name, v.var.dtype), v.dom.extent)
            for v, loop in zip(iters, self._loops_of(kept), strict=True)
        ]
        return nest(loops, BlockRealize(tuple(var for var, _ in loops), TRUE, made))

    def _loops_of(self, iters: Sequence[IterVar]) -> list[For]:
        pairs = zip(self.block.iter_vars, self.loops, strict=True)
        return [loop for v, loop in pairs if v in iters]

    def _final(self) -> Stmt:
        """The reduction of partial results along the loop, with the old token."""
        block, own, x = self.block, self.along, self.across.var
        iters = tuple(v for v in block.iter_vars if v.is_spatial or v is own)
        at = self.step * x + own.var
        where = tuple(at if v is x else v for v in self.results)
        (value,) = self.found.combine(self.found.lhs, (BufferLoad(self.buffer, where),))
        body = BufferStore(self.found.buffers[0], value, self.found.indices)
        block = _with_regions(evolve(block, iter_vars=iters, body=body))
        loops = self._loops_of(iters)
        result: Stmt = BlockRealize(tuple(loop.var for loop in loops), TRUE, block)
        for loop in reversed(loops):
            result = evolve(loop, body=result)
        return result


def _with_regions(block: Block) -> Block:
    reads, writes = block_access_regions(block)
    return evolve(block, reads=reads, writes=writes)


@lru_cache(maxsize=1 << 12)
def _steps(value: Expr, x: Var, k: Var) -> frozenset[int | None]:
    """The step s of each sum s * x + k, or its multiple, in a value; None for another use of x or
    k."""
    found = set[int | None]()
    if free_vars(value).isdisjoint((x, k)):
        return frozenset(found)
    parts: Iterable[Expr] = value.children
    if value.dtype.is_int:
        form = linear(value)
        of_x, of_k = form.terms.get(x, 0), form.terms.get(k, 0)
        if of_x or of_k:
            found.add(of_x // of_k if of_k and of_x % of_k == 0 else None)
        atoms = [a for a in form.terms if a is not x and a is not k]
        parts = value.children if atoms == [value] else atoms
    for part in parts:
        found |= _steps(part, x, k)
    return frozenset(found)

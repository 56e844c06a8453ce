"""rfactor: splits a reduction into two steps, so that a reduction loop becomes spatial."""

from __future__ import annotations

from collections.abc import Sequence

from metasched.analysis.reducer import Reduction, match_reducer
from metasched.analysis.running import is_dependent
from metasched.arith.analyzer import Analyzer
from metasched.arith.conditions import conjuncts
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.expr import TRUE, Expr, IntImm, Var, as_int, logical_and
from metasched.ir.func import FAST_MATH
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BlockToken,
    BufferStore,
    For,
    IterKind,
    IterVar,
    LetStmt,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import (
    blocks_of,
    free_vars,
    fresh_copy,
    loads_of,
    substitute,
    transform,
    transform_expr,
)
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    require_from_zero,
    require_one_block,
    require_reduction,
    require_serial,
    require_set_once,
    require_stage_pipeline,
)
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.rebind import ranges_of
from metasched.schedule.state import State


@primitive(of_loop=ways.plain(0))
def rfactor(state: State, loop: LoopRV, factor_axis: int) -> BlockRV:
    """Compute a partial result for each iteration of `loop`, then reduce the partial results.

    A new buffer `X.rf` holds the partial results; the loop is its dimension `factor_axis` (negative
    numbers count from the end). Returns the block that computes the partial results (`X_rf`). The
    old handle stands for the block that combines them. Outer loops that also hold other blocks stay
    around both blocks.

    requires  one reduction block under the loop in a stage pipeline; a serial loop from zero that
              drives reduce iterators only, or runs once and drives none; a chain of loops from the
              first reduction loop on; no loop that drives both kinds; a commutative reduction with
              its identity as init, or an argmin or argmax; if order decides ties, `loop` as the
              outermost loop of the reduction; if the result depends on NaN or on the sign of a
              zero, `tir.fast_math` with `nnan` or `reassoc`
    rewrite   for i, k in T.grid(4, 8): C(C[i] += A[i, k])
              ->
              for i, k in T.grid(4, 8): C_rf(C_rf[k, i] += A[i, k])
              for i, k in T.grid(4, 8): C(C[i] += C_rf[k, i])
    """
    node = state.loop(loop)
    require_serial(state, node)
    require_from_zero(state, node)
    realize = require_one_block(state, node)
    scope = require_stage_pipeline(state, realize)
    require_reduction(state, scope, realize)
    loops = state.loops_above(realize)
    shared = _check_loops(state, realize, loops, node)
    found = _reducer(state, realize, node)
    ndim = len(found.indices)
    if not -ndim - 1 <= factor_axis <= ndim:
        raise state.error(
            "bad-axis", f"factor_axis {factor_axis} is outside [{-ndim - 1}, {ndim}]", realize
        )
    axis = factor_axis if factor_axis >= 0 else factor_axis + ndim + 1
    plan = _Plan(state, realize, node, loops, shared, found, axis)
    partial = plan.partial()
    reduced = {v for v, kind in plan.kinds.items() if kind is IterKind.REDUCE}
    final = plan.final()

    def combine(top: Stmt) -> Stmt:
        """The combining block under the old loops, without the other reduction loops."""
        body: Stmt = final
        for kept in reversed(loops[shared:]):
            if kept is node or kept.var not in reduced:
                body = evolve(kept, body=body)
        return seq((partial, body))

    state.commit(
        edit.replace(loops[shared], combine(loops[shared])),
        edit.wrap(
            scope.block,
            lambda s: evolve(s, alloc_buffers=(*s.alloc_buffers, *plan.buffers)),  # type: ignore[attr-defined]
        ),
    )
    return state.new_block(next(blocks_of(partial)).block.token)


def _reducer(state: State, realize: BlockRealize, node: For) -> Reduction:
    """The block's reduction; raises unless its partial results may be combined in loop order."""
    found = match_reducer(realize.block.init, realize.block.body)
    if found is None:
        raise state.error(
            "no-reducer",
            f"{realize.block.name} is no commutative reduction that starts from its identity",
            realize,
            hint="known are sum, prod, min, max, and, or, argmin and argmax",
        )
    _require_liberties(state, realize, found)
    if not found.commutative:
        kinds = _loop_kinds(realize)
        for loop in state.loops_above(realize):
            if loop is node:
                break
            if IterKind.REDUCE in kinds.get(loop.var, ()) and as_int(loop.extent) != 1:
                raise state.error(
                    "tie-order",
                    f"{realize.block.name} keeps the first or last of equal values, and partial "
                    f"results over {node.var.name}, inside {loop.var.name}, are not in the order "
                    "of the values",
                    node,
                    hint="factor the outermost loop of the reduction, or decide ties by the index: "
                    "m > v or (m == v and i < j)",
                )
    return found


def _require_liberties(state: State, realize: BlockRealize, found: Reduction) -> None:
    """Refuse an argmin or argmax whose result depends on the order of NaNs or of signed zeros."""
    missing = found.liberties.difference(state.func_of(realize)[1].liberties)
    if not missing:
        return
    if "reassoc" in missing:
        text = (
            "takes value and index by different tests, so the sign of a zero depends on the order"
        )
    else:
        text = (
            "takes a NaN, or an equal value, that comes later, so its result depends on the order"
        )
    raise state.error(
        "nan-order",
        f"{realize.block.name} {text} of its updates",
        realize,
        hint=f"change both where the new value is better, `if v > m: m = v; i = k`, or allow "
        f"{' '.join(sorted(missing))} by the attribute {FAST_MATH}",
    )


def _check_loops(state: State, realize: BlockRealize, loops: Sequence[For], node: For) -> int:
    """Refuse loops that drive iterators of both kinds, and reduction loops that are no chain.

    Returns the number of outer loops that the block shares with other statements.
    """
    shared = 0
    for k, outer in enumerate(loops):
        if outer.body is not (loops[k + 1] if k + 1 < len(loops) else realize):
            shared = k + 1
    kinds = _loop_kinds(realize)
    variables = {loop.var for loop in loops}
    for k, loop in enumerate(loops):
        drives = kinds.get(loop.var, set())
        if k < shared and (loop is node or IterKind.REDUCE in drives):
            raise state.error(
                "not-a-chain", f"{loops[shared - 1].var.name} has other statements beside the "
                "block, below the reduction", loops[shared - 1],
            )  # fmt: skip
        if IterKind.REDUCE in drives and is_dependent(loop, variables):
            raise state.error(
                "dependent-extent",
                f"the extent of the reduction loop {loop.var.name} depends on other loops",
                loop,
            )
        if len(drives) > 1:
            raise state.error(
                "mixed-loop", f"{loop.var.name} drives spatial and reduce iterators", loop
            )
        if not drives and as_int(loop.extent) != 1:
            raise state.error("idle-loop", f"{loop.var.name} drives no iterator", loop)
    first = next((k for k, n in enumerate(loops) if IterKind.REDUCE in kinds.get(n.var, ())), None)
    require_set_once(state, realize, loops[first:] if first is not None else ())
    if kinds.get(node.var, {IterKind.REDUCE}) != {IterKind.REDUCE}:
        raise state.error(
            "not-a-reduction-loop", f"{node.var.name} drives no reduce iterator", node,
            hint="rfactor takes a loop of the reduction",
        )  # fmt: skip
    return shared


def _loop_kinds(realize: BlockRealize) -> dict[Var, set[IterKind]]:
    kinds: dict[Var, set[IterKind]] = {}
    for iter_var, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        for var in free_vars(value):
            kinds.setdefault(var, set()).add(iter_var.kind)
    return kinds


class _Plan:
    """The data from which the partial and the combining block are built."""

    def __init__(
        self,
        state: State,
        realize: BlockRealize,
        node: For,
        loops: tuple[For, ...],
        shared: int,
        found: Reduction,
        axis: int,
    ) -> None:
        self.state, self.realize, self.node, self.loops = state, realize, node, loops
        self.shared, self.found, self.axis = shared, found, axis
        self.kinds = {v: next(iter(k)) for v, k in _loop_kinds(realize).items() if len(k) == 1}
        self.buffers = tuple(self._partial_buffer(b) for b in found.buffers)

    def _partial_buffer(self, buffer: Buffer) -> Buffer:
        shape = list(buffer.shape)
        shape.insert(self.axis, self.node.extent)
        content = (f"{buffer.name}.rf", tuple(shape), buffer.dtype, buffer.scope)
        return self.state.fresh_buffer(*content)

    def _widened(self, indices: Sequence[Expr], at: Expr) -> tuple[Expr, ...]:
        out = list(indices)
        out.insert(self.axis, at)
        return tuple(out)

    def partial(self) -> Stmt:
        """The block of partial results under fresh copies of all loops."""
        state, old = self.state, self.realize.block
        slot = state.fresh_var(f"v{self.node.var.name}", self.node.var.dtype)
        iters = [IterVar(slot, Range(self.node.min, self.node.extent), IterKind.SPATIAL)]
        values: list[Expr] = [self.node.var]
        inside: dict[Var, Expr] = {}
        split: dict[Var, Expr] = {self.node.var: slot}
        for iter_var, value in zip(old.iter_vars, self.realize.iter_values, strict=True):
            if not (iter_var.is_reduce and self.node.var in free_vars(value)):
                fresh = state.fresh_var(iter_var.var.name, iter_var.var.dtype)
                iters.append(IterVar(fresh, iter_var.dom, iter_var.kind))
                values.append(value)
                inside[iter_var.var] = fresh
                continue
            for loop in self.loops:
                if loop.var in free_vars(value) and loop.var not in split:
                    part = state.fresh_var(f"v{loop.var.name}", loop.var.dtype)
                    split[loop.var] = part
                    dom = Range(loop.min, loop.extent)
                    iters.append(IterVar(part, dom, IterKind.REDUCE))
                    values.append(loop.var)
            inside[iter_var.var] = substitute(value, split)
        block = self._redirected(old, slot, inside)
        name = state.fresh_block_name(f"{old.name}_rf")
        block = evolve(block, name=name, iter_vars=tuple(iters), token=BlockToken())
        if not any(v.is_reduce for v in iters):
            block = without_reduction(block)
        self._check_starts()
        body: Stmt = BlockRealize(tuple(values), self.realize.predicate, block)
        for loop in reversed(self.loops[self.shared :]):
            body = evolve(loop, body=body)
        return fresh_copy(body, lambda v: state.fresh_var(v.name, v.dtype))

    def _check_starts(self) -> None:
        """Refuse a predicate that may skip the first update, and so the init, of a partial
        result."""
        if self.realize.predicate is TRUE:
            return
        first: dict[Var, Expr] = {
            n.var: n.min
            for n in self.loops
            if self.kinds.get(n.var) is IterKind.REDUCE and n is not self.node
        }
        analyzer = Analyzer(ranges_of(self.loops))
        for condition in conjuncts(self.realize.predicate):
            reduces = any(self.kinds.get(v) is IterKind.REDUCE for v in free_vars(condition))
            if reduces and not analyzer.prove(substitute(condition, first)):
                raise self.state.error(
                    "hidden-init",
                    "the predicate may leave a partial result without its first update",
                    self.realize,
                    hint="split the reduction by a factor that divides it, or pad it",
                )

    def _redirected(self, old: Block, slot: Var, inside: dict[Var, Expr]) -> Block:
        """The block over its new iterators, writing partial results."""
        swap = dict(zip(self.found.buffers, self.buffers, strict=True))

        def on_expr(node: Expr) -> Expr | None:
            if isinstance(node, BufferLoad) and node.buffer in swap:
                return BufferLoad(swap[node.buffer], self._widened(node.indices, slot))
            return None

        def on_stmt(node: Stmt) -> Stmt | None:
            if isinstance(node, BufferStore) and node.buffer in swap:
                where = self._widened(node.indices, slot)
                return BufferStore(swap[node.buffer], node.value, where)
            return None

        def region(r: BufferRegion) -> BufferRegion:
            box = [Range(substitute(x.min, inside), substitute(x.extent, inside)) for x in r.region]
            if r.buffer not in swap:
                return BufferRegion(r.buffer, tuple(box))
            box.insert(self.axis, Range(slot, IntImm(slot.dtype, 1)))
            return BufferRegion(swap[r.buffer], tuple(box))

        assert old.init is not None
        return evolve(
            old,
            body=transform(substitute(old.body, inside), on_stmt, on_expr),
            init=transform(substitute(old.init, inside), on_stmt, on_expr),
            reads=tuple(map(region, old.reads)),
            writes=tuple(map(region, old.writes)),
        )

    def final(self) -> BlockRealize:
        """The block that combines the partial results, with the old token and spatial iterators."""
        state, old, found = self.state, self.realize.block, self.found
        slot = state.fresh_var(f"v{self.node.var.name}", self.node.var.dtype)
        iters = [v for v in old.iter_vars if not v.is_reduce]
        pairs = zip(old.iter_vars, self.realize.iter_values, strict=True)
        values = [e for v, e in pairs if not v.is_reduce]
        iters.insert(0, IterVar(slot, Range(self.node.min, self.node.extent), IterKind.REDUCE))
        values.insert(0, self.node.var)
        where = self._widened(found.indices, slot)
        partials = tuple(BufferLoad(b, where) for b in self.buffers)
        results = found.combine(found.lhs, partials)
        if len(results) == 1:
            body: Stmt = BufferStore(found.buffers[0], results[0], found.indices)
        else:
            names = [state.fresh_var(f"v_{b.name}", b.dtype) for b in found.buffers]
            stores = [
                BufferStore(b, n, found.indices) for b, n in zip(found.buffers, names, strict=True)
            ]
            body = seq(stores)
            for name, value in zip(reversed(names), reversed(results), strict=True):
                body = LetStmt(name, value, body)
        block = Block(
            old.name, tuple(iters), tuple(BufferRegion.point(b, where) for b in self.buffers),
            tuple(BufferRegion.point(b, found.indices) for b in found.buffers), body, old.init,
            (), (), old.annotations, old.token,
        )  # fmt: skip
        predicate: Expr = TRUE
        for condition in conjuncts(self.realize.predicate):  # a condition uses one kind of loops
            if all(self.kinds.get(v) is not IterKind.REDUCE for v in free_vars(condition)):
                predicate = logical_and(predicate, condition)
        return BlockRealize(tuple(values), predicate, block)


def without_reduction(block: Block) -> Block:
    """A block with an init but without reduction as a block whose store computes the result."""
    first, then = block.init, block.body
    if not (isinstance(first, BufferStore) and isinstance(then, BufferStore)):
        return block
    if first.buffer is not then.buffer or first.indices != then.indices:
        return block
    result, start = BufferLoad(first.buffer, first.indices), first.value
    value = transform_expr(then.value, lambda e: start if e is result else None)
    if any(load.buffer is then.buffer for load in loads_of(value)):
        return block
    reads = tuple(r for r in block.reads if r.buffer is not then.buffer)
    return evolve(block, init=None, body=evolve(then, value=value), reads=reads)

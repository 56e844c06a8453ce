"""compute_inline, reverse_compute_inline: inline a block into its consumers or its producer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from metasched.analysis.overwritten import overwriters
from metasched.analysis.producers import written_before
from metasched.analysis.scope import Child, Scope
from metasched.arith.analyzer import Analyzer
from metasched.arith.inverse import left_inverse
from metasched.arith.regions import block_access_regions
from metasched.ir.buffer import Buffer, BufferLoad, Range
from metasched.ir.expr import EQ, LT, TRUE, Expr, Var, as_int, compare, logical_and
from metasched.ir.op import Call, Effect, effect_of
from metasched.ir.stmt import Block, BlockRealize, BufferStore, IfThenElse, Stmt, evolve
from metasched.ir.visit import (
    free_vars,
    loads_of,
    map_exprs,
    replace_loads,
    substitute,
    transform,
    transform_expr,
    walk_stmts,
)
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    proof,
    refuse_opaque,
    refuse_outside,
    require_complete,
    require_not_output,
    require_root_free,
    require_same_inputs,
    require_stage_pipeline,
    require_whole_domain,
)
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.state import State

_IN_MEMORY = "ends of loops, bindings and conditions need the values in memory"


@primitive(of_block=ways.plain())
def compute_inline(state: State, block: BlockLike) -> None:
    """Replace every load of the result of `block` by the expression that `block` stores.

    requires  a complete block in a stage pipeline, no output; a body of one store whose indices are
              the iterators or an invertible affine map of them, and which may update the value of
              the init; a buffer that is used by loads only, where the inputs of `block` have the
              same values; or an elementwise block whose results elementwise blocks read until one
              overwrites them, each element once
    rewrite   B[i] = A[i] + 1; C[i] = B[i] * 2 -> C[i] = (A[i] + 1) * 2
    """
    assert isinstance(block, BlockRV)
    realize = require_root_free(state, block)
    whole = state.scope(realize)
    others = overwriters(whole, whole.child(realize.block.token))
    if others:
        _inline_update(state, realize, others)
        return
    scope = require_stage_pipeline(state, realize, realize.block)
    require_not_output(state, realize)
    require_complete(state, scope, realize)
    store = _single_store(state, realize)
    around = scope.block
    refuse_opaque(state, around, store.buffer)
    refuse_outside(state, scope, store.buffer, hint=_IN_MEMORY)
    if len(scope.realizes) == 1:
        text = f"{realize.block.name} is the only block of {around.name}, so nothing would be left"
        raise state.error("only-block", text, realize)
    pattern = _Pattern(state, realize, store)
    readers = [
        c for c in scope.realizes if c.realize is not realize and _reads(c.block, store.buffer)
    ]
    for reader in readers:
        require_same_inputs(state, scope, realize, reader.loops)

    def value(load: BufferLoad) -> Expr:
        return pattern.value_at(load.indices)

    edits = edit.merge(
        *(edit.replace(c.realize, _with_loads(c.realize, store.buffer, value)) for c in readers),
        edit.delete(realize),
        edit.wrap(around, lambda s: _without(s, store.buffer)),
    )
    state.commit(edits)


def _inline_update(state: State, realize: BlockRealize, others: Sequence[Child]) -> None:
    """Compute the value that an elementwise block stores where `others`, the last of which
    overwrites it, load it."""
    store = _single_store(state, realize)
    pattern = _Pattern(state, realize, store)

    def value(load: BufferLoad) -> Expr:
        return pattern.value_at(load.indices)

    edits = (edit.replace(c.realize, _with_loads(c.realize, store.buffer, value)) for c in others)
    state.commit(edit.merge(*edits, edit.delete(realize)))


class _Pattern:
    """The producer's store, solved for its iterators: the expression stored at given indices."""

    def __init__(self, state: State, realize: BlockRealize, store: BufferStore) -> None:
        self.store = store
        block = realize.block
        self.slots: dict[Var, int] | None = {}
        for position, index in enumerate(store.indices):
            if isinstance(index, Var) and index not in self.slots:
                self.slots[index] = position
            elif as_int(index) is None:
                self.slots = None
                break
        needed = free_vars(store.value)
        iters = {v.var: v.dom for v in block.iter_vars}
        if self.slots is not None and all(v in self.slots for v in needed if v in iters):
            return
        self.slots = None
        self.names = [state.fresh_var(f"d{n}", i.dtype) for n, i in enumerate(store.indices)]
        wanted = {v: r for v, r in iters.items() if v in needed}
        self.inverse = _solved(state, realize, store, iters, wanted, self.names)

    def value_at(self, indices: tuple[Expr, ...]) -> Expr:
        if self.slots is not None:
            return substitute(self.store.value, {v: indices[p] for v, p in self.slots.items()})
        here = dict(zip(self.names, indices, strict=True))
        solved = {v: Analyzer().simplify(substitute(e, here)) for v, e in self.inverse.items()}
        return substitute(self.store.value, solved)


@primitive(of_block=ways.plain())
def reverse_compute_inline(state: State, block: BlockLike) -> None:
    """Compute `block` in its producer, which then stores the final value directly.

    requires  a complete block in a stage pipeline that runs on its whole domain; exactly one
              producer, which is complete and no output; loads of the intermediate buffer that all
              have the same, invertible indices; iterators whose loads stay within what the producer
              writes
    rewrite   B[i] = A[i] + 1; C[i] = B[i] * 2 -> C[i] = (A[i] + 1) * 2
    """
    assert isinstance(block, BlockRV)
    realize = require_root_free(state, block)
    scope = require_stage_pipeline(state, realize, realize.block)
    require_complete(state, scope, realize)
    store = _single_store(state, realize)
    producer = _only_producer(state, scope, realize)
    require_complete(state, scope, producer)
    require_not_output(state, producer)
    inner, guard = _guarded_store(state, producer)
    refuse_opaque(state, scope.block, inner.buffer)
    refuse_outside(state, scope, inner.buffer, hint=_IN_MEMORY)
    users = (producer.block.token, realize.block.token)
    if any(c.token not in users and _reads(c.block, inner.buffer) for c in scope.realizes):
        raise state.error(
            "other-consumers", f"{inner.buffer.name} is read by other blocks too", producer
        )
    solved = _solve_loads(state, realize, store, inner.buffer)
    require_whole_domain(state, realize, state.loops_above(realize))
    require_within(state, realize, inner.buffer)
    require_same_inputs(state, scope, realize, state.loops_above(producer), {inner.buffer})
    at_store = {
        v: substitute(e, dict(zip(solved.names, inner.indices, strict=True)))
        for v, e in solved.values.items()
    }
    analyzer = Analyzer({v.var: v.dom for v in producer.block.iter_vars})
    at_store = {v: analyzer.simplify(e) for v, e in at_store.items()}

    value = replace_loads(store.value, inner.buffer, lambda _: inner.value)
    value = substitute(value, at_store)
    indices = tuple(analyzer.simplify(substitute(i, at_store)) for i in store.indices)
    stored = BufferStore(store.buffer, value, indices)
    body: Stmt = stored if guard is None else IfThenElse(guard, stored)
    residual = _residual(analyzer, realize.block, at_store)
    for read, place in zip(solved.indices, inner.indices, strict=True):
        here = analyzer.simplify(substitute(read, at_store))
        if not analyzer.equal(here, place):  # the producer stores at other values, too
            residual = logical_and(residual, analyzer.simplify(compare(EQ, here, place)))
    predicate = logical_and(producer.predicate, substitute(residual, producer.bindings))
    merged = _rewritten(producer.block, body)
    around = state.scope_block(realize)
    assert around is not None
    state.commit(
        edit.replace(producer, BlockRealize(producer.iter_values, predicate, merged)),
        edit.delete(realize),
        edit.wrap(around, lambda s: _without(s, inner.buffer)),
    )


def _only_producer(state: State, scope: Scope, realize: BlockRealize) -> BlockRealize:
    """The only block whose results `realize` reads; raises if there are several or none."""
    producers = scope.producers(realize.block.token)
    if len(producers) != 1:
        raise state.error(
            "not-one-producer", f"{realize.block.name} has {len(producers)} producers", realize
        )
    return producers[0].realize


def _solved(
    state: State,
    realize: BlockRealize,
    access: BufferStore | BufferLoad,
    iters: Mapping[Var, Range],
    wanted: Mapping[Var, Range],
    names: Sequence[Var],
) -> dict[Var, Expr]:
    """Solve an access for the iterators: each wanted iterator as a function of its indices
    `names`."""
    found = left_inverse(access.indices, iters, names)
    if isinstance(found, dict):
        missing = [v for v in wanted if v not in found and as_int(wanted[v].extent) != 1]
        if not missing:
            return {**{v: r.min for v, r in wanted.items()}, **found}
        found = f"the iterator {missing[0].name} does not occur in them"
    raise state.error(
        "not-invertible",
        f"the indices of {access.buffer.name} cannot be solved for the iterators of "
        f"{realize.block.name}: {found}",
        realize,
    )


class _Solved:
    """A consumer's iterators, solved as functions of the indices at which it loads."""

    def __init__(
        self, names: list[Var], values: Mapping[Var, Expr], indices: tuple[Expr, ...]
    ) -> None:
        self.names, self.values, self.indices = names, values, indices


def _solve_loads(
    state: State, realize: BlockRealize, store: BufferStore, buffer: Buffer
) -> _Solved:
    block = realize.block
    roots = (store.value, *store.indices)
    loads = {e for root in roots for e in loads_of(root) if e.buffer is buffer}
    if len(loads) != 1:
        raise state.error(
            "different-loads",
            f"{block.name} loads {buffer.name} at {len(loads)} different places",
            realize,
        )
    load = next(iter(loads))
    names = [state.fresh_var(f"d{n}", i.dtype) for n, i in enumerate(load.indices)]
    iters = {v.var: v.dom for v in block.iter_vars}
    return _Solved(names, _solved(state, realize, load, iters, iters, names), load.indices)


@proof
def require_within(state: State, realize: BlockRealize, buffer: Buffer) -> None:
    """Refuse a block that may read outside `buffer`, or elements that are not written.

    Conditions around its reads are ignored: an instance whose read is skipped has no instance of
    the producer to run in.
    """
    block = realize.block
    analyzer = Analyzer({v.var: v.dom for v in block.iter_vars})
    for region in block.reads:
        if region.buffer is not buffer:
            continue
        for r, extent in zip(region.region, buffer.shape, strict=True):
            inside = (r.min >= 0, r.min + r.extent <= extent)
            if not all(analyzer.prove(c) for c in inside):
                raise state.error(
                    "reads-beyond",
                    f"{block.name} has instances outside of {buffer.name}, which would never run",
                    realize,
                    hint="inline the producer into the consumer instead (compute_inline)",
                )
    scope = state.scope(realize)
    if written_before(scope, scope.child(block.token), buffer, guarded=False) is not None:
        raise state.error(
            "reads-unwritten",
            f"{block.name} has instances that read elements of {buffer.name} that no block writes, "
            "under a condition; these instances would never run",
            realize,
            hint="inline the producer into the consumer instead (compute_inline)",
        )


def _residual(analyzer: Analyzer, consumer: Block, at_store: Mapping[Var, Expr]) -> Expr:
    """The bounds of the consumer's iterators that the producer's bounds do not imply."""
    out: Expr = TRUE
    for iter_var in consumer.iter_vars:
        value, dom = at_store[iter_var.var], iter_var.dom
        for condition in (compare(LT, value, dom.min + dom.extent), dom.min <= value):
            if not analyzer.prove(condition):
                out = logical_and(out, analyzer.simplify(condition))
    return out


def _single_store(state: State, realize: BlockRealize) -> BufferStore:
    """The only store of the block's body, with the value of the init substituted into it."""
    block = realize.block
    if not isinstance(block.body, BufferStore) or len(block.writes) != 1:
        raise state.error(
            "not-one-store", f"the body of {block.name} is not a single store", realize
        )
    if block.match_buffers or block.alloc_buffers:
        raise state.error("has-buffers", f"{block.name} allocates or matches buffers", realize)
    if block.init is None:
        return block.body
    store = _started(block, block.init, block.body)
    if store is None:
        raise state.error("has-init", f"{block.name} is a reduction", realize)
    return store


def _started(block: Block, init: Stmt, body: BufferStore) -> BufferStore | None:
    """The store of a block without reduction, with the value of its init in place of its own
    result."""
    if not isinstance(init, BufferStore) or not all(v.is_spatial for v in block.iter_vars):
        return None
    if init.buffer is not body.buffer or init.indices != body.indices or body.predicate is not None:
        return None
    if any(e.buffer is body.buffer and e.indices != body.indices for e in loads_of(body.value)):
        return None
    return evolve(body, value=replace_loads(body.value, body.buffer, lambda _: init.value))


def _guarded_store(state: State, realize: BlockRealize) -> tuple[BufferStore, Expr | None]:
    """The only store of a producer, and the condition of the `if` without else around it, or
    None."""
    body = realize.block.body
    if isinstance(body, IfThenElse) and body.orelse is None and isinstance(body.then, BufferStore):
        if realize.block.init is not None:
            text = f"{realize.block.name} updates its init under a condition"
            raise state.error("has-init", text, realize)
        return body.then, body.condition
    return _single_store(state, realize), None


def _reads(block: Block, buffer: Buffer) -> bool:
    return any(r.buffer is buffer for r in block.reads)


def _rewritten(block: Block, body: Stmt) -> Block:
    """The block with another body and no init, its regions inferred again."""
    changed = evolve(block, body=body, init=None)
    reads, writes = block_access_regions(changed)
    return evolve(changed, reads=reads, writes=writes)


def _with_loads(realize: BlockRealize, buffer: Buffer, fn: Callable[[BufferLoad], Expr]) -> Stmt:
    """A consumer with loads of `buffer` replaced.

    The regions of each block that changed, or that declares a read of `buffer`, are inferred again.
    """

    def on_stmt(node: Stmt) -> Stmt | None:
        if isinstance(node, Block) and node.token in stale:
            reads, writes = block_access_regions(node)
            return evolve(node, reads=reads, writes=writes)
        return None

    def value(expr: Expr) -> Expr:
        new = replace_loads(expr, buffer, fn)
        return new if new is expr else transform_expr(new, _chosen)

    changed = map_exprs(realize, value)
    before = {n.token: n for n in walk_stmts(realize) if isinstance(n, Block)}
    stale = {
        n.token
        for n in walk_stmts(changed)
        if isinstance(n, Block) and (before[n.token] is not n or _reads(n, buffer))
    }
    return transform(changed, on_stmt)


def _chosen(node: Expr) -> Expr | None:
    """The value of a choice between equal values."""
    if not isinstance(node, Call) or node.op.name != "if_then_else":
        return None
    condition, first, second = node.args
    return first if first is second and effect_of(condition) is Effect.PURE else None


def _without(node: Stmt, buffer: Buffer) -> Block:
    """The scope block without the allocation of `buffer`."""
    assert isinstance(node, Block)
    return evolve(node, alloc_buffers=tuple(b for b in node.alloc_buffers if b is not buffer))

"""fuse_reduction_epilogue: folds an epilogue such as a bias into the init of a reduction.

An epilogue f(r) may be applied to the start of a reduction by the operation `*` if and only if
f(x * r) = f(x) * r. This holds if f combines its operand by the operation of the reduction. A clamp
of a sum, for example, is refused: applied to the start, it gives another result.
"""

from __future__ import annotations

from metasched.analysis.block import stage_pipeline
from metasched.analysis.reducer import Reduction, match_reducer
from metasched.analysis.scope import Child, Scope
from metasched.arith.regions import block_access_regions
from metasched.ir.buffer import BufferLoad
from metasched.ir.describe import show_expr
from metasched.ir.expr import TRUE, Add, And, BinaryOp, Expr, Max, Min, Mul, Or, Sub, Var
from metasched.ir.stmt import Block, BlockRealize, BufferStore, evolve
from metasched.ir.visit import loads_of, substitute
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    confirm_kinds,
    refuse_on,
    require_complete,
    require_not_output,
    require_reduction,
    require_root_free,
    require_same_inputs,
    require_stage_pipeline,
)
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.state import State

_OPERATION: dict[str, tuple[type[BinaryOp], ...]] = {
    "sum": (Add, Sub), "prod": (Mul,), "max": (Max,), "min": (Min,), "and": (And,), "or": (Or,),
}  # fmt: skip


@primitive(of_block=ways.reductions_before)
def fuse_reduction_epilogue(
    state: State, reduction_block: BlockLike, epilogue_block: BlockLike
) -> None:
    """Let a reduction write its epilogue's output, starting from the epilogue's other operand.

    The reduction block keeps its handle and name. The epilogue and the buffer between them are
    removed.

    requires  a stage pipeline; a commutative reduction of one buffer, no output, indexed by its
              spatial iterators; a complete epilogue without predicate, the only reader, that stores
              the reduction's result combined once with another operand by the reduction's
              operation; iterators of equal domains; operands that are computed before the reduction
    rewrite   C[i] += A[i, k]; D[i] = C[i] + E[i] -> (init: D[i] = E[i]); D[i] += A[i, k]
    """
    assert isinstance(reduction_block, BlockRV) and isinstance(epilogue_block, BlockRV)
    realize = require_root_free(state, reduction_block)
    last = require_root_free(state, epilogue_block)
    scope = require_stage_pipeline(state, realize)
    if state.scope_block(last) is not scope.block:
        raise state.error("other-scope", "the two blocks are in different blocks", last)
    require_reduction(state, scope, realize)
    require_not_output(state, realize)
    found = match_reducer(realize.block.init, realize.block.body)
    if found is None or found.name not in _OPERATION:
        raise state.error(
            "no-reducer",
            f"{realize.block.name} is not a reduction (sum, product, min, max, and, or) that "
            "starts from its identity and is written as one store",
            realize,
        )
    require_complete(state, scope, last)
    store = _single_store(state, scope, found, last)
    operand = _operand(state, found, last, store)
    values = _iterators(state, found, realize.block, last, store)
    fused = _fused(realize.block, found, store, operand, values)
    _require_ready(state, scope, realize, last)
    temp = found.buffers[0]
    require_same_inputs(state, scope, last, state.loops_above(realize), {temp})
    state.commit(
        edit.replace(realize, evolve(realize, block=fused)),
        edit.delete(last),
        edit.wrap(
            scope.block,
            lambda s: evolve(s, alloc_buffers=tuple(b for b in s.alloc_buffers if b is not temp)),  # type: ignore[attr-defined]
        ),
    )
    after = state.scope(state.block(reduction_block))
    refuse_on(state, stage_pipeline(after), after.block)
    confirm_kinds(state, state.loops_above(state.block(reduction_block)))


def _single_store(state: State, scope: Scope, found: Reduction, last: BlockRealize) -> BufferStore:
    """The epilogue's only store. Raises if it has a condition, or another block reads the
    result."""
    block, temp = last.block, found.buffers[0]
    readers = [c.realize for c in scope.readers(temp) if c.token is not block.token]
    others = [r for r in readers if not any(w.buffer is temp for w in r.block.writes)]
    if all(r.buffer is not temp for r in block.reads) or others:
        who = others[0].block.name if others else f"not {block.name}"
        raise state.error("other-consumers", f"{who} reads {temp.name}", last)
    if last.predicate is not TRUE:
        raise state.error("has-predicate", f"{block.name} has a predicate", last)
    plain = not (block.match_buffers or block.alloc_buffers)
    if not (isinstance(block.body, BufferStore) and block.init is None and plain):
        raise state.error("not-one-store", f"the body of {block.name} is not one store", last)
    return block.body


def _operand(state: State, found: Reduction, last: BlockRealize, store: BufferStore) -> Expr:
    """The expression that the epilogue combines with the result: the reduction's new init."""
    temp, value = found.buffers[0], store.value

    def of_temp(e: Expr) -> bool:
        return isinstance(e, BufferLoad) and e.buffer is temp

    parts = (*value.children, *store.indices)
    loads = [e for part in parts for e in loads_of(part) if of_temp(e)]
    kinds = _OPERATION[found.name]
    fits = isinstance(value, kinds) and value.dtype is temp.dtype and len(loads) == 1
    if fits and isinstance(value, BinaryOp):
        if of_temp(value.a):
            minus = isinstance(value, Sub)
            return Sub(found.identity[0], value.b) if minus else value.b
        if of_temp(value.b) and not isinstance(value, Sub):
            return value.a
    raise state.error(
        "not-fusable",
        lambda: (
            f"{show_expr(value)} is not the result of {found.name} combined by the same "
            "operation, so applying it before the last update would change the result"
        ),
        last,
        hint="compute the epilogue after the finished reduction (reverse_compute_at)",
    )


def _iterators(
    state: State, found: Reduction, block: Block, last: BlockRealize, store: BufferStore
) -> dict[Var, Expr]:
    """Map the epilogue's iterators to the reduction's, matched by the indices of the buffer
    between."""
    temp = found.buffers[0]
    load = next(e for e in loads_of(store.value) if e.buffer is temp)
    mine = {v.var: v for v in block.iter_vars if v.is_spatial}
    theirs = {v.var: v for v in last.block.iter_vars}
    values: dict[Var, Expr] = {}
    for here, there in zip(found.indices, load.indices, strict=True):
        ours, its = mine.pop(here, None), theirs.pop(there, None)  # type: ignore[call-overload]
        same = ours and its and ours.dom.min is its.dom.min and ours.dom.extent is its.dom.extent
        if not same:
            raise state.error(
                "other-iterators",
                lambda here=here, there=there: (
                    f"{temp.name} is written at {show_expr(here)} and "
                    f"read at {show_expr(there)}, which are not iterators of one domain"
                ),
                last,
            )
        values[there] = here  # type: ignore[index]
    if mine or theirs:
        names = ", ".join(v.name for v in (*mine, *theirs))
        raise state.error("other-iterators", f"{names} does not occur in {temp.name}", last)
    return values


def _fused(
    block: Block, found: Reduction, store: BufferStore, operand: Expr, values: dict[Var, Expr]
) -> Block:
    where = tuple(substitute(i, values) for i in store.indices)
    load = BufferLoad(store.buffer, where)
    (value,) = found.combine((load,), found.rhs)
    made = evolve(
        block,
        body=BufferStore(store.buffer, value, where),
        init=BufferStore(store.buffer, substitute(operand, values), where),
    )
    reads, writes = block_access_regions(made)
    return evolve(made, reads=reads, writes=writes)


def _require_ready(state: State, scope: Scope, realize: BlockRealize, last: BlockRealize) -> None:
    """Refuse a block between the two that writes what the epilogue reads, or uses what it
    writes."""
    order = {child.token: n for n, child in enumerate(scope.realizes)}
    first = order[realize.block.token]
    for edge in scope.incoming(last.block.token):
        if order[edge.src] > first:
            child: Child = scope.child(edge.src)
            raise state.error(
                "in-between", f"{child.block.name} is between the two blocks, and the epilogue "
                f"depends on it by {edge.buffer.name}", last,
            )  # fmt: skip

"""privatize_reduction: sums an update apart, and adds the sums to the old values at the end."""

from __future__ import annotations

from metasched.analysis.reducer import Reduction, identity_of, match_reducer
from metasched.arith.analyzer import Analyzer
from metasched.arith.regions import block_access_regions
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import (
    TRUE,
    Add,
    Expr,
    Sub,
    as_expr,
    as_int,
)
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BlockToken,
    BufferStore,
    For,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import free_vars, fresh_copy, loads_of
from metasched.schedule import edit, ways
from metasched.schedule.checks import require_serial
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.rebind import ranges_of
from metasched.schedule.state import State


@primitive(of_block=ways.plain())
def privatize_reduction(state: State, block: BlockLike) -> BlockRV:
    """Sum the updates of a block in a private buffer, and add the sums to the old values at the
    end; returns the block that adds.

    The private buffer `X_sum` starts from the identity and has an element for each value of the
    spatial iterators. The given handle stands for the reduction into it, which has an init now and
    is the only writer of its results, so that it can be tiled, factored and decomposed. As
    `rfactor`, the step changes the order in which floating-point numbers are added.

    requires  a block without init whose body combines one element with values that do not use its
              buffer, at indices without reduce iterators: a sum, difference, product, minimum or
              maximum; spatial and reduce iterators, at least one reduce iterator; no predicate; a
              chain of serial loops around the block alone that holds all loops of reduce
              iterators, each the value of an iterator; a reduction that is not empty and starts at
              the first values of its iterators; spatial loops whose ends depend on no reduction
              loop
    rewrite   for i, k in T.grid(4, 8): C(C[i] += A[i, k])
              ->
              for i, k in T.grid(4, 8): C(C_sum[i] += A[i, k])
              for i in range(4): C_add(C[i] += C_sum[i])
    """
    assert isinstance(block, BlockRV)
    realize = state.block(block)
    old = realize.block
    store, found, negative = updated(state, realize)
    chain = _chain(state, realize)
    spatial = [v for v in old.iter_vars if v.is_spatial]
    _require_nest(state, realize, chain)
    _require_own_element(state, realize, store)
    shape = tuple(v.dom.extent for v in spatial) or (as_expr(1),)
    private = state.fresh_buffer(f"{store.buffer.name}_sum", shape, store.buffer.dtype, "global")
    at = tuple(v.var if as_int(v.dom.min) == 0 else v.var - v.dom.min for v in spatial)
    at = at or (as_expr(0),)
    summed = found.combine((BufferLoad(private, at),), found.rhs)[0]
    reduction = _declared(
        evolve(
            old,
            init=BufferStore(private, found.identity[0], at),
            body=BufferStore(private, summed, at),
        )
    )
    total = BufferLoad(private, at)
    own = BufferLoad(store.buffer, store.indices)
    after = _adding_nest(state, realize, chain, with_sum(found, own, total, negative))
    top: Stmt = chain[0] if chain else realize
    scope = state.scope(realize).block
    state.commit(
        edit.wrap(old, lambda _: reduction),
        edit.wrap(top, lambda s: seq((s, after))),
        edit.wrap(
            scope,
            lambda s: evolve(s, alloc_buffers=(*s.alloc_buffers, private)),  # type: ignore[attr-defined]
        ),
    )
    while not isinstance(after, BlockRealize):
        after = after.stmts[0]
    return state.new_block(after.block.token)


def with_sum(found: Reduction, own: BufferLoad, total: Expr, negative: bool) -> BufferStore:
    """The store that adds the private sum to an old value, or takes it from there."""
    value = Sub(own, total) if negative else found.combine((own,), (total,))[0]
    return BufferStore(own.buffer, value, own.indices)


def _adding_nest(state: State, realize: BlockRealize, chain: list[For], body: Stmt) -> Stmt:
    """A block of the body over the spatial iterators, in copies of their loops."""
    old = realize.block
    pairs = zip(old.iter_vars, realize.iter_values, strict=True)
    spatial = {v: e for v, e in pairs if v.is_spatial}
    name = state.fresh_block_name(f"{old.name}_add")
    block = evolve(old, name=name, iter_vars=tuple(spatial), body=body, token=BlockToken())
    nest: Stmt = BlockRealize(tuple(spatial.values()), TRUE, _declared(block))
    used = frozenset().union(*map(free_vars, spatial.values()))
    for loop in reversed(chain):
        if loop.var in used:
            nest = evolve(loop, body=nest)
    return fresh_copy(nest, lambda v: state.fresh_var(v.name, v.dtype))


def _declared(block: Block) -> Block:
    reads, writes = block_access_regions(block)
    return evolve(block, reads=tuple(reads), writes=tuple(writes))


def updated(state: State, realize: BlockRealize) -> tuple[BufferStore, Reduction, bool]:
    """The store of a block, what it combines, and whether it subtracts."""
    block, store = realize.block, realize.block.body
    if block.init is not None:
        raise state.error(
            "has-init", f"block {block.name} has an init, so its results are private already",
            realize, hint="rfactor makes partial results",
        )  # fmt: skip
    plain = isinstance(store, BufferStore) and not (block.alloc_buffers or block.match_buffers)
    if plain and isinstance(store, BufferStore):
        value, buffer = store.value, store.buffer
        negative = isinstance(value, Sub)
        if isinstance(value, Sub):
            value = Add(value.a, value.b)
        identity = identity_of(value)
        if identity is not None:
            init = BufferStore(buffer, identity, store.indices)
            found = match_reducer(init, evolve(store, value=value))
            lost = negative and found is not None and found.lhs[0] is not store.value.a  # type: ignore[attr-defined]
            if found is not None and found.commutative and not lost:
                return store, found, negative
    raise state.error(
        "no-update",
        f"block {block.name} is no update of one element by values that do not use its buffer",
        realize,
        hint="known are sums, differences, products, minima and maxima",
    )


def _chain(state: State, realize: BlockRealize) -> list[For]:
    """The loops around a block alone, outermost first."""
    chain: list[For] = []
    below: Stmt = realize
    for loop in reversed(state.loops_above(realize)):
        if loop.body is not below:
            break
        require_serial(state, loop)
        chain.insert(0, loop)
        below = loop
    return chain


def _require_own_element(state: State, realize: BlockRealize, store: BufferStore) -> None:
    """Refuse an update of an element that depends on the reduction."""
    moving = {v.var for v in realize.block.iter_vars if v.is_reduce}
    if any(moving & free_vars(index) for index in store.indices):
        name = realize.block.name
        raise state.error(
            "no-update", f"a reduce iterator chooses the element that {name} updates", realize,
            hint="privatize_update gives each iteration of a loop a copy of the buffer",
        )  # fmt: skip


def _require_nest(state: State, realize: BlockRealize, chain: list[For]) -> None:
    """Refuse iterators and loops for which the sums would not be those of the old updates."""
    block = realize.block
    for v in block.iter_vars:
        if not (v.is_spatial or v.is_reduce):
            text = f"iterator {v.var.name} of block {block.name} is {v.kind.value}"
            raise state.error("iterator-kind", f"{text}, not spatial or reduce", realize)
    own = {loop.var for loop in chain}
    pairs = list(zip(block.iter_vars, realize.iter_values, strict=True))
    bound = [e for _, e in pairs if not free_vars(e).isdisjoint(own)]
    reduced = {e for v, e in pairs if v.is_reduce}
    if realize.predicate is not TRUE or len(set(bound)) < len(bound) or not own >= set(bound):
        raise state.error(
            "not-plain", f"block {block.name} has a predicate, or an iterator that is no loop of "
            "its own", realize, hint="take the step before loops are split or fused",
        )  # fmt: skip
    if not reduced or not own >= reduced or own - set(bound):
        raise state.error(
            "reduction-above",
            f"the loops around block {block.name} alone are not those of its reduce iterators",
            realize,
            hint="distribute the loops that it shares with other blocks by fission first",
        )
    around = [loop for loop in state.loops_above(realize) if loop.var not in reduced]
    for loop in chain:
        known = Analyzer(ranges_of(around[: around.index(loop)] if loop in around else around))
        ends = free_vars(loop.extent) | free_vars(loop.min)
        if any(e in ends for e in reduced):
            text = f"the range of loop {loop.var.name} depends on a loop of the reduction"
            raise state.error("dependent-extent", text, loop)
        if loop.var in reduced and not known.prove(loop.extent >= 1):
            text = f"loop {loop.var.name} may leave {block.name} nothing to reduce"
            raise state.error("empty-reduction", text, loop)
    starts = {loop.var: loop.min for loop in chain}
    refusal: tuple[str, str] | None = None
    if any(load.buffer is block.writes[0].buffer for e in realize.exprs for load in loads_of(e)):
        refusal = "not-plain", f"a binding of {block.name} reads its result"
    for v, value in pairs:
        if v.is_reduce and not Analyzer().equal(v.dom.min, starts[value]):  # type: ignore[index]
            text = f"the reduction over {v.var.name} does not always start at its first value"
            refusal = refusal or ("ragged-start", text)
        if v.is_spatial and as_int(v.dom.extent) is None:
            text = f"iterator {v.var.name} of block {block.name} has no constant extent"
            refusal = refusal or ("symbolic-extent", text)
    if refusal is not None:
        raise state.error(*refusal, realize)

"""privatize_reduction: reduces in a private buffer, and stores or adds the results at the end."""

from __future__ import annotations

from metasched.analysis.factor import constant_factor, factor_of_sum
from metasched.analysis.guarded import guarded_reads
from metasched.analysis.reducer import Reduction, identity_of, match_reducer
from metasched.arith.analyzer import Analyzer
from metasched.arith.regions import declared
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import (
    TRUE,
    Add,
    Expr,
    Sub,
    as_expr,
    as_int,
    mul,
)
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BlockToken,
    BufferStore,
    For,
    IterVar,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import free_vars, fresh_copy, loads_of, transform, walk_stmts
from metasched.schedule import edit, ways
from metasched.schedule.checks import require_serial, require_set_once
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.rebind import ranges_of
from metasched.schedule.state import State


@primitive(of_block=ways.plain())
def privatize_reduction(state: State, block: BlockLike) -> BlockRV:
    """Reduce in a private buffer; a new block then stores or adds the results. Returns this block.

    The private buffer `X_sum` has an element for each value of the spatial iterators. For a block
    with an init, the new block stores the results. For a block without init, the sums start from
    the identity, and the new block adds them to the old values. Like `rfactor`, the addition
    changes the order in which floating-point numbers are added. The new block multiplies by the
    constant factor of a sum in its place, unless the factor is a float of 16 bits or no number
    between 2**-16 and 2**16. The given handle stands for the reduction into `X_sum`, which has an
    init. No other block writes `X_sum`, so the reduction can be tiled, factored and decomposed.

    requires  a block that computes one element of one buffer, at indices without reduce iterators,
              and uses no other element of the buffer; without an init, a body that is a sum,
              difference, product, minimum or maximum of the element and values that do not use it;
              spatial and reduce iterators, at least one reduce iterator; no predicate; a chain of
              serial loops around the block and nothing else, each loop the value of one iterator,
              with all reduce iterators among them; a reduction that is not empty and starts at the
              first values of its iterators; loops whose ends depend on no reduction loop
    rewrite   for i, k in T.grid(4, 8): C(C[i] += A[i, k])
              ->
              for i, k in T.grid(4, 8): C(C_sum[i] += A[i, k])
              for i in range(4): C_add(C[i] += C_sum[i])
    """
    assert isinstance(block, BlockRV)
    realize = state.block(block)
    old = realize.block
    store, found, negative = _computed(state, realize)
    chain = _chain(state, realize)
    spatial = [v for v in old.iter_vars if v.is_spatial]
    _require_nest(state, realize, chain)
    _require_own_element(state, realize, store)
    if found is None or old.init is not None:
        require_set_once(state, realize, chain)
    sizes = [_indexed(v) for v in spatial]
    shape = tuple(size for _, size in sizes) or (as_expr(1),)
    private = state.fresh_buffer(f"{store.buffer.name}_sum", shape, store.buffer.dtype, "global")
    at = tuple(index for index, _ in sizes) or (as_expr(0),)
    total = BufferLoad(private, at)
    reduction, last, suffix = _parts(old, store, found, total, negative)
    after = _last_nest(state, realize, chain, last, suffix)
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


def _parts(
    old: Block, store: BufferStore, found: Reduction | None, total: BufferLoad, negative: bool
) -> tuple[Block, BufferStore, str]:
    """The reduction into a private element, and the store of the result with a suffix for its
    block."""
    result: Expr = total
    if found is None:
        reduction = _redirected(old, store, total)
    else:
        factor, terms = _factored(found)
        init = BufferStore(total.buffer, found.identity[0], total.indices)
        summed = found.combine((total,), (terms,))[0]
        reduction = evolve(old, init=init, body=evolve(init, value=summed))
        result = total if factor is None else mul(factor, total)
    if found is None or old.init is not None:
        return declared(reduction), evolve(store, value=result), "store"
    own = BufferLoad(store.buffer, store.indices)
    return declared(reduction), with_sum(found, own, result, negative), "add"


def _factored(found: Reduction) -> tuple[Expr | None, Expr]:
    """The constant factor of a sum, None where there is none, and the terms without the factor."""
    split = constant_factor(found.rhs[0]) if found.name == "sum" else None
    return (None, found.rhs[0]) if split is None else split


def _indexed(v: IterVar) -> tuple[Expr, Expr]:
    """The index for an iterator in a private buffer, and the size of that dimension.

    An iterator is the index itself where this leaves at most half of the elements unused.
    """
    low, extent = as_int(v.dom.min), as_int(v.dom.extent)
    if low is not None and extent is not None and 0 <= low <= extent:
        return v.var, as_expr(low + extent, v.dom.extent.dtype)
    return v.var - v.dom.min, v.dom.extent


def with_sum(found: Reduction, own: BufferLoad, total: Expr, negative: bool) -> BufferStore:
    """The store that adds a private sum to an old value, or subtracts it from the old value.

    Args:
        found: the reduction that the sum belongs to.
        own: the load of the old value.
        total: the private sum.
        negative: whether to subtract.
    """
    value = Sub(own, total) if negative else found.combine((own,), (total,))[0]
    return BufferStore(own.buffer, value, own.indices)


def _computed(state: State, realize: BlockRealize) -> tuple[BufferStore, Reduction | None, bool]:
    """The store of a block; what it combines, and whether it subtracts.

    With an init, what a block combines is known only for sums with a constant factor.
    """
    block = realize.block
    if block.init is None:
        return updated(state, realize)
    store = _own_result(state, realize)
    scaled = factor_of_sum(block) is not None
    return store, match_reducer(block.init, block.body) if scaled else None, False


def _own_result(state: State, realize: BlockRealize) -> BufferStore:
    """A store of a block with an init; block and init use one element of its buffer alone."""
    block = realize.block
    stores = [s for s in walk_stmts(block) if isinstance(s, BufferStore)]
    buffers = {s.buffer for s in stores}
    reads = guarded_reads(block)
    places = [(s.buffer, s.indices) for s in stores if s.predicate is None]
    places += [(r.buffer, r.indices) for r in reads or () if r.buffer in buffers]
    plain = reads is not None and isinstance(block.init, BufferStore) and len(places) >= len(stores)
    if not plain or any(place != places[0] for place in places) or block.alloc_buffers:
        raise state.error(
            "several-places",
            f"block {block.name} does not compute one element of one buffer, set by its init",
            realize,
        )
    return stores[0]


def _redirected(block: Block, place: BufferStore, private: BufferLoad) -> Block:
    """The block with its element in the private buffer; the init may read the old value."""

    def stored(node: Stmt) -> Stmt | None:
        if isinstance(node, BufferStore):
            return evolve(node, buffer=private.buffer, indices=private.indices)
        return None

    def loaded(node: Expr) -> Expr | None:
        return private if isinstance(node, BufferLoad) and node.buffer is place.buffer else None

    assert isinstance(block.init, BufferStore)
    init = evolve(block.init, buffer=private.buffer, indices=private.indices)
    return evolve(block, init=init, body=transform(block.body, stored, loaded))


def _last_nest(
    state: State, realize: BlockRealize, chain: list[For], body: Stmt, suffix: str
) -> Stmt:
    """A block of the body over the spatial iterators, in copies of their loops."""
    old = realize.block
    pairs = zip(old.iter_vars, realize.iter_values, strict=True)
    spatial = {v: e for v, e in pairs if v.is_spatial}
    name = state.fresh_block_name(f"{old.name}_{suffix}")
    block = evolve(
        old, name=name, iter_vars=tuple(spatial), init=None, body=body, token=BlockToken()
    )
    nest: Stmt = BlockRealize(tuple(spatial.values()), TRUE, declared(block))
    used = frozenset().union(*map(free_vars, spatial.values()))
    for loop in reversed(chain):
        if loop.var in used:
            nest = evolve(loop, body=nest)
    return fresh_copy(nest, lambda v: state.fresh_var(v.name, v.dtype))


def updated(state: State, realize: BlockRealize) -> tuple[BufferStore, Reduction, bool]:
    """The store of a block that updates an element, its reduction, and whether it subtracts.

    Raises:
        ScheduleError: `has-init` for a block with an init, `no-update` for any other body.
    """
    block, store = realize.block, realize.block.body
    require_no_init(state, realize)
    if isinstance(store, BufferStore) and not (block.alloc_buffers or block.match_buffers):
        found = update_of(store)
        if found is not None:
            return store, *found
    raise state.error(
        "no-update",
        f"block {block.name} is no update of one element by values that do not use its buffer",
        realize,
        hint="known are sums, differences, products, minima and maxima",
    )


def require_no_init(state: State, realize: BlockRealize) -> None:
    """Refuse a block with an init."""
    if realize.block.init is not None:
        raise state.error(
            "has-init",
            f"block {realize.block.name} has an init, so its results are private already",
            realize,
            hint="rfactor makes partial results",
        )


def update_of(store: BufferStore) -> tuple[Reduction, bool] | None:
    """The commutative reduction that a store alone updates its element by, and whether it
    subtracts; None for other stores."""
    value = store.value
    negative = isinstance(value, Sub)
    if isinstance(value, Sub):
        value = Add(value.a, value.b)
    identity = identity_of(value)
    if identity is None:
        return None
    init = BufferStore(store.buffer, identity, store.indices)
    found = match_reducer(init, evolve(store, value=value))
    lost = negative and found is not None and found.lhs[0] is not store.value.a  # type: ignore[attr-defined]
    return None if found is None or not found.commutative or lost else (found, negative)


def _chain(state: State, realize: BlockRealize) -> list[For]:
    """The loops that hold the block and nothing else, outermost first."""
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
    """Refuse an update whose element depends on a reduce iterator."""
    moving = {v.var for v in realize.block.iter_vars if v.is_reduce}
    if any(moving & free_vars(index) for index in store.indices):
        name = realize.block.name
        raise state.error(
            "no-update", f"a reduce iterator chooses the element that {name} updates", realize,
            hint="privatize_update gives each iteration of a loop a copy of the buffer",
        )  # fmt: skip


def _require_nest(state: State, realize: BlockRealize, chain: list[For]) -> None:
    """Refuse iterators and loops for which private sums would differ from the old updates."""
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
            "not-plain", f"block {block.name} has a predicate, or an iterator that is not the "
            "value of one loop", realize, hint="take the step before loops are split or fused",
        )  # fmt: skip
    if not reduced or not own >= reduced or own - set(bound):
        raise state.error(
            "reduction-above",
            f"the loops that hold block {block.name} alone must be loops of its iterators, and "
            "include all of its reduce iterators, at least one",
            realize,
            hint="distribute the loops that the block shares with other blocks by fission first",
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
    bounds = [end for loop in chain for end in (loop.min, loop.extent)]
    read = (load.buffer for e in (*realize.exprs, *bounds) for load in loads_of(e))
    if block.writes[0].buffer in read:
        refusal = "not-plain", f"a binding or a loop of {block.name} reads its result"
    for v, value in pairs:
        if v.is_reduce and not Analyzer().equal(v.dom.min, starts[value]):  # type: ignore[index]
            text = f"the reduction over {v.var.name} does not always start at its first value"
            refusal = refusal or ("ragged-start", text)
        if v.is_spatial and as_int(v.dom.extent) is None:
            text = f"iterator {v.var.name} of block {block.name} has no constant extent"
            refusal = refusal or ("symbolic-extent", text)
    if refusal is not None:
        raise state.error(*refusal, realize)

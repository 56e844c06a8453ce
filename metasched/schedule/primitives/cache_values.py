"""cache_values: computes slow values that a block repeats for many results once, into buffers."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from metasched.analysis import block as block_facts
from metasched.arith.regions import block_access_regions
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import And, Div, Expr, FloatImm, Let, Or, Select, Var, as_int
from metasched.ir.op import Call, Effect
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    SeqStmt,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import free_vars, loads_of, substitute, transform_expr, walk_exprs
from metasched.schedule import edit, ways
from metasched.schedule.checks import refuse_on, require_root_free, require_scope_name
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.layout_arguments import plain_int
from metasched.schedule.primitives.new_stage import (
    beside,
    own_axes,
    own_loops,
    require_free_of_init,
    stage,
    stage_block,
    top_of,
    with_buffers,
)
from metasched.schedule.primitives.value_axes import Form, form_of
from metasched.schedule.primitives.value_loops import Place, is_apart, place_of
from metasched.schedule.state import State

_QUICK = (
    *("if_then_else", "abs", "fabs", "likely", "reinterpret", "fma"),
    *("floor", "ceil", "round", "nearbyint", "trunc"),
)


@primitive(of_block=ways.plain("global"))
def cache_values(
    state: State, block: BlockLike, storage_scope: str, least: int = 2
) -> list[BlockRV]:
    """Compute slow values of `block` into buffers before it; returns the computing blocks.

    A quotient or a function of floats is slow, and so is a choice between elements
    (`T.if_then_else`), which no vector of results computes at once. The step takes the largest slow
    values in what the block stores that at least `least` iterations of the block share: these
    differ only in iterators on which the value does not depend; of a choice, in spatial iterators.
    So the exponentials of a product with a softmax are computed once, in vectors, and not for each
    column. A value of sums of iterators, as in a padded window, has an axis for each sum.

    If other statements share loops with the block, the stage stands before the outermost loop that
    does not change the value.

    requires  a known storage scope; a leaf block of stores under a loop for each iterator, without
              predicate; a slow value outside of conditions that many iterations share, of pure
              operations on elements that the block, and a loop that the stage comes before, do not
              write
    rewrite   for i, j in T.grid(4, 8): C(C[i] += T.exp(A[j]) * B[i, j])
              ->
              for ax0 in range(8): C_value(C_value[ax0] = T.exp(A[ax0]))
              for i, j in T.grid(4, 8): C(C[i] += C_value[j] * B[i, j])
    """
    assert isinstance(block, BlockRV)
    require_scope_name(state, storage_scope)
    realize = require_root_free(state, block)
    shared = plain_int(state, least, "least")
    require_free_of_init(state, realize)
    old = realize.block
    refuse_on(state, block_facts.is_leaf(old), realize)
    apart = is_apart(state, realize)
    chosen = {v: form for v, form in shared_values(old, shared) if apart or _is_slow(v)}
    if not chosen:
        raise state.error(
            "no-values",
            f"{old.name} stores no slow value outside of conditions that {shared} iterations share",
            realize,
            hint="a quotient or function of floats that depends on few iterators is such a value",
        )
    copies: dict[Stmt, list[Stmt]] = {}
    made: list[Block] = []
    loads: dict[Expr, BufferLoad] = {}
    for value, form in chosen.items():
        place = _place(state, realize, value, apart)
        anchor: Stmt = top_of(state, realize) if place is None else place.anchor
        form = form if place is None else Form.plain(value, old.iter_vars)
        taken = [one.name for one in made]
        nested, stage_of, load = _stage(state, realize, taken, form, storage_scope, place)
        copies.setdefault(anchor, []).append(nested)
        made.append(stage_of)
        loads[value] = load
    buffers = with_buffers(*(load.buffer for load in loads.values()))
    state.commit(
        edit.replace(old, _with_loads(old, loads)),
        *(beside(anchor, before=stages) for anchor, stages in copies.items()),
        edit.wrap(state.scope(realize).block, buffers),
    )
    return [state.new_block(b.token) for b in made]


def shared_values(block: Block, least: int) -> Iterator[tuple[Expr, Form]]:
    """The largest slow values in the stores of a block that at least `least` iterations share."""
    stores = block.body.items if isinstance(block.body, SeqStmt) else (block.body,)
    own = (*block.alloc_buffers, *(m.buffer for m in block.match_buffers))
    written = {b.data for b in (*own, *(r.buffer for r in block.writes))}
    sizes = {v.var: as_int(v.dom.extent) or 0 for v in block.iter_vars}
    rows = {v.var for v in block.iter_vars if v.is_spatial}

    def fits(value: Expr) -> Form | None:
        used, choice = free_vars(value), _is_choice(value)
        if not (choice or _is_slow(value)) or not used or not used <= sizes.keys():
            return None
        if not all(map(_pure, walk_exprs(value))):
            return None
        if any(load.buffer.data in written for load in loads_of(value)):
            return None
        sharing = (n for v, n in sizes.items() if v not in used and (v in rows or not choice))
        form = form_of(value, block.iter_vars) if prod(sharing) >= least else None
        return None if form is None or (choice and not form.is_plain()) else form

    if not all(sizes.values()):
        return  # a block without iterations evaluates nothing
    for store in stores:
        if not isinstance(store, BufferStore) or store.predicate is not None:
            return
        seen, stack = set[Expr](), [store.value]
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            if (form := fits(value)) is not None:
                yield value, form
            elif isinstance(value, Call) and value.op.name == "if_then_else":
                stack.append(value.args[0])
            elif not isinstance(value, (And, BufferLoad, Let, Or, Select)):
                stack += reversed(value.children)


def _place(state: State, realize: BlockRealize, value: Expr, apart: bool) -> Place | None:
    """Where the stage of a value stands among shared loops; None for before the block's own."""
    if not apart:
        return place_of(state, realize, value)
    own_loops(state, realize)
    return None


def _is_slow(value: Expr) -> bool:
    """Whether a value takes many times as long as a product, and no sum or product is fused with
    its last operation."""
    if not value.dtype.is_float or value.dtype.lanes > 1:
        return False
    if isinstance(value, Div):
        return not isinstance(value.b, FloatImm)
    return isinstance(value, Call) and value.op.name not in _QUICK


def _is_choice(value: Expr) -> bool:
    """Whether a value tests which element to load."""
    chooses = isinstance(value, Call) and value.op.name == "if_then_else"
    return chooses and value.dtype.lanes == 1 and bool(loads_of(value))


def _pure(node: Expr) -> bool:
    if isinstance(node, BufferLoad):
        return node.predicate is None
    return not isinstance(node, Call) or node.op.effect is Effect.PURE


def _stage(
    state: State,
    realize: BlockRealize,
    taken: list[str],
    form: Form,
    storage_scope: str,
    place: Place | None,
) -> tuple[Stmt, Block, BufferLoad]:
    """The stage that computes a value, its block, and what the block loads for it."""
    shape, indices = own_axes(state, realize, form.axes)
    name = f"{realize.block.name}_value"
    buffer = state.fresh_buffer(name, shape, form.value.dtype, storage_scope)

    def body(point: tuple[Var, ...]) -> Stmt:
        at = dict(zip([v.var for v in form.axes], point, strict=True))
        places = tuple(substitute(i, at) for i in indices)
        return BufferStore(buffer, substitute(form.value, at), places)

    domains = [v.dom for v in form.axes]
    if place is None:
        nested, block = stage(state, name, domains, body, taken=taken)
    else:
        block = stage_block(state, name, domains, body, taken)
        nested = place.nested(state, block)
    return nested, block, BufferLoad(buffer, tuple(substitute(i, form.places) for i in indices))


def _with_loads(old: Block, loads: dict[Expr, BufferLoad]) -> Block:
    """The block with the values loaded."""
    stores = old.body.items if isinstance(old.body, SeqStmt) else (old.body,)
    made = []
    for store in stores:
        assert isinstance(store, BufferStore)
        made.append(evolve(store, value=transform_expr(store.value, loads.get, {})))
    block = evolve(old, body=seq(made))
    reads, writes = block_access_regions(block)
    return evolve(block, reads=reads, writes=writes)

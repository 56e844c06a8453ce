"""decompose_padding: splits a padded copy into a constant fill and a copy of the inside."""

from __future__ import annotations

from collections.abc import Mapping

from metasched.analysis import block as block_facts
from metasched.analysis.scope import EdgeKind, Scope
from metasched.arith.analyzer import Analyzer
from metasched.arith.iterlimit import narrowed_ranges
from metasched.arith.regions import block_access_regions
from metasched.errors import ScheduleError
from metasched.ir.buffer import Range
from metasched.ir.expr import LE, LT, Expr, IntImm, Select, Var, as_int, compare, logical_and
from metasched.ir.op import Call, Effect, effect_of
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BlockToken,
    BufferStore,
    For,
    ForKind,
    IterVar,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import free_vars, reads_memory, substitute
from metasched.schedule import edit, ways
from metasched.schedule.checks import refuse_on, require_complete, require_root_free
from metasched.schedule.handles import BlockLike, BlockRV, LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.new_stage import with_extent
from metasched.schedule.primitives.transform_block_layout import replaced_iters
from metasched.schedule.rebind import ranges_of
from metasched.schedule.state import State


@primitive(of_block=ways.with_loops_above)
def decompose_padding(state: State, block: BlockLike, loop: LoopRV) -> BlockRV:
    """Fill the buffer with the padding value before `loop`, then copy only the inside.

    Returns the filling block `<name>_pad_const`; the given handle stands for the copy.

    requires  a complete block below `loop`, whose body stores `if_then_else(inside, value,
              constant)`; `inside` bounds single iterators; no block reads the result before the
              block has written it
    rewrite   P[i] = T.if_then_else(2 <= i and i < 10, A[i - 2], 0) for 12 i
              -> P[i] = 0 for 12 i; P[i + 2] = A[i] for 8 i
    """
    assert isinstance(block, BlockRV)
    realize, target = require_root_free(state, block), state.loop(loop)
    scope = state.scope(realize)
    require_complete(state, scope, realize)
    loops = state.loops_above(realize)
    if target not in loops:
        raise state.error(
            "not-above", f"the loop {target.var.name} is not above {realize.block.name}", target
        )
    store, condition, value, constant = _parts(state, realize)
    _require_write_first(state, scope, realize)
    inside = _box(state, realize, condition)
    below = loops[loops.index(target) :]
    fill, made = _fill_nest(state, realize, below, store, constant)
    new, shrunk = _inside(state, realize, below, inside, evolve(store, value=value))
    edits = [edit.replace(realize, new)]
    for node, extent in shrunk.items():
        edits.append(edit.wrap(node, with_extent(extent)))
    edits.append(edit.wrap(target, lambda s: seq((fill, s))))
    state.commit(*edits)
    return state.new_block(made)


def can_decompose_padding(state: State, block: BlockRV, loop: LoopRV) -> bool:
    """Whether `decompose_padding` would be accepted; does not change the state.

    Args:
        state: the state of the schedule.
        block: the padded copy.
        loop: a loop above the block.
    """
    trial = state.copy_for_trial()
    trial.primitive = "decompose_padding"
    try:
        decompose_padding(trial, block, loop)
    except ScheduleError:
        return False
    return True


def _parts(state: State, realize: BlockRealize) -> tuple[BufferStore, Expr, Expr, Expr]:
    """The parts of the block's body: (store, condition, value inside, constant outside)."""
    block, store = realize.block, realize.block.body
    choice = store.value if isinstance(store, BufferStore) else None
    chooses = isinstance(choice, Call) and choice.op.name == "if_then_else"
    if choice is not None and (chooses or isinstance(choice, Select)):
        condition, value, constant = choice.children
    else:
        raise state.error(
            "no-padding", f"the body of {block.name} is not one store of an if_then_else", realize
        )
    assert isinstance(store, BufferStore)
    if block.init is not None or block.alloc_buffers or block.match_buffers:
        raise state.error("no-padding", f"{block.name} does more than pad", realize)
    if reads_memory(constant):
        raise state.error(
            "not-constant", f"the padding value of {block.name} is loaded from memory", realize
        )
    if any(effect_of(e) > Effect.READ for e in (condition, value, constant)):
        raise state.error("side-effect", f"{block.name} has side effects", realize)
    return store, condition, value, constant


def _require_write_first(state: State, scope: Scope, realize: BlockRealize) -> None:
    """Refuse a block that may read the buffer before the fill, or between the fill and the copy."""
    token = realize.block.token
    for found in scope.incoming(token):
        if found.kind is EdgeKind.WAR:
            who = scope.child(found.src).block.name
            raise state.error(
                "read-before", f"{who} reads {found.buffer.name} before it is padded", realize
            )
    for region in realize.block.writes:
        for reader in scope.readers(region.buffer):
            refuse_on(state, block_facts.region_cover(scope, reader.token), realize)


def _box(state: State, realize: BlockRealize, condition: Expr) -> dict[Var, Range]:
    """The ranges of iterators that are together equivalent to `condition`."""
    domains = {v.var: v.dom for v in realize.block.iter_vars}
    an = Analyzer(domains)
    if an.prove(condition):
        raise state.error(
            "no-padding", f"{realize.block.name} pads nothing: its condition always holds", realize
        )
    narrowed = dict(narrowed_ranges(domains, condition))
    sizes = [as_int(r.extent) for r in narrowed.values()]
    if any(size is not None and size < 1 for size in sizes):
        text = f"{realize.block.name} stores the padding value alone: its condition never holds"
        raise state.error("no-padding", text, realize)
    if not Analyzer(narrowed).prove(condition):
        raise state.error(
            "no-box",
            f"the condition of {realize.block.name} does not bound single iterators",
            realize,
        )
    return {v: r for v, r in narrowed.items() if not _same(an, r, domains[v])}


def _same(an: Analyzer, a: Range, b: Range) -> bool:
    return an.equal(a.min, b.min) and an.equal(a.extent, b.extent)


def _fill_nest(
    state: State, realize: BlockRealize, below: tuple[For, ...], store: BufferStore, constant: Expr
) -> tuple[Stmt, BlockToken]:
    """The block that stores the constant everywhere, under copies of the loops below."""
    old = realize.block
    iters: dict[Var, Expr] = {
        v.var: state.fresh_var(v.var.name, v.var.dtype) for v in old.iter_vars
    }
    loops: dict[Var, Expr] = {n.var: state.fresh_var(n.var.name, n.var.dtype) for n in below}
    indices = tuple(substitute(i, iters) for i in store.indices)
    body = BufferStore(store.buffer, substitute(constant, iters), indices)
    new_iters = tuple(IterVar(_var(iters[v.var]), v.dom, v.kind) for v in old.iter_vars)
    name = state.fresh_block_name(f"{old.name}_pad_const")
    block = Block(name, new_iters, (), (), body)
    reads, writes = block_access_regions(block)
    block = evolve(block, reads=reads, writes=writes)
    values = tuple(substitute(e, loops) for e in realize.iter_values)
    nested: Stmt = BlockRealize(values, substitute(realize.predicate, loops), block)
    for n in reversed(below):
        low, extent = (substitute(e, loops) for e in (n.min, n.extent))
        nested = For(_var(loops[n.var]), low, extent, ForKind.SERIAL, nested)
    return nested, block.token


def _inside(
    state: State,
    realize: BlockRealize,
    below: tuple[For, ...],
    inside: Mapping[Var, Range],
    store: BufferStore,
) -> tuple[BlockRealize, dict[For, Expr]]:
    """The copy restricted to the box, and the loops that get a new, shorter extent."""
    old = realize.block
    iters, moved, bindings = [], {}, []
    shrunk: dict[For, Expr] = {}
    predicate = realize.predicate
    an = Analyzer(ranges_of(state.loops_above(realize)))
    for v, value in zip(old.iter_vars, realize.iter_values, strict=True):
        box = inside.get(v.var)
        if box is None:
            iters.append(v)
            bindings.append(value)
            continue
        var = state.fresh_var(v.var.name, v.var.dtype)
        zero = IntImm(v.var.dtype, 0)
        iters.append(IterVar(var, Range(zero, box.extent), v.kind))
        moved[v.var] = var + box.min
        loop = _own_loop(realize, below, v)
        if loop is not None:
            shrunk[loop] = box.extent
            bindings.append(value)
            continue
        bindings.append(an.simplify(value - box.min))
        for limit in (compare(LE, box.min, value), compare(LT, value, box.min + box.extent)):
            if not an.prove(limit):
                predicate = logical_and(predicate, an.simplify(limit))
    domains = {v.var: v.dom for v in iters}
    block = replaced_iters(evolve(old, body=store), moved, Analyzer(domains))
    block = evolve(block, iter_vars=tuple(iters))
    reads, writes = block_access_regions(block)
    block = evolve(block, reads=reads, writes=writes)
    return BlockRealize(tuple(bindings), predicate, block), shrunk


def _own_loop(realize: BlockRealize, below: tuple[For, ...], v: IterVar) -> For | None:
    """The loop that runs over the iterator's domain and drives nothing else; None if none does."""
    values = realize.iter_values
    value = values[[x.var for x in realize.block.iter_vars].index(v.var)]
    for position, loop in enumerate(below):
        if loop.var is not value:
            continue
        used = sum(loop.var in free_vars(e) for e in (*values, realize.predicate))
        used += sum(loop.var in free_vars(e) for n in below for e in n.exprs)
        inner: list[Stmt] = [*below[position + 1 :], realize]
        alone = all(a.body is b for a, b in zip(below[position:], inner, strict=True))
        plain = as_int(loop.min) == 0 and as_int(v.dom.min) == 0
        if used == 1 and alone and plain and Analyzer().equal(loop.extent, v.dom.extent):
            return loop
    return None


def _var(expr: Expr) -> Var:
    assert isinstance(expr, Var)
    return expr

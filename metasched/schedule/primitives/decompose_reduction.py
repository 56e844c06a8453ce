"""decompose_reduction: moves the init of a reduction into a block of its own."""

from __future__ import annotations

from metasched.analysis.begun import without_init
from metasched.analysis.block import init_reads
from metasched.analysis.sequence import used_before_init
from metasched.arith.analyzer import Analyzer
from metasched.arith.conditions import conjuncts
from metasched.arith.itermap import why_no_box
from metasched.errors import ScheduleError
from metasched.ir.buffer import BufferRegion
from metasched.ir.describe import show_expr
from metasched.ir.expr import TRUE, Expr, Var, as_int, logical_and
from metasched.ir.stmt import Block, BlockRealize, For, ForKind, IterVar, Stmt, evolve, fact, seq
from metasched.ir.visit import (
    free_vars,
    fresh_copy,
    reads_memory,
    substitute,
)
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    proof,
    refuse_hidden,
    refuse_on,
    refuse_outside,
    require_reduction,
    require_set_once,
)
from metasched.schedule.handles import BlockLike, BlockRV, LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.access_pattern import known_ranges
from metasched.schedule.rebind import ranges_of
from metasched.schedule.state import State


@primitive(of_block=ways.with_loops_above)
def decompose_reduction(
    state: State, block: BlockLike, loop: LoopRV, keep_kinds: bool = False
) -> BlockRV:
    """Move the init of a reduction block before `loop`; returns the init block.

    Afterwards the given handle stands for the update block. The init gets serial copies of the
    loops that its iterators use, from `loop` down. With `keep_kinds`, a copy of a vectorized loop
    is vectorized, and a copy of an unrolled loop with more than one iteration is unrolled. This is
    legal without a proof: an iteration of a copy touches only what the same iteration of its loop
    touches.

    requires  a reduction block with `loop` above it in the same block; no reduce iterator bound to
              a loop above `loop`; no loop from `loop` down that repeats the reduction, or sets a
              result again; below `loop` no condition around the block, no block that computes what
              the init reads, and no block that uses a result before its init; at least one
              iteration for each result if the reduction's length depends on other loops
    rewrite   for i, k in T.grid(4, 8): C(init: C[i] = 0; C[i] += A[i, k])
              ->
              for i in range(4):
                  C_init(C[i] = 0)
                  for k in range(8): C_update(C[i] += A[i, k])
    """
    assert isinstance(block, BlockRV)
    realize, target = state.block(block), state.loop(loop)
    old, loops = realize.block, state.loops_above(realize)
    if target not in loops:
        raise state.error(
            "not-above", f"the loop {target.var.name} is not above {old.name}", target
        )
    position = loops.index(target)
    untied = _untied(realize, loops[position:])
    require_reduction(state, state.scope(realize), realize, loops[position:], untied)
    outer = {n.var for n in loops[:position]}
    for iter_var, value in zip(old.iter_vars, realize.iter_values, strict=True):
        if iter_var.is_reduce and not free_vars(value).isdisjoint(outer):
            raise state.error(
                "reduction-above",
                f"the reduce iterator {iter_var.var.name} depends on a loop outside "
                f"{target.var.name}",
                target,
                hint="choose the outermost reduction loop, or reorder",
            )
    _refuse_dependent_loops(state, realize, loops[position:])
    _require_no_repetition(state, realize, untied.predicate, loops[position:])
    require_set_once(state, realize, loops[position:])
    if not state.skip_legality_checks:
        refuse_on(state, used_before_init(state.scope(realize), old.token, target), realize)
    require_iterations(state, realize, loops[position:])
    _refuse_in_between(state, realize, target)
    refuse_hidden(state, realize.exprs, target)
    _refuse_skipped(state, realize, target)
    init = _init_nest(state, realize, loops[position:], keep_kinds)
    update = _update_block(old, state.fresh_block_name(f"{old.name}_update"))
    state.commit(
        edit.wrap(old, lambda s: update if s is old else evolve(update, body=s.stmts[-1])),
        edit.wrap(target, lambda s: seq((init, s))),
    )
    while not isinstance(init, BlockRealize):
        init = init.stmts[0]
    return state.new_block(init.block.token)


def _refuse_in_between(state: State, realize: BlockRealize, target: For) -> None:
    """Refuse a block below `target` that writes what the init reads."""
    scope = state.scope(realize)
    read = {r.buffer for r in init_reads(realize.block)}
    for child in scope.under(target):
        if child.realize is not realize and any(w.buffer in read for w in child.block.writes):
            raise state.error(
                "in-between",
                f"{child.block.name} below {target.var.name} computes what the init reads",
                child.realize,
                hint="choose a loop below it",
            )
    for region in init_reads(realize.block):
        refuse_outside(state, scope, region.buffer, written=True)


def _refuse_skipped(state: State, realize: BlockRealize, target: For) -> None:
    """Refuse a condition or jump below `target` that may skip the block, and with it the init."""
    around = {*state.ancestors(target), target}
    skipped = [
        b for b in state.scope(realize).child(realize.block.token).branches if b not in around
    ]
    if skipped:
        raise state.error(
            "conditional-block",
            f"{realize.block.name} stands under a condition below {target.var.name}; its init must "
            "not run where the condition fails",
            state.parent(skipped[0]) or realize,
            hint="choose a loop below the condition",
        )


def _untied(realize: BlockRealize, loops: tuple[For, ...]) -> BlockRealize:
    """The block without conditions on both the loops of its init and loops below the init.

    Such a condition may end some reductions early; `require_iterations` proves that each begins.
    """
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    kept = frozenset().union(*(free_vars(e) for v, e in pairs if not v.is_reduce))
    dropped = {loop.var for loop in loops} - kept
    predicate: Expr = TRUE
    for condition in conjuncts(realize.predicate):
        used = free_vars(condition)
        if used.isdisjoint(kept) or used.isdisjoint(dropped):
            predicate = logical_and(predicate, condition)
    same = predicate is realize.predicate
    return realize if same else evolve(realize, predicate=predicate)


def _refuse_dependent_loops(state: State, realize: BlockRealize, loops: tuple[For, ...]) -> None:
    """Refuse a loop over results whose ends depend on a loop that the init leaves."""
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    kept = frozenset().union(*(free_vars(e) for v, e in pairs if not v.is_reduce))
    dropped = {loop.var for loop in loops} - kept
    for loop in loops:
        ends = (free_vars(loop.min) | free_vars(loop.extent)) & dropped
        if loop.var in kept and ends:
            names = ", ".join(sorted(v.name for v in ends))
            what = f"the ends of the loop {loop.var.name} over results depend on {names}"
            raise state.error("dependent-bound", what, loop, hint="choose a loop below it")


@proof
def _require_no_repetition(
    state: State, realize: BlockRealize, guard: Expr, loops: tuple[For, ...]
) -> None:
    """Refuse a loop that repeats the whole reduction, because each repetition needs the init.

    A digit of a loop may repeat the reduction, too: if only `f % 6` is used, `f // 6` counts
    repetitions.
    """
    used = frozenset().union(*map(free_vars, realize.iter_values))
    idle = next((n for n in loops if n.var not in used and as_int(n.extent) != 1), None)
    values = realize.iter_values
    known = [ranges_of(above) for above in (loops, state.loops_above(realize))]
    if idle or all(why_no_box(values, ranges, guard, "bijective") for ranges in known):
        loop = idle or loops[0]
        each = "each iteration" if idle else "a part of the iterations"
        text = f"{each} of {loop.var.name} computes {realize.block.name} anew"
        hint = "choose a loop below it"
        raise state.error("repeated-reduction", f"{text}, so the init must stay", loop, hint=hint)


@proof
def require_iterations(state: State, realize: BlockRealize, loops: tuple[For, ...]) -> None:
    """Refuse a reduction whose length varies and may be zero, or is zero.

    An empty reduction never runs its init; after the step the init would run nevertheless.
    """
    spatial = [
        e
        for v, e in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        if not v.is_reduce
    ]
    kept = frozenset().union(*map(free_vars, spatial))
    above = state.loops_above(realize)
    dropped = {n.var: n.min for n in loops if n.var not in kept}
    others = {n.var for n in above if n.var not in dropped}
    around = ranges_of([n for n in above if n.var in others])
    known = Analyzer({**known_ranges(state, realize), **around})
    sizes = state.func_of(realize)[1].symbols  # which are the same for every result
    for symbol in sizes.difference(state.func_of(realize)[1].params):
        known = known.assume(symbol >= 1)  # a kernel of the program as written asserts it

    def certain(condition: Expr) -> bool:
        first = substitute(condition, dropped)
        return known.prove(substitute(first, dropped))

    for loop in loops:
        varies = reads_memory(loop.extent) or not free_vars(loop.extent) <= sizes
        varies = varies or as_int(loop.extent) is not None
        if loop.var in dropped and varies and not certain(loop.extent >= 1):
            raise _nothing_to_reduce(state, realize, f"the loop {loop.var.name}", loop)
    for condition in conjuncts(realize.predicate):
        used = free_vars(condition)
        if not used.isdisjoint(dropped) and not certain(condition):
            text = f"the condition {show_expr(condition)}"
            raise _nothing_to_reduce(state, realize, text, realize)


def _nothing_to_reduce(state: State, realize: BlockRealize, what: str, node: Stmt) -> ScheduleError:
    return state.error(
        "empty-reduction",
        f"{what} may leave {realize.block.name} without an iteration for some results, and the "
        "block does not run its init for these results",
        node,
        hint="give every result an iteration, or keep the init in the block",
    )


def _init_nest(
    state: State, realize: BlockRealize, loops: tuple[For, ...], keep_kinds: bool
) -> Stmt:
    """The init block under copies of the loops that spatial iterators use."""
    old = realize.block
    assert old.init is not None
    spatial = [
        (v, e) for v, e in zip(old.iter_vars, realize.iter_values, strict=True) if not v.is_reduce
    ]
    used = frozenset().union(*(free_vars(e) for _, e in spatial))
    kept = [loop for loop in loops if loop.var in used]
    renamed: dict[Var, Expr] = {
        n.var: state.fresh_var(f"{n.var.name}_init", n.var.dtype) for n in kept
    }
    iters: dict[Var, Expr] = {
        v.var: state.fresh_var(f"{v.var.name}_init", v.var.dtype) for v, _ in spatial
    }
    init = _init_block(state, old, iters)
    dropped = {n.var for n in loops} - set(renamed)
    predicate: Expr = TRUE
    for condition in conjuncts(realize.predicate):
        # a condition that uses a dropped loop holds in its first iteration
        if free_vars(condition).isdisjoint(dropped):
            predicate = logical_and(predicate, condition)
    body: Stmt = BlockRealize(
        tuple(substitute(e, renamed) for _, e in spatial), substitute(predicate, renamed), init
    )
    for loop in reversed(kept):
        low, extent = (substitute(e, renamed) for e in (loop.min, loop.extent))
        kind = _kind_of_copy(loop) if keep_kinds else ForKind.SERIAL
        body = For(_var(renamed[loop.var]), low, extent, kind, body)
    return body


def _kind_of_copy(loop: For) -> ForKind:
    """The kind of a loop's copy around the init; a copy is never parallel or bound to threads."""
    unrolled = loop.kind is ForKind.UNROLLED and as_int(loop.extent) != 1
    return loop.kind if unrolled or loop.kind is ForKind.VECTORIZED else ForKind.SERIAL


def _init_block(state: State, old: Block, iters: dict[Var, Expr]) -> Block:
    """The init of a block as a block of its own, over the iterators `iters`.

    Equal arguments give the same object, so that replays reuse its analysis results: a replay takes
    its variables from a pool.
    """
    assert old.init is not None
    name = state.fresh_block_name(f"{old.name}_init")
    first = state.serial
    key = ("init_block", name, first, *iters.values())
    kept: tuple[Block, int] | None = old.facts.get(key)
    if kept is None:
        new_iters = tuple(
            IterVar(_var(iters[v.var]), v.dom, v.kind) for v in old.iter_vars if not v.is_reduce
        )
        body = fresh_copy(old.init, lambda v: state.fresh_var(v.name, v.dtype))
        reads = tuple(_region(r, iters) for r in init_reads(old))
        writes = tuple(_region(r, iters) for r in old.writes)
        init = Block(
            name, new_iters, reads, writes, substitute(body, iters), annotations=old.annotations
        )
        kept = old.facts[key] = (init, state.serial - first)
    state.serial = first + kept[1]
    return kept[0]


@fact
def _update_block(old: Block, name: str) -> Block:
    """The block without its init, under a new name; equal arguments give the same object."""
    return evolve(without_init(old), name=name)


def _region(region: BufferRegion, values: dict[Var, Expr]) -> BufferRegion:
    from_to = [
        type(r)(substitute(r.min, values), substitute(r.extent, values)) for r in region.region
    ]
    return BufferRegion(region.buffer, tuple(from_to))


def _var(expr: Expr) -> Var:
    assert isinstance(expr, Var)
    return expr

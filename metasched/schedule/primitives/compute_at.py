"""compute_at, reverse_compute_at: move a block under a loop of its consumers or producers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import dropwhile, product, takewhile

from metasched.analysis import block as block_facts
from metasched.analysis.binding import affine_binding
from metasched.analysis.cover import bound_regions
from metasched.analysis.dependence import disjoint
from metasched.analysis.scope import Child, EdgeKind, Scope, undetermined_iters
from metasched.arith.analyzer import Analyzer
from metasched.arith.inverse import left_inverse
from metasched.arith.itermap import why_no_box
from metasched.arith.regions import inputs
from metasched.ir.buffer import Buffer, Range
from metasched.ir.expr import (
    LT,
    TRUE,
    Expr,
    IntImm,
    Var,
    as_int,
    compare,
    logical_and,
)
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BlockToken,
    For,
    IterKind,
    SeqStmt,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import free_vars, substitute, walk_stmts
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    confirm_cover,
    confirm_kinds,
    proof,
    refuse_on,
    refuse_outside,
    require_complete_or_reduction,
    require_not_output,
    require_root_free,
    require_same_inputs,
    require_same_scope,
    require_stage_pipeline,
    require_whole_domain,
)
from metasched.schedule.handles import INLINE_MARK, ROOT_MARK, BlockLike, BlockRV, LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.inline import compute_inline, reverse_compute_inline
from metasched.schedule.primitives.instances import (
    Instances,
    needed_instances,
    ready_instances,
)
from metasched.schedule.rebind import nest, ranges_of
from metasched.schedule.state import State

LATEST, EARLIEST = -1, -2
_IN_PLACE = "ends of loops, bindings and conditions need the values where they are computed now"


@primitive(of_block=ways.with_other_loops)
def compute_at(
    state: State, block: BlockLike, loop: LoopRV, preserve_unit_loops: bool = False, index: int = -1
) -> None:
    """Execute under `loop` the instances of a producer that its consumers need in one iteration.

    `index` chooses the place among the statements of the loop: -1 the latest possible, -2 the
    earliest, else a position. For the mark "root" the step does nothing; for the mark "inline" it
    inlines the block.

    requires  a stage pipeline; `block` complete or a reduction that runs on its whole domain, no
              output, no scan; no other writer of the block's elements but blocks under the loop
              that update them, each in one iteration; block and loop in one scope, the loop not
              above the block; all consumers under the loop (if they update, also after its nest),
              and a place after the block's producers and before its consumers, where its inputs
              have the same values
    rewrite   for i: B(i); for i: for j: C(reads B[i]) -> for i: B(i); for j: C(reads B[i])
    """
    assert isinstance(block, BlockRV)
    mark = state.value(loop)
    if mark is ROOT_MARK:
        return
    if mark is INLINE_MARK:
        compute_inline(state, block)
        return
    _move(state, block, loop, preserve_unit_loops, index, reverse=False)


@primitive(of_block=ways.with_other_loops)
def reverse_compute_at(
    state: State, block: BlockLike, loop: LoopRV, preserve_unit_loops: bool = False, index: int = -1
) -> None:
    """Execute under `loop` the instances of a consumer whose inputs one iteration has computed.

    requires  as compute_at, with producers and consumers exchanged; an output may be moved; each
              instance reads only what one iteration of `loop` computes, and what blocks before
              the nest of `loop` computed; other writers of its elements may stand before this
              nest and after the block
    rewrite   for i: B(i); for i: C(reads B[i]) -> for i: B(i); C(reads B[i])
    """
    assert isinstance(block, BlockRV)
    mark = state.value(loop)
    if mark is ROOT_MARK:
        return
    if mark is INLINE_MARK:
        reverse_compute_inline(state, block)
        return
    _move(state, block, loop, preserve_unit_loops, index, reverse=True)


def _move(
    state: State, rv: BlockRV, loop_rv: LoopRV, preserve: bool, index: int, *, reverse: bool
) -> None:
    realize, loop = require_root_free(state, rv), state.loop(loop_rv)
    scope = require_stage_pipeline(state, realize, realize.block, in_place=True)
    require_same_scope(state, [realize, loop])
    child = scope.child(realize.block.token)
    if loop in child.loops:
        raise state.error(
            "loop-above", f"the loop {loop.var.name} is above {realize.block.name} already", loop
        )
    token = realize.block.token
    under = {c.token for c in scope.under(loop)}
    if not reverse:
        _refuse_scan(state, realize)
    update = reverse and block_facts.update(scope, token) is None
    start = not reverse and _starts_updates(scope, child, under)
    if not (update or start):
        among = _passed(state, scope, child, loop) if reverse else None
        require_complete_or_reduction(state, scope, realize, sole=reverse, among=among)
    require_whole_domain(state, realize, child.loops)
    if not reverse:
        require_not_output(state, realize)
    for region in realize.block.writes:
        refuse_outside(state, scope, region.buffer, hint=_IN_PLACE)
    others = scope.producers(token) if reverse else scope.consumers(token)
    readers = [] if reverse else [c.token for c in others]
    if reverse:
        others = _open_producers(state, scope, others, loop)
    elif start:
        others = _needing(state, scope, others, loop)
    what = "producer" if reverse else "consumer"
    outside = [c for c in others if c.token not in under]
    if outside or not others:
        who = f"{outside[0].block.name} is not" if outside else f"there is no {what}"
        raise state.error(
            f"{what}-outside", f"every {what} must be under {loop.var.name}, but {who}", loop
        )
    if reverse:
        _require_finished(state, others, loop)
    shared = _overwrites(state, scope, child, loop, under)
    place = _insertion(state, scope, child, loop, index)
    found = (
        ready_instances(state, child, others, loop)
        if reverse
        else needed_instances(state, child, others, loop, updated=start)
    )
    moved = _rebuilt(state, realize, loop, found, preserve)
    if reverse:
        _require_once(state, realize, others, loop, found)
    around = [*state.loops_above(loop), loop]
    require_same_inputs(state, scope, realize, around)
    if update:
        _require_each_once(state, realize, realize, child.loops)
    if update or start:
        _require_each_once(state, realize, moved, around)
    state.commit(edit.delete(realize), edit.wrap(loop, lambda s: _inserted(s, moved, place)))
    confirm_cover(state, token, *readers)
    _confirm_apart(state, around, realize.block, shared)
    confirm_kinds(state, around)


def _refuse_scan(state: State, realize: BlockRealize) -> None:
    """Refuse a scan: the instances that a part of its results needs are not those of the part."""
    if any(v.kind is IterKind.SCAN for v in realize.block.iter_vars):
        raise state.error(
            "is-scan",
            f"{realize.block.name} is a scan: a result needs all results before it",
            realize,
            hint="reverse_compute_at moves the readers under the loops of the scan",
        )


def _overwrites(
    state: State, scope: Scope, child: Child, loop: For, under: Collection[BlockToken]
) -> set[Buffer]:
    """The buffers that blocks under a loop read, and that the moved block then overwrites there.

    Raises where a block that the step moves `child` past reads what `child` overwrites, or
    overwrites what `child` reads.
    """
    order = [c.token for c in scope.realizes]
    outermost = (*state.loops_above(loop), loop)[0]
    nest = [order.index(c.token) for c in scope.under(outermost)]
    found = set()
    edges = (*scope.incoming(child.token), *scope.outgoing(child.token))
    for edge in (e for e in edges if e.kind is EdgeKind.WAR):
        other = edge.src if edge.dst is child.token else edge.dst
        before = edge.src is other
        at = order.index(other)
        if before and other in under:
            found.add(edge.buffer)
        elif not (at < min(nest) if before else at > max(nest)):
            refuse_on(state, block_facts.overwritten(scope, edge), child.realize)
    return found


@proof
def _confirm_apart(
    state: State, around: Sequence[For], block: Block, buffers: Collection[Buffer]
) -> None:
    """After an edit: confirm that no iteration of a loop overwrites what a later one reads."""
    for old in around if buffers else ():
        now = state.index.loops[old.var]
        for buffer in buffers:
            if not disjoint(buffer, state.scope(now), now):
                raise state.error(
                    "overwritten-too-early", f"{block.name} may overwrite an element of "
                    f"{buffer.name} that a later iteration of {now.var.name} reads", now,
                )  # fmt: skip


def _starts_updates(scope: Scope, child: Child, under: Collection[BlockToken]) -> bool:
    """Whether a child sets elements that blocks under a loop, and no other blocks, update.

    Each instance may run only once: a second run would set an updated element again.
    """
    block = child.block
    written = {r.buffer for r in block.writes}
    writers = {
        c.token for c in scope.realizes
        if c is not child and any(r.buffer in written for r in c.block.writes)
    }  # fmt: skip
    after = {c.token for c in scope.consumers(block.token)}
    if not writers or not writers <= after & set(under):
        return False
    return block_facts.complete(scope, block.token, among=()) is None


def _needing(state: State, scope: Scope, consumers: Sequence[Child], loop: For) -> list[Child]:
    """The consumers without those that come after the nest of `loop`, where all results are."""
    outermost = (*state.loops_above(loop), loop)[0]
    inside = {c.token for c in scope.under(outermost)}
    last = max(n for n, c in enumerate(scope.realizes) if c.token in inside)
    after = {c.token for c in scope.realizes[last + 1 :]}
    return [c for c in consumers if c.token not in after]


def _open_producers(
    state: State, scope: Scope, producers: Sequence[Child], loop: For
) -> list[Child]:
    """The producers without those that come before the nest of `loop` and share no buffer with a
    producer in this nest: their results are complete."""
    outermost = (*state.loops_above(loop), loop)[0]
    inside = {c.token for c in scope.under(outermost)}
    before = {c.token for c in takewhile(lambda c: c.token not in inside, scope.realizes)}
    made = {r.buffer for c in producers if c.token not in before for r in c.block.writes}
    return [
        c for c in producers
        if c.token not in before or any(r.buffer in made for r in c.block.writes)
    ]  # fmt: skip


def _passed(state: State, scope: Scope, consumer: Child, loop: For) -> list[Child]:
    """The blocks of the nest of `loop`, and those between this nest and a consumer that the step
    moves into the nest: the consumer changes its order with these blocks alone."""
    outermost = (*state.loops_above(loop), loop)[0]
    inside = {c.token for c in scope.under(outermost)}
    behind = dropwhile(lambda c: c.token not in inside, scope.realizes)
    between = takewhile(lambda c: c.token is not consumer.token, behind)
    return [*between, *(c for c in scope.under(outermost) if c is not consumer)]


@proof
def _require_finished(state: State, producers: Sequence[Child], loop: For) -> None:
    """Refuse a producer whose reduction continues in later iterations of `loop` or of loops
    above."""
    outer = {n.var for n in (*state.loops_above(loop), loop) if as_int(n.extent) != 1}
    for producer in producers:
        pairs = zip(producer.block.iter_vars, producer.realize.iter_values, strict=True)
        for iter_var, value in pairs:
            if iter_var.is_reduce and not free_vars(value).isdisjoint(outer):
                raise state.error(
                    "unfinished-reduction",
                    f"{producer.block.name} continues its reduction after an iteration of "
                    f"{loop.var.name}",
                    loop,
                    hint="choose a loop outside of the reduction loops",
                )


def _insertion(state: State, scope: Scope, child: Child, loop: For, index: int) -> Stmt | None:
    """The statement of the loop's body before which the block is inserted, None for the end."""
    items = loop.body.items if isinstance(loop.body, SeqStmt) else (loop.body,)
    holds = [{n.block.token for n in walk_stmts(s) if isinstance(n, BlockRealize)} for s in items]
    producers = {e.src for e in scope.incoming(child.token)}
    consumers = {e.dst for e in scope.outgoing(child.token)}
    first = max((n + 1 for n, h in enumerate(holds) if h & producers), default=0)
    last = min((n for n, h in enumerate(holds) if h & consumers), default=len(items))
    at = last if index == LATEST else first if index == EARLIEST else index
    if not first <= at <= last:
        raise state.error(
            "bad-index", f"the block can stand at positions {first} to {last}, not {index}", loop
        )
    return items[at] if at < len(items) else None


def _inserted(loop: Stmt, moved: Stmt, before: Stmt | None) -> Stmt:
    assert isinstance(loop, For)
    items = list(loop.body.items) if isinstance(loop.body, SeqStmt) else [loop.body]
    at = next((n for n, s in enumerate(items) if s is before), len(items))
    items.insert(at, moved)
    return evolve(loop, body=seq(items))


def _rebuilt(
    state: State, realize: BlockRealize, loop: For, found: Instances, preserve: bool
) -> Stmt:
    """The block under fresh loops over the domains it needs, clipped to its iterators' domains.

    Unless `found.exact`, a domain may be widened to a constant extent or to the whole domain of the
    iterator.
    """
    analyzer = Analyzer(ranges_of([*state.loops_above(loop), loop]))
    loops: list[tuple[Var, Expr | int]] = []
    values: list[Expr] = []
    predicate: Expr = TRUE
    for guard in found.guards:
        if not analyzer.prove(guard):
            predicate = logical_and(predicate, guard)
    for iter_var in realize.block.iter_vars:
        own = iter_var.dom
        dom = found.domains.get(iter_var.var, own)
        if found.exact:
            pass
        elif as_int(dom.extent) is None and as_int(own.extent) is not None:
            dom = _bounded(analyzer, dom, own)
        elif (whole := as_int(own.extent)) is not None and (as_int(dom.extent) or 0) > whole:
            dom = own
        if as_int(dom.extent) == 1 and not preserve:
            value = dom.min
        else:
            var = state.fresh_var(f"ax{len(loops)}", iter_var.var.dtype)
            loops.append((var, dom.extent))
            analyzer.bind(var, Range(IntImm(var.dtype, 0), dom.extent))
            value = dom.min + var
        values.append(value)
        if dom is not own:
            for condition in (own.min <= value, compare(LT, value, own.min + own.extent)):
                if not analyzer.prove(condition):
                    predicate = logical_and(predicate, analyzer.simplify(condition))
    at = dict(zip((v.var for v in realize.block.iter_vars), values, strict=True))
    for condition in found.conditions:
        here = substitute(condition, at)
        if not analyzer.prove(here):
            predicate = logical_and(predicate, analyzer.simplify(here))
    return nest(loops, BlockRealize(tuple(values), predicate, realize.block))


@proof
def _require_once(
    state: State, realize: BlockRealize, producers: Sequence[Child], loop: For, found: Instances
) -> None:
    """Refuse a reduction that spans several iterations and would run an instance twice.

    A reduction within one iteration may repeat, because its init runs again each time. A reduction
    over several iterations is safe if each element that determines an instance is computed by one
    iteration only.
    """
    domains = found.domains
    iters = {v.var for v in realize.block.iter_vars}
    split = frozenset().union(*map(free_vars, found.conditions)) - iters
    reduced = [v.var for v in realize.block.iter_vars if v.is_reduce and v.var in domains]
    spread = frozenset().union(*(free_vars(domains[v].min) for v in reduced), split)
    if not spread:
        return
    used = frozenset().union(*(free_vars(d.min) for d in domains.values()), split)
    for above in (*state.loops_above(loop), loop):
        if above.var not in used and as_int(above.extent) != 1:
            raise state.error(
                "repeated-reduction",
                f"{realize.block.name} would add the same elements again in each iteration of "
                f"{above.var.name}",
                above,
            )
    for producer in producers:
        if all(r.buffer is not found.buffer for r in producer.block.writes):
            continue
        if _repeats(producer):
            raise state.error(
                "repeated-reduction",
                f"{realize.block.name} would add the same elements again: iterations of "
                f"{loop.var.name} may each make the same element of {found.buffer.name}",
                loop,
            )
        _require_start_first(state, realize, producer, loop, found)


@proof
def _require_each_once(
    state: State, realize: BlockRealize, nest: Stmt, around: Sequence[For]
) -> None:
    """Refuse an update if the loops `around` and those of a nest might run an instance twice."""
    loops = list(around)
    while isinstance(nest, For):
        loops.append(nest)
        nest = nest.body
    assert isinstance(nest, BlockRealize)
    runs = {n.var: n for n in loops}
    why = why_no_box(nest.iter_values, runs, nest.predicate, "bijective")
    if why is not None:
        raise state.error(
            "repeated-update",
            f"{realize.block.name} updates its result, and two iterations of the loops "
            f"{', '.join(n.var.name for n in around)} may run the same instance ({why})",
            realize,
            hint="choose loops that divide the results without overlap",
        )


def _require_start_first(
    state: State, realize: BlockRealize, producer: Child, loop: For, found: Instances
) -> None:
    """Refuse a reduction whose init might not run first.

    The iterations must compute the elements in the order in which the reduction reads them.
    """
    block = realize.block
    analyzer = Analyzer({v.var: v.dom for v in block.iter_vars})
    first: dict[Var, Expr] = {v.var: v.dom.min for v in block.iter_vars if v.is_reduce}
    ranges = ranges_of(producer.loops)
    made = [r for b, r in bound_regions(producer, writes=True) if b is found.buffer]
    read = [r.region for r in inputs(block) if r.buffer is found.buffer]
    for places, elements in product(made, read):
        indices = [low for low, _ in places]
        values = [r.min.astype(low.dtype) for r, low in zip(elements, indices, strict=True)]
        solved = left_inverse(indices, ranges, values)
        solution = {} if isinstance(solved, str) else solved
        for outer in (*state.loops_above(loop), loop):
            when = solution.get(outer.var)
            ordered = when is not None and analyzer.prove(substitute(when, first) <= when)
            if not ordered and as_int(outer.extent) != 1:
                raise state.error(
                    "init-not-first",
                    f"{realize.block.name} may update its result before its init: iterations of "
                    f"{outer.var.name} do not make {found.buffer.name} in the order in which "
                    f"{realize.block.name} reads it",
                    loop,
                    hint="choose a loop outside of the reduction, or decompose_reduction first",
                )


def _repeats(producer: Child) -> bool:
    """Whether several instances may write one element, not counting the steps of a reduction."""
    block = producer.block
    reduced = {v.var for v in block.iter_vars if v.is_reduce}
    determined = all(reduced.issuperset(undetermined_iters(block, r)) for r in block.writes)
    return not determined or affine_binding(producer) is not None


def _bounded(analyzer: Analyzer, dom: Range, own: Range) -> Range:
    """A range of constant extent that holds `dom`: its largest extent, or the whole domain."""
    high = analyzer.bounds(dom.extent).hi
    size, whole = (None if high is None else int(high)), as_int(own.extent)
    if size is None or whole is None or size >= whole:
        return own
    return Range(dom.min, IntImm(dom.min.dtype, size))

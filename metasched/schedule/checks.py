"""Requirements that primitives share: one function each, which raises ScheduleError if violated.
The first line of a `require_` function states the requirement.

`analysis` returns a Failure; this file turns it into a ScheduleError that names the loop or block
and says what to do instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial, wraps
from itertools import pairwise
from typing import Concatenate, ParamSpec

from metasched.analysis import block as block_facts
from metasched.analysis.block import Failure, region_cover
from metasched.analysis.dependence import carried_dependence
from metasched.analysis.guarded import uses_pointer
from metasched.analysis.moved_reads import other_values
from metasched.analysis.scope import Child, Scope, writes
from metasched.analysis.witness import covers_domain
from metasched.arith.analyzer import Analyzer
from metasched.errors import brief
from metasched.ir.buffer import Buffer, BufferLoad, Range
from metasched.ir.describe import describe
from metasched.ir.expr import Expr, Var, as_int
from metasched.ir.op import Call
from metasched.ir.scopes import SCOPES, is_scope
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BlockToken,
    Break,
    For,
    ForKind,
    LetStmt,
    SeqStmt,
    Stmt,
    While,
)
from metasched.ir.visit import blocks_of, free_vars, loads_of, substitute, walk_exprs, walk_stmts
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.state import State

P = ParamSpec("P")


KINDS_LAST = "choose loop kinds last"
THREADS = f"{KINDS_LAST}, or first give each thread or block its own memory (set_scope)"


def proof(
    check: Callable[Concatenate[State, P], None],
) -> Callable[Concatenate[State, P], None]:
    """Decorate a check that only may raise; `State.skip_legality_checks` skips such checks."""

    @wraps(check)
    def checked(state: State, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if not state.skip_legality_checks:
            check(state, *args, **kwargs)

    return checked


def refuse_on(state: State, failure: Failure | None, node: Stmt, hint: str = "") -> None:
    """Turn a failed condition into the refusal of the running primitive."""
    if failure is not None:
        place = node if failure.node is None else failure.node
        raise state.error(failure.slug, failure.sentence, place, hint=hint)


def require_plain_loop(state: State, rv: LoopRV, *, from_zero: bool = True) -> For:
    """The loop has no annotation and no thread binding; with `from_zero` it also starts at zero."""
    loop = state.loop(rv)
    if loop.annotations:
        keys = ", ".join(loop.annotations)
        raise state.error(
            "annotated-loop",
            f"the loop {loop.var.name} carries annotations ({keys}) that would be lost",
            loop,
            hint="annotate after the loop has its final shape, or unannotate first",
        )
    if loop.thread is not None:
        raise state.error(
            "bound-loop", f"the loop {loop.var.name} is bound to {loop.thread}", loop,
            hint="transform loops before binding them",
        )  # fmt: skip
    if from_zero:
        require_from_zero(state, loop)
    return loop


def refuse_jumps(state: State, loop: For, *kinds: type[Stmt]) -> None:
    """No `break` (or other jump in `kinds`) in the body leaves this loop."""
    stack: list[Stmt] = [loop.body]
    while stack:
        stmt = stack.pop()
        if isinstance(stmt, kinds):
            word = "break" if isinstance(stmt, Break) else "continue"
            raise state.error(
                "left-by-jump",
                f"a {word} leaves the loop {loop.var.name}, which the step would replace",
                loop,
                hint="write conditions that choose the iterations",
            )
        if not isinstance(stmt, (For, While, BlockRealize)):
            stack.extend(stmt.stmts)


def require_steady_ends(state: State, loops: Sequence[For]) -> None:
    """Nothing below the loops writes memory that their bounds read: bounds may be evaluated
    again."""
    read = {e.buffer for loop in loops for expr in loop.exprs for e in loads_of(expr)}
    if not read:
        return
    scope = state.scope(loops[0])
    for buffer in sorted(read, key=lambda b: b.name):
        writer = next((c for c in scope.under(loops[0]) if writes(c.block, buffer)), None)
        outside = scope.outside(buffer, written=True)
        if writer is not None or outside is not None:
            raise state.error(
                "ends-change",
                f"the ends of {loops[-1].var.name} read {buffer.name}, which the loop may change",
                loops[-1],
                hint="let the loop run over a copy of the number",
            )


def require_from_zero(state: State, loop: For) -> None:
    """The loop counts 0, 1, 2, ..."""
    if as_int(loop.min) != 0:
        raise state.error(
            "not-from-zero",
            f"the loop {loop.var.name} does not count 0, 1, 2, ...",
            loop,
            hint="write the loop from zero and add the offset in the block's binding",
        )


def require_serial(state: State, loop: For) -> None:
    """The loop has no kind yet."""
    if loop.kind is not ForKind.SERIAL:
        raise state.error(
            "loop-has-kind",
            f"the loop {loop.var.name} is {loop.kind.value} already",
            loop,
            hint="choose the kind once, after the loop has its final shape",
        )


def require_one_block(state: State, loop: For) -> BlockRealize:
    """The only block below a loop, without blocks inside it."""
    scope = state.scope_block(loop)
    below = [r for r in blocks_of(loop.body) if state.scope_block(r) is scope]
    if len(below) != 1:
        raise state.error("not-one-block", f"{len(below)} blocks are below {loop.var.name}", loop)
    return below[0]


def in_view(state: State, node: Stmt, expr: Expr) -> Expr:
    """The user's expression over variables that have a value at `node`.

    These are the variables of the function and of the loops above `node`. Raises for others.
    """
    known = state.func_of(node)[1].symbols | {loop.var for loop in state.loops_above(node)}
    meant, unknown = by_name(expr, known)
    if unknown:
        raise state.error(
            "unknown-variable",
            f"the expression mentions {unknown[0].name}, which has no value at this loop",
            node,
        )
    return meant


def known_here(state: State, node: Stmt) -> Analyzer:
    """What is known of numbers at a node: the values of the loops around, and that no parameter
    has an extent below zero."""
    known = Analyzer({n.var: Range(n.min, n.extent) for n in state.loops_above(node)})
    for buffer in state.func_of(node)[1].buffers:
        for size in buffer.shape:
            known = known.assume(size >= 0) if as_int(size) is None else known
    return known


def by_name(
    expr: Expr, known: Collection[Var], bound: Collection[Var] = ()
) -> tuple[Expr, list[Var]]:
    """An expression over known and bound variables, and its variables that are neither.

    A trace from a file has new variables, so a known variable replaces a variable of its name and
    type.
    """
    named = {(v.name, v.dtype): v for v in known}
    free = [v for v in free_vars(expr) if v not in known and v not in bound]
    others = sorted(free, key=lambda v: v.name)
    meant: dict[Var, Expr] = {
        v: named[v.name, v.dtype] for v in others if (v.name, v.dtype) in named
    }
    return substitute(expr, meant) if meant else expr, [v for v in others if v not in meant]


def require_stage_pipeline(
    state: State, node: Stmt, moved: Block | None = None, *, in_place: bool = False
) -> Scope:
    """The scope around `node` is a stage pipeline (a `proof`); returns the scope.

    Args:
        state: the state of the schedule.
        node: a statement of the scope.
        moved, in_place: see `analysis.block.stage_pipeline`.
    """
    scope = state.scope(node)
    if not state.skip_legality_checks:
        failure = block_facts.stage_pipeline(scope, moved, in_place=in_place)
        refuse_on(state, failure, node)
    return scope


@proof
def require_complete(state: State, scope: Scope, realize: BlockRealize) -> None:
    """The block is complete: it has only spatial iterators, is the sole writer of its outputs, and
    reads no output."""
    refuse_on(state, block_facts.complete(scope, realize.block.token), realize)


@proof
def require_reduction(
    state: State,
    scope: Scope,
    realize: BlockRealize,
    inner: Sequence[For] = (),
    bound: BlockRealize | None = None,
) -> None:
    """The block is a reduction: it has an init and affine bindings, and alone writes its results.

    Args:
        inner: the innermost loops of the block, where it is enough that the bindings are affine
            in them, and other blocks may write the results too. The instances keep their order.
        bound: the block without conditions that the bindings need not obey.
    """
    ask = partial(
        block_facts.reduction, scope, realize.block.token, among=() if inner else None,
        ordered=bool(inner), bound=bound,
    )  # fmt: skip
    failure = ask()
    if failure is not None and inner:
        failure = ask(loops=inner)
    refuse_on(state, failure, realize)
    require_whole_reduction(state, realize)


@proof
def require_set_once(state: State, realize: BlockRealize, loops: Collection[For]) -> None:
    """The loops set each result once, so that its init runs once."""
    refuse_on(state, block_facts.set_again(realize, {loop.var for loop in loops}), realize)


@proof
def require_whole_reduction(state: State, realize: BlockRealize) -> None:
    """One execution of the scope holds the whole reduction; the next does not continue it."""
    reduced = [
        value
        for v, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        if v.is_reduce
    ]
    if not reduced:
        return
    used = frozenset().union(*map(free_vars, reduced))
    for above in state.ancestors(realize):
        if isinstance(above, Block):
            for iter_var in above.iter_vars:
                if iter_var.var in used and as_int(iter_var.dom.extent) != 1:
                    raise state.error(
                        "reduction-outside",
                        f"{realize.block.name} continues a reduction over {iter_var.var.name} of "
                        f"the block {above.name} around it",
                        realize,
                    )


@proof
def require_complete_or_reduction(
    state: State,
    scope: Scope,
    realize: BlockRealize,
    *,
    sole: bool = True,
    among: Sequence[Child] | None = None,
) -> None:
    """The block is complete, or a reduction; see `dominant` for `sole` and `among`."""
    found = block_facts.complete_or_reduction(scope, realize.block.token, sole=sole, among=among)
    refuse_on(state, found, realize)
    require_whole_reduction(state, realize)


def require_not_output(state: State, realize: BlockRealize) -> None:
    """The block writes only buffers allocated in the scope around it."""
    scope = state.scope_block(realize)
    if scope is not None and block_facts.is_output(scope, realize.block):
        raise state.error(
            "output-block",
            f"the block {realize.block.name} writes an output of the function or outer block",
            realize,
        )


def require_root_free(state: State, rv: BlockRV) -> BlockRealize:
    """The block is not the root."""
    realize = state.block(rv)
    if state.parent(realize) is None:
        raise state.error("is-root", "the root block cannot be transformed", realize)
    return realize


def refuse_opaque(state: State, around: Stmt, buffer: Buffer) -> None:
    """The buffer is used by plain loads and stores below `around`: no view of it, no pointer."""
    for node in walk_stmts(around):
        if isinstance(node, Block) and any(m.source.buffer is buffer for m in node.match_buffers):
            raise state.error("opaque-use", f"{node.name} matches a region of {buffer.name}", node)
    refuse_pointers(state, around, buffer)


_ONLY_BLOCKS = 'only blocks can use the copy: put the access into a block, with T.block("name"):'


def refuse_outside(
    state: State, scope: Scope, buffer: Buffer, *, written: bool = False, hint: str = _ONLY_BLOCKS
) -> None:
    """No statement outside of blocks touches the buffer in the scope (or writes it).

    The ends of loops and the bindings and predicates of blocks stand outside of blocks.
    """
    stmt = scope.outside(buffer, written=written)
    if stmt is not None:
        raise state.error(
            "outside-blocks",
            f"{describe(stmt)}, outside of any block, {'writes' if written else 'uses'} "
            f"{buffer.name}",
            stmt,
            hint=hint,
        )


def refuse_hidden(state: State, exprs: Iterable[Expr], place: Stmt) -> None:
    """`exprs`, to be evaluated before or after `place`, use no variable that is assigned only
    below."""
    used = frozenset().union(*map(free_vars, exprs))
    around = set(state.ancestors(place))
    for stmt, _ in state.scope(place).loose if used else ():
        if isinstance(stmt, LetStmt) and stmt.var in used and stmt not in around:
            raise state.error(
                "hidden-variable",
                f"the step would use {stmt.var.name} where it has no value",
                stmt,
                hint=f"write the value of {stmt.var.name} where it is used",
            )


def refuse_pointers(state: State, around: Stmt, buffer: Buffer) -> None:
    """No pointer to the buffer is taken below `around`."""

    def pointed_at(e: Expr) -> bool:
        of = e.args[0] if isinstance(e, Call) and e.op.name == "address_of" else None
        return e is buffer.data or (isinstance(of, BufferLoad) and of.buffer is buffer)

    for node in walk_stmts(around):
        if any(uses_pointer(e) and any(map(pointed_at, walk_exprs(e))) for e in node.exprs):
            raise state.error("opaque-use", f"a pointer to {buffer.name} is taken", node)


@proof
def require_whole_domain(state: State, realize: BlockRealize, loops: Sequence[For]) -> None:
    """The loops and the predicate run the block on all of its iterators' domains."""
    block = realize.block
    domains = tuple([(v.dom.min, v.dom.extent) for v in block.iter_vars])
    ends = [(p.var, p.min, p.extent) for p in loops]
    if not covers_domain(domains, realize.iter_values, realize.predicate, *ends):
        text = f"block {block.name} is not proved to run on its whole domain"
        raise state.error("partial-domain", text, realize)


@proof
def require_same_inputs(
    state: State,
    scope: Scope,
    realize: BlockRealize,
    loops: Sequence[For],
    without: Collection[Buffer] = (),
) -> None:
    """The block reads the same values below `loops` as at its place; see `other_values`."""
    child = scope.child(realize.block.token)
    refuse_on(
        state, other_values(scope, child, loops, without), realize,
        "keep the block inside the loop that sets its inputs, or give each iteration its own copy "
        "of them (expand_buffer)",
    )  # fmt: skip


@proof
def confirm_cover(state: State, *tokens: BlockToken) -> None:
    """After an edit: confirm that these blocks still read only elements written before."""
    for token in tokens:
        realize = state.index.blocks[token]
        refuse_on(state, region_cover(state.scope(realize), token), realize)


@proof
def confirm_kinds(state: State, loops: Iterable[For]) -> None:
    """After an edit: confirm that loops that are not serial still have independent iterations."""
    for old in loops:
        if old.kind not in (ForKind.SERIAL, ForKind.UNROLLED):
            loop = state.index.loops[old.var]
            require_independent(
                state, loop, loop.kind, loop.thread, KINDS_LAST if loop.thread is None else THREADS
            )


@proof
def require_independent(
    state: State, loop: For, kind: ForKind, thread: str | None, hint: str
) -> None:
    """The iterations of a loop may be executed as the loop kind `kind`, on the threads of
    `thread`."""
    failure = carried_dependence(
        loop,
        state.scope(loop),
        thread=thread,
        private=kind is not ForKind.VECTORIZED,
        allow_reduction=thread is not None and thread.startswith("threadIdx"),
        lanes=kind is ForKind.VECTORIZED,
    )
    refuse_on(state, failure, loop, hint)


def require_nested(state: State, loops: Sequence[For]) -> None:
    """Each loop is the only statement of the one before it."""
    for outer, inner in pairwise(loops):
        if outer.body is not inner:
            what = "has other statements beside it" if isinstance(outer.body, SeqStmt) else (
                f"is not directly inside {outer.var.name}"
            )  # fmt: skip
            raise state.error(
                "not-nested",
                f"the loop {inner.var.name} {what}",
                inner,
                hint="reorder first so that the loops follow each other directly",
            )


def require_same_scope(state: State, nodes: Sequence[Stmt]) -> Block:
    """All nodes stand in one block."""
    scopes = [state.scope_block(n) for n in nodes]
    for node, scope in zip(nodes, scopes, strict=True):
        if scope is not scopes[0] or scope is None:
            raise state.error("other-scope", "the loops and blocks are in different blocks", node)
    first = scopes[0]
    assert first is not None
    return first


def require_scope_name(state: State, scope: str) -> None:
    """The storage scope is a known prefix with a free tag behind it (`shared.dyn`)."""
    if not is_scope(scope):
        raise state.error(
            "unknown-scope", f"{brief(scope)} is no storage scope",
            hint=f"use one of {', '.join(SCOPES)}, with a tag if wanted",
        )  # fmt: skip

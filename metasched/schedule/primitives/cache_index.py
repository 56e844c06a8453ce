"""cache_index: computes the index arithmetic that a block repeats once, into buffers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from metasched.analysis import block as block_facts
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.expr import BinaryOp, Cast, Div, Expr, FloorDiv, FloorMod, Mod, Var, as_int
from metasched.ir.op import Call, Effect
from metasched.ir.stmt import Block, BufferStore, IterVar, Stmt, evolve
from metasched.ir.visit import free_vars, substitute, transform_expr, walk_exprs, walk_stmts
from metasched.schedule import edit, ways
from metasched.schedule.checks import refuse_on, require_root_free, require_scope_name
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.layout_arguments import plain_int
from metasched.schedule.primitives.new_stage import (
    beside,
    own_axes,
    require_free_of_init,
    stage,
    top_of,
    with_buffers,
)
from metasched.schedule.state import State


@primitive(of_block=ways.plain("local"))
def cache_index(
    state: State, block: BlockLike, storage_scope: str, cse_thresh: int = 0
) -> list[BlockRV]:
    """Compute index expressions of `block` into buffers before it; returns the computing blocks.

    The step takes the largest expressions over iterators that occur at least `cse_thresh` times in
    the indices. Occurrences of a smaller expression inside a larger chosen expression do not count.

    requires  a known storage scope; a leaf block with arithmetic on its iterators in an index
    rewrite   B[i] = A[i // 4] -> index_var_0[i] = i // 4; B[i] = A[index_var_0[i]]
    """
    assert isinstance(block, BlockRV)
    require_scope_name(state, storage_scope)
    realize = require_root_free(state, block)
    threshold = plain_int(state, cse_thresh, "cse_thresh")
    require_free_of_init(state, realize)
    old = realize.block
    refuse_on(state, block_facts.is_leaf(old), realize)
    iters = {v.var: v for v in old.iter_vars}
    chosen = _chosen(old, frozenset(iters), max(threshold, 1))
    if not chosen:
        raise state.error(
            "no-index-computation",
            f"the indices of {old.name} repeat no arithmetic on its iterators "
            f"{max(threshold, 1)} times or more",
            realize,
        )
    anchor, scope = top_of(state, realize), state.scope(realize)
    copies: list[Stmt] = []
    made: list[Block] = []
    loads: dict[Expr, BufferLoad] = {}
    for number, expr in enumerate(chosen):
        used = [v for v in old.iter_vars if v.var in free_vars(expr)]
        shape, indices = own_axes(state, realize, used)
        buffer = state.fresh_buffer(f"index_var_{number}", shape, expr.dtype, storage_scope)
        nested, stage_block = _index_block(state, number, expr, used, buffer, indices)
        copies.append(nested)
        made.append(stage_block)
        loads[expr] = BufferLoad(buffer, indices)
    buffers = [load.buffer for load in loads.values()]
    state.commit(
        edit.wrap(old, lambda s: _with_loads(s, loads)),
        beside(anchor, before=copies),
        edit.wrap(scope.block, with_buffers(*buffers)),
    )
    return [state.new_block(b.token) for b in made]


def _index_block(
    state: State, number: int, expr: Expr, used: list[IterVar], buffer: Buffer,
    indices: Sequence[Expr],
) -> tuple[Stmt, Block]:  # fmt: skip
    def body(point: tuple[Var, ...]) -> Stmt:
        values = dict(zip([v.var for v in used], point, strict=True))
        return BufferStore(
            buffer, substitute(expr, values), tuple(substitute(i, values) for i in indices)
        )

    return stage(state, f"index_{number}", [v.dom for v in used], body)


def _chosen(block: Block, iters: frozenset[Var], threshold: int) -> list[Expr]:
    """The expressions to compute ahead, in the order in which they occur."""
    counts: Counter[Expr] = Counter()
    for index in _indices(block):
        counts.update(e for e in _occurrences(index) if _eligible(e, iters))
    chosen: list[Expr] = []
    for expr in sorted(counts, key=_size, reverse=True):
        if counts[expr] < threshold:
            continue
        chosen.append(expr)
        times = counts[expr]
        for inner in _occurrences(expr):
            if inner in counts and inner is not expr:
                counts[inner] -= times
    order = list(counts)
    return sorted(chosen, key=order.index)


def _indices(block: Block) -> Iterator[Expr]:
    """Yield every index of every load and store, repetitions included."""
    for part in block.stmts:
        for node in walk_stmts(part):
            if isinstance(node, BufferStore):
                yield from node.indices
            for expr in node.exprs:
                for e in _occurrences(expr):
                    if isinstance(e, BufferLoad):
                        yield from e.indices


def _occurrences(expr: Expr) -> Iterator[Expr]:
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def _size(expr: Expr) -> int:
    return sum(1 for _ in _occurrences(expr))


def _eligible(expr: Expr, iters: frozenset[Var]) -> bool:
    """Whether `expr` is integer arithmetic over iterators alone that cannot fail."""
    used = free_vars(expr)
    if not expr.dtype.is_int or expr.dtype.lanes != 1 or not used or not used <= iters:
        return False
    if isinstance(expr, Cast) or not (isinstance(expr, (BinaryOp, Call)) and _size(expr) > 2):
        return False
    return all(map(_safe, walk_exprs(expr)))


def _safe(node: Expr) -> bool:
    if isinstance(node, BufferLoad):
        return False
    if isinstance(node, (Div, Mod, FloorDiv, FloorMod)):
        return as_int(node.b) not in (None, 0)
    return not (isinstance(node, Call) and node.op.effect is not Effect.PURE)


def _with_loads(node: Stmt, loads: dict[Expr, BufferLoad]) -> Block:
    """The block with precomputed expressions replaced by `loads`; its regions declare the loaded
    buffers."""
    assert isinstance(node, Block)

    def on_index(expr: Expr) -> Expr | None:
        if isinstance(expr, BufferLoad) and expr.buffer not in new:
            return BufferLoad(
                expr.buffer, [_replaced(i, loads) for i in expr.indices], expr.predicate
            )
        return None

    new = {load.buffer for load in loads.values()}

    def visit(stmt: Stmt) -> Stmt:
        exprs = [transform_expr(e, on_index) for e in stmt.exprs]
        if isinstance(stmt, BufferStore):
            count = len(stmt.indices)
            exprs[1 : count + 1] = [_replaced(i, loads) for i in exprs[1 : count + 1]]
        return stmt.rebuild([visit(s) for s in stmt.stmts], exprs)

    parts = [visit(s) for s in node.stmts]
    points = [
        BufferRegion(load.buffer, tuple(Range.of(i, 1) for i in load.indices))
        for load in loads.values()
    ]
    init = parts[0] if node.init is not None else None
    return evolve(node, body=parts[-1], init=init, reads=(*node.reads, *points))


def _replaced(expr: Expr, loads: dict[Expr, BufferLoad]) -> Expr:
    """`expr` with the largest expressions among `loads` replaced."""
    if expr in loads:
        return loads[expr]
    if not expr.children or isinstance(expr, BufferLoad):
        return expr
    children = [_replaced(c, loads) for c in expr.children]
    return expr if all(a is b for a, b in zip(children, expr.children, strict=True)) else (
        expr.rebuild(children)
    )  # fmt: skip

"""unblockize: puts the statements of a block in the place of the block."""

from __future__ import annotations

from metasched.analysis.closing import closed_body
from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import TRUE, Expr, Var
from metasched.ir.stmt import Allocate, Block, BlockRealize, BufferStore, IfThenElse, Stmt, evolve
from metasched.ir.visit import sized_buffers, substitute, substitute_buffers, transform
from metasched.schedule import edit, ways
from metasched.schedule.checks import require_root_free
from metasched.schedule.handles import BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.rebind import ranges_of
from metasched.schedule.state import State


@primitive(of_block=ways.plain())
def unblockize(state: State, block: BlockRV | str) -> None:
    """Put the statements of a block in the place of the block, as before `blockize` or `enclose`.

    The bindings replace the iterators, a condition of the block becomes an `if`, and memory of the
    block is allocated around its statements. Blocks inside keep their handles, and get
    iterators for the loops that they mention now. What the kinds of the iterators tell is lost:
    `enclose` gives the statements blocks whose kinds it proves.

    requires  not the root block; no init, no annotations, and no `T.match_buffer` in the block
    rewrite   for i in range(8): B(vi = i: for j in range(4): C(vj = j))
              ->
              for i in range(8): for j in range(4): C(vj = j)
    """
    assert isinstance(block, BlockRV)
    realize = require_root_free(state, block)
    lost = obstacle(realize.block)
    if lost is not None:
        slug, text, hint = lost
        raise state.error(slug, f"{realize.block.name} {text}", realize, hint=hint)
    around = state.scope_block(realize)
    assert around is not None
    plain = _statements(realize, Analyzer(ranges_of(state.loops_above(realize))))
    body = transform(around.body, lambda s: plain if s is realize else None)
    whole = evolve(around, body=closed_body(body))
    state.commit(edit.replace(around, whole), same_order=True)


def obstacle(block: Block) -> tuple[str, str, str] | None:
    """What a block has beside its statements: slug, sentence and hint; None if it has nothing."""
    if block.init is not None:
        hint = "separate the init first (decompose_reduction)"
        return "has-init", "has an init, which only a block can hold", hint
    if block.annotations:
        keys = ", ".join(block.annotations)
        return (
            "annotated-block",
            f"has annotations, which would be lost: {keys}",
            "unannotate first",
        )
    if block.match_buffers:
        names = ", ".join(m.buffer.name for m in block.match_buffers)
        hint = "use the buffer itself in the block"
        return "has-views", f"names regions by T.match_buffer: {names}", hint
    return None


def _statements(realize: BlockRealize, known: Analyzer) -> Stmt:
    """The statements of a block over the variables around the block; indices and conditions over
    loops that differ from the iterators are simplified."""
    block = realize.block
    sized = sized_buffers(block, realize.bindings)
    body = substitute_buffers(block.body, sized) if sized else block.body
    for buffer in reversed(block.alloc_buffers):
        body = Allocate(sized.get(buffer, buffer), body)
    body = substitute(body, realize.bindings) if block.iter_vars else body
    if not all(isinstance(value, Var) for value in realize.iter_values):
        body = _simplified(body, known)
    return body if realize.predicate is TRUE else IfThenElse(realize.predicate, body)


def _simplified(stmt: Stmt, known: Analyzer) -> Stmt:
    def on_stmt(node: Stmt) -> Stmt | None:
        if isinstance(node, BufferStore):
            return evolve(node, indices=tuple(map(known.simplify, node.indices)))
        if isinstance(node, IfThenElse):
            condition = known.simplify(node.condition)
            proved = condition is TRUE and node.orelse is None
            return node.then if proved else evolve(node, condition=condition)
        return None

    def on_expr(node: Expr) -> Expr | None:
        if isinstance(node, BufferLoad):
            indices = tuple(map(known.simplify, node.indices))
            return BufferLoad(node.buffer, indices, node.predicate)
        return None

    return transform(stmt, on_stmt, on_expr)

"""Blocks become plain code: bindings substituted, predicates tested, allocations made statements.

A loop that is bound to a reduce iterator carries the contents of the buffer that the block writes
from one iteration to the next. So does a loop where an iteration may read what an earlier iteration
wrote. Only blocks tell this. So the pass notes these loops in the allocation's annotation
`carried`, for the pass that moves allocations inwards. Loops of which the note PRIVATE says that
they carry nothing are left out.
"""

from __future__ import annotations

from metasched.analysis.cover import shared_loops
from metasched.analysis.dependence import disjoint
from metasched.analysis.producers import self_contained
from metasched.analysis.scope import Scope, buffer_uses
from metasched.arith.regions import inputs
from metasched.ir.buffer import Buffer
from metasched.ir.expr import TRUE, Expr, Var, as_expr, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import (
    Allocate,
    AttrStmt,
    Block,
    BlockRealize,
    BufferStore,
    For,
    ForKind,
    FrozenMap,
    IfThenElse,
    Stmt,
)
from metasched.ir.visit import (
    free_vars,
    map_body,
    sized_buffers,
    substitute,
    substitute_buffers,
    transform,
    walk_stmts,
)
from metasched.lower.passes.align import Alignment, alignments, with_explicit_regions
from metasched.lower.passes.private import PRIVATE

Carried = dict[Buffer, set[Var]]


def convert_blocks(func: PrimFunc) -> PrimFunc:
    """with block: bind v = e; where p; S(v)  ->  if p: S(e)."""
    blocks = [s for s in walk_stmts(func.body) if isinstance(s, Block)]
    carried: Carried = {b: set() for block in blocks for b in block.alloc_buffers}
    _note(func.body, carried, {}, [])
    aligned = alignments(func.body)
    return map_body(func, lambda body: transform(body, lambda s: _realize(s, carried, aligned)))


def _note(
    stmt: Stmt, carried: Carried, origin: dict[Var, frozenset[Var]], inner: list[Var]
) -> None:
    """Collect the loops that carry contents to their next iteration. `origin` maps iterators to
    loops; `inner` has the loops since the innermost block. Loops with no block between them and a
    store carry what the store writes."""
    if isinstance(stmt, For):
        inner = [*inner, stmt.var]
    elif isinstance(stmt, BufferStore):
        carried.get(stmt.buffer, set()).update(inner)
    elif isinstance(stmt, BlockRealize):
        block = stmt.block
        origin = dict(origin)
        for item, value in zip(block.iter_vars, stmt.iter_values, strict=True):
            loops: set[Var] = set()
            for var in free_vars(value):
                loops |= origin.get(var, frozenset((var,)))
            origin[item.var] = frozenset(loops)
            if not item.is_spatial:
                for region in block.writes:
                    carried.get(region.buffer, set()).update(loops)
        _note_reads(Scope.of(block), carried)
        inner = []
    for child in stmt.stmts:
        _note(child, carried, origin, inner)


def _note_reads(scope: Scope, carried: Carried) -> None:
    """Collect the loops of a scope in which an iteration may read what an earlier one wrote.

    The threads of a parallel loop have memory of their own, unless they are proved to touch
    different elements.
    """
    read = {r.buffer for c in scope.realizes for r in inputs(c.block)}
    for buffer in read & carried.keys():
        users = [c for c in scope.realizes if buffer in buffer_uses(c.block)]
        shared = users[0].loops[: min(shared_loops(users[0], c) for c in users)]
        for loop in reversed(shared):
            if as_int(loop.extent) == 1 or self_contained(buffer, scope, loop):
                continue
            if loop.kind is ForKind.PARALLEL and not disjoint(buffer, scope, loop):
                break
            carried[buffer].add(loop.var)


def _realize(stmt: Stmt, carried: Carried, aligned: dict[Buffer, Alignment]) -> Stmt | None:
    if not isinstance(stmt, BlockRealize):
        return None
    block = stmt.block
    body = with_explicit_regions(block, block.body)
    for key, value in block.annotations.items():
        if key.startswith("pragma_") and isinstance(value, (int, Expr)):
            body = AttrStmt(None, key, as_expr(value), body)
    private = block.annotations.get(PRIVATE, ())
    sized = sized_buffers(block, stmt.bindings)
    body = substitute_buffers(body, sized) if sized else body
    for buffer in reversed(block.alloc_buffers):
        align = aligned.get(buffer, ())
        loops = carried[buffer].difference(v for b, v in private if b is buffer)
        notes = FrozenMap({"carried": frozenset(loops), "aligned": align})
        body = Allocate(sized.get(buffer, buffer), body, notes)
    body = substitute(body, stmt.bindings) if block.iter_vars else body
    return body if stmt.predicate is TRUE else IfThenElse(stmt.predicate, body)

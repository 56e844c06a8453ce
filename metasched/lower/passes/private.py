"""Memory of which each iteration of a parallel loop gets its own copy.

`parallel` accepts a loop whose iterations use one buffer if each iteration reads only what it wrote
before. Then neither this loop nor a loop around it carries the contents of the buffer, although
iterators of unknown kind may say so. Only blocks with their inits tell this.
"""

from __future__ import annotations

from metasched.analysis.producers import self_contained
from metasched.analysis.scope import Scope
from metasched.ir.buffer import Buffer
from metasched.ir.expr import Var
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Block, ForKind, FrozenMap, Stmt, evolve
from metasched.ir.visit import free_vars, map_body, transform

PRIVATE = "lower.private"
"""Annotation of a block: pairs of a buffer that it allocates and a loop variable that carries no
contents of the buffer."""


def note_private(func: PrimFunc) -> PrimFunc:
    """parallel i: T[0] = A[i]; B[i] = T[0]  ->  the same, with a note that T is private to i."""
    return map_body(func, lambda body: transform(body, _noted))


def _noted(stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, Block) or not stmt.alloc_buffers:
        return None
    scope = Scope.of(stmt)
    pairs: list[tuple[Buffer, Var]] = []
    for buffer in stmt.alloc_buffers:
        users = [c for c in scope.realizes if buffer in _touched(c.block)]
        carrying: set[Var] = set()
        for child in users:
            for item, value in zip(child.block.iter_vars, child.realize.iter_values, strict=True):
                carrying |= free_vars(value) if not item.is_spatial else set()
        for n, loop in enumerate(users[0].loops if carrying else ()):
            around = [above.var for above in users[0].loops[: n + 1]]
            if loop.kind is ForKind.PARALLEL and not carrying.isdisjoint(around):
                private = self_contained(buffer, scope, loop)
                pairs += [(buffer, v) for v in around] if private else []
    if not pairs:
        return None
    return evolve(stmt, annotations=FrozenMap({**stmt.annotations, PRIVATE: tuple(pairs)}))


def _touched(block: Block) -> set[Buffer]:
    return {r.buffer for r in (*block.reads, *block.writes)}

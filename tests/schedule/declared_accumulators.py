"""Programs whose reductions declare their result in `T.reads`, as in TVM's older form."""

from __future__ import annotations

from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Block, Stmt, evolve
from metasched.ir.visit import map_body, transform


def with_accumulators(func: PrimFunc, *, last: bool = False) -> PrimFunc:
    """The program in which each reduction declares to read its result, first or last."""

    def declare(node: Stmt) -> Stmt | None:
        if not isinstance(node, Block) or node.init is None:
            return None
        read = {r.buffer for r in node.reads}
        own = tuple(r for r in node.writes if r.buffer not in read)
        return evolve(node, reads=(*node.reads, *own) if last else (*own, *node.reads))

    return map_body(func, lambda body: transform(body, declare))


def without_accumulators(func: PrimFunc) -> PrimFunc:
    """The program in which no reduction declares to read its result."""

    def hide(node: Stmt) -> Stmt | None:
        if not isinstance(node, Block) or node.init is None:
            return None
        own = {r.buffer for r in node.writes}
        return evolve(node, reads=tuple(r for r in node.reads if r.buffer not in own))

    return map_body(func, lambda body: transform(body, hide))

"""Programs whose reductions declare their accumulator in `T.reads`, as TVM's classic form does."""

from __future__ import annotations

from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Block, Stmt, evolve
from metasched.ir.visit import map_body, transform


def with_accumulators(func: PrimFunc, *, last: bool = False) -> PrimFunc:
    """Each reduction declares to read its result, before the other reads or after them."""

    def declare(node: Stmt) -> Stmt | None:
        if not isinstance(node, Block) or node.init is None:
            return None
        read = {r.buffer for r in node.reads}
        own = tuple(r for r in node.writes if r.buffer not in read)
        return evolve(node, reads=(*node.reads, *own) if last else (*own, *node.reads))

    return map_body(func, lambda body: transform(body, declare))


def without_accumulators(func: PrimFunc) -> PrimFunc:
    """No reduction declares to read its result."""

    def hide(node: Stmt) -> Stmt | None:
        if not isinstance(node, Block) or node.init is None:
            return None
        own = {r.buffer for r in node.writes}
        return evolve(node, reads=tuple(r for r in node.reads if r.buffer not in own))

    return map_body(func, lambda body: transform(body, hide))

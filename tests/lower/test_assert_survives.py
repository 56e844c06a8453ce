"""Statements that only look like no-ops stay: a constant assertion, a return."""

from __future__ import annotations

import pytest

from metasched.ir.buffer import Buffer
from metasched.ir.expr import FALSE, as_expr
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import AssertStmt, Block, BlockRealize, BufferStore, Return, Stmt, seq
from metasched.ir.visit import walk_stmts
from metasched.lower.pipeline import lower
from metasched.target import Target


@pytest.mark.parametrize("stmt", [AssertStmt(FALSE, "never"), Return(as_expr(0))])
def test_constant_assert_and_return_survive(stmt: Stmt) -> None:
    b = Buffer.of("B", (4,))
    body = seq([stmt, BufferStore(b, as_expr(1.0, "float32"), (as_expr(0),))])
    func = PrimFunc((b,), BlockRealize.plain(Block("root", (), (), (), body)))
    lowered = lower(func, Target.native())
    assert any(type(s) is type(stmt) for s in walk_stmts(lowered.body))

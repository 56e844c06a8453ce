"""Loops over Python values: the body is read once for each value, in order.

    for dy, dx in ((0, 1), (1, 0)):
        s = s + A[i + dy, j + dx]

As in Python, the values are computed before the first iteration. A `continue` or `break` ends the
reading of the body if every condition around it is decided by Python values.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from metasched.ir.buffer import Buffer
from metasched.ir.expr import Expr
from metasched.ir.stmt import (
    Allocate,
    Break,
    Continue,
    DeclBuffer,
    For,
    LetStmt,
    Return,
    SeqStmt,
    Stmt,
    While,
    evolve,
    seq,
)
from metasched.script.calls import CallReader
from metasched.script.plain import describe
from metasched.script.reader import Scoped
from metasched.script.sections import Section

MOST_COPIES = 256
"""The most copies of a body, those of loops around it counted. Nine copies of nine make a stencil
of four dimensions; larger numbers want a loop of the program."""
_WORDS = (
    "a loop runs over range, T.grid, T.serial, T.parallel, T.vectorized, T.unroll or "
    "T.thread_binding, or over Python values: a tuple, a list, or enumerate, zip or reversed of "
    "such"
)


def copied(
    reader: CallReader, node: ast.For, read: Callable[[Sequence[ast.stmt]], Stmt]
) -> list[Stmt | Scoped]:
    """The statements of a loop over Python values, whose head is no word of a loop.

    `read` reads the body.
    """
    found = reader.value(node.iter)
    lets, values = reader.kept(node.iter, _values(reader, node.iter, found))
    around = reader.copies
    reader.copies = max(1, around) * len(values)
    if reader.copies > MOST_COPIES:
        text = f"this loop over Python values makes more than {MOST_COPIES} copies of its body"
        reader.fail(node.iter, text, "write a loop over range, and read the values from a buffer")
    made: list[Stmt | Scoped] = [*lets]
    for value in values:
        with reader.scope():
            _bind(reader, node.target, value)
            whole = read(node.body)
        body, jump = _without_jump(whole)
        if body is not None:
            _refuse_jumps(reader, node, body)
            made.append(body)
        if isinstance(jump, Return):
            made.append(jump)
            break
        reader.left = False
        if isinstance(jump, Break):
            break
    reader.copies = around
    return made


def ends(items: Sequence[Stmt | Scoped]) -> bool:
    """Whether the statement read last leaves the body."""
    return bool(items) and isinstance(items[-1], (Break, Continue, Return))


def _values(reader: CallReader, node: ast.expr, found: Any) -> list[Any]:
    """The values to loop over."""
    if isinstance(found, Buffer):
        reader.fail(node, _WORDS, f"write for i in range(n) and {found.name}[i]")
    if isinstance(found, (Expr, Section)):
        reader.fail(node, _WORDS)
    try:
        return [*reader.outside.items(found, MOST_COPIES + 1)]
    except ValueError:
        reader.fail(node, _WORDS + f", not {describe(found)}")


def _bind(reader: CallReader, target: ast.expr, value: Any) -> None:
    """Bind the names of a target, which may nest, as Python does."""
    if not isinstance(target, (ast.Tuple, ast.List)):
        value = value if isinstance(value, (Expr, Buffer)) else reader.capture(target, value, "")
        reader._bind(target, value)
        return
    if not isinstance(value, (tuple, list, range)):
        reader.fail(target, f"{len(target.elts)} names need as many values, not {describe(value)}")
    whole = ast.copy_location(ast.Tuple(target.elts, ast.Store()), target)
    whole, parts = reader.collected(whole, tuple(value))
    if len(whole.elts) != len(parts):
        hint = "write T.grid(m, n) for loops inside each other" if isinstance(value, range) else ""
        reader.fail(target, f"{len(parts)} values for {len(whole.elts)} names", hint)
    for part, item in zip(whole.elts, parts, strict=True):
        _bind(reader, part, item)


def _without_jump(body: Stmt) -> tuple[Stmt | None, Stmt | None]:
    """What a body does before the jump that ends it, and the jump."""
    if isinstance(body, (Break, Continue, Return)):
        return None, body
    if isinstance(body, SeqStmt):
        last, jump = _without_jump(body.items[-1])
        before = body.items[:-1] if last is None else (*body.items[:-1], last)
        return (body, None) if jump is None else (seq(before), jump)
    if isinstance(body, (LetStmt, Allocate, DeclBuffer)):
        inner, jump = _without_jump(body.body)
        if jump is not None:
            return (None if inner is None else evolve(body, body=inner)), jump
    return body, None


def _refuse_jumps(reader: CallReader, node: ast.For, body: Stmt) -> None:
    """Refuse a `break` or `continue` of the loop that only some calls of the kernel reach."""
    for jump in _own_jumps(body):
        kind = ast.Break if isinstance(jump, Break) else ast.Continue
        place = next((n for n in _jump_nodes(node.body) if isinstance(n, kind)), node)
        text = f"the loop runs over Python values, and this {kind.__name__.lower()} depends on what"
        hint = "put the statements after it under a condition, or loop over range"
        reader.fail(place, f"{text} is known only when the program runs", hint)


def _own_jumps(stmt: Stmt) -> Iterator[Stmt]:
    if isinstance(stmt, (Break, Continue)):
        yield stmt
    if not isinstance(stmt, (For, While)):
        for child in stmt.stmts:
            yield from _own_jumps(child)


def _jump_nodes(nodes: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for node in nodes:
        if isinstance(node, (ast.Break, ast.Continue)):
            yield node
        elif not isinstance(node, (ast.For, ast.While)):
            yield from _jump_nodes([*getattr(node, "body", ()), *getattr(node, "orelse", ())])

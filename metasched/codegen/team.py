"""One team of OpenMP threads for a serial loop around parallel loops.

    for t in steps:                 each thread of the team runs the loop over t:
        for i in parallel: A    ->      its share of A; barrier
        B                               one thread runs B; barrier
        for i in parallel: C            its share of C; barrier

A barrier takes a fraction of the time in which a team starts and joins. There is a barrier at the
end of an iteration. There is another barrier before a statement that touches memory which other
threads may have written since the last barrier, or writes memory which they may have read.

All threads compute the headers of the loops around parallel loops, so these headers must not read
memory. If a thread left the function early, the other threads would wait at a barrier forever. So a
statement that one thread runs must not fail, and a share that fails stores its code and continues.
"""

from __future__ import annotations

from metasched.codegen.arithmetic import compare
from metasched.codegen.barrier import wait_for_team
from metasched.codegen.emit import Emitter, SerialLoop, Team
from metasched.codegen.parallel import (
    body_function,
    call_body,
    call_team,
    captured,
    inner_function,
    shares,
)
from metasched.codegen.values import Val, literal
from metasched.ir.buffer import BufferLoad
from metasched.ir.dtype import INT64
from metasched.ir.expr import EQ, Var
from metasched.ir.op import Effect, effect_of
from metasched.ir.stmt import (
    Allocate,
    AssertStmt,
    BufferStore,
    DeclBuffer,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Return,
    SeqStmt,
    Stmt,
    evolve,
    fact,
)
from metasched.ir.visit import jumps, reads_memory, walk, walk_stmts

_FAILING = (AssertStmt, Return, Allocate, DeclBuffer, Evaluate)


@fact
def holds_parallel(stmt: Stmt) -> bool:
    """Whether a statement is a parallel loop or holds one (cached)."""
    return any(isinstance(s, For) and s.kind is ForKind.PARALLEL for s in walk_stmts(stmt))


@fact
def fits_team(stmt: Stmt) -> bool:
    """Whether a team of threads can run a statement together (cached; see the file's docstring)."""
    if not holds_parallel(stmt):
        return not any(isinstance(s, _FAILING) for s in walk_stmts(stmt)) and not jumps(stmt)
    if not isinstance(stmt, (For, SeqStmt, IfThenElse, LetStmt)) or not all(
        effect_of(e) <= Effect.PURE and not reads_memory(e) for e in stmt.exprs
    ):
        return False
    if isinstance(stmt, For) and stmt.kind is not ForKind.SERIAL:
        return stmt.kind is ForKind.PARALLEL
    if isinstance(stmt, LetStmt) and stmt.var.dtype.is_handle:
        return False
    return all(map(fits_team, stmt.stmts))


def emit_team(e: Emitter, node: For, extent: Val, serial_loop: SerialLoop) -> None:
    """Write the function that each thread runs for a serial loop, and call the team here."""
    variables, pointers = captured(e, node)
    name = e.module.fresh_function(f"{e.name}.team")
    inner, parameters = inner_function(e, name, variables, pointers, "ptr")
    size, me = Val("%team", INT64, 1, 0), Val("%me", INT64, 1, 0)
    last = Val("%extent", INT64, 1, 0) if extent.const is None else extent
    inner.team = Team(me, size, serial_loop)
    team_loop(inner, inner.team, node, last)
    parameters += ["i64 %extent", "i64 %me", "i64 %team", "ptr %failed"]
    inner.define(f"internal i32 @{name}.body({', '.join(parameters)})")
    call_team(e, name, [*pointers.values(), *variables.values(), extent])


def team_loop(e: Emitter, team: Team, node: For, extent: Val) -> None:
    """Emit a loop that is parallel or holds parallel loops, for all threads of the team."""
    if node.kind is ForKind.PARALLEL:
        _share(e, team, node, extent)
        return
    _barrier(e, team)
    team.serial_loop(e, evolve(node, body=Together(node.body)), literal(0), extent)


def _statement(e: Emitter, team: Team, stmt: Stmt) -> None:
    """Emit a statement; all threads run it if it holds parallel loops, else the first does."""
    if isinstance(stmt, SeqStmt):
        for item in stmt.items:
            _statement(e, team, item)
    elif not holds_parallel(stmt):
        _alone(e, team, stmt)
    elif isinstance(stmt, For):
        e.statement(stmt)
    else:
        _barrier(e, team)
        e.statement(stmt.rebuild([Together(s) for s in stmt.stmts], stmt.exprs))


def _share(e: Emitter, team: Team, node: For, extent: Val) -> None:
    """Emit a parallel loop: each thread runs its share of the iterations."""
    _meet(e, team, node)
    variables, pointers = captured(e, node)
    name = e.module.fresh_function(f"{e.name}.share")
    body_function(e, name, node, variables, pointers, team.serial_loop)
    for ends in shares(e, node, extent, team.me, team.size):
        arguments = [*pointers.values(), *variables.values(), *ends]
        call_body(e, name, [a.typed for a in arguments], "%failed")


def _alone(e: Emitter, team: Team, stmt: Stmt) -> None:
    """Emit a statement that only the first thread runs."""
    _meet(e, team, stmt)
    first, done = e.fresh_label("first"), e.fresh_label("others")
    e.branch_if(compare(e, EQ, team.me, literal(0)), first, done)
    e.label(first)
    e.statement(stmt)
    e.branch(done)
    e.label(done)


def _meet(e: Emitter, team: Team, stmt: Stmt) -> None:
    """Note the memory that a statement touches, after a barrier if other threads touch it."""
    read, written = _touched(e, stmt)
    if written & (team.read | team.written) or read & team.written:
        _barrier(e, team)
    team.read |= read
    team.written |= written


def _barrier(e: Emitter, team: Team) -> None:
    """Wait for all threads, if any memory was touched since the last barrier."""
    if team.read or team.written:
        wait_for_team(e, "%failed", team.size.text)
        e.known_memory.clear()
    team.read, team.written = set(), set()


def _touched(e: Emitter, stmt: Stmt) -> tuple[set[str], set[str]]:
    """The pointers through which a statement reads, and writes, without its own allocations. A
    pointer that is passed to a function counts for both."""
    read: set[str] = set()
    written: set[str] = set()

    def note(data: Var, into: set[str]) -> None:
        if data in e.pointers:
            into.add(e.pointers[data].text)

    for item in walk(stmt):
        if isinstance(item, BufferLoad):
            note(item.buffer.data, read)
        elif isinstance(item, BufferStore):
            note(item.buffer.data, written)
        elif isinstance(item, DeclBuffer):
            note(item.source.data, written)
        elif isinstance(item, Var) and item.dtype.is_handle:
            note(item, written)
    return read, written


class Together(Stmt):
    """The body of a loop, branch or variable that all threads of a team enter."""

    __slots__ = ("body",)

    def __init__(self, body: Stmt) -> None:
        self.body = body


def emit_together(e: Emitter, stmt: Together) -> None:
    """The rule of `Together`: all threads run the body; a barrier ends it."""
    assert e.team is not None
    _statement(e, e.team, stmt.body)
    _barrier(e, e.team)

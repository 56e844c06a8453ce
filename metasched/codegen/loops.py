"""Code of loops: serial, unrolled while emitting, or vectorized; modules `parallel` and `team`
have parallel loops."""

from __future__ import annotations

from functools import partial

from metasched.arith.affine import linear_address
from metasched.codegen.ahead import emit_ahead
from metasched.codegen.arithmetic import binary, compare
from metasched.codegen.chunks import loop_over_chunks
from metasched.codegen.compaction import emit_compaction
from metasched.codegen.copies import emit_copies
from metasched.codegen.emit import Emitter, Lane
from metasched.codegen.fold import emit_fold
from metasched.codegen.ordered_sums import emit_ordered_sums
from metasched.codegen.overlaps import windows_of
from metasched.codegen.parallel import emit_parallel
from metasched.codegen.rare import emit_rare
from metasched.codegen.reductions import emit_reduction
from metasched.codegen.row_vectors import emit_row
from metasched.codegen.scan import emit_scan
from metasched.codegen.separate_steps import separate_step, shares_too_much
from metasched.codegen.shifted import emit_shifted
from metasched.codegen.side_by_side import emit_side_by_side, registers_together
from metasched.codegen.squares import emit_squares
from metasched.codegen.team import emit_team, fits_team, holds_parallel, team_loop
from metasched.codegen.transpose import emit_transpose
from metasched.codegen.values import Val, literal
from metasched.errors import BuildError
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import GT, Expr, FloorDiv, Mul, Var, as_int
from metasched.ir.op import Call, Effect
from metasched.ir.stmt import (
    Allocate,
    AssertStmt,
    BlockRealize,
    Break,
    BufferStore,
    Continue,
    Evaluate,
    For,
    ForKind,
    LetStmt,
    Return,
    Stmt,
    While,
)  # fmt: skip
from metasched.ir.visit import free_vars, jumps, walk_exprs, walk_stmts

_MAX_UNROLLED = 8192
_MAX_CHUNKS = 32
_EXPLICIT_LIMIT = 1 << 12


def emit_for(e: Emitter, node: For) -> None:
    """Emit a loop that starts at zero and counts by one, by the rule of its kind."""
    if as_int(node.min) != 0 or node.step is not None:
        raise BuildError(f"loop {node.var.name} is not canonical: lower the function first")
    before = e.unroll_steps
    steps = node.annotations.get("pragma_auto_unroll_max_step")
    if steps is not None:
        e.unroll_steps = int(as_int(steps) or 0)
    _dispatch(e, node)
    e.unroll_steps = before


def _dispatch(e: Emitter, node: For) -> None:
    if node.kind is ForKind.THREAD_BINDING:
        raise BuildError(
            f"loop {node.var.name} is bound to {node.thread}: no code on {e.module.kind} targets"
        )
    extent = e.value(node.extent)
    if e.team is not None and holds_parallel(node):
        team_loop(e, e.team, node, extent)
        return
    ordered = node.kind in (ForKind.SERIAL, ForKind.UNROLLED)
    if ordered and extent.const != 0 and jumps(node.body):
        serial_loop(e, node, literal(0), extent)
        return
    if extent.const is not None and int(extent.const) <= 1:
        if extent.const == 1:
            with e.bound(node.var, literal(0, node.var.dtype)):
                e.statement(node.body)
        return
    if _by_form(e, node, extent):
        return
    threads = not e.serial and e.lane is None
    if threads and node.kind is ForKind.PARALLEL:
        emit_parallel(e, node, extent, serial_loop)
    elif threads and node.kind is ForKind.SERIAL and holds_parallel(node) and fits_team(node):
        emit_team(e, node, extent, serial_loop)
    elif node.kind is ForKind.VECTORIZED and e.lane is None:
        with windows_of(e, node, partial(_unrolls, e), partial(_vectors, e)):
            _vectorized(e, node, extent)
    elif extent.const is not None and _unrolls(e, node):
        if emit_transpose(e, node):
            return
        with windows_of(e, node, partial(_unrolls, e), partial(_vectors, e)) as nest:
            _unrolled(e, nest, int(e.value(nest.extent).const or 0))
    elif not emit_copies(e, node, extent, serial_loop):
        serial_loop(e, node, literal(0), extent)


def _by_form(e: Emitter, node: For, extent: Val) -> bool:
    """Emit a loop that has one of the forms for which a rule exists; returns whether it has."""

    def plain(x: Expr) -> bool:
        return _expr_reason(x, {node.var}) is None

    if emit_fold(e, node, plain) or emit_scan(e, node, plain):
        return True
    if e.known_memory.disabled:  # buffers may share memory
        return False
    if emit_squares(e, node, extent, serial_loop):
        return True
    scalar = node.kind is ForKind.SERIAL and e.lane is None and e.mask is None
    return scalar and any(emit(e, node, extent, plain, serial_loop) for emit in _IN_CHUNKS)


_IN_CHUNKS = (
    emit_compaction,
    emit_shifted,
    emit_ahead,
    emit_rare,
    emit_row,
    emit_reduction,
    emit_ordered_sums,
)


# -- unrolling


def _unrolled(e: Emitter, node: For, steps: int) -> None:
    apart = dict(e.pointers) if shares_too_much(e, node) else None
    for i in range(steps):
        if apart is not None and i:
            separate_step(e, node)
        with e.bound(node.var, literal(i, node.var.dtype)):
            e.statement(node.body)
    if apart is not None:
        e.pointers = apart


def _unrolls(e: Emitter, node: For) -> bool:
    if node.kind is ForKind.UNROLLED:
        cost = unrolled_steps(node, _MAX_UNROLLED)
        return cost is None or cost <= _MAX_UNROLLED
    if node.kind is not ForKind.SERIAL or e.unroll_steps <= 0:
        return False
    limit = min(e.unroll_steps, _EXPLICIT_LIMIT)
    cost = unrolled_steps(node, limit)
    return cost is not None and cost <= limit


def unrolled_steps(stmt: Stmt, limit: int) -> int | None:
    """How many stores and evaluations a body has after unrolling; None if a loop remains.

    A serial loop of constant extent counts as unrolled when it costs at most `limit` steps.
    """
    key = ("unrolled_steps", limit)
    if key in stmt.facts:
        return stmt.facts[key]  # type: ignore[no-any-return]
    total: int | None = int(isinstance(stmt, (BufferStore, Evaluate)))
    for child in stmt.stmts:
        inner = unrolled_steps(child, limit)
        total = None if inner is None or total is None else total + inner
    if isinstance(stmt, While):
        total = None
    elif isinstance(stmt, For) and total is not None and stmt.kind is not ForKind.VECTORIZED:
        extent = as_int(stmt.extent)
        if extent is None or stmt.kind is ForKind.PARALLEL:
            total = None
        else:
            total *= extent
            if stmt.kind is ForKind.SERIAL and extent > 1 and total > limit:
                total = None
    stmt.facts[key] = total
    return total


# -- serial


def serial_loop(e: Emitter, node: For, begin: Val, end: Val) -> None:
    """Emit `for var in [begin, end)`, with a test in front of a loop that may have no iteration."""
    known = begin.const is not None and end.const is not None
    if known and not int(begin.const or 0) < int(end.const or 0):
        return
    before, head = e.fresh_label("pre"), e.fresh_label("loop")
    again, done = e.fresh_label("next"), e.fresh_label("end")
    if known:
        e.branch(before)
    else:
        e.branch_if(compare(e, GT, end, begin), before, done)
    e.label(before)
    e.branch(head)
    name, following = e.fresh("i"), e.fresh()
    e.label(head)
    dtype = node.var.dtype
    kind = begin.type
    e.line(f"{name} = phi {kind} [ {begin.text}, %{before} ], [ {following}, %{again} ]")
    with e.scope() as depth:
        index = Val(name, dtype, 1, depth)
        index.nonneg = begin.nonneg
        e.loops.append((again, done))
        with e.bound(node.var, index):
            e.statement(node.body)
        e.loops.pop()
    e.branch(again)
    e.label(again)
    e.line(f"{following} = add nuw nsw {kind} {name}, 1")
    more = e.fresh()
    e.line(f"{more} = icmp slt {kind} {following}, {end.text}")
    e.line(f"br i1 {more}, label %{head}, label %{done}")
    e.label(done)


# -- vectorized


def _vectorized(e: Emitter, node: For, extent: Val) -> None:
    """Emit a vectorized loop: full vectors, then narrower vectors for the rest; serial if the body
    has no vector form."""
    if scalar_reason(node.body, node.var) is not None:
        serial_loop(e, node, literal(0), extent)
        return
    width, unrolls = _width(e, node), partial(_unrolls, e)
    if extent.const is None:
        count = binary(e, FloorDiv, extent, literal(width))
        _chunk_loop(e, node, count, width)
        serial_loop(e, node, binary(e, Mul, count, literal(width)), extent)
        return
    total = int(extent.const)
    full, rest = divmod(total, width)
    if full > _MAX_CHUNKS:
        _chunk_loop(e, node, literal(full), width)
    elif full > 1 and (many := registers_together(e, node, width, unrolls)) > 1:
        for chunk in range(0, full, many):
            bases = [literal(n * width) for n in range(chunk, min(full, chunk + many))]
            emit_side_by_side(e, node, bases, width, unrolls, serial_loop)
    else:
        for chunk in range(full):
            _lanes(e, node, literal(chunk * width), width)
    start = full * width
    piece = width
    while rest:
        piece //= 2
        if rest >= piece:
            _lanes(e, node, literal(start), piece)
            start, rest = start + piece, rest - piece


def _vectors(e: Emitter, node: For) -> tuple[int, int]:
    """How many vectors of a vectorized loop begin at constant places, and their lanes; one vector
    stands for those of a loop, none for a loop that runs one iteration at a time."""
    if scalar_reason(node.body, node.var) is not None:
        return 0, 1
    width = _width(e, node)
    full = (as_int(node.extent) or 0) // width
    return (1 if full > _MAX_CHUNKS else full), width


def _lanes(e: Emitter, node: For, base: Val, lanes: int) -> None:
    """Emit the body for the iterations base ... base + lanes - 1 at once."""
    if lanes == 1:
        with e.bound(node.var, base):
            e.statement(node.body)
        return
    e.lane = Lane(node.var, base, lanes, node.body)
    e.statement(node.body)
    e.lane = None


def _chunk_loop(e: Emitter, node: For, count: Val, width: int) -> None:
    vectors = literal(0), count
    loop_over_chunks(
        e, node, vectors, width, lambda base: _lanes(e, node, base, width), serial_loop
    )


def _width(e: Emitter, node: For) -> int:
    """How many lanes of the widest element that the loop loads or stores lane by lane fill a
    register."""
    bits = 8
    for stmt in walk_stmts(node.body):
        if isinstance(stmt, BufferStore):
            bits = max(bits, stmt.buffer.dtype.bits)
        for expr in stmt.exprs:
            if node.var in free_vars(expr):
                for sub in walk_exprs(expr):
                    if isinstance(sub, BufferLoad) and node.var in free_vars(sub):
                        bits = max(bits, sub.buffer.dtype.bits)
    return max(2, e.module.vector_bits // bits)


def scalar_reason(body: Stmt, var: Var) -> str | None:
    """Why a vectorized loop over `var` must run one iteration at a time; None if it need not."""
    varying: set[Expr] = {var}
    for stmt in walk_stmts(body):
        if isinstance(stmt, (While, Break, Continue, Return, AssertStmt, Allocate, BlockRealize)):
            return f"it contains {type(stmt).__name__}"
        if isinstance(stmt, For):
            if stmt.kind is ForKind.VECTORIZED and as_int(stmt.extent) != 1:
                return "it contains another vectorized loop"
            if any(not varying.isdisjoint(free_vars(x)) for x in stmt.exprs):
                return "an inner loop's bounds differ between the lanes"
        elif isinstance(stmt, LetStmt):
            if not varying.isdisjoint(free_vars(stmt.value)):
                varying.add(stmt.var)
        elif isinstance(stmt, BufferStore):
            reason = _store_reason(stmt, varying)
            if reason is not None:
                return reason
        for expr in stmt.exprs:
            reason = _expr_reason(expr, varying)
            if reason is not None:
                return reason
    return None


def _store_reason(stmt: BufferStore, varying: set[Expr]) -> str | None:
    terms = (term for index in stmt.indices for term in linear_address(index).terms)
    if all(varying.isdisjoint(free_vars(term)) for term in terms):  # x + (y - x) does not vary
        return "all lanes store to one element"
    for index in stmt.indices:
        for node in walk_exprs(index):
            if isinstance(node, BufferLoad) and not varying.isdisjoint(free_vars(node)):
                return "lanes may store to the same element"
    return None


def _expr_reason(expr: Expr, varying: set[Expr]) -> str | None:
    if isinstance(expr, Call) and expr.op.name == "prefetch":
        return None  # emitted once, for the first lane
    for node in walk_exprs(expr):
        if node.dtype.lanes > 1:
            return "it computes on vectors already"
        if isinstance(node, Call):
            foreign = node.op.arity is None and not varying.isdisjoint(free_vars(node))
            if foreign or node.op.effect >= Effect.UPDATE:
                return f"it calls {node.op.name}"
    return None

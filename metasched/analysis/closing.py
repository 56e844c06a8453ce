"""Closing of blocks: a closed block depends on its iterators alone and declares all its accesses.

A script may use `i` of `for i in ...` inside a block, but analyses and edits take a block to depend
on its iterators alone. Closing a block binds a new iterator to each loop variable that the block
mentions, or takes the iterator that is bound to the variable already. An iterator whose domain
mentions loops gets the box around this domain.

A new iterator is spatial where its instances are proved to write different elements, and to read
only their own element of the written buffers. Otherwise the new iterator is opaque.

A buffer that `T.reads` or `T.writes` omits is added there. A loop with a step becomes a loop
that counts by one, so that its two ends alone give its values. A variable around blocks
(`x = i * 2`, `x = N[i]`) is replaced by its value, unless memory that the value reads may change,
or the value is an integer that costs much.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from metasched.analysis.access import exact_accesses, updates_in_place
from metasched.analysis.guarded import certain_loads, uses_pointer
from metasched.analysis.scope import Child, undetermined_iters
from metasched.arith.analyzer import Analyzer
from metasched.arith.intset import relax_ranges
from metasched.arith.regions import block_access_regions, declared
from metasched.errors import MetaschedError
from metasched.ir.buffer import Buffer, BufferRegion, Range
from metasched.ir.expr import Expr, IntImm, Var, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    Break,
    BufferStore,
    Continue,
    DeclBuffer,
    For,
    IterKind,
    IterVar,
    LetStmt,
    Return,
    SeqStmt,
    Stmt,
    evolve,
    fact,
)
from metasched.ir.verify_rules import touched
from metasched.ir.visit import (
    free_vars,
    loads_of,
    map_body,
    reads_memory,
    stmt_vars,
    substitute,
    transform,
    walk_exprs,
    walk_stmts,
)

Loops = dict[Var, Range]
_CHEAP = {
    *("floor", "ceil", "round", "nearbyint", "trunc", "abs", "if_then_else", "likely", "popcount"),
    *("shift_left", "shift_right", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"),
}


def close_blocks(func: PrimFunc) -> PrimFunc:
    """`func` with every block closed; `func` itself where all blocks are closed."""
    closed = _closed_body(func.body)
    return func if closed is None else map_body(func, lambda _: closed)


def closed_body(body: Stmt) -> Stmt:
    """The body of a block with the blocks inside it closed; blocks around may match buffers."""
    return _close(body, {}, views=True)


@fact
def _closed_body(body: Stmt) -> Stmt | None:
    """The body of a function with closed blocks; None where all blocks are closed (cached)."""
    closed = _close(body, None)
    return None if closed is body else closed


def _close(stmt: Stmt, loops: Loops | None, views: bool = False) -> Stmt:
    """Close the blocks of a statement below `loops`; `loops` is None for the body of a function.

    Args:
        views: whether a buffer in use may be a view of another: a store to one changes the other.
    """
    if isinstance(stmt, BlockRealize):
        return _close_block(stmt, loops, views)
    loops = loops or {}
    views = views or isinstance(stmt, DeclBuffer)
    if isinstance(stmt, LetStmt) and _gives_way(stmt) and not (views and reads_memory(stmt.value)):
        return _close(substitute(stmt.body, {stmt.var: stmt.value}), loops, views)
    if isinstance(stmt, For):
        if stmt.step is not None:
            stmt = _counting(stmt, stmt.step)
        loops = {**loops, stmt.var: _iterations(stmt)}
    below = [_close(s, loops, views) for s in stmt.stmts]
    if all(a is b for a, b in zip(below, stmt.stmts, strict=True)):
        return stmt
    return stmt.rebuild(below, stmt.exprs)


def _gives_way(let: LetStmt) -> bool:
    """Whether the value of a variable around blocks may stand in its place, so that blocks and
    bindings mention loops and memory themselves: not a vector, and no place that costs much."""
    dtype = let.value.dtype
    if dtype.lanes > 1 or not (dtype.is_float or is_cheap(let.value)):
        return False
    return any(isinstance(s, BlockRealize) for s in walk_stmts(let.body)) and stays_equal(let)


def is_cheap(value: Expr) -> bool:
    """Whether all functions of a value are one operation on bits, a rounding or a choice."""
    return {x.op.name for x in walk_exprs(value) if isinstance(x, Call)} <= _CHEAP


def stays_equal(let: LetStmt) -> bool:
    """Whether the value of a variable is the same everywhere below: nothing stores to the memory
    that the value reads."""
    if uses_pointer(let.value):
        return False
    read = {load.buffer.data for load in loads_of(let.value)}
    below = list(walk_stmts(let.body)) if read else []
    if any(uses_pointer(e) for s in below for e in s.exprs):
        return False
    return read.isdisjoint(_stored(below))


def _stored(stmts: Iterable[Stmt]) -> Iterator[Var]:
    """The pointers to memory that statements may store to."""
    for stmt in stmts:
        if isinstance(stmt, BufferStore):
            yield stmt.buffer.data
        elif isinstance(stmt, DeclBuffer):
            yield stmt.source.data
        elif isinstance(stmt, Block):
            yield from (r.buffer.data for r in stmt.writes)
            yield from (m.source.buffer.data for m in stmt.match_buffers)


def _counting(loop: For, step: Expr) -> For:
    """A loop with a step as a loop from zero that counts by one; bindings are simplified."""
    if as_int(step) == 1:
        return evolve(loop, step=None)
    value = loop.var * step + loop.min
    counted = evolve(loop, min=IntImm(loop.var.dtype, 0), step=None)
    analyzer = Analyzer({loop.var: Range(counted.min, counted.extent)})

    def simpler(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, BlockRealize):
            return None
        return evolve(stmt, iter_values=tuple(map(analyzer.simplify, stmt.iter_values)))

    return evolve(counted, body=transform(substitute(loop.body, {loop.var: value}), simpler))


def _close_block(realize: BlockRealize, loops: Loops | None, views: bool) -> BlockRealize:
    plain = realize.block
    views = views or bool(plain.match_buffers)
    root = loops is None and not (plain.iter_vars or plain.reads or plain.writes)
    below = [_close(s, {}, views) for s in plain.stmts]
    block = plain
    if any(a is not b for a, b in zip(below, plain.stmts, strict=True)):
        block = evolve(plain, init=below[0] if plain.init is not None else None, body=below[-1])
    if not root:
        block = _declaring(block)
    if block is not plain:
        realize = evolve(realize, block=block)
    if not loops or stmt_vars(block).isdisjoint(loops):
        return realize
    return closed_block(realize, loops)


def _declaring(block: Block) -> Block:
    """A block whose declared regions hold all its loads and stores."""
    loads, stores = touched(block)
    written = {r.buffer for r in block.writes}
    read = written.union(r.buffer for r in block.reads)
    if loads <= read and stores <= written:
        return block
    try:
        reads, writes = block_access_regions(block)
    except MetaschedError:  # pointers: no region is known
        reads, writes = (), ()
    loads -= read
    if block.init is not None:
        loads -= stores  # a reduction's own result is not listed as read
    return evolve(
        block,
        reads=(*block.reads, *_regions(block, loads, reads)),
        writes=(*block.writes, *_regions(block, stores - written, writes)),
    )


def _regions(
    block: Block, buffers: set[Buffer], inferred: Sequence[BufferRegion]
) -> list[BufferRegion]:
    """A region of each buffer: the inferred region, else the whole buffer."""
    known = stmt_vars(block).union(v.var for v in block.iter_vars)
    found = {
        r.buffer: r
        for r in inferred
        if all(free_vars(e) <= known for x in r.region for e in (x.min, x.extent))
    }
    return [found.get(b) or b.whole() for b in sorted(buffers, key=lambda b: b.name)]


def closed_block(realize: BlockRealize, loops: Loops) -> BlockRealize:
    """A block that mentions variables of `loops`, closed except for the blocks inside."""
    block, values = realize.block, list(realize.iter_values)
    iters: list[IterVar] = []
    shifts: dict[Var, Expr] = {}
    for k, v in enumerate(block.iter_vars):
        inside, shift = _domain(v, block, loops)
        iters.append(IterVar(v.var, inside, v.kind))
        if shift is not None:
            shifts[v.var] = shift
            values[k] = values[k] - shift
    bare = substitute(evolve(block, iter_vars=()), {v: v + shift for v, shift in shifts.items()})
    used = stmt_vars(bare) & loops.keys()
    names: dict[Var, Expr] = {}
    for v, value in zip(iters, values, strict=True):
        if isinstance(value, Var) and value in used:
            names.setdefault(value, v.var)
    new: list[IterVar] = []
    for var in loops:  # outermost first
        if var in used and var not in names:
            names[var] = fresh = Var(f"v_{var.name}", var.dtype)
            domain = _box(loops[var], loops)
            if domain is None:
                domain = _whole_type(var, signed=not _counts_from_zero(block, var, loops))
            new.append(IterVar(fresh, domain))
            values.append(var)
    named = substitute(bare, names)
    assert isinstance(named, Block)
    made = evolve(named, iter_vars=(*iters, *new))
    if any(reads_memory(shift) for shift in shifts.values()):
        made = _declaring(made)
    told = independent_iters(made)
    if not all(v.var in told for v in new):
        kinds = (v.kind if v.var in told else IterKind.OPAQUE for v in new)
        new = [IterVar(v.var, v.dom, kind) for v, kind in zip(new, kinds, strict=True)]
        made = evolve(made, iter_vars=(*iters, *new))
    return BlockRealize(tuple(values), realize.predicate, made)


def _domain(v: IterVar, block: Block, loops: Loops) -> tuple[Range, Expr | None]:
    """A domain without loop variables, and the offset that the binding must subtract.

    The init of a reduction runs at the minimum of the domain. A minimum that changes with loops is
    subtracted from the binding, and the iterator then counts from zero.
    """
    moving = not free_vars(v.dom.min).isdisjoint(loops)
    if not moving and free_vars(v.dom.extent).isdisjoint(loops):
        return v.dom, None
    box = _box(v.dom, loops)
    if box is not None and not (moving and v.is_reduce and block.init is not None):
        return box, None
    zero = IntImm(v.var.dtype, 0)
    counted = _box(Range(zero, v.dom.extent), loops) or _whole_type(v.var)
    return counted, (v.dom.min if moving else None)


def _box(domain: Range, loops: Mapping[Var, Range]) -> Range | None:
    """The values that a range takes while loops run; None when no bound is known."""
    found = relax_ranges([domain], loops)
    if found is not None and (as_int(found[0].extent) or 0) < 0:  # no iteration, as in range(3, 2)
        return Range(found[0].min, IntImm(found[0].extent.dtype, 0))
    return None if found is None else found[0]


def _whole_type(var: Var, *, signed: bool = False) -> Range:
    """All values of the type from zero on, for a domain whose ends depend on data; as many values
    around zero where they may be negative."""
    low = -(1 << (var.dtype.bits - 2)) if signed else 0
    return Range(IntImm(var.dtype, low), IntImm(var.dtype, (1 << (var.dtype.bits - 1)) - 1))


def _counts_from_zero(block: Block, var: Var, loops: Mapping[Var, Range]) -> bool:
    """Whether a loop variable is certainly never negative inside a block: its loop says so, or each
    iteration uses it as an index."""
    if Analyzer(loops).interval(loops[var].min)[0] >= 0:
        return True
    stores = block.body.items if isinstance(block.body, SeqStmt) else (block.body,)
    indices = [i for s in stores if isinstance(s, BufferStore) for i in s.indices]
    indices += [i for load in certain_loads(block.body) for i in load.indices]
    return var in indices


def _iterations(loop: For) -> Range:
    """The values of a loop's variable; all values of its type where the loop stores to memory that
    says their number."""
    read = {load.buffer for end in (loop.min, loop.extent) for load in loads_of(end)}
    stored = {s.buffer for s in walk_stmts(loop.body) if isinstance(s, BufferStore)} if read else ()
    if read.isdisjoint(stored):
        return Range(loop.min, loop.extent)
    return _whole_type(loop.var, signed=Analyzer().interval(loop.min)[0] < 0)


def independent_iters(block: Block) -> set[Var]:
    """The iterators in which instances can differ without touching the same written element."""
    exact = exact_accesses(block) is not None
    for buffer in {r.buffer for r in block.writes} & {r.buffer for r in block.reads}:
        if not (exact and updates_in_place(block, buffer)):
            return set()
    if any(_hidden_effect(s) for s in walk_stmts(block)):
        return set()
    return {v.var for v in block.iter_vars}.difference(
        *(undetermined_iters(block, r) for r in block.writes)
    )


def closed_over(child: Child, changed: Stmt) -> BlockRealize:
    """A child with its block changed to mention loops around it: closed, its regions inferred.

    Opaque iterators become spatial where `independent_iters` has them.
    """
    assert isinstance(changed, Block)
    loops = {loop.var: Range(loop.min, loop.extent) for loop in child.loops}
    realize = closed_block(evolve(child.realize, block=changed), loops)
    block = declared(realize.block)
    told = independent_iters(block)
    iters = (
        IterVar(v.var, v.dom, IterKind.SPATIAL)
        if v.var in told and v.kind is IterKind.OPAQUE
        else v
        for v in block.iter_vars
    )
    return evolve(realize, block=evolve(block, iter_vars=tuple(iters)))


def _hidden_effect(stmt: Stmt) -> bool:
    if isinstance(stmt, (DeclBuffer, Return, Break, Continue)):
        return True
    return any(uses_pointer(e) for e in stmt.exprs)

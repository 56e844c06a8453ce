"""enclose: puts statements that stand outside of blocks into blocks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from metasched.analysis.access import SHUFFLED
from metasched.analysis.closing import closed_body, is_cheap, stays_equal
from metasched.analysis.continues import without_continue
from metasched.analysis.exchange import commuting_update
from metasched.analysis.producers import self_contained
from metasched.analysis.scan import block_scan
from metasched.analysis.scope import Scope, buffer_uses, collect
from metasched.analysis.updates import Updates
from metasched.arith.affine import linear
from metasched.arith.linear import Linear
from metasched.arith.regions import declared
from metasched.errors import MetaschedError
from metasched.ir.buffer import Buffer, BufferLoad, Range
from metasched.ir.expr import TRUE, Expr, as_expr
from metasched.ir.op import Effect, effect_of
from metasched.ir.stmt import (
    Allocate,
    Block,
    BlockRealize,
    BlockToken,
    Break,
    BufferStore,
    Continue,
    DeclBuffer,
    For,
    ForKind,
    IfThenElse,
    IterKind,
    IterVar,
    LetStmt,
    SeqStmt,
    Stmt,
    While,
    evolve,
    seq,
)
from metasched.ir.visit import (
    free_vars,
    jumps,
    loads_of,
    reads_memory,
    stmt_vars,
    substitute,
    transform,
    walk,
    walk_stmts,
)
from metasched.schedule import edit, ways
from metasched.schedule.handles import BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.own_rows import IN_TURN_OR_APART, rows_outside
from metasched.schedule.state import State

_STRAIGHT = (Allocate, BufferStore, IfThenElse, LetStmt, SeqStmt)
_AROUND = (Allocate, SeqStmt, For, IfThenElse, LetStmt)


@primitive(of_block=ways.plain_or(True))
def enclose(state: State, block: BlockRV | str, own_memory: bool = False) -> list[BlockRV]:
    """Put each statement that stands in `block` outside of blocks into a block of its own.

    Stores that fill memory together, as `B[2 * i]` and `B[2 * i + 1]`, share a block. Loops stay
    where they are. A condition, a variable, a `while` or a `for` with a break goes into the block
    with the stores below it, unless another `for` stands there; a later statement that reads what
    these store, but not the variable, is apart. A variable above a `for` becomes memory of one
    element. Where loops or indices mention it, its value takes its place, if the
    value is cheap and does not change below. The statements below `if c: continue` become the other
    branch of the condition. An update in a condition, whose loops may run in any order, becomes an
    update by a choice: `S = S + T.Select(c, x, 0)`.

    The iterators of the new blocks are the loops whose variables the statements mention: spatial
    where different iterations are proved to write different elements, reduce or scan where they
    combine values in any order, otherwise opaque. Any order is right for integers, minima and
    maxima, and for other floats under `tir.fast_math` with `reassoc`.

    Each new block has the name of a buffer that it writes. Memory of constant size that is
    allocated between loops becomes a buffer of `block`, but not below vectors; below a parallel
    loop only if each iteration is proved to read what it wrote before. With `own_memory`, each
    iteration of a loop keeps memory that it allocates and stores to at places that memory names,
    such as a stack or a queue, where this is not proved: one block holds all that the iteration
    does. Statements that leave a loop around them, or call foreign code, stay as they are, in
    order. Returns the new blocks.

    requires  a store outside of the blocks inside `block`, and no pointers in its statement
    rewrite   for i in range(8): B[i] = A[i]
              ->
              for i in range(8): B(i)
    """
    assert isinstance(block, BlockRV)
    realize = state.block(block)
    body, rows = without_continue(realize.block.body), frozenset[BlockToken]()
    if own_memory:
        body, rows = _with_rows(state, realize, body)
    whole, made = _parted(state, body, realize, rows)
    if not made:
        raise state.error(
            "nothing-outside",
            f"all stores of {realize.block.name} stand in blocks, use pointers or foreign code",
            realize,
        )
    new, named = _enclosed(state, realize, whole, made)
    state.commit(edit.replace(realize, evolve(realize, block=new)))
    return [state.new_block(one.token) for one in named]


def _parted(
    state: State, body: Stmt, realize: BlockRealize, rows: Collection[BlockToken] = ()
) -> tuple[Stmt, dict[Stmt, Block]]:
    """The statements of a block in parts, and the blocks around these parts (see `_with_rows`)."""
    outer = (s for s in (realize.block, *state.ancestors(realize)) if isinstance(s, Block))
    steps = _with_memory(state, _narrowed(body), any(b.match_buffers for b in outer))
    apart = _with_updates(steps, Updates({}, state.func_of(realize)[1].liberties))
    whole = _with_groups(apart)
    return whole, _blocks_outside(whole, rows)


def _enclosed(
    state: State, realize: BlockRealize, whole: Stmt, made: dict[Stmt, Block]
) -> tuple[Block, list[Block]]:
    """A block with its statements in blocks, and these blocks."""
    liberties = state.func_of(realize)[1].liberties
    named = _named(state, list(made.values()))
    blocks = dict(zip(made, named, strict=True))

    def around(owned: list[Buffer]) -> Block:
        def enclosed(stmt: Stmt) -> Stmt | None:
            if stmt in blocks:
                return BlockRealize((), TRUE, blocks[stmt])
            return stmt.body if isinstance(stmt, Allocate) and stmt.buffer in owned else None

        body = closed_body(transform(whole, enclosed))
        body = _with_reductions(body, {one.token for one in named}, "reassoc" in liberties)
        buffers = (*realize.block.alloc_buffers, *owned)
        return evolve(realize.block, body=body, alloc_buffers=buffers)

    between = _allocated(whole, made)
    new = around([*between])
    kept = [buffer for buffer, apart in between.items() if not apart or _is_private(buffer, new)]
    return (new if len(kept) == len(between) else around(kept)), named


def _with_rows(
    state: State, realize: BlockRealize, body: Stmt
) -> tuple[Stmt, frozenset[BlockToken]]:
    """The statements, where a block holds all that an iteration does if the iterations would share
    its memory otherwise; and the tokens of these blocks."""
    rows = rows_outside(body)
    whole, made = _parted(state, body, realize)
    if not rows or not made:
        return body, frozenset()
    shared, _ = _enclosed(state, realize, whole, made)
    scope = Scope.of(shared)
    loops = {n.var: n for c in scope.realizes for n in c.loops}
    tokens: list[BlockToken] = []

    def apart(stmt: Stmt) -> Stmt:
        if isinstance(stmt, BlockRealize):
            return stmt
        if isinstance(stmt, For) and stmt.var in loops:
            own = [b for b in rows.get(stmt.var, ()) if b in shared.alloc_buffers]
            private = all(self_contained(b, scope, loops[stmt.var]) for b in own)
            block = None if private else _block_around(stmt.body)
            if block is not None:
                tokens.append(block.token)
                return evolve(stmt, body=BlockRealize((), TRUE, block))
        return stmt.rebuild([apart(part) for part in stmt.stmts], stmt.exprs)

    return apart(body), frozenset(tokens)


def _narrowed(stmt: Stmt) -> Stmt:
    """The statements outside of blocks, where a variable ends with its last use if a statement
    behind reads what those before store: this statement, often a sum, gets a block of its own."""
    if not isinstance(stmt, _AROUND) or (isinstance(stmt, For) and jumps(stmt.body)):
        return stmt
    parts = [_narrowed(part) for part in stmt.stmts]
    same = all(a is b for a, b in zip(parts, stmt.stmts, strict=True))
    new = stmt if same else seq(parts) if type(stmt) is SeqStmt else stmt.rebuild(parts, stmt.exprs)
    if not isinstance(new, LetStmt) or not isinstance(new.body, SeqStmt):
        return new
    items = new.body.items
    end = 1 + max((n for n, item in enumerate(items) if new.var in stmt_vars(item)), default=-1)
    inside, behind = items[:end], items[end:]
    stored = {s.buffer.data for x in inside for s in walk_stmts(x) if isinstance(s, BufferStore)}
    read = {x.buffer.data for item in behind for x in walk(item) if isinstance(x, BufferLoad)}
    if stored.isdisjoint(read):
        return new
    return seq((evolve(new, body=seq(inside)), *behind))


def _with_memory(state: State, stmt: Stmt, views: bool) -> Stmt:
    """The statements outside of blocks, where each variable above a loop is memory of one element:
    a variable around loops would keep them together.

    Where loops or indices mention a variable, its value takes its place, or the variable stays (see
    `stays_equal`). Variables below vectors stay, too, as do those that read memory beside `views`.
    """
    if (_single(stmt) and _straight(stmt)) or not isinstance(stmt, _AROUND):
        return stmt
    if isinstance(stmt, For) and stmt.kind not in IN_TURN_OR_APART:
        return stmt
    parts = [_with_memory(state, part, views) for part in stmt.stmts]
    same = all(a is b for a, b in zip(parts, stmt.stmts, strict=True))
    new = stmt if same else stmt.rebuild(parts, stmt.exprs)
    if not isinstance(new, LetStmt):
        return new
    if not _is_value(new):
        steady = is_cheap(new.value) and not (views and reads_memory(new.value))
        return substitute(new.body, {new.var: new.value}) if steady and stays_equal(new) else new
    buffer = state.fresh_buffer(new.var.name, (as_expr(1),), new.var.dtype, "local")
    zero = (as_expr(0),)
    body = substitute(new.body, {new.var: BufferLoad(buffer, zero)})
    return Allocate(buffer, seq((BufferStore(buffer, new.value, zero), body)))


def _is_value(stmt: LetStmt) -> bool:
    """Whether what stands below a variable uses it in values and conditions alone."""
    inner = list(walk_stmts(stmt.body))
    if any(isinstance(s, (Block, DeclBuffer)) for s in inner):
        return False
    places = [e for s in inner if isinstance(s, For) for e in s.exprs]
    places += [i for s in inner if isinstance(s, BufferStore) for i in s.indices]
    places += [i for s in inner for e in s.exprs for load in loads_of(e) for i in load.indices]
    return all(stmt.var not in free_vars(e) for e in places)


def _with_updates(stmt: Stmt, updates: Updates) -> Stmt:
    """The statements outside of blocks, with updates that loops run in any order as stores."""
    if isinstance(stmt, BlockRealize):
        return stmt
    if _single(stmt) and _straight(stmt):
        return updates.apart(updates.results(stmt))
    if not isinstance(stmt, _AROUND):
        return stmt
    if isinstance(stmt, For):
        updates = updates.inside(stmt.var, Range(stmt.min, stmt.extent))
    parts = [_with_updates(part, updates) for part in stmt.stmts]
    same = all(a is b for a, b in zip(parts, stmt.stmts, strict=True))
    return stmt if same else stmt.rebuild(parts, stmt.exprs)


def stores_outside(body: Stmt) -> bool:
    """Whether `enclose` finds statements outside of the blocks in the body of a block."""
    return bool(_blocks_outside(without_continue(body)))


def _blocks_outside(body: Stmt, rows: Collection[BlockToken] = ()) -> dict[Stmt, Block]:
    """The blocks around statements, by statement; none for statements that use pointers."""
    made: dict[Stmt, Block] = {}
    for stmt in _stores_outside(body, rows):
        block = stmt.block if isinstance(stmt, BlockRealize) else _block_around(stmt)
        if block is not None:
            made[stmt] = block
    return made


def _stores_outside(stmt: Stmt, rows: Collection[BlockToken]) -> list[Stmt]:
    """The largest statements that hold stores, but no loops and blocks, in program order; and the
    blocks of rows."""
    if isinstance(stmt, BlockRealize):
        return [stmt] if stmt.block.token in rows else []
    if _single(stmt) and _straight(stmt):
        return [stmt] if any(isinstance(s, BufferStore) for s in walk_stmts(stmt)) else []
    if not isinstance(stmt, _AROUND):
        return []
    return [found for part in stmt.stmts for found in _stores_outside(part, rows)]


def _single(stmt: Stmt) -> bool:
    """Whether the stores of a statement share a block."""
    inner = stmt
    while isinstance(inner, Allocate):
        inner = inner.body
    if inner is not stmt and isinstance(inner, SeqStmt) and isinstance(inner.items[0], Allocate):
        return not all(isinstance(s, BufferStore) for s in inner.items[1:])  # `Updates.results`
    return not isinstance(stmt, SeqStmt) or _fill(stmt.items)


def _straight(stmt: Stmt, inside: bool = False) -> bool:
    """Whether a statement is one step: it has no loops but those that it leaves by its data.

    Args:
        inside: the statement stands in such a loop, which it may leave.
    """
    if isinstance(stmt, (Break, Continue)):
        return inside
    if any(effect_of(e) > Effect.READ for e in stmt.exprs):
        return False
    if isinstance(stmt, For) and not (stmt.kind is ForKind.SERIAL and jumps(stmt.body)):
        return False
    if isinstance(stmt, (For, While)):
        return _straight(stmt.body, inside=True)
    return isinstance(stmt, _STRAIGHT) and all(_straight(s, inside) for s in stmt.stmts)


def _with_groups(stmt: Stmt) -> Stmt:
    """The statements outside of blocks, where neighbouring stores that fill memory together are
    sequences inside of sequences."""
    if (_single(stmt) and _straight(stmt)) or not isinstance(stmt, _AROUND):
        return stmt
    parts = [_with_groups(part) for part in stmt.stmts]
    if isinstance(stmt, SeqStmt):
        for start in range(len(parts)):
            for end in range(min(len(parts), start + SHUFFLED), start + 1, -1):
                if _fill(parts[start:end]):
                    parts[start:end] = [SeqStmt(tuple(parts[start:end]))]
        return SeqStmt(tuple(parts)) if len(parts) > 1 else parts[0]
    same = all(a is b for a, b in zip(parts, stmt.stmts, strict=True))
    return stmt if same else stmt.rebuild(parts, stmt.exprs)


def _fill(stmts: Sequence[Stmt]) -> bool:
    """Whether statements store a group of neighbouring elements, and iterations store such groups
    side by side, as the real and imaginary parts of complex numbers.

    Only the lanes of vectors that compute the whole group are contiguous in memory.
    """
    stores = [s for s in stmts if isinstance(s, BufferStore)]
    places = [_place(s) for s in stores]
    if len(stores) != len(stmts) or len(stores) < 2 or len({s.buffer for s in stores}) > 1:
        return False
    first, *others = places
    if first is None or any(p is None or p.terms != first.terms for p in others):
        return False
    starts = {p.const for p in places if p is not None}
    apart = min((abs(by) for by in first.terms.values()), default=0)
    reads = (load.buffer.data for s in stores for load in loads_of(s.value))
    filled = len(starts) == len(stores) == max(starts) - min(starts) + 1 == apart
    return filled and stores[0].buffer.data not in reads


def _place(store: BufferStore) -> Linear | None:
    """Where a statement stores, in elements from the start of the buffer; None for unknown."""
    place = Linear({}, 0)
    for index, by in zip(store.indices, store.buffer.constant_strides(), strict=True):
        if by is None:
            return None
        place = place.plus(linear(index), by)
    return place


def _block_around(stmt: Stmt) -> Block | None:
    """A block around a statement; memory allocated in the statement becomes the block's own. None
    for a statement that uses pointers: no region is known."""
    buffers = [s.buffer for s in walk_stmts(stmt) if isinstance(s, Allocate)]
    inside = transform(stmt, lambda s: s.body if isinstance(s, Allocate) else None)
    try:
        return declared(Block("", (), (), (), inside, alloc_buffers=tuple(buffers)))
    except MetaschedError:
        return None


def _with_reductions(body: Stmt, tokens: Collection[BlockToken], reassociated: bool) -> Stmt:
    """Make iterators of the given blocks reduce or scan iterators where loops combine values in
    any order.

    Nothing else below the loop of a reduce iterator writes the result.
    """
    writers: dict[Expr, list[Buffer]] = {}
    for loop in walk_stmts(body):
        if isinstance(loop, For):
            children, loose = collect([loop.body])
            written = [r.buffer for child in children for r in child.block.writes]
            written += [s.buffer for s, _ in loose if isinstance(s, BufferStore)]
            writers[loop.var] = written

    def reducing(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, BlockRealize) or stmt.block.token not in tokens:
            return None
        store = stmt.block.body
        scan = block_scan(stmt.block) if reassociated else None
        if scan is not None:
            every = list(stmt.block.iter_vars)
            every[scan[0]] = IterVar(every[scan[0]].var, every[scan[0]].dom, IterKind.SCAN)
            return evolve(stmt, block=evolve(stmt.block, iter_vars=tuple(every)))
        update = commuting_update(stmt.block, reassociated=reassociated)
        if update is None or not isinstance(store, BufferStore):
            return None
        loads = [load for load in loads_of(store.value) if load.buffer.data is store.buffer.data]
        fixed = frozenset().union(*map(free_vars, store.indices))
        if len(loads) > 1:
            return None
        iters = (
            IterVar(v.var, v.dom, IterKind.REDUCE)
            if v.kind is IterKind.OPAQUE
            and v.var not in fixed
            and sum(b.data is store.buffer.data for b in writers.get(value, ())) == 1
            else v
            for v, value in zip(stmt.block.iter_vars, stmt.iter_values, strict=True)
        )
        return evolve(stmt, block=evolve(stmt.block, iter_vars=tuple(iters)))

    return transform(body, reducing)


def _allocated(stmt: Stmt, made: Collection[Stmt]) -> dict[Buffer, bool]:
    """The buffers of constant size that are allocated between loops, outside of all blocks, and
    whether a parallel loop stands around.

    Lanes of vectors keep memory of their own.
    """
    if stmt in made or isinstance(stmt, (BlockRealize, While)):
        return {}
    if isinstance(stmt, For) and stmt.kind not in IN_TURN_OR_APART:
        return {}
    apart = isinstance(stmt, For) and stmt.kind is ForKind.PARALLEL
    found: dict[Buffer, bool] = {}
    for part in stmt.stmts:
        found |= {b: apart or below for b, below in _allocated(part, made).items()}
    if isinstance(stmt, Allocate) and not stmt.annotations:
        found |= {stmt.buffer: False} if stmt.buffer.constant_shape() is not None else {}
    return found


def _is_private(buffer: Buffer, block: Block) -> bool:
    """Whether the iterations of parallel loops may each have a copy of a buffer."""
    scope = Scope.of(block)
    users = [c.loops for c in scope.realizes if buffer in buffer_uses(c.block)]
    loops = {n for above in (*users, *(x for _, x in scope.loose)) for n in above}
    return all(self_contained(buffer, scope, n) for n in loops if n.kind is ForKind.PARALLEL)


def _named(state: State, blocks: list[Block]) -> list[Block]:
    """The blocks with names of buffers that they write, each name once."""
    found: dict[str, Block] = {}
    for block in blocks:
        written = [r.buffer for r in block.writes] or block.alloc_buffers
        base, count = written[-1].name, 0
        name = state.fresh_block_name(base)
        while name in found:
            count += 1
            name = state.fresh_block_name(f"{base}_{count}")
        found[name] = evolve(block, name=name)
    return list(found.values())

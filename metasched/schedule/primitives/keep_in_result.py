"""keep_in_result: computes a value in the element that it is stored to, not in a temporary buffer.

    t = A[i, j]
    for k in range(i): t -= A[i, k] * A[k, j]
    A[i, j] = t / d
    ->
    for k in range(i): A[i, j] -= A[i, k] * A[k, j]
    A[i, j] = A[i, j] / d

All elements share the temporary buffer, so the loops over them could change places with no other
loop. It is the inverse of scalar replacement (Callahan, Carr and Kennedy 1990).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metasched.analysis.block import is_leaf
from metasched.analysis.closing import closed_over
from metasched.analysis.dependence import Touch, place, touches
from metasched.analysis.polyhedra import meet_nowhere
from metasched.analysis.producers import from_same_side
from metasched.analysis.scope import Child, Scope, buffer_uses, collect, writes
from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.describe import describe
from metasched.ir.expr import TRUE, Expr
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    DeclBuffer,
    Return,
    SeqStmt,
    Stmt,
    evolve,
)
from metasched.ir.visit import blocks_of, loads_of, substitute, transform, walk_stmts
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    confirm_kinds,
    proof,
    refuse_on,
    refuse_opaque,
    refuse_outside,
    refuse_pointers,
)
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.storage import allocating_block, pick_buffer
from metasched.schedule.rebind import ranges_of
from metasched.schedule.state import State

Point = tuple[Expr, ...]


@primitive(of_block=ways.with_buffers("read"))
def keep_in_result(state: State, block: BlockLike, read_buffer_index: int | str | Buffer) -> None:
    """Compute a value in the element that `block` stores it to, not in a temporary buffer.

    A block before `block` sets an element of the temporary buffer, and blocks between may update
    it. Afterwards they use the element that `block` stores, as do blocks behind `block` that read
    the value. A block that would copy this element to itself is deleted.

    requires  a leaf block without init and predicate, whose body is one store to an element of
              another buffer of the same type; a buffer that the block around allocates, and that
              one block before it, without init and predicate and beside it, sets; from there to
              `block`, or to the last statement beside it that reads what it copies, blocks and
              loops alone, whose leaf blocks use one element of the buffer; no other use of the
              stored element before `block`, no store to it behind, and no change of its indices;
              no later use of the value in the temporary buffer
    rewrite   for i in range(8): T(T_[0] = A[i]); U(T_[0] = T_[0] * A[0]); B(B[i] = T_[0])
              ->
              for i in range(8): T(B[i] = A[i]); U(B[i] = B[i] * A[0])
    """
    assert isinstance(block, BlockRV)
    realize = state.block(block)
    store = only_store(state, realize)
    buffer = pick_buffer(state, realize, "read", read_buffer_index)
    if allocating_block(state, realize, buffer) is not state.scope_block(realize):
        text = f"{buffer.name} is not allocated by the block around {realize.block.name}"
        raise state.error("not-allocated", text, realize)
    if store.buffer is buffer or store.buffer.dtype is not buffer.dtype:
        raise state.error(
            "other-type",
            f"{realize.block.name} stores to {store.buffer.name}, which is no other buffer of "
            f"type {buffer.dtype}", realize,
        )  # fmt: skip
    scope = state.scope(realize)
    refuse_opaque(state, scope.block, buffer)
    refuse_outside(state, scope, buffer)
    items = _items(state, realize, store, buffer)
    inside = {s for item in items for s in walk_stmts(item)}
    group = [c for c in scope.realizes if c.realize in inside]
    users = [c for c in group if buffer in buffer_uses(c.block)]
    last = next(c for c in users if c.realize is realize)
    _require_structure(state, items, users)
    _require_one_element(state, users, buffer)
    _refuse_views(state, items, store.buffer)
    _require_unused(state, group, last, store)
    _require_dead(state, scope, users, last, buffer)
    idle = _commit(state, scope, users, last, buffer, len(items))
    confirm_kinds(state, {n: None for c in group if c not in idle for n in c.loops})


def _commit(
    state: State, scope: Scope, users: Sequence[Child], last: Child, buffer: Buffer, count: int
) -> list[Child]:
    """Let blocks use the element that one stores; returns the blocks that are deleted.

    Args:
        users: the blocks that use the temporary buffer.
        last: the block that stores the element.
        count: the number of statements that hold the blocks; one of them stays.
    """
    store = last.block.body
    assert isinstance(store, BufferStore)
    element = tuple(substitute(i, last.realize.bindings) for i in store.indices)
    edits: list[edit.Edits] = []
    idle: list[Child] = []
    for child in users:
        at = store.indices if child is last else element
        made = _kept(child, buffer, store.buffer, at)
        if _is_idle(made.block) and len(idle) + 1 < count:
            idle.append(child)
            edits.append(edit.delete(child.realize))
        else:
            edits.append(edit.replace(child.realize, made))
    left = any(buffer in buffer_uses(c.block) for c in scope.realizes if c not in users)

    def allocated(stmt: Stmt) -> Stmt:
        assert isinstance(stmt, Block)
        kept = [b for b in stmt.alloc_buffers if left or b is not buffer]
        return evolve(stmt, alloc_buffers=tuple(kept))

    state.commit(*edits, edit.wrap(scope.block, allocated))
    return idle


def only_store(state: State, realize: BlockRealize) -> BufferStore:
    """The store of a block that always stores one element."""
    block, store = realize.block, realize.block.body
    plain = block.init is None and realize.predicate is TRUE and not block.match_buffers
    scalar = isinstance(store, BufferStore) and all(i.dtype.lanes == 1 for i in store.indices)
    if isinstance(store, BufferStore) and store.predicate is None and plain and scalar:
        return store
    raise state.error(
        "no-store", f"{block.name} is no block that does nothing but store one element", realize,
        hint="decompose_reduction takes an init apart",
    )  # fmt: skip


def _items(
    state: State, realize: BlockRealize, store: BufferStore, buffer: Buffer
) -> Sequence[Stmt]:
    """The statements from the last block that sets the buffer up to the block that stores; if it
    stores the value itself, on to the last one that reads the buffer before another stores to it.
    """
    parent = state.parent(realize)
    items = parent.items if isinstance(parent, SeqStmt) else (realize,)
    place = end = items.index(realize)
    same = isinstance(store.value, BufferLoad) and store.value.buffer is buffer
    for n, item in enumerate(items[place + 1 :] if same else (), place + 1):
        uses = [use for r in blocks_of(item) if (use := buffer_uses(r.block).get(buffer))]
        if any(use.writes for use in uses):
            break
        end = n if uses else end
    for first in reversed(range(place)):
        if _sets(items[first], buffer):
            return items[first : end + 1]
    raise state.error(
        "not-set", f"no block beside {realize.block.name} always sets {buffer.name} before",
        realize, hint="decompose_reduction and fission give a value that is set a block of its own",
    )  # fmt: skip


def _sets(stmt: Stmt, buffer: Buffer) -> bool:
    """Whether a statement is a block that does nothing but set an element of the buffer."""
    if not isinstance(stmt, BlockRealize) or stmt.predicate is not TRUE:
        return False
    store, use = stmt.block.body, buffer_uses(stmt.block).get(buffer)
    plain = stmt.block.init is None and use is not None and not use.reads
    return plain and isinstance(store, BufferStore) and store.predicate is None


def _require_structure(state: State, items: Sequence[Stmt], users: Sequence[Child]) -> None:
    """Between the blocks that set and store, all statements are blocks or loops that always end."""
    _, loose = collect(items)
    left = (s for item in items for s in walk_stmts(item) if isinstance(s, Return))
    found = loose[0][0] if loose else next(left, None)
    if found is not None:
        text = f"{describe(found)}, a statement outside of blocks, or one that leaves the loops"
        raise state.error("not-structured", text, found)
    for child in users:
        refuse_on(state, is_leaf(child.block), child.realize)


@proof
def _require_one_element(state: State, users: Sequence[Child], buffer: Buffer) -> None:
    """Refuse blocks that use several elements of the temporary buffer."""
    first: Point | None = None
    for child in users:
        known = Analyzer(ranges_of(child.loops))
        for indices in points(child.block, buffer):
            found = tuple(substitute(i, child.realize.bindings) for i in indices)
            first = first or found
            if not all(map(known.equal, found, first)):
                raise state.error(
                    "several-elements",
                    f"block {child.block.name} uses another element of {buffer.name}",
                    child.realize,
                )


def points(block: Block, buffer: Buffer) -> Iterator[Point]:
    """The elements of a buffer that the loads and stores of a block name."""
    for stmt in walk_stmts(block):
        if isinstance(stmt, BufferStore) and stmt.buffer is buffer:
            yield stmt.indices
        yield from (x.indices for e in stmt.exprs for x in loads_of(e) if x.buffer is buffer)


@proof
def _refuse_views(state: State, items: Sequence[Stmt], buffer: Buffer) -> None:
    """Refuse other names of the memory of the result, and pointers to it."""
    for stmt in (*state.ancestors(items[0]), *(s for item in items for s in walk_stmts(item))):
        views: list[tuple[Buffer, Buffer]] = []
        if isinstance(stmt, Block):
            views = [(m.buffer, m.source.buffer) for m in stmt.match_buffers]
        elif isinstance(stmt, DeclBuffer):
            views = [(stmt.buffer, stmt.source)]
        if any(buffer in pair for pair in views):
            raise state.error("opaque-use", f"{buffer.name} has a view or is a view", stmt)
    for item in items:
        refuse_pointers(state, item, buffer)


@proof
def _require_unused(state: State, group: Sequence[Child], last: Child, store: BufferStore) -> None:
    """Refuse other uses of the stored element, but for loads behind the block that stores it, and
    changes of what its indices read."""
    behind = group[group.index(last) + 1 :]
    for buffer in {x.buffer: None for i in store.indices for x in loads_of(i)}:
        for child in group:
            if writes(child.block, buffer):
                text = f"block {child.block.name} writes {buffer.name}, which the indices read"
                raise state.error("moving-element", text, child.realize)
    among = frozenset({store.buffer})
    pairs = [(c, t) for c in group for t in touches(c, among)]
    own = next(t for c, t in pairs if c is last and t.writes)
    later = [
        t for c, t in pairs
        if (t.writes if c in behind else not t.writes if c is last else c is not group[0])
    ]  # fmt: skip
    again = BufferLoad(store.buffer, store.indices) in loads_of(store.value)
    for touch in (own,) if again else (t for t in later if not _apart(own, t)):
        what = f"{last.block.name} loads it" if again else touch.show()
        raise state.error(
            "element-used", f"{what}, perhaps the element that {last.block.name} stores",
            last.realize, hint="keep a copy of the old element (cache_read)",
        )  # fmt: skip
    headers = {n: None for c in group for n in c.loops if n not in last.loops}
    for loop in headers:
        if any(x.buffer is store.buffer for e in loop.exprs for x in loads_of(e)):
            text = f"the ends of {loop.var.name} read {store.buffer.name}"
            raise state.error("element-used", text, loop)


def _apart(own: Touch, other: Touch) -> bool:
    """Whether two accesses touch no common element in one iteration of the loops around both."""
    moving = {n.var for n in other.loops if n not in own.loops} | other.inner
    return meet_nowhere(place(own), place(other), moving, [])


@proof
def _require_dead(
    state: State, scope: Scope, users: Sequence[Child], last: Child, buffer: Buffer
) -> None:
    """Refuse a block elsewhere that may read the value."""
    for child in scope.readers(buffer):
        if child not in users and not from_same_side(scope, child, buffer, last.loops, users):
            raise state.error(
                "value-used", f"block {child.block.name} may read the value of {buffer.name} that "
                f"{last.block.name} stores", child.realize,
            )  # fmt: skip


def _kept(child: Child, old: Buffer, new: Buffer, at: Point) -> BlockRealize:
    """A block that uses the element of the result; `at` mentions loops or its iterators."""

    def stored(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, BufferStore) and stmt.buffer is old:
            return evolve(stmt, buffer=new, indices=at)
        return None

    def loaded(expr: Expr) -> Expr | None:
        return BufferLoad(new, at) if isinstance(expr, BufferLoad) and expr.buffer is old else None

    return closed_over(child, transform(child.block, stored, loaded))


def _is_idle(block: Block) -> bool:
    """Whether a block copies an element to itself."""
    store = block.body
    return isinstance(store, BufferStore) and store.value is BufferLoad(store.buffer, store.indices)

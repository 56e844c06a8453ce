"""fission, decompose_outputs: loops for each statement, blocks for each output."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

from metasched.analysis.access import Access, accesses
from metasched.analysis.closing import independent_iters
from metasched.analysis.sequence import interleaving_violation, statement_blocks
from metasched.arith.analyzer import Analyzer
from metasched.arith.regions import block_access_regions
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.describe import describe
from metasched.ir.expr import as_int
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    Break,
    BufferStore,
    Continue,
    For,
    IterKind,
    IterVar,
    LetStmt,
    SeqStmt,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import (
    fresh_copy,
    loads_of,
    stmt_vars,
    substitute,
    walk_exprs,
    walk_stmts,
)
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    proof,
    refuse_jumps,
    refuse_on,
    require_plain_loop,
    require_serial,
    require_steady_ends,
)
from metasched.schedule.handles import BlockLike, BlockRV, LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.layout_arguments import plain_int
from metasched.schedule.primitives.storage_align import realigned
from metasched.schedule.state import State


@primitive(of_loop=ways.plain())
def fission(state: State, loop: LoopRV, groups: Sequence[Sequence[int]] = ()) -> list[LoopRV]:
    """Give each statement directly below `loop` a loop of its own; returns the loops in order.

    All iterations of the first statement run before those of the second (loop distribution; Exo
    calls the step fission). The inverse of `merge`. With `groups`, each group of statements, named
    by their positions, gets a loop; the loops stand in the order of the groups.

    requires  a serial loop without annotation, thread binding, break and continue, with two
              statements or more directly inside, which hold nothing but loops and blocks; nothing
              below writes what the loop's ends read; no iteration of a statement touches what an
              earlier iteration of a later statement writes, or writes what that iteration reads;
              `groups` name each statement once
    rewrite   for i in range(8): B(i); C(i)
              ->
              for i_0 in range(8): B(i_0)
              for i_1 in range(8): C(i_1)
    """
    node = require_plain_loop(state, loop, from_zero=False)
    require_serial(state, node)
    refuse_jumps(state, node, Break, Continue)
    if not isinstance(node.body, SeqStmt):
        raise state.error(
            "one-statement", f"the loop {node.var.name} holds one statement", node,
            hint="name the loop that directly holds several; decompose_outputs cuts a block",
        )  # fmt: skip
    loose = [s for s, above in state.scope(node).loose if any(n.var is node.var for n in above)]
    if loose:
        text = f"the loop {node.var.name} holds more than loops and blocks: {describe(loose[0])}"
        raise state.error("not-structured", text, node)
    require_steady_ends(state, [node])
    items, parted = node.body.items, _groups(state, node, groups)
    _require_forward(state, node, parted)
    fresh = [state.fresh_var(f"{node.var.name}_{n}", node.var.dtype) for n in range(len(parted))]
    parts = [
        evolve(node, var=var, body=substitute(seq([items[n] for n in group]), {node.var: var}))
        for var, group in zip(fresh, parted, strict=True)
    ]
    state.commit(edit.replace(node, seq(parts)))
    return state.new_loops(fresh)


def _groups(state: State, loop: For, groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """The positions of the statements of each new loop."""
    every = list(range(len(loop.body.stmts)))
    found = [sorted(plain_int(state, n, "a position in groups") for n in group) for group in groups]
    found = found or [[n] for n in every]
    if sorted(n for group in found for n in group) != every or [] in found:
        text = f"groups {found} do not name each of the {len(every)} statements of {loop.var.name}"
        raise state.error("no-partition", f"{text} once", loop)
    return found


@proof
def _require_forward(state: State, loop: For, groups: Sequence[Sequence[int]]) -> None:
    """Refuse a statement that depends on an earlier iteration of a statement of a later loop.

    Of two statements that change places, the second must not depend on the same iteration either.
    """
    scope = state.scope(loop)
    blocks = statement_blocks(scope, loop)
    for before, after in combinations(groups, 2):
        for earlier, later in product(before, after):
            swapped = earlier > later
            failure = interleaving_violation(scope, [loop], blocks[earlier], blocks[later], swapped)
            hint = "the statements of a loop that carries a value must stay together"
            refuse_on(state, failure, loop, hint)


@primitive(of_block=ways.plain())
def decompose_outputs(state: State, block: BlockLike) -> list[BlockRV]:
    """Cut a block into one block for each store of its body; returns the new blocks in order.

    Afterwards the given handle stands for the block of the first store. The new blocks take the
    place of the old block, one after the other. Each keeps the old predicate and annotations, and
    the part of the init that sets its element, or else its buffer. An iterator becomes spatial if
    instances that differ in it are now proved independent. `fission` of the loops around then gives
    each output a loop nest of its own. Each block computes the variables that its store uses.

    requires  a leaf block with two stores or more, one after the other, and no other statement but
              variables around; no buffer allocated in the block and no matched buffer; no store
              that changes what the predicate and the bindings read, what a variable of another
              store reads, or what the init of a later store reads or sets
    rewrite   for i in range(8): S(B[i] = f; C[i] = g)
              ->
              for i in range(8): S(B[i] = f); S_C(C[i] = g)
    """
    assert isinstance(block, BlockRV)
    realize = state.block(block)
    old = realize.block
    bodies = _stores(state, realize)
    stores = [store for store, _ in bodies]
    inits = _inits(state, old, stores)
    changed = {store.buffer for store in stores[:-1]}
    for expr in realize.exprs:
        for load in walk_exprs(expr):
            if isinstance(load, BufferLoad) and load.buffer in changed:
                raise state.error(
                    "changed-condition",
                    f"block {old.name} writes {load.buffer.name}, which its predicate or bindings "
                    "read",
                    realize,
                )
    parts: list[BlockRealize] = []
    names: set[str] = set()
    for number, ((store, body), init) in enumerate(zip(bodies, inits, strict=True)):
        made = evolve(old, body=body, init=init)
        if number:
            name = state.fresh_block_name(f"{old.name}_{store.buffer.name}")
            name = f"{name}_{number}" if name in names else name
            names.add(name)
            copy = fresh_copy(evolve(made, name=name), lambda v: state.fresh_var(v.name, v.dtype))
            assert isinstance(copy, Block)
            made = copy
        reads, writes = block_access_regions(made)
        made = realigned(evolve(made, reads=tuple(reads), writes=tuple(writes)), old.writes)
        spatial = independent_iters(made)
        iters = [
            IterVar(v.var, v.dom, IterKind.SPATIAL) if v.var in spatial else v
            for v in made.iter_vars
        ]
        parts.append(evolve(realize, block=evolve(made, iter_vars=tuple(iters))))
    state.commit(edit.replace(realize, seq(parts)))
    return [state.new_block(part.block.token) for part in parts[1:]]


def _stores(state: State, realize: BlockRealize) -> list[tuple[BufferStore, Stmt]]:
    """The stores of a block, each with the statement that computes its variables, too; raises where
    the block holds more than stores and variables."""
    block = realize.block
    found = _below(block.body, ())
    if len(found) < 2 or not all(isinstance(store, BufferStore) for store, _ in found):
        rest = (s for s in walk_stmts(block.body) if not isinstance(s, (SeqStmt, LetStmt)))
        other = next((s for s in rest if not isinstance(s, BufferStore)), block.body)
        raise state.error(
            "no-stores", f"the body of block {block.name} is no sequence of stores: it holds "
            f"{describe(other)}", realize,
        )  # fmt: skip
    if block.alloc_buffers or block.match_buffers:
        text = f"block {block.name} has buffers of its own, which its parts would share"
        raise state.error("own-buffers", text, realize)
    stores = [store for store, _ in found if isinstance(store, BufferStore)]
    bodies: list[tuple[BufferStore, Stmt]] = []
    for store, (_, values) in zip(stores, found, strict=True):
        others = {other.buffer.data for other in stores if other is not store}
        body: Stmt = store
        for value in reversed(values):
            if value.var not in stmt_vars(body):
                continue
            late = next((x for x in loads_of(value.value) if x.buffer.data in others), None)
            if late is not None:
                raise state.error(
                    "changed-variable", f"in block {block.name}, {value.var.name} of the store to "
                    f"{store.buffer.name} reads {late.buffer.name}, which another store changes",
                    realize,
                )  # fmt: skip
            body = evolve(value, body=body)
        bodies.append((store, body))
    return bodies


def _below(stmt: Stmt, values: tuple[LetStmt, ...]) -> list[tuple[Stmt, tuple[LetStmt, ...]]]:
    """The statements of a body in order, each with the variables around it."""
    if isinstance(stmt, LetStmt):
        return _below(stmt.body, (*values, stmt))
    if isinstance(stmt, SeqStmt):
        return [found for item in stmt.items for found in _below(item, values)]
    return [(stmt, values)]


def _inits(state: State, block: Block, stores: list[BufferStore]) -> list[Stmt | None]:
    """For each store the part of the init that sets its element, or else its buffer."""
    if block.init is None:
        return [None] * len(stores)
    sets = list(block.init.stmts) if isinstance(block.init, SeqStmt) else [block.init]
    found: list[list[Stmt]] = [[] for _ in stores]
    first: dict[Buffer | tuple[object, ...], int] = {}
    for number, store in enumerate(stores):
        first.setdefault(store.buffer, number)
        first.setdefault((store.buffer, *store.indices), number)
    touched = [accesses(evolve(block, body=s, init=None)) for s in stores]
    for one in sets:
        place = None
        if isinstance(one, BufferStore):
            place = first.get((one.buffer, *one.indices), first.get(one.buffer))
        if place is None:
            text = f"the init of block {block.name} holds {describe(one)}, which no store updates"
            raise state.error("init-of-no-store", text, block)
        mine = accesses(evolve(block, body=one, init=None))
        pairs = product((a for before in touched[:place] for a in before), mine)
        late = next((a for a, b in pairs if not _apart(a, b)), None)
        if late is not None:
            raise state.error(
                "init-late", f"the init of block {block.name} that {describe(one)} would run after "
                f"a store that uses {late.buffer.name}", block,
            )  # fmt: skip
        found[place].append(one)
    return [seq(each) if each else None for each in found]


def _apart(a: Access, b: Access) -> bool:
    """Whether two accesses of one instance touch different elements."""
    if a.buffer is not b.buffer:
        return True
    steps = (Analyzer().simplify(x - y) for x, y in zip(a.indices, b.indices, strict=True))
    return any(as_int(step) not in (None, 0) for step in steps)

"""skip_zeros: tests the condition of a choice in an update, in place of adding zero where it fails.

    for i, k: C[i] += T.if_then_else(k <= i, A[i, k], 0.0)
    ->
    for i, k: if k <= i: C[i] += A[i, k]

A condition around a statement narrows loops and leaves out tiles; a condition inside of a sum does
not. Adding 0.0 changes one number alone, -0.0, which becomes 0.0. A sum that starts from another
number never is -0.0, because a + b is -0.0 only where both are.
"""

from __future__ import annotations

from math import copysign

from metasched.analysis.cover import covered, shared_loops
from metasched.analysis.scope import Child, Scope
from metasched.arith.analyzer import Analyzer
from metasched.arith.regions import block_access_regions
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import Add, Expr, FloatImm, IntImm, Mul, Select, Sub, logical_not
from metasched.ir.op import Call, Effect, effect_of
from metasched.ir.stmt import Block, BlockRealize, BufferStore, IfThenElse, Stmt, evolve
from metasched.schedule import edit, ways
from metasched.schedule.checks import proof, require_root_free
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.state import State


@primitive(of_block=ways.plain())
def skip_zeros(state: State, block: BlockLike) -> None:
    """Update an element only where a choice in what `block` adds is not the neutral value.

    The neutral value is 0 of a sum and 1 of a product. The condition of the choice becomes an `if`
    around the store. Each number stays the same; machine code may then round a product and its sum
    once, as in any C[i] += A[i] * B[i].

    requires  a block whose body, perhaps under an `if`, is a store to an element of the element and
              one `T.if_then_else` or `T.Select`, which add, subtract or multiply, with the neutral
              value on one side; a condition without effects; for a sum of floats, which adds 0.0 or
              subtracts -0.0, a first value of all its elements other than -0.0: an init or an
              earlier block stores a number, and other blocks only add to the elements
    rewrite   for i, k in T.grid(8, 4): C(C[i] += T.if_then_else(k <= i, A[k], 0))
              ->
              for i, k in T.grid(8, 4): C(if k <= i: C[i] += A[k])
    """
    assert isinstance(block, BlockRV)
    realize = require_root_free(state, block)
    old = realize.block
    store = updated(old.body)
    found = None if store is None else tested(store)
    if store is None or found is None:
        raise state.error(
            "no-choice",
            f"{old.name} combines no element with a choice whose one side changes nothing",
            realize,
            hint="the block must store C[i] + T.if_then_else(condition, value, 0), or a product "
            "with 1",
        )
    condition, value = found
    if effect_of(condition) is not Effect.PURE:
        raise state.error("has-effects", f"a condition of {old.name} has effects", realize)
    if _needs_start(store):
        _require_start(state, realize, store.buffer)
    body = _with_store(old.body, IfThenElse(condition, evolve(store, value=value)))
    made = evolve(old, body=body)
    reads, writes = block_access_regions(made)
    state.commit(edit.replace(old, evolve(made, reads=tuple(reads), writes=tuple(writes))))


def tested(store: BufferStore) -> tuple[Expr, Expr] | None:
    """The condition under which an update of an element changes it, and the value then; None for a
    store that is no such update."""
    value, own = store.value, BufferLoad(store.buffer, store.indices)
    if not isinstance(value, (Add, Sub, Mul)) or store.predicate is not None:
        return None
    sides = (
        [(value.a, value.b)] if isinstance(value, Sub) else [(value.a, value.b), (value.b, value.a)]
    )
    for n, (kept, choice) in enumerate(sides):
        if kept is not own or not _is_choice(choice):
            continue
        condition, first, second = choice.children
        fails = Analyzer().simplify(logical_not(condition))
        for test, term, other in ((condition, first, second), (fails, second, first)):
            if _is_neutral(other, value):
                pair = (kept, term) if n == 0 else (term, kept)
                return test, type(value)(*pair)
    return None


def _is_choice(value: Expr) -> bool:
    return isinstance(value, Select) or (
        isinstance(value, Call) and value.op.name == "if_then_else"
    )


def _is_neutral(value: Expr, operation: Expr) -> bool:
    """Whether a value is a number that leaves an element as it is."""
    neutral = 1 if isinstance(operation, Mul) else 0
    return isinstance(value, (FloatImm, IntImm)) and value.value == neutral


def _needs_start(store: BufferStore) -> bool:
    """Whether the number that is added would change -0.0."""
    value = store.value
    assert isinstance(value, (Add, Sub, Mul))
    if isinstance(value, Mul) or not value.dtype.is_float:
        return False
    choice = value.b if _is_choice(value.b) else value.a
    return any(
        isinstance(side, FloatImm)
        and side.value == 0
        and (copysign(1.0, side.value) > 0) != isinstance(value, Sub)
        for side in choice.children[1:]
    )


def updated(body: Stmt) -> BufferStore | None:
    """The only statement of a body, under conditions without another branch."""
    while isinstance(body, IfThenElse) and body.orelse is None:
        body = body.then
    return body if isinstance(body, BufferStore) else None


def _with_store(body: Stmt, store: Stmt) -> Stmt:
    """A body with another statement in the place of its store."""
    return (
        evolve(body, then=_with_store(body.then, store)) if isinstance(body, IfThenElse) else store
    )


@proof
def _require_start(state: State, realize: BlockRealize, buffer: Buffer) -> None:
    """Refuse a sum that may start from -0.0."""
    old, scope = realize.block, state.scope(realize)
    if _starts(scope, scope.child(old.token), buffer):
        return
    raise state.error(
        "other-start",
        f"{old.name} adds 0.0, which changes -0.0, and no block is proved to set all elements of "
        f"{buffer.name} to a number before, to which others add",
        realize,
        hint="add -0.0 where the condition fails, or store under an `if`",
    )


def _starts(scope: Scope, child: Child, buffer: Buffer) -> bool:
    """Whether each element that a block updates was set to a number, and only added to since."""
    if scope.outside(buffer, written=True) is not None:
        return False
    order = list(scope.realizes)
    before = order[: order.index(child)]
    writers = [
        c
        for c in order
        if c is not child and any(w.buffer.data is buffer.data for w in c.block.writes)
    ]
    starters = [c for c in writers if _sets(c.block, buffer)]
    if not all(c in starters or _adds(c.block, buffer) for c in writers):
        return False
    if child.block.init is not None:
        first, store = child.block.init, updated(child.block.body)
        if not isinstance(first, BufferStore) or store is None or first.buffer is not buffer:
            return False
        return first.indices == store.indices and _is_number(first.value)
    return any(
        c in before and covered(child, [c], buffer, shared_loops(child, c)) is None
        for c in starters
    )


def _sets(block: Block, buffer: Buffer) -> bool:
    """Whether a block stores a number, other than -0.0, in elements of a buffer, and no more."""
    store = updated(block.body)
    plain = store is not None and store.buffer is buffer and block.init is None
    return plain and store is not None and _is_number(store.value)


def _adds(block: Block, buffer: Buffer) -> bool:
    """Whether a block only adds to elements of a buffer, or subtracts from them."""
    store = updated(block.body)
    if store is None or store.buffer is not buffer or not isinstance(store.value, (Add, Sub)):
        return False
    if block.init is not None and not _sets(evolve(block, body=block.init, init=None), buffer):
        return False
    own, value = BufferLoad(buffer, store.indices), store.value
    return value.a is own or (value.b is own and isinstance(value, Add))


def _is_number(value: Expr) -> bool:
    """Whether a value is a number other than -0.0."""
    if not isinstance(value, FloatImm):
        return isinstance(value, IntImm)
    return value.value != 0 or copysign(1.0, value.value) > 0

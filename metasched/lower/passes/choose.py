"""A choice between two values replaces a branch around two stores to one place.

    if c: A[i] = x else: A[i] = y  ->  A[i] = Select(c, x, y)
    if c: m[0] = T.min(m[0], A[i]) ->  m[0] = Select(c, T.min(m[0], A[i]), m[0])

Branches may hold several stores, to the same places in turn. The second form is for memory that no
other thread sees, as the store becomes unconditional, and for a minimum, a maximum or an integer:
a sum of floats takes four cycles, which a branch that is seldom taken saves.

A branch that depends on data is mispredicted. LLVM keeps a branch that loads: the load might fail
in the other case. Here every load is proved to stay in its buffer. Branches with much work stay,
and branches that call or divide.
"""

from __future__ import annotations

from functools import lru_cache, partial

from metasched.arith.affine import interval
from metasched.arith.bounds import EVERYTHING, Interval
from metasched.ir import expr as ir
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import Expr, Select, Var, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import Block, BufferStore, For, ForKind, IfThenElse, SeqStmt, Stmt, seq
from metasched.ir.visit import free_vars, loads_of, map_body, transform, walk_exprs, walk_stmts

MOST = 16
"""The most operations and loads of the two values together, without those of their indices."""
_CHECKED = (ir.Div, ir.Mod, ir.FloorDiv, ir.FloorMod)


def choose_values(func: PrimFunc) -> PrimFunc:
    """if c: A[i] = x else: A[i] = y  ->  A[i] = Select(c, x, y)."""
    ranges, private = ranges_of(func.body), _private(func.body)
    return map_body(func, lambda body: transform(body, partial(_chosen, ranges, private)))


def ranges_of(body: Stmt) -> dict[Var, Interval]:
    """The values of loop variables and iterators."""
    found: dict[Var, Interval] = {}

    def enter(var: Var, least: Expr, extent: Expr) -> None:
        known = {v: found.get(v, EVERYTHING) for e in (least, extent) for v in free_vars(e)}
        low, high = interval(least, known)
        found[var] = low, high + interval(extent, known)[1] - 1

    for stmt in walk_stmts(body):  # outer loops come first
        if isinstance(stmt, For):
            enter(stmt.var, stmt.min, stmt.extent)
        elif isinstance(stmt, Block):
            for each in stmt.iter_vars:
                enter(each.var, each.dom.min, each.dom.extent)
    return found


def _private(body: Stmt) -> set[Buffer]:
    """The buffers that a block allocates and that no loop of threads or lanes in it stores to."""
    made: set[Buffer] = set()
    shared: set[Buffer] = set()
    for stmt in walk_stmts(body):
        if isinstance(stmt, Block):
            made.update(stmt.alloc_buffers)
        elif isinstance(stmt, For) and stmt.kind not in (ForKind.SERIAL, ForKind.UNROLLED):
            inner = [*walk_stmts(stmt.body)]
            stored = {s.buffer for s in inner if isinstance(s, BufferStore)}
            own = {b for s in inner if isinstance(s, Block) for b in s.alloc_buffers}
            shared |= stored - (own if stmt.kind is ForKind.PARALLEL else set())
    return made - shared


def _chosen(ranges: dict[Var, Interval], private: set[Buffer], stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, IfThenElse) or stmt.condition.dtype.lanes > 1:
        return None
    if stmt.orelse is None:
        return _update(ranges, private, stmt)
    pairs = _pairs(stmt)
    if pairs is None or not all(_is_chosen(ranges, *pair) for pair in pairs):
        return None
    return seq([_choice(stmt.condition, *pair) for pair in pairs])


def _update(ranges: dict[Var, Interval], private: set[Buffer], stmt: IfThenElse) -> Stmt | None:
    """if c: m[0] = T.min(m[0], x)  ->  m[0] = Select(c, T.min(m[0], x), m[0])."""
    then = stmt.then
    if not isinstance(then, BufferStore) or then.buffer not in private:
        return None
    old = BufferLoad(then.buffer, then.indices)
    if not inside_buffer(old, ranges) or old not in loads_of(then.value):
        return None
    if then.buffer.dtype.is_float and not isinstance(then.value, ir.Min | ir.Max):
        return None
    kept = BufferStore(then.buffer, old, then.indices)
    return _choice(stmt.condition, then, kept) if _is_chosen(ranges, then, kept) else None


def _choice(condition: Expr, then: BufferStore, orelse: BufferStore) -> BufferStore:
    return BufferStore(then.buffer, Select(condition, then.value, orelse.value), then.indices)


def _pairs(stmt: IfThenElse) -> list[tuple[BufferStore, BufferStore]] | None:
    """The stores of both branches, pair by pair; None for other statements, or if two stores of a
    pair have different places.

    Also None if there are several pairs and one of them writes a buffer that any of them, or the
    condition, reads.
    """
    then, orelse = stmt.then, stmt.orelse
    sides = [s.items if isinstance(s, SeqStmt) else (s,) for s in (then, orelse)]
    if len(sides[0]) != len(sides[1]):
        return None
    pairs = [
        (a, b) for a, b in zip(*sides, strict=True)
        if isinstance(a, BufferStore) and isinstance(b, BufferStore)
        and a.buffer is b.buffer and a.indices == b.indices
    ]  # fmt: skip
    written = {a.buffer.data for a, _ in pairs}
    read = [stmt.condition, *(e for pair in pairs for s in pair for e in s.exprs)]
    apart = all(x.buffer.data not in written for e in read for x in loads_of(e))
    return pairs if len(pairs) == len(sides[0]) and (apart or len(pairs) == 1) else None


def _is_chosen(ranges: dict[Var, Interval], then: BufferStore, orelse: BufferStore) -> bool:
    """Whether the values of two stores to one place may both be computed, with little work."""
    if then.predicate is not None or orelse.predicate is not None or then.value.dtype.lanes > 1:
        return False
    values = then.value, orelse.value
    return sum(map(work_of, values)) <= MOST and all(is_safe(value, ranges) for value in values)


@lru_cache(maxsize=1 << 12)
def work_of(value: Expr) -> int:
    """The operations and loads of a value."""
    own = isinstance(value, BufferLoad | ir.BinaryOp | Select | Call)
    parts = () if isinstance(value, BufferLoad) else value.children
    return own + sum(map(work_of, parts))


def is_safe(value: Expr, ranges: dict[Var, Interval]) -> bool:
    """Whether a value may be computed where it is not used."""
    for part in walk_exprs(value):
        if isinstance(part, Call) or (isinstance(part, _CHECKED) and not part.dtype.is_float):
            return False
        if isinstance(part, BufferLoad) and not inside_buffer(part, ranges):
            return False
    return True


def inside_buffer(load: BufferLoad, ranges: dict[Var, Interval]) -> bool:
    """Whether a load is proved to stay in its buffer."""
    spans = [interval(i, ranges) for i in load.indices]
    return all(
        low >= 0 and high < (as_int(extent) or 0)
        for extent, (low, high) in zip(load.buffer.shape, spans, strict=True)
    )

"""Strides of accesses, which decide the loop that is vectorized and the operands to pack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from math import gcd, prod

from metasched.analysis.access import SHUFFLED, STEPS, Access, accesses, stride_of, strides
from metasched.analysis.block import FOLD
from metasched.analysis.scope import Child
from metasched.arith.affine import linear
from metasched.arith.analyzer import Analyzer
from metasched.arith.conditions import conjuncts
from metasched.ir.expr import EQ, NE, BinaryOp, Cast, Expr, FloorMod, IntImm, Max, Min, Var, as_int
from metasched.ir.op import Call
from metasched.ir.stmt import Block, For, ForKind, IfThenElse, IterKind, IterVar, LetStmt, fact
from metasched.ir.visit import (
    free_vars,
    reads_memory,
    substitute,
    transform_expr,
    walk_stmts,
    walk_value,
)
from metasched.lower.passes.remainders import remainder_of
from metasched.schedule.schedule import Schedule

LINE = 64
"""The bytes of a line of the cache."""


def iter_stride(access: Access, var: Var) -> int | None:
    """By how many elements an access moves from one value of a block iterator to the next.

    None when the stride is not constant.
    """
    total = 0
    for index, by in zip(access.indices, access.buffer.constant_strides(), strict=True):
        if var not in free_vars(index):
            continue
        form = linear(index)
        if by is None or any(var in free_vars(a) for a in form.terms if a is not var):
            return None
        total += form.terms.get(var, 0) * by
    return total


PAGE = 4096
"""Bytes after which the low part of addresses repeats, by which loads look for earlier stores."""


def apart_in_pages(child: Child, moves: Mapping[Var, int], together: Sequence[int]) -> list[int]:
    """The numbers of iterations side by side with no two of them whole pages apart.

    Where a block updates a buffer in place, such a load waits for a store to another page: groups
    of rows of 1,024 bytes run at a tenth of the speed from 8 rows on, on a Zen 5.

    Args:
        moves: by how much the loops around the block step from one iteration to the next.
    """
    block, most = child.block, PAGE
    written = {w.buffer for w in block.writes}
    bound = zip(block.iter_vars, child.realize.iter_values, strict=True)
    steps = {v.var: moves[value] for v, value in bound if isinstance(value, Var) and value in moves}
    for access in accesses(block):
        parts = [(iter_stride(access, var), by) for var, by in steps.items()]
        if access.buffer in written and all(stride is not None for stride, _ in parts):
            apart = sum((stride or 0) * by for stride, by in parts) * access.buffer.dtype.bits // 8
            most = min(most, PAGE // gcd(apart, PAGE)) if apart else most
    return [count for count in together if count <= most]


def vector_iter(block: Block) -> IterVar | None:
    """The spatial iterator along which the block's stores are contiguous; None without one.

    Among several iterators (a buffer with unit extents) the iterator with most contiguous loads is
    taken, among equals the last.
    """
    best: IterVar | None = None
    best_score = -1
    for v, moves in _moves(block):
        if {s for a, s in moves if a.is_write} != {1}:  # no store is not contiguous either
            continue
        score = sum(s in (0, 1) for a, s in moves if not a.is_write)
        if score >= best_score:
            best, best_score = v, score
    return best


FEW = 16
"""A matrix that is used by at most this many rows is not worth packing."""


def rows_of(sch: Schedule, block: Block, access: Access) -> int:
    """How many results use each loaded element: for matrix B of the product A B, the rows of A."""
    used = frozenset().union(*(free_vars(i) for i in access.indices))
    others = (v for v in block.iter_vars if v.is_spatial and v.var not in used)
    return prod(sch.state.size(v.dom.extent) or 1 for v in others)


def loads_run_along(block: Block, var: Var) -> bool:
    """Whether along an iterator every load of an update moves by one element or none, and some by
    one. The places of near lanes may also be known, as in A[v // 2] and S[v // 128]."""
    loads = [a for a in accesses(block) if not a.is_write and not a.in_init]
    moves = [(a, iter_stride(a, var)) for a in loads]
    beside = all(m in (0, 1) or (m is None and _near(a, var, {})) for a, m in moves)
    return beside and any(m == 1 for _, m in moves)


def worth_packing(sch: Schedule, block: Block, rows: int, contiguous: bool, lanes: int) -> bool:
    """Whether packing an operand can pay.

    It can if many rows use the operand, or if vectors cannot read it otherwise, neither along the
    lanes nor along a reduction.
    """
    reduced = (v for v in block.iter_vars if v.is_reduce)
    steps = (v for v in reduced if (sch.state.size(v.dom.extent) or 0) >= lanes)
    return rows > FEW or not (contiguous or any(loads_run_along(block, v.var) for v in steps))


NEAR = 16
"""The lanes of the vectors for which `contiguous` looks at the places of lanes."""


SIDE_BY_SIDE = 8
"""The fewest lanes of updates under a condition whose places memory names."""


GATHER, FUNCTION = 4, 8
"""The operations of a lane that outweigh loading its element alone, and the operations that a
function counts as. Loading 16 lanes one by one takes 26 cycles on a Zen 4."""


@fact
def has_vectors(block: Block) -> bool:
    """Whether lanes along some spatial or opaque iterator are vectors (see `contiguous`)."""
    return any(
        _in_vectors(block, moves, v.var, {}) and not updates_few(block, as_int(v.dom.extent))
        for v, moves in _moves(block, opaque=True)
    )


@fact
def has_walks(block: Block) -> bool:
    """Whether lanes along some spatial or opaque iterator may be `walking`, in a loop that keeps
    its order: a reduction in any order has vectors of its own."""
    if _stores_where(block):
        return False
    for v, moves in _moves(block, opaque=True):
        near = _without(moves, partial(_walks_in, block, v))
        if len(near) < len(moves) and _in_vectors(block, near, v.var, {}):
            return True
    return False


def gathers(block: Block) -> bool:
    """Whether lanes along every iterator that `has_vectors` finds load elements one by one."""
    found = [(v, m) for v, m in _moves(block, opaque=True) if _in_vectors(block, m, v.var, {})]
    return bool(found) and all(_scattered(moves, v.var, {}) for v, moves in found)


def _walks_in(block: Block, lanes: IterVar, access: Access) -> bool:
    """Whether a load moves by one element along an iterator that may run inside the lanes."""
    return any(
        iter_stride(access, v.var) == 1
        for v in block.iter_vars
        if v is not lanes and v.kind is IterKind.OPAQUE and (as_int(v.dom.extent) or STEPS) >= STEPS
    )


def walks_anywhere(block: Block, lanes: IterVar) -> bool:
    """Whether a load whose lanes lie anywhere in memory walks: no register block reuses it."""
    loads = (a for a in accesses(block) if not a.is_write)
    return any(iter_stride(a, lanes.var) is None and _walks_in(block, lanes, a) for a in loads)


def _without(
    moves: Sequence[tuple[Access, int | None]], walking: Callable[[Access], bool]
) -> list[tuple[Access, int | None]]:
    """The accesses but loads that lie apart and walk."""
    return [
        (a, s) for a, s in moves
        if a.is_write or (s is not None and -1 <= s <= SHUFFLED) or not walking(a)
    ]  # fmt: skip


def walks(access: Access, child: Child, lanes: For) -> bool:
    """Whether each lane along a loop loads neighbours in the innermost loop, step by step (see
    `codegen.squares`)."""
    inner = (*child.loops[child.loops.index(lanes) + 1 :], *access.loops)
    if access.is_write or not inner or inner[-1].kind is not ForKind.SERIAL:
        return False
    return (as_int(inner[-1].extent) or STEPS) >= STEPS and stride_of(access, child, inner[-1]) == 1


def rows_apart(child: Child, loop: For) -> bool:
    """Whether the lanes of a load lie apart and walk along memory: each lane reads its own row."""
    moves = strides(child, loop)
    return len(_without(moves, lambda a: walks(a, child, loop))) < len(moves)


def walking(child: Child, loop: For) -> bool:
    """Whether lanes along a loop are vectors around the loops inside: some loads walk along
    memory, and the others are `contiguous`."""
    moves, at = strides(child, loop), child.realize.bindings
    near = _without(moves, lambda a: walks(a, child, loop))
    folds = FOLD in child.block.annotations
    fits = len(near) < len(moves) and not folds and not _stores_where(child.block)
    return fits and _in_vectors(child.block, near, loop.var, at)


def _stores_where(block: Block) -> bool:
    """Whether a block stores under a condition: the next step of a lane waits for a masked store,
    about 15 cycles on a Zen 4."""
    return any(isinstance(s, IfThenElse) for s in walk_stmts(block.body))


def updates_few(block: Block, lanes: int | None) -> bool:
    """Whether less than `SIDE_BY_SIDE` lanes add to elements that memory names, under a condition:

        for b in range(2): if 0 <= x[i] + b < n: S[x[i] + b] += v[i, b]

    A load waits for a masked store to the same elements, about 15 cycles on an Ice Lake server. The
    gradient of an interpolation took 1,600 us in pairs, one by one 590 us.
    """
    stores = [a for a in accesses(block) if a.is_write and any(map(reads_memory, a.indices))]
    written = {a.buffer for a in stores}
    updated = any(not a.is_write and a.buffer in written for a in accesses(block))
    return (lanes or SIDE_BY_SIDE) < SIDE_BY_SIDE and updated and _stores_where(block)


def _in_vectors(
    block: Block,
    moves: Sequence[tuple[Access, int | None]],
    var: Var,
    bindings: Mapping[Var, Expr],
) -> bool:
    """See `contiguous`.

    Args:
        moves: the accesses of the block, and by how many elements they move.
        var: the variable along which they move.
        bindings: values for other variables of the indices.
    """
    stores = [(a, s) for a, s in moves if a.is_write]
    gaps = [(a, s) for a, s in stores if s != 1 and not (s is None and _wraps(a, var, bindings))]
    loads = [(a, s) for a, s in moves if not a.is_write]
    apart = [s for a, s in gaps if s is None or not _fills(a, s, [b for b, _ in gaps])]
    alone = len(_scattered(moves, var, bindings)) + len(apart)
    return (
        bool(stores)
        and all(s is None or -1 <= s <= SHUFFLED for _, s in loads)
        and all(s is not None and 1 < s <= SHUFFLED for s in apart)
        and (not apart or any(s == apart[0] for _, s in loads))
        and arithmetic(block, var, bindings) >= GATHER * alone
    )


def _scattered(
    moves: Sequence[tuple[Access, int | None]], var: Var, bindings: Mapping[Var, Expr]
) -> list[Access]:
    """The loads whose lanes lie anywhere in memory (see `_in_vectors`)."""
    loads = [a for a, s in moves if s is None and not a.is_write]
    return [a for a in loads if not _near(a, var, bindings)]


def arithmetic(block: Block, var: Var, bindings: Mapping[Var, Expr]) -> int:
    """How many operations of a block compute another value for each lane along `var`."""
    moving = {v for v, value in bindings.items() if var in free_vars(value)} or {var}
    found: set[Expr] = set()
    for stmt in walk_stmts(block.body):
        for expr in stmt.exprs:
            found.update(e for e in walk_value(expr) if not moving.isdisjoint(free_vars(e)))
        if isinstance(stmt, LetStmt) and not moving.isdisjoint(free_vars(stmt.value)):
            moving.add(stmt.var)
    costs = (FUNCTION if isinstance(e, Call) else isinstance(e, (BinaryOp, Cast)) for e in found)
    return sum(costs)


def _near(access: Access, var: Var, bindings: Mapping[Var, Expr]) -> bool:
    """Whether lanes of a load lie at fixed places within two vectors, as in A[v // 2] and A[v % 8].

    A clamped index, min(v, n), counts as its clamped part, which most vectors read, and a remainder
    by many lanes, (v + 1) % 96, as v + 1 (see `lower.passes.clamps`).
    """
    indices = tuple([substitute(i, bindings) for i in access.indices])
    return _near_lanes(indices, tuple(access.buffer.constant_strides()), var)


@lru_cache(maxsize=1 << 12)
def _near_lanes(indices: Sequence[Expr], strides: Sequence[int | None], var: Var) -> bool:
    lane, group = Var("lane", var.dtype), Var("group", var.dtype)
    places = [0] * NEAR
    for index, by in zip(indices, strides, strict=True):
        if var not in free_vars(index):
            continue
        known = Analyzer({group: (0, 1 << 16), lane: (0, NEAR - 1)})
        moved = substitute(_unclamped(index, var), {var: group * NEAR + lane})
        form = linear(known.simplify(moved))
        own = {a: c for a, c in form.terms.items() if lane in free_vars(a)}
        if by is None or any(free_vars(a) != {lane} or reads_memory(a) for a in own):
            return False
        for n in range(NEAR):
            at = {lane: IntImm(lane.dtype, n)}
            values = [as_int(Analyzer().simplify(substitute(a, at))) for a in own]
            if None in values:
                return False
            places[n] += by * sum((v or 0) * c for v, c in zip(values, own.values(), strict=True))
    return max(places) - min(places) < 2 * NEAR


def _wraps(access: Access, var: Var, bindings: Mapping[Var, Expr]) -> bool:
    """Whether lanes lie side by side except where they wrap around, as in A[(v + 1) % 96]."""
    total = 0
    for index, by in zip(access.indices, access.buffer.constant_strides(), strict=True):
        form = linear(_unclamped(substitute(index, bindings), var, remainders_only=True))
        moving = {a: c for a, c in form.terms.items() if var in free_vars(a)}
        if moving and (by is None or moving.keys() != {var}):
            return False
        total += moving.get(var, 0) * (by or 0)
    return total == 1


def _unclamped(index: Expr, var: Var, remainders_only: bool = False) -> Expr:
    """An index without the minima and maxima of which one side moves along `var`, and without the
    remainders by several vectors."""

    def visit(node: Expr) -> Expr | None:
        if isinstance(node, FloorMod) and var in free_vars(node.a):
            return node.a if (as_int(node.b) or 0) >= 4 * NEAR else None
        if remainders_only or not isinstance(node, (Min, Max)):
            return None
        moving = [side for side in (node.a, node.b) if var in free_vars(side)]
        return moving[0] if len(moving) == 1 else None

    return transform_expr(index, visit, {})


def _fills(access: Access, stride: int, others: Sequence[Access]) -> bool:
    """Whether stores that move by `stride` elements write all elements between them."""
    if not 1 < stride <= SHUFFLED:
        return False
    starts = set()
    for one in others:
        if one.buffer is access.buffer:
            gap = 0
            for a, b, by in zip(
                one.indices, access.indices, access.buffer.constant_strides(), strict=True
            ):
                step = as_int(Analyzer().simplify(a - b))
                if step is None or (step and by is None):
                    return False
                gap += step * (by or 0)
            starts.add(gap)
    return starts == set(range(min(starts), min(starts) + stride))


def _moves(
    block: Block, opaque: bool = False
) -> Iterator[tuple[IterVar, list[tuple[Access, int | None]]]]:
    """The spatial iterators, each with the accesses and their strides.

    Each lane has buffers of the block's own for itself.

    Args:
        opaque: also the opaque iterators.
    """
    found = [a for a in accesses(block) if a.buffer not in block.alloc_buffers]
    for v in block.iter_vars:
        taken = v.is_spatial or (opaque and v.kind is IterKind.OPAQUE)
        if taken and as_int(v.dom.extent) != 1:
            yield v, [(a, iter_stride(a, v.var)) for a in found]


def lanes_together(block: Block, var: Var, most: int) -> int:
    """The most lanes of an iterator that every access reads side by side, or at one element.

    The lanes are aligned groups, their number a power of two up to `most`: 4 for
    B[v // 4, 0, v % 4].
    """
    lanes = 1 << most.bit_length() - 1
    while lanes > 1 and not all(_together(a, var, lanes) for a in accesses(block)):
        lanes //= 2
    return lanes


def _together(access: Access, var: Var, lanes: int) -> bool:
    group, lane = Var("group", var.dtype), Var("lane", var.dtype)
    analyzer = Analyzer({group: (0, 1 << 16), lane: (0, lanes - 1)})
    moved, total = group * lanes + lane, 0
    for index, by in zip(access.indices, access.buffer.constant_strides(), strict=True):
        form = linear(analyzer.simplify(substitute(index, {var: moved})))
        moves = form.terms.get(lane, 0)
        if any(lane in free_vars(a) for a in form.terms if a is not lane) or (moves and by is None):
            return False
        total += moves * (by or 0)
    return total == 1 or (total == 0 and not access.is_write)


def _takes_turns(child: Child, loop: For) -> bool:
    """Whether a test of a remainder of a loop's variable leaves out iterations, and the others read
    neighbours in the array that they store to."""
    body, parts = child.block.body, conjuncts(child.realize.predicate)
    while isinstance(body, IfThenElse) and body.orelse is None:
        parts += conjuncts(body.condition)
        body = body.then
    at = child.realize.bindings
    tested = [remainder_of(p.a) for p in parts if isinstance(p, (EQ, NE))]
    if not any(by and loop.var in free_vars(substitute(v, at)) for v, by in tested):
        return False
    stored = {(a.buffer, a.indices) for a in accesses(child.block) if a.is_write}
    buffers = {buffer for buffer, _ in stored}
    return any(a.buffer in buffers and (a.buffer, a.indices) not in stored
               for a in accesses(child.block) if not a.is_write)  # fmt: skip


def contiguous(child: Child, loop: For) -> bool:
    """Whether lanes along a loop are vectors in memory.

    Every store moves by one element, also around a ring of many, or by several between which other
    stores leave no gap. Every load moves by one element backwards, or by none to `SHUFFLED`
    elements, or the lanes of a vector lie close together. Lanes that lie anywhere are loaded one by
    one if the block computes much with them. So are lanes stored that lie as far apart as those of
    a load, as of every other element of a row.

    No lanes take turns, as in a red-black sweep: a vector of neighbours waits for the elements just
    stored. On a Zen 4, ten sweeps of 512 x 512 take 1.1 ms without vectors, with them 2.2 ms in
    float32 and 4.5 ms in float64.
    """
    if _takes_turns(child, loop):
        return False
    moves, at = strides(child, loop), child.realize.bindings
    waits = updates_few(child.block, as_int(loop.extent))
    return not waits and _in_vectors(child.block, moves, loop.var, at)


def updates_own_rows(child: Child, depth: int) -> bool:
    """Whether each iteration of the inmost loop, the one at `depth`, updates a row of its own at
    places that memory says, and the loop around moves along memory in other accesses.

        for n: for a: H[a, k[n]] += 1

    Then the rows had better follow one another, each through all iterations of the loop around.
    """
    around, loop, *inside = child.loops[depth - 1 :]
    if inside:
        return False
    values, own = child.realize.bindings, child.block.alloc_buffers
    for access in accesses(child.block):
        at = [substitute(i, values) for i in access.indices]
        size = access.buffer.dtype.bytes
        if not any(map(reads_memory, at)):
            by = stride_of(access, child, around)
            if by is None or abs(by) * size >= LINE:
                return False
        elif access.is_write and access.buffer not in own:
            rows = zip(at, access.buffer.constant_strides(), strict=True)
            steps = (
                abs(linear(i).terms.get(loop.var, 0)) * (by or 0) * size
                for i, by in rows if not reads_memory(i)
            )  # fmt: skip
            if max(steps, default=0) < LINE:
                return False
    return any(a.is_write and any(map(reads_memory, a.indices)) for a in accesses(child.block))

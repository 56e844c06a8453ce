"""Loops in place that read their results at a distance which is known when they run.

    for c in range(w, n):                 if w <= 0 or w >= 16:
        B[c] = B[c] + B[c - w]     ->         16 iterations at a time
                                          else: one iteration after another

A vector loads all its lanes before it stores them. So no lane may read what an earlier lane of the
same vector stores. Other distances are harmless: the vectors themselves keep their order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from metasched.arith.affine import linear_address
from metasched.codegen.arithmetic import binary, compare, select
from metasched.codegen.chunks import loop_over_chunks
from metasched.codegen.emit import Emitter, Lane, SerialLoop
from metasched.codegen.values import Val, literal
from metasched.ir.dtype import BOOL, INT64
from metasched.ir.expr import GE, LE, Expr, FloorDiv, IntImm, Mul, Var
from metasched.ir.stmt import BufferStore, For
from metasched.ir.visit import free_vars, loads_of, substitute


@dataclass(frozen=True, slots=True)
class Shifted:
    """A loop of one store in place.

    Attributes:
        store: its only statement.
        step: by how many elements the store moves in an iteration: 1 or -1.
        distances: for loads of the stored buffer, how many iterations later their element is
            stored; expressions that the loop does not change.
    """

    store: BufferStore
    step: int
    distances: list[Expr]


def emit_shifted(
    e: Emitter, node: For, extent: Val, plain: Callable[[Expr], bool], serial_loop: SerialLoop
) -> bool:
    """Emit a loop in place by vectors where the distances allow it at run time; returns whether it
    was emitted.

    Args:
        plain: whether an expression can be computed for all lanes at once.
        serial_loop: emits a loop of iterations one after another.
    """
    found = match_shifted(node)
    if found is None or not plain(found.store.value):
        return False
    loads = loads_of(found.store.value)
    bits = max(found.store.buffer.dtype.bits, *(load.buffer.dtype.bits for load in loads))
    lanes = e.module.vector_bits // bits
    if lanes < 2 or (extent.const is not None and extent.const < lanes):
        return False
    count = _vectors(e, found, extent, lanes)
    emit = partial(_emit_vector, e, found, node.var, lanes)
    loop_over_chunks(e, node, (literal(0), count), lanes, emit, serial_loop)
    serial_loop(e, node, binary(e, Mul, count, literal(lanes)), extent)
    return True


def _vectors(e: Emitter, found: Shifted, extent: Val, lanes: int) -> Val:
    """How many vectors run; the distances are read only where the loop has a vector."""
    none, before = literal(0), e.block
    yes, done = e.fresh_label("distances"), e.fresh_label("known")
    e.branch_if(compare(e, GE, extent, literal(lanes)), yes, done)
    e.label(yes)
    safe = literal(1, BOOL)
    for distance in found.distances:
        apart = e.value(distance)
        behind, far = compare(e, GE, apart, none), compare(e, LE, apart, literal(-lanes))
        either = e.pure(f"or i1 {behind.text}, {far.text}", BOOL, 1, behind, far)
        safe = e.both(safe, either)
    count = select(e, safe, binary(e, FloorDiv, extent, literal(lanes)), none)
    after = e.block
    e.branch(done)
    e.label(done)
    text = f"phi i64 [ {count.text}, %{after} ], [ 0, %{before} ]"
    return e.inline(text, INT64)


def match_shifted(node: For) -> Shifted | None:
    """The loop as a loop in place with distances known at run time; None for another loop."""
    store = node.body
    if not isinstance(store, BufferStore) or store.predicate is not None or len(store.indices) != 1:
        return None
    at, var = store.indices[0], node.var
    step = linear_address(at).terms.get(var, 0)
    if step not in (1, -1) or _moves(at, store, var) is None:
        return None
    distances: list[Expr] = []
    for load in loads_of(store.value):
        if load.predicate is not None or len(load.indices) != 1:
            return None
        moves = _moves(load.indices[0], store, var)
        if moves not in (0, step):
            return None
        if load.buffer.data is store.buffer.data:
            if moves == 0 or load.buffer.dtype is not store.buffer.dtype:
                return None
            distances.append(_distance(load.indices[0], at, var, step))
    known = all(isinstance(d, IntImm) for d in distances)
    return None if known else Shifted(store, step, distances)


def _moves(index: Expr, store: BufferStore, var: Var) -> int | None:
    """By how many elements an index moves in an iteration; None where it is not known, or the
    store may change it."""
    form = linear_address(index)
    rest = [atom for atom in form.terms if atom is not var]
    if any(var in free_vars(atom) for atom in rest):
        return None
    if any(load.buffer.data is store.buffer.data for load in loads_of(index)):
        return None
    return form.terms.get(var, 0)


def _distance(load: Expr, store: Expr, var: Var, step: int) -> Expr:
    """How many iterations later the element of a load is stored."""
    zero: dict[Var, Expr] = {var: IntImm(var.dtype, 0)}
    form = linear_address(load).plus(linear_address(store), -1)
    if not form.terms:
        return IntImm(INT64, form.const * step)
    first, last = substitute(load, zero), substitute(store, zero)
    return first - last if step > 0 else last - first


def _emit_vector(e: Emitter, found: Shifted, var: Var, n: int, base: Val) -> None:
    """Emit `n` iterations. Lanes run along memory, also where the loop runs against it."""
    if found.step > 0:
        e.lane = Lane(var, base, n)
        e.statement(found.store)
    else:
        first, lane = Var(var.name, INT64), Var("lane", INT64)
        e.lane = Lane(lane, literal(0), n)
        with e.bound(first, base):
            e.statement(substitute(found.store, {var: first + (n - 1) - lane}))
    e.lane = None

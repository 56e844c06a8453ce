"""Reductions along memory in serial loops: one result in each lane, then one of the lanes.

    for p in range(a, b): m = max(m, X[p])

The order of the values does not matter: of floats, NaN propagates through a maximum, and of two
zeros the result may be either; integers wrap; floats are summed in lanes under `reassoc` only. LLVM
keeps the order of a maximum of floats, so each iteration would wait for the one before. It also
needs long loops: its vectors hold four registers, and shorter rows run one by one.

    for p in range(n[i]): fx += f(X[N[i, p]]); fy += g(X[N[i, p]])

Several reductions, or values at places that memory says, share the registers of results; the
iterations that fill no vector run as one vector under a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from metasched.analysis.guarded import loads_in_any_case
from metasched.arith.affine import linear_address
from metasched.codegen.arithmetic import binary, compare, select
from metasched.codegen.chunks import emit_all_in_vectors, emit_if_long, loop_over_chunks
from metasched.codegen.emit import Emitter, Lane, SerialLoop
from metasched.codegen.fold import tree
from metasched.codegen.memory import store
from metasched.codegen.types import register_type
from metasched.codegen.values import Val, literal
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import (
    GE,
    Add,
    BinaryOp,
    Cast,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mul,
    Sub,
    Var,
)  # fmt: skip
from metasched.ir.op import Call
from metasched.ir.stmt import BufferStore, For, SeqStmt, Stmt
from metasched.ir.visit import free_vars, loads_of, walk_exprs

REGISTERS = 4
"""The registers of results in a long loop: each result waits for the one before."""
LEAST = 4
"""The fewest steps of so many registers, whose lanes take long to combine."""
WORTH = 4
"""The fewest operations for each gather: lanes load their elements one by one."""
_TYPES = ("float32", "float64", "int32", "int64", "uint32", "uint64")


@dataclass(frozen=True, slots=True)
class Reduction:
    """A loop `element = kind(element, value)`.

    Attributes:
        store: its only statement.
        kind: Max, Min or Add.
        element: the load of the stored element.
        value: what the loop combines with the element.
    """

    store: BufferStore
    kind: type[BinaryOp]
    element: BufferLoad
    value: Expr


def emit_reduction(
    e: Emitter, node: For, extent: Val, plain: Callable[[Expr], bool], serial_loop: SerialLoop
) -> bool:
    """Emit a reduction by vectors; returns whether it was emitted.

    Args:
        plain: whether an expression can be computed for all lanes at once.
        serial_loop: emits a loop of iterations one after another.
    """
    found = match_reduction(node)
    if found is None:
        together = match_reductions(node)
        return bool(together) and _emit_together(e, node, together, extent, plain, serial_loop)
    if not plain(found.value):
        return False
    known = None if extent.const is None else int(extent.const)
    if found.kind is Add and (known is not None or not any_order(e, found)):
        return False
    lanes = e.module.vector_bits // found.store.buffer.dtype.bits
    if lanes < 2 or (known is not None and known < lanes):
        return False
    done = literal(0)
    for width, least in ((REGISTERS * lanes, LEAST), (lanes, 1)):
        done = _emit_vectors(e, node, found, width, least, (done, extent), serial_loop)
    if known is None or known % lanes:
        serial_loop(e, node, done, extent)
    return True


def any_order(e: Emitter, found: Reduction) -> bool:
    return not found.store.buffer.dtype.is_float or "reassoc" in e.liberties


def _emit_vectors(
    e: Emitter, node: For, found: Reduction, lanes: int, least: int, part: tuple[Val, Val],
    serial_loop: SerialLoop,
) -> Val:  # fmt: skip
    """Emit the whole vectors of a part of a loop, and reduce their lanes; gives where they end.

    Args:
        least: the fewest vectors; fewer are left.
        part: the first iteration, a multiple of `lanes`, and the end of the loop.
    """
    begin, end = part
    size, first = literal(lanes), binary(e, FloorDiv, begin, literal(lanes))
    enough = compare(e, GE, binary(e, Sub, end, begin), literal(least * lanes))
    last = select(e, enough, binary(e, FloorDiv, end, size), first)
    if last.const is not None and last.const == first.const:
        return begin
    yes, done = e.fresh_label("lanes"), e.fresh_label("reduced")
    e.branch_if(enough, yes, done)
    e.label(yes)
    with e.scope():
        _emit_some(e, node, found, lanes, (first, last), serial_loop)
    e.branch(done)
    e.label(done)
    return binary(e, Mul, last, size)


def _emit_some(
    e: Emitter, node: For, found: Reduction, lanes: int, vectors: tuple[Val, Val],
    serial_loop: SerialLoop,
) -> None:  # fmt: skip
    """Emit vectors, at least one, and combine their lanes with the element."""
    slot, dtype = results(e, found, lanes), found.store.buffer.dtype

    def vector(base: Val) -> None:
        e.lane = Lane(node.var, base, lanes)
        value = e.widen(e.value(found.value), lanes)
        e.lane = None
        before = e.inline(f"load {register_type(dtype, lanes)}, ptr {slot}", dtype, lanes)
        e.line(f"store {binary(e, found.kind, before, value).typed}, ptr {slot}")

    loop_over_chunks(e, node, vectors, lanes, vector, serial_loop)
    combine(e, found, lanes, slot)


def results(e: Emitter, found: Reduction, lanes: int) -> str:
    """Start the results of the lanes; returns their place, which LLVM keeps in registers."""
    dtype, slot = found.store.buffer.dtype, e.fresh("results")
    e.allocas.append(f"{slot} = alloca {register_type(dtype, lanes)}")
    start = literal(0, dtype) if found.kind is Add else e.value(found.element)
    e.line(f"store {e.widen(start, lanes).typed}, ptr {slot}")
    return slot


def combine(e: Emitter, found: Reduction, lanes: int, slot: str) -> None:
    """Combine the results of all lanes with the element."""
    dtype = found.store.buffer.dtype
    lane_results = e.inline(f"load {register_type(dtype, lanes)}, ptr {slot}", dtype, lanes)
    result = tree(e, found.kind, lane_results)
    if found.kind is Add:
        result = binary(e, Add, e.value(found.element), result)
    store(e, found.store.buffer, found.store.indices[0], result, None)


def _emit_together(
    e: Emitter, node: For, found: list[Reduction], extent: Val, plain: Callable[[Expr], bool],
    serial_loop: SerialLoop,
) -> bool:  # fmt: skip
    """Emit reductions of one loop by vectors, the last one under a mask; returns whether they were
    emitted."""
    lanes = e.module.vector_bits // found[0].store.buffer.dtype.bits
    least, sums = lanes // 2, [r for r in found if r.kind is Add]
    if lanes < 4 or extent.const is not None or not all(plain(r.value) for r in found):
        return False
    if not all(any_order(e, r) for r in sums):
        return False
    if not any(is_gathered(load) for r in found for load in loads_of(r.value)):
        lanes *= max(1, REGISTERS // len(found))
    emit = partial(_emit_all, e, node, found, lanes, extent, serial_loop)
    emit_if_long(e, node, extent, least, emit, serial_loop)
    return True


def _emit_all(
    e: Emitter, node: For, found: list[Reduction], lanes: int, extent: Val, serial_loop: SerialLoop
) -> None:
    """Emit all iterations as vectors, and combine the lanes of each result with its element."""
    slots = [results(e, one, lanes) for one in found]

    def vector(base: Val, mask: Val | None) -> None:
        values = values_in_lanes(e, node, found, lanes, base, mask)
        for one, slot, value in zip(found, slots, values, strict=True):
            dtype = one.store.buffer.dtype
            before = e.inline(f"load {register_type(dtype, lanes)}, ptr {slot}", dtype, lanes)
            after = binary(e, one.kind, before, value)
            if mask is not None:
                after = select(e, mask, after, before)
            e.line(f"store {after.typed}, ptr {slot}")

    emit_all_in_vectors(e, node, extent, lanes, vector, serial_loop)
    for one, slot in zip(found, slots, strict=True):
        combine(e, one, lanes, slot)


def values_in_lanes(
    e: Emitter, node: For, found: list[Reduction], lanes: int, base: Val, mask: Val | None
) -> list[Val]:
    """The values of reductions in a vector of iterations, from `base` on."""
    loads = (load for one in found for load in loads_in_any_case(one.value))
    same = [load for load in loads if node.var not in free_vars(load)]
    e.lane = Lane(node.var, base, lanes)
    with e.sharing():
        for load in same:
            e.share(load, mask)  # an element for all lanes, and there is a lane
        with e.masked(mask) if mask is not None else nullcontext():
            values = [e.widen(e.value(one.value), lanes) for one in found]
    e.lane = None
    return values


def match_reductions(node: For) -> list[Reduction]:
    """The loop as reductions in elements of their own, whose values may lie at places that memory
    says; empty for another loop."""
    body = node.body
    parts = body.items if isinstance(body, SeqStmt) else (body,)
    found = [_match(part, node.var, gathers=True) for part in parts]
    known = [one for one in found if one is not None]
    stored = {one.store.buffer.data for one in known}
    same = len({one.store.buffer.dtype.bits for one in known}) == 1
    if len(known) < len(found) or len(stored) < len(found) or not same:
        return []
    nodes = {node for one in known for node in walk_exprs(one.value)}
    loads = [node for node in nodes if isinstance(node, BufferLoad)]
    gathers = sum(map(is_gathered, loads))
    work = sum(isinstance(node, (BinaryOp, Call)) and node.dtype.is_float for node in nodes)
    read = {load.buffer.data for load in loads}
    return known if stored.isdisjoint(read) and work >= WORTH * gathers else []


def match_reduction(node: For) -> Reduction | None:
    """The loop as a reduction in one element; None for another loop."""
    return _match(node.body, node.var)


def _match(store: Stmt, var: Var, gathers: bool = False) -> Reduction | None:
    if not isinstance(store, BufferStore) or store.predicate is not None or len(store.indices) != 1:
        return None
    index, whole = store.indices[0], store.value
    if store.buffer.dtype.scalar not in _TYPES or not isinstance(whole, (Max, Min, Add)):
        return None
    if var in free_vars(index) or loads_of(index):
        return None
    for element, value in ((whole.a, whole.b), (whole.b, whole.a)):
        if not isinstance(element, BufferLoad) or element.buffer is not store.buffer:
            continue
        if element.indices == store.indices and is_input(value, store, var, gathers):
            return Reduction(store, type(whole), element, value)
    return None


def is_input(value: Expr, store: BufferStore, var: Var, gathers: bool) -> bool:
    """Whether a value runs along memory that the store leaves as it is.

    Args:
        gathers: whether it may also lie at places that such memory says.
    """
    loads = loads_of(value)
    if any(x.buffer.data is store.buffer.data or x.predicate is not None for x in loads):
        return False
    forms = [linear_address(x.indices[0]).terms for x in loads if len(x.indices) == 1]
    inside = [t for form in forms for t in form if t is not var]
    if gathers:
        inside = [t for t in inside if not isinstance(_uncast(t), BufferLoad)]
    steps = [form.get(var, 0) for form in forms]
    whole = len(forms) == len(loads) and not any(var in free_vars(t) for t in inside)
    return whole and 1 in steps and set(steps) <= {0, 1}


def _uncast(expr: Expr) -> Expr:
    while isinstance(expr, Cast):
        expr = expr.value
    return expr


def is_gathered(load: BufferLoad) -> bool:
    """Whether memory says where a load lies."""
    return any(map(loads_of, load.indices))

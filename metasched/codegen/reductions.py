"""Reductions along memory in serial loops: one result in each lane, then one of the lanes.

    for p in range(a, b): m = max(m, X[p])

The order of the values does not matter: of floats, NaN propagates through a maximum, and of two
zeros the result may be either; integers wrap; floats are summed in lanes under `reassoc` only. LLVM
keeps the order of a maximum of floats, so each iteration would wait for the one before. It also
needs long loops: its vectors hold four registers, and shorter rows run one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from metasched.arith.affine import linear_address
from metasched.codegen.arithmetic import binary, compare, select
from metasched.codegen.chunks import loop_over_chunks
from metasched.codegen.emit import Emitter, Lane, SerialLoop
from metasched.codegen.fold import tree
from metasched.codegen.memory import store
from metasched.codegen.types import register_type
from metasched.codegen.values import Val, literal
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import GE, Add, BinaryOp, Expr, FloorDiv, Max, Min, Mul, Sub, Var
from metasched.ir.stmt import BufferStore, For
from metasched.ir.visit import free_vars, loads_of

REGISTERS = 4
"""The registers of results in a long loop: each result waits for the one before."""
LEAST = 4
"""The fewest steps of so many registers, whose lanes take long to combine."""
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
    if found is None or not plain(found.value):
        return False
    known = None if extent.const is None else int(extent.const)
    if found.kind is Add and (known is not None or not _any_order(e, found)):
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


def _any_order(e: Emitter, found: Reduction) -> bool:
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
    buffer, index = found.store.buffer, found.store.indices[0]
    kind, slot = register_type(buffer.dtype, lanes), e.fresh("results")
    e.allocas.append(f"{slot} = alloca {kind}")  # LLVM keeps it in registers
    before = e.value(found.element)
    start = literal(0, buffer.dtype) if found.kind is Add else before
    e.line(f"store {e.widen(start, lanes).typed}, ptr {slot}")

    def vector(base: Val) -> None:
        e.lane = Lane(node.var, base, lanes)
        value = e.widen(e.value(found.value), lanes)
        e.lane = None
        results = e.inline(f"load {kind}, ptr {slot}", buffer.dtype, lanes)
        e.line(f"store {binary(e, found.kind, results, value).typed}, ptr {slot}")

    loop_over_chunks(e, node, vectors, lanes, vector, serial_loop)
    result = tree(e, found.kind, e.inline(f"load {kind}, ptr {slot}", buffer.dtype, lanes))
    if found.kind is Add:
        result = binary(e, Add, before, result)
    store(e, buffer, index, result, None)


def match_reduction(node: For) -> Reduction | None:
    """The loop as a reduction in one element; None for another loop."""
    store = node.body
    if not isinstance(store, BufferStore) or store.predicate is not None or len(store.indices) != 1:
        return None
    index, whole = store.indices[0], store.value
    if store.buffer.dtype.scalar not in _TYPES or not isinstance(whole, (Max, Min, Add)):
        return None
    if node.var in free_vars(index) or loads_of(index):
        return None
    for element, value in ((whole.a, whole.b), (whole.b, whole.a)):
        if not isinstance(element, BufferLoad) or element.buffer is not store.buffer:
            continue
        if element.indices == store.indices and _is_input(value, store, node.var):
            return Reduction(store, type(whole), element, value)
    return None


def _is_input(value: Expr, store: BufferStore, var: Var) -> bool:
    """Whether a value runs along memory that the store leaves as it is."""
    loads = loads_of(value)
    if any(x.buffer.data is store.buffer.data or x.predicate is not None for x in loads):
        return False
    forms = [linear_address(x.indices[0]).terms for x in loads if len(x.indices) == 1]
    inside = [t for form in forms for t in form if t is not var]
    steps = [form.get(var, 0) for form in forms]
    whole = len(forms) == len(loads) and not any(var in free_vars(t) for t in inside)
    return whole and 1 in steps and set(steps) <= {0, 1}

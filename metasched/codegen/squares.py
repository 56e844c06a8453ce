"""Squares: lanes that each walk along memory of their own in a serial loop.

    for j in T.vectorized(16):
        for k in range(64): s[j] = s[j] + A[p[j], k] * x[k]

Step by step, a vector of A takes a load for each lane. Here the loop takes four steps at once: one
load gives four steps of a lane, and exchanges in registers turn 16 such rows into the vectors of
the four steps. The steps keep their order, so each lane rounds as before. Of bytes, a load gives
eight steps. Rows that lie a multiple of 4,096 bytes apart share a set of the cache, which holds the
lines of eight rows: there a load gives the steps of a whole line, as many as a vector has lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import gcd

from metasched.analysis.access import STEPS
from metasched.arith.affine import linear_address
from metasched.codegen.arithmetic import binary, compare, select
from metasched.codegen.chunks import loop_over_chunks
from metasched.codegen.emit import Emitter, Lane, SerialLoop
from metasched.codegen.exchange import exchanged
from metasched.codegen.in_memory import from_memory
from metasched.codegen.memory import pointers
from metasched.codegen.places import lane_offsets, place_of
from metasched.codegen.types import memory_type, stored_type
from metasched.codegen.values import Val, literal
from metasched.ir.buffer import BufferLoad
from metasched.ir.dtype import BOOL, INT64
from metasched.ir.expr import GE, Add, Expr, FloorDiv, Mul, Var
from metasched.ir.stmt import For, ForKind
from metasched.ir.visit import free_vars, transform
from metasched.lower.passes.walk import walking_loads

_LANES = (4, 8, 16, 32, 64)
_MOST_LOADS = 4
"""The most loads whose steps wait in registers."""
_LINE, _SETS, _WAYS = 64, 64, 8
"""The bytes of a line, the sets, and the lines of a set of a first-level cache of 32 KiB."""


def emit_squares(e: Emitter, node: For, extent: Val, serial_loop: SerialLoop) -> bool:
    """Emit a serial loop inside of lanes by squares if it has this form; returns whether it was
    emitted."""
    lane, known = e.lane, extent.const
    if lane is None or lane.lanes not in _LANES or extent.lanes > 1:
        return False
    if (known is not None and known < STEPS) or (e.mask is not None and e.mask.lanes == 1):
        return False
    ordered = node.kind in (ForKind.SERIAL, ForKind.UNROLLED)
    loads = walking_loads(node, lane.var, partial(_varies, e, lane)) if ordered else []
    if not 0 < len(loads) <= _MOST_LOADS:
        return False
    size = _size(e, loads, lane, known)
    count = binary(e, FloorDiv, extent, literal(size))
    left = binary(e, Mul, count, literal(size))
    done = _enter(e, extent, size)
    with e.bound(node.var, literal(0, node.var.dtype)):
        rows = [_rows(e, load) for load in loads]
    columns = {load: Var("column", load.dtype) for load in loads}
    body = transform(
        node.body, on_expr=lambda x: columns.get(x) if isinstance(x, BufferLoad) else None
    )

    def steps(base: Val) -> None:
        squares = [_square(e, load, r, base, size) for load, r in zip(loads, rows, strict=True)]
        before = dict(e.env)
        for step, values in enumerate(zip(*squares, strict=True)):
            e.env.update(zip(columns.values(), values, strict=True))
            with e.bound(node.var, binary(e, Add, base, literal(step))):
                e.statement(body)
        e.env = before

    if count.const == 1:
        steps(literal(0))
    else:
        loop_over_chunks(e, node, (literal(0), count), size, steps, serial_loop)
    if done is not None:
        e.branch(done)
        e.label(done)
    if left.const is None or left.const != known:
        serial_loop(e, node, left, extent)
    return True


def _size(e: Emitter, loads: Sequence[BufferLoad], lane: Lane, known: int | float | None) -> int:
    """How many steps a load gives: more than four of bytes, and where the lines that hold the rows
    of all lanes displace each other in the cache before their other steps are loaded."""
    size = STEPS
    if lane.lanes > STEPS and all(load.buffer.dtype.bits == 8 for load in loads):
        size = 2 * STEPS
    elif any(_displaced(e, load, lane) for load in loads):
        whole = _LINE // max(load.buffer.dtype.bytes for load in loads)
        size = max(STEPS, min(lane.lanes // len(loads), whole))
    return size if known is None or known >= size else STEPS


def _displaced(e: Emitter, load: BufferLoad, lane: Lane) -> bool:
    """Whether the rows of all lanes begin in few sets of a cache of the first level."""
    terms = linear_address(load.indices[0]).terms.items()
    apart = gcd(*[by for atom, by in terms if _varies(e, lane, atom)]) * load.buffer.dtype.bytes
    sets = _SETS // gcd(_SETS, apart // _LINE) if apart % _LINE == 0 else _SETS
    return lane.lanes > _WAYS // 2 * sets


def _varies(e: Emitter, lane: Lane, atom: Expr) -> bool:
    """Whether a part of an address may differ between lanes."""
    values = (e.env.get(v) for v in free_vars(atom))
    return lane.var in free_vars(atom) or any(v is not None and v.lanes > 1 for v in values)


def _enter(e: Emitter, extent: Val, size: int) -> str | None:
    """Go on where there are enough steps, and an active lane; gives the label behind the squares,
    or None if both are certain."""
    runs = None if extent.const is not None else compare(e, GE, extent, literal(size))
    if e.mask is not None:
        name = f"llvm.vector.reduce.or.v{e.mask.lanes}i1"
        some = e.intrinsic(name, BOOL, 1, e.mask)
        runs = some if runs is None else e.both(runs, some)
    if runs is None:
        return None
    yes, done = e.fresh_label("squares"), e.fresh_label("squared")
    e.branch_if(runs, yes, done)
    e.label(yes)
    return done


def _rows(e: Emitter, load: BufferLoad) -> list[Val]:
    """Where the row of each lane begins; a lane that is switched off has the row of an active
    lane."""
    where = place_of(e, load.buffer, load.indices[0])
    if e.mask is not None:
        offsets = where.indices or lane_offsets(e, where.lanes, where.stride)
        active = select(e, e.mask, offsets, literal(-1 << 63, INT64, where.lanes))
        name = f"llvm.vector.reduce.smax.v{where.lanes}i64"
        some = e.widen(e.intrinsic(name, INT64, 1, active), where.lanes)
        where = replace(where, indices=select(e, e.mask, offsets, some))
    starts = pointers(e, load.buffer.dtype, where)
    return [e.extract(starts, n) for n in range(starts.lanes)]


def _square(e: Emitter, load: BufferLoad, rows: Sequence[Val], base: Val, size: int) -> list[Val]:
    """The vectors of `size` steps from `base` on, from a load of these steps for each lane."""
    dtype, text = load.buffer.dtype, memory_type(load.buffer.dtype)
    e.known_memory.touched(load.buffer.data, written=False)
    found = []
    for row in rows:
        place = e.inline(f"getelementptr {text}, ptr {row.text}, {base.typed}", INT64).text
        line = f"load {memory_type(dtype, size)}, ptr {place}, align {dtype.bytes}"
        found.append(e.inline(line, stored_type(dtype), size))
    lanes = exchanged(e, [e.joined(found[n::size]) for n in range(size)])
    return [from_memory(e, Val(v.text, dtype, v.lanes)) for v in lanes]

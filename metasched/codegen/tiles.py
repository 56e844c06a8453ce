"""AMX tile instructions: matrix products, which are operations on values in LLVM.

LLVM chooses the tile registers and configures them. Operands whose rows lie in memory are loaded
with the row stride, once for all products of a basic block. A result is a vector, which LLVM keeps
in a tile across a loop where a tile instruction has loaded it before (see `lower.passes.tiles`).

A process needs Linux's permission to use tiles. Kernels ask for it at their first call, and return
a failure if it is refused.
"""

from __future__ import annotations

from dataclasses import replace

from metasched.arith.affine import linear_address
from metasched.codegen.emit import Emitter
from metasched.codegen.in_memory import to_memory
from metasched.codegen.places import place_of
from metasched.codegen.types import register_type
from metasched.codegen.values import Val
from metasched.ir.buffer import BufferLoad
from metasched.ir.dtype import INT32, DType
from metasched.ir.expr import Expr
from metasched.ir.op import Call, Ramp, Shuffle
from metasched.ir.stmt import BufferStore
from metasched.lower.passes.tiles import TILES

ROWS, _BYTES, _LANES = 16, 64, 256
_SHAPE = f"i16 {ROWS}, i16 {_BYTES}"
WORDS = f"<{_LANES} x i32>"
_LOAD = "llvm.x86.tileloadd64.internal"
_INTO = "llvm.x86.cast.vector.to.tile.v256i32"
_FROM = "llvm.x86.cast.tile.to.vector.v256i32"
TILES_REFUSED = "the system lets this process use AMX's tiles (arch_prctl)"
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18  # Linux's numbers on x86-64


def tile_copy(e: Emitter, node: BufferStore) -> Val | None:
    """The value of a store that loads a tile into the scope of tiles, by a tile instruction; None
    for other stores."""
    source = node.value
    if node.buffer.scope != TILES or not isinstance(source, BufferLoad) or e.mask is not None:
        return None
    index = source.indices[0]
    if not isinstance(index, Ramp) or index.lanes != _LANES or node.predicate is not None:
        return None
    e.module.uses_tiles = True
    e.known_memory.touched(source.buffer.data, written=False)
    pointer = place_of(e, source.buffer, index.base).pointer.text
    words = _call(e, _FROM, WORDS, ("x86_amx", _load(e, pointer, _BYTES).text))
    return _as_type(e, words, node.buffer.dtype)


def tile_product(e: Emitter, name: str, node: Call) -> Val:
    """Emit C + A * B by the instruction `name`; the call has operands C, A, B after the name."""
    e.module.uses_tiles = True
    acc, *factors = node.args[1:]
    before = e.value(acc)
    words = e.inline(f"bitcast {before.typed} to {WORDS}", INT32, _LANES)
    operands = [_call(e, _INTO, "x86_amx", (WORDS, words.text))]
    operands += [_loaded(e, factor) for factor in factors]
    e.module.declare(name, f"x86_amx @{name}(i16, i16, i16, x86_amx, x86_amx, x86_amx)")
    tiles = ", ".join(f"x86_amx {operand.text}" for operand in operands)
    text = f"call x86_amx @{name}({_SHAPE}, i16 {_BYTES}, {tiles})"
    product = e.inline(text, INT32, _LANES)
    found = _call(e, _FROM, WORDS, ("x86_amx", product.text))
    return _as_type(e, found, node.dtype.scalar)


def _as_type(e: Emitter, words: Val, dtype: DType) -> Val:
    kind = register_type(dtype, _LANES)
    return e.inline(f"bitcast {WORDS} {words.text} to {kind}", dtype, _LANES)


def _call(e: Emitter, name: str, result: str, operand: tuple[str, str]) -> Val:
    e.module.declare(name, f"{result} @{name}({operand[0]})")
    return e.inline(f"call {result} @{name}({operand[0]} {operand[1]})", INT32, _LANES)


def _loaded(e: Emitter, factor: Expr) -> Val:
    """Load a factor as a tile: directly if its rows lie at equal distances in memory, else through
    the stack."""
    rows = _rows(factor) if e.mask is None and e.lane is None else None
    if rows is not None:
        first, distance = rows
        index = first.indices[0]
        where = place_of(e, first.buffer, index.base if isinstance(index, Ramp) else index)
        if where.spot is None:
            e.known_memory.touched(first.buffer.data, written=False)
            return _load(e, where.pointer.text, distance)
        spot = replace(where.spot, base=f"{where.spot.base}, rows {distance} bytes apart")
        known = e.known_memory.find(spot)
        if known is None:
            known = _load(e, where.pointer.text, distance)
            e.known_memory.loaded(spot, known)
        return known
    value = e.value(factor)
    pointer = e.fresh("tile")
    e.allocas.append(f"{pointer} = alloca [{ROWS * _BYTES} x i8], align 64")
    e.line(f"store {to_memory(e, value)}, ptr {pointer}, align 64")
    return _load(e, pointer, _BYTES)


def _load(e: Emitter, pointer: str, distance: int) -> Val:
    """Load a tile of rows that lie `distance` bytes apart."""
    e.module.declare(_LOAD, f"x86_amx @{_LOAD}(i16, i16, ptr, i64)")
    text = f"call x86_amx @{_LOAD}({_SHAPE}, ptr {pointer}, i64 {distance})"
    return e.inline(text, INT32, _LANES)


def _rows(factor: Expr) -> tuple[BufferLoad, int] | None:
    """The first of sixteen rows in memory and their distance in bytes; None for other values."""
    if not isinstance(factor, Shuffle) or len(factor.vectors) != ROWS:
        return None
    loads = [v for v in factor.vectors if isinstance(v, BufferLoad) and len(v.indices) == 1]
    if len(loads) < ROWS or factor.indices != tuple(range(factor.dtype.lanes)):
        return None
    starts = []
    for load in loads:
        index = load.indices[0]
        if load.buffer is not loads[0].buffer or not isinstance(index, Ramp):
            return None
        starts.append(linear_address(index.base))
    step = starts[1].const - starts[0].const
    for number, start in enumerate(starts):
        if start.terms != starts[0].terms or start.const != starts[0].const + number * step:
            return None
    return loads[0], step * loads[0].buffer.dtype.bytes


def tile_step(name: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """What a loop of products by the instruction `name` is made of, for its peak rate.

    Returns the declarations; the lines that compute %y{s} from %x{s} and the operands %o0 and %o1;
    and the lines that load `{name}` as a tile from `{at}`. All values have the type `WORDS`.
    """
    product = f"x86_amx @{name}({_SHAPE}, i16 {_BYTES}, x86_amx %c{{s}}, x86_amx %a{{s}}, "
    declared = (
        f"declare x86_amx @{_LOAD}(i16, i16, ptr, i64)",
        f"declare x86_amx @{_INTO}({WORDS})",
        f"declare {WORDS} @{_FROM}(x86_amx)",
        f"declare x86_amx @{name}(i16, i16, i16, x86_amx, x86_amx, x86_amx)",
        "declare i64 @syscall(i64, ...)",
    )
    lines = (
        *(f"{tile}{{s}} = call x86_amx @{_INTO}({WORDS} {value})"
          for tile, value in (("%c", "%x{s}"), ("%a", "%o0"), ("%b", "%o1"))),
        f"%t{{s}} = call {product}x86_amx %b{{s}})",
        f"%y{{s}} = call {WORDS} @{_FROM}(x86_amx %t{{s}})",
    )  # fmt: skip
    load = (
        f"{{name}}.t = call x86_amx @{_LOAD}({_SHAPE}, ptr {{at}}, i64 {_BYTES})",
        f"{{name}} = call {WORDS} @{_FROM}(x86_amx {{name}}.t)",
    )
    return "\n".join(declared), lines, load


def guarded(name: str, parameters: list[str], attribute: str, code: int) -> dict[str, str]:
    """The texts, by name, of the kernel and of the function that asks for permission to use tiles.

    The kernel calls NAME.tiles with the permission, and returns `code` without it.
    """
    plain = ", ".join(p.replace(" noalias", "") for p in parameters)
    kernel = [
        f"define i32 @{name}({plain}) noinline {attribute} {{",
        f"%granted = call i1 @{name}.granted()", "br i1 %granted, label %run, label %refused",
        "run:", f"%result = call i32 @{name}.tiles({plain})", "ret i32 %result",
        "refused:", f"ret i32 {code}", "}",
    ]  # fmt: skip
    ask = [
        f"@{name}.asked = internal global i32 0",
        f"define internal i1 @{name}.granted() noinline nounwind {{",
        f"%before = load atomic i32, ptr @{name}.asked monotonic, align 4",
        "%known = icmp ne i32 %before, 0", "br i1 %known, label %yes, label %ask",
        "ask:",
        "%code = call i64 (i64, ...) @syscall"
        f"(i64 {_ARCH_PRCTL}, i64 {_REQUEST}, i64 {_TILE_DATA})",
        "%good = icmp eq i64 %code, 0", "br i1 %good, label %now, label %no",
        "now:", f"store atomic i32 1, ptr @{name}.asked monotonic, align 4", "br label %yes",
        "yes:", "ret i1 true", "no:", "ret i1 false", "}",
    ]  # fmt: skip
    return {f"{name}.guarded": "\n".join(kernel), f"{name}.granted": "\n".join(ask)}

"""One rule for each kind of statement: (emitter, node) -> None."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from metasched.codegen.arithmetic import binary, convert, negate
from metasched.codegen.chunks import Chunk, emit_chunk
from metasched.codegen.columns import stores_of_columns
from metasched.codegen.emit import Emitter
from metasched.codegen.expressions import flat_index, is_cut
from metasched.codegen.interleaved import together
from metasched.codegen.loops import emit_for
from metasched.codegen.memory import store, store_together
from metasched.codegen.side_by_side import Registers, emit_registers
from metasched.codegen.signature import OUT_OF_MEMORY
from metasched.codegen.team import Together, emit_together
from metasched.codegen.tiles import tile_copy
from metasched.codegen.types import memory_type
from metasched.codegen.values import Val, literal
from metasched.errors import BuildError
from metasched.ir.describe import show_expr
from metasched.ir.dtype import HANDLE, INT64
from metasched.ir.expr import Expr, IntImm, Max, Mul, Var
from metasched.ir.op import Call
from metasched.ir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    Block,
    BlockRealize,
    Break,
    BufferStore,
    Continue,
    DeclBuffer,
    Evaluate,
    For,
    IfThenElse,
    LetStmt,
    Return,
    SeqStmt,
    Stmt,
    While,
)  # fmt: skip
from metasched.ir.visit import free_vars, walk_exprs, walk_stmts
from metasched.lower.passes.tiles import TILES

_STACK_BUFFER = 64 << 10
_STACK_FUNCTION = 256 << 10


def _seq(e: Emitter, node: SeqStmt) -> None:
    done = 0
    while done < len(node.items):
        stores = together(e, node.items, done) or stores_of_columns(e, node.items, done)
        if stores:
            store_together(e, stores)
        else:
            e.statement(node.items[done])
        done += max(1, len(stores))


def _store(e: Emitter, node: BufferStore) -> None:
    tile = tile_copy(e, node)
    value = e.value(node.value) if tile is None else tile
    mask = e.mask
    if node.predicate is not None:
        predicate = e.value(node.predicate)
        mask = predicate if mask is None else e.both(*e.same_lanes(mask, predicate))
    store(e, node.buffer, flat_index(node.buffer, node.indices), value, mask)


def _evaluate(e: Emitter, node: Evaluate) -> None:
    value = node.value
    if isinstance(value, Call) and value.op.name == "ret":
        _leave(e, 0)
    elif not isinstance(value, IntImm):
        e.value(value)


def _let(e: Emitter, node: LetStmt) -> None:
    around = e.unfused
    e.unfused |= node.var.dtype.is_float and _is_cut(node.body, node.var)
    value = e.value(node.value)
    e.unfused = around
    if node.var.dtype.is_handle:
        e.pointers[node.var] = value
        e.known_memory.clear()
        e.known_memory.disabled = True  # two buffers may share memory
        e.statement(node.body)
        return
    with e.bound(node.var, value):
        e.statement(node.body)


def _is_cut(body: Stmt, var: Var) -> bool:
    """Whether a variable of a float, or one computed from it, is cut to an index: it is rounded as
    such a value is where no variable stands for it (see `expressions`)."""
    names = {var}
    for stmt in walk_stmts(body):
        if isinstance(stmt, LetStmt) and not names.isdisjoint(free_vars(stmt.value)):
            names |= {stmt.var} if stmt.var.dtype.is_float else set()
        for node in (x for e in stmt.exprs for x in walk_exprs(e)):
            if is_cut(node) and not names.isdisjoint(free_vars(node)):
                return True
    return False


def _if(e: Emitter, node: IfThenElse) -> None:
    condition = e.value(node.condition)
    if condition.const is not None:
        chosen = node.then if condition.const else node.orelse
        if chosen is not None:
            e.statement(chosen)
    elif condition.lanes > 1:
        with e.masked(condition):
            e.statement(node.then)
        if node.orelse is not None:
            with e.masked(negate(e, condition)):
                e.statement(node.orelse)
    else:
        _branch(e, condition, node)


def _branch(e: Emitter, condition: Val, node: IfThenElse) -> None:
    then, done = e.fresh_label("then"), e.fresh_label("done")
    other = e.fresh_label("else") if node.orelse is not None else done
    e.branch_if(condition, then, other)
    e.label(then)
    e.statement(node.then)
    e.branch(done)
    if node.orelse is not None:
        e.label(other)
        e.statement(node.orelse)
        e.branch(done)
    e.label(done)


def _while(e: Emitter, node: While) -> None:
    head, body, done = e.fresh_label("while"), e.fresh_label("do"), e.fresh_label("end")
    e.branch(head)
    e.label(head)
    with e.scope():
        condition = e.value(node.condition)
        e.branch_if(condition, body, done)
        e.label(body)
        e.loops.append((head, done))
        e.statement(node.body)
        e.loops.pop()
        e.branch(head)
    e.label(done)


def _jump(which: int) -> Callable[[Emitter, Stmt], None]:
    def rule(e: Emitter, node: Stmt) -> None:
        if not e.loops:
            raise BuildError(f"{type(node).__name__.lower()} outside a serial loop")
        e.branch(e.loops[-1][which])
        e.label(e.fresh_label("after"))

    return rule


def _leave(e: Emitter, code: int) -> None:
    e.line(f"store i32 {code}, ptr %rc")
    e.branch("exit")
    e.label(e.fresh_label("after"))


def _return(e: Emitter, node: Return) -> None:
    if node.value is not None and not isinstance(node.value, IntImm):
        raise BuildError(
            f"a kernel returns nothing, the program returns {show_expr(node.value)}; store it in a "
            "parameter, such as Y: T.Buffer((1,))"
        )
    _leave(e, 0)


def _assert(e: Emitter, node: AssertStmt) -> None:
    condition = e.value(node.condition)
    if condition.const:
        return
    bad, good = e.fresh_label("failed"), e.fresh_label("held")
    e.branch_if(condition, good, bad)
    e.label(bad)
    code = e.module.message_code(node.message)
    if node.values:
        _record(e, code, node.values)
    e.line(f"store i32 {code}, ptr %rc")
    e.branch("exit")
    e.label(good)


def _record(e: Emitter, code: int, values: Sequence[Expr]) -> None:
    """Write the values of a failed assertion to the failure record. If several threads fail, the
    first thread writes."""
    record = e.module.record(len(values))
    pair, first = e.fresh(), e.fresh()
    keep, done = e.fresh_label("keep"), e.fresh_label("kept")
    e.line(f"{pair} = cmpxchg ptr {record}, i64 0, i64 {code} monotonic monotonic")
    e.line(f"{first} = extractvalue {{ i64, i1 }} {pair}, 1")
    e.line(f"br i1 {first}, label %{keep}, label %{done}")
    e.label(keep)
    for n, value in enumerate(values, 1):
        number, place = e.value(value), e.fresh()
        e.line(f"{place} = getelementptr i64, ptr {record}, i64 {n}")
        e.line(f"store {number.typed}, ptr {place}")
    e.branch(done)
    e.label(done)


def _attr(e: Emitter, node: AttrStmt) -> None:
    if node.key == "pragma_auto_unroll_max_step" and isinstance(node.value, IntImm):
        before, e.unroll_steps = e.unroll_steps, node.value.value
        e.statement(node.body)
        e.unroll_steps = before
        return
    if node.key in ("thread_extent", "virtual_thread"):
        raise BuildError(f"threads of {node.node} have no code on {e.module.kind} targets")
    e.statement(node.body)


# -- allocation


def _allocate(e: Emitter, node: Allocate) -> None:
    """Allocate a buffer: a small constant size on the stack (LLVM promotes it to registers), others
    on the heap."""
    buffer = node.buffer
    e.elements[buffer.data] = buffer.dtype
    prefix = buffer.scope.split(".")[0]
    tiles = buffer.scope == TILES and "amx-tile" in e.module.features
    if prefix not in ("global", "local", "") and not tiles:
        raise BuildError(f"buffer {buffer.name}: scope {buffer.scope} has no memory on "
                         f"{e.module.kind} targets")  # fmt: skip
    element = memory_type(buffer.dtype)
    count = e.value(buffer.shape[0]) if buffer.shape else literal(1)
    if count.const is not None:
        size = int(count.const) * buffer.dtype.bytes
        if size <= _STACK_BUFFER and e.stack_bytes + size <= _STACK_FUNCTION:
            e.stack_bytes += size
            name = e.fresh("stack")
            e.allocas.append(f"{name} = alloca [{max(int(count.const), 1)} x {element}], align 64")
            # This use, neither load nor store, keeps SROA of LLVM 22 from joining adjacent stored
            # vectors. SROA joins them at the store to the highest address, even when the other
            # vectors are stored later.
            start = "llvm.lifetime.start.p0"
            e.module.declare(start, f"void @{start}(i64, ptr)")
            e.allocas.append(f"call void @{start}(i64 -1, ptr {name})")
            e.pointers[buffer.data] = Val(name, HANDLE, 1, 0)
            e.stack[name] = int(count.const)
            e.statement(node.body)
            return
    bytes_needed = binary(e, Mul, convert(e, count, INT64), literal(buffer.dtype.bytes))
    if count.const is None:  # an extent below zero has no elements
        bytes_needed = binary(e, Max, bytes_needed, literal(0))
    if bytes_needed.depth == 0:
        e.pointers[buffer.data] = _heap_at_entry(e, bytes_needed)
        e.statement(node.body)
    else:
        slot, pointer = _heap(e, bytes_needed, e.scopes[-1].lines)
        e.pointers[buffer.data] = pointer
        e.statement(node.body)
        e.line(f"call void @free(ptr {pointer.text})")
        e.line(f"store ptr null, ptr {slot}")


def _heap_at_entry(e: Emitter, size: Val) -> Val:
    """Allocate heap memory once for each call of the function, even for an allocation inside a
    loop."""
    block = e.block
    pointer = _heap(e, size, e.scopes[0].entry)[1]
    e.block = block
    pointer.depth = 0
    return pointer


def _heap(e: Emitter, size: Val, lines: list[str]) -> tuple[str, Val]:
    """Allocate heap memory: gives the slot that is freed at exit, and the pointer. The emitted
    function returns a failure if there is no memory."""
    e.module.declare("aligned_alloc", "noalias ptr @aligned_alloc(i64, i64)", "nounwind")
    e.module.declare("free", "void @free(ptr)", "nounwind")
    slot, pointer, up, whole = e.fresh("slot"), e.fresh("heap"), e.fresh(), e.fresh()
    null, bad, good = e.fresh(), e.fresh_label("full"), e.fresh_label("got")
    e.allocas.append(f"{slot} = alloca ptr")
    e.allocas.append(f"store ptr null, ptr {slot}")
    e.heap.append(slot)
    lines += [
        f"{up} = add i64 {size.text}, 127",
        f"{whole} = and i64 {up}, -64",
        f"{pointer} = call noalias align 64 ptr @aligned_alloc(i64 64, i64 {whole})",
        f"store ptr {pointer}, ptr {slot}",
        f"{null} = icmp eq ptr {pointer}, null",
        f"br i1 {null}, label %{bad}, label %{good}",
        f"{bad}:",
        f"store i32 {OUT_OF_MEMORY}, ptr %rc",
        "br label %exit",
        f"{good}:",
    ]
    e.block = good
    return slot, Val(pointer, HANDLE)


def _declare_view(e: Emitter, node: DeclBuffer) -> None:
    pointer = e.pointers.get(node.source.data)
    if pointer is None:
        raise BuildError(f"{node.buffer.name} views {node.source.name}, which is not allocated")
    if node.buffer.data not in e.pointers:
        e.pointers[node.buffer.data] = pointer
    e.statement(node.body)


def _block(e: Emitter, node: Block | BlockRealize) -> None:
    raise BuildError("a block reached code generation: the function is not lowered")


STATEMENT_RULES: dict[type[Stmt], Callable[[Emitter, Any], None]] = {
    SeqStmt: _seq, For: emit_for, While: _while, Break: _jump(1), Continue: _jump(0),
    Return: _return, IfThenElse: _if, BufferStore: _store, Evaluate: _evaluate, LetStmt: _let,
    AttrStmt: _attr, AssertStmt: _assert, Allocate: _allocate, DeclBuffer: _declare_view,
    BlockRealize: _block, Block: _block, Chunk: emit_chunk, Registers: emit_registers,
    Together: emit_together,
}  # fmt: skip

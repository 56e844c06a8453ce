"""Foreign calls of a program: calls of C functions, which a trace of another author may contain.

A user's own function may call any C function. A trace may come from elsewhere: its program may call
the C mathematics library, LLVM's intrinsics, and the functions that its user allows by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from metasched.errors import TraceError
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import Expr, StringImm
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.op import LIBM_SYMBOLS, Call
from metasched.ir.stmt import Allocate, Block, BlockRealize, BufferStore, DeclBuffer, Stmt
from metasched.ir.visit import walk, walk_exprs
from metasched.script.printer import script

_C = frozenset({"call_extern", "call_pure_extern"})
_LLVM = frozenset({"call_llvm_intrin", "call_llvm_pure_intrin", "tvm_call_intrin"})
_SHOWN = 200  # characters of a call in a message


def foreign_calls(source: PrimFunc | IRModule) -> dict[str, Call]:
    """The foreign functions that a program calls, each with its first call.

    Functions of the C mathematics library and LLVM's intrinsics are not among them: the compiler
    knows them by name, and they touch no memory.
    """
    found: dict[str, Call] = {}
    for func in IRModule.of(source).values():
        for expr in _exprs(func):
            if isinstance(expr, Call):
                name = _foreign_name(expr)
                if name is not None:
                    found.setdefault(name, expr)
    return found


def require_known_calls(
    source: PrimFunc | IRModule, allow: Iterable[str] | str, where: object
) -> None:
    """Refuse a program that calls foreign functions which are not allowed by name.

    Args:
        source: the program that a trace gave.
        allow: the names of foreign functions that the program may call.
        where: the trace, for the message.

    Raises TraceError naming the functions and showing the first call.
    """
    allowed = {allow} if isinstance(allow, str) else set(allow)
    calls = {name: call for name, call in foreign_calls(source).items() if name not in allowed}
    if not calls:
        return
    names = ", ".join(calls)
    shown = script(next(iter(calls.values())))
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    flags = " ".join(f"--allow-extern {name}" for name in calls)
    raise TraceError(
        f"{where}: its program calls foreign code: {names}\n    {shown}\n"
        f"hint: a trace from elsewhere may run anything this way; where you know what is called, "
        f"pass {flags} (allow_extern={tuple(calls)!r} in Python)"
    )


def _foreign_name(call: Call) -> str | None:
    """The foreign function that an expression calls, None when it calls none."""
    kind = call.op.name
    if kind not in _C and kind not in _LLVM and kind != "call_packed":
        return None
    first = call.args[0] if call.args else None
    name = first.value if isinstance(first, StringImm) else "?"
    known = name in LIBM_SYMBOLS if kind in _C else kind in _LLVM and name.startswith("llvm.")
    return None if known else name


def _exprs(func: PrimFunc) -> Iterator[Expr]:
    """Every expression of a function, those in the layout of its buffers included."""
    buffers: dict[Buffer, None] = dict.fromkeys(func.buffers)
    for node in walk(func.body):
        if isinstance(node, Expr):
            yield node
        if isinstance(node, Stmt):
            buffers.update(dict.fromkeys(_declared(node)))
        elif isinstance(node, BufferLoad):
            buffers[node.buffer] = None
    for buffer in buffers:
        offset = () if buffer.elem_offset is None else (buffer.elem_offset,)
        for expr in (*buffer.shape, *buffer.strides, *offset):
            yield from walk_exprs(expr)


def _declared(node: Stmt) -> Iterator[Buffer]:
    """The buffers that a statement declares or writes itself, without its children."""
    if isinstance(node, BlockRealize):
        yield from _declared(node.block)
    elif isinstance(node, Block):
        yield from node.alloc_buffers
        yield from (match.buffer for match in node.match_buffers)
        yield from (region.buffer for region in (*node.reads, *node.writes))
    elif isinstance(node, Allocate | DeclBuffer | BufferStore):
        yield node.buffer

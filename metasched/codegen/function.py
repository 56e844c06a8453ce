"""A lowered function as LLVM text: the kernel and its repeat function."""

from __future__ import annotations

from metasched.codegen.emit import Emitter, Rules
from metasched.codegen.expressions import EXPRESSION_RULES
from metasched.codegen.module import ModuleEmitter
from metasched.codegen.parameters import signature_of
from metasched.codegen.signature import Signature
from metasched.codegen.small_floats import widened
from metasched.codegen.statements import STATEMENT_RULES
from metasched.codegen.tiles import TILES_REFUSED, guarded
from metasched.codegen.types import held_as_float32, memory_type, register_type
from metasched.codegen.values import Val
from metasched.ir.buffer import Buffer
from metasched.ir.dtype import HANDLE, INT64
from metasched.ir.expr import Var
from metasched.ir.func import PrimFunc

RULES = Rules(EXPRESSION_RULES, STATEMENT_RULES)


def emit_function(
    module: ModuleEmitter, func: PrimFunc, lowered: PrimFunc, symbols: tuple[Var, ...], name: str,
    parallel: bool = True,
) -> Signature:  # fmt: skip
    """Add `lowered` to a module under the C name `name`; returns the signature of `func`.

    `symbols` are the 64-bit variables that replaced the shape variables during lowering.
    """
    e = Emitter(module, RULES, name, serial=not parallel, liberties=func.liberties)
    parameters = []
    for i, param in enumerate(func.params):
        if isinstance(param, Buffer):
            e.pointers[param.data] = Val(f"%p{i}", HANDLE, 1, 0)
            e.elements[param.data] = param.dtype
            parameters.append(f"ptr noalias %p{i}")
        else:
            parameters.append(_scalar_parameter(e, param, i))
    for i, symbol in enumerate(symbols):
        value = Val(f"%n{i}", INT64, 1, 0)
        value.nonneg = True
        e.env[symbol] = value
        parameters.append(f"i64 %n{i}")
    e.statement(lowered.body)
    inner = f"internal i32 @{name}.tiles" if module.uses_tiles else f"i32 @{name}"
    e.define(f"{inner}({', '.join(parameters)})")
    if module.uses_tiles:
        module.declare("syscall", "i64 @syscall(i64, ...)")
        code = module.message_code(TILES_REFUSED)
        module.definitions |= guarded(name, parameters, module.target_attribute, code)
    module.definitions[f"{name}_repeat"] = _repeat(module, name, parameters)
    return signature_of(func, lowered, name, tuple(module.messages))


def _scalar_parameter(e: Emitter, param: Var, position: int) -> str:
    """Read a scalar parameter: bool is passed as a byte, floats of 16 and 8 bits as their bits."""
    name = f"%p{position}"
    if param.dtype.is_handle:
        e.pointers[param] = Val(name, HANDLE, 1, 0)
        return f"ptr {name}"
    lines = e.scopes[0].entry
    held = Val(f"{name}.v", param.dtype, 1, 0)
    e.env[param] = held
    if param.dtype.is_bool:
        lines.append(f"{held.text} = icmp ne i8 {name}, 0")
        return f"i8 {name}"
    if param.dtype == "float16":
        lines.append(f"{held.text} = bitcast i16 {name} to half")
        return f"i16 {name}"
    if held_as_float32(param.dtype):
        e.env[param] = widened(e, Val(name, param.dtype, 1, 0))
        return f"{memory_type(param.dtype)} {name}"
    e.env[param] = Val(name, param.dtype, 1, 0)
    return f"{register_type(param.dtype)} {name}"


def _repeat(module: ModuleEmitter, name: str, parameters: list[str]) -> str:
    """Emit `NAME_repeat(..., n)`, which runs the kernel n times and stops at the first failure.

    Each run writes its results: LLVM must assume that they are read before the next run.
    """
    plain = [p.replace(" noalias", "") for p in parameters]
    arguments = ", ".join(plain)
    lines = [
        f"define i32 @{name}_repeat({', '.join([*plain, 'i64 %times'])}) "
        f"{module.target_attribute} {{",
        "entry:", "%any = icmp sgt i64 %times, 0", "br i1 %any, label %loop, label %done",
        "loop:", "%i = phi i64 [ 0, %entry ], [ %next, %again ]",
        f"%code = call i32 @{name}({arguments})",
        'call void asm sideeffect "", "~{memory}"()',
        "%failed = icmp ne i32 %code, 0", "br i1 %failed, label %done, label %again",
        "again:", "%next = add i64 %i, 1", "%more = icmp slt i64 %next, %times",
        "br i1 %more, label %loop, label %done",
        "done:", "%result = phi i32 [ 0, %entry ], [ %code, %loop ], [ 0, %again ]",
        "ret i32 %result", "}",
    ]  # fmt: skip
    return "\n".join(lines)

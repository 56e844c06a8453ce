"""Lowered functions as the text of an LLVM module: each kernel with its repeat function and
helpers."""

from __future__ import annotations

from metasched.codegen.emit import Emitter
from metasched.codegen.expressions import EXPRESSION_RULES
from metasched.codegen.signature import (
    FIRST_ASSERT,
    RECORD,
    BufferArg,
    Extent,
    ScalarArg,
    Signature,
)
from metasched.codegen.statements import STATEMENT_RULES
from metasched.codegen.tiles import TILES_REFUSED, guarded
from metasched.codegen.types import llvm_string, register_type
from metasched.codegen.values import Val
from metasched.errors import BuildError
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import HANDLE, INT64, DType
from metasched.ir.expr import (
    Add,
    BinaryOp,
    Cast,
    Expr,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Mul,
    Sub,
    Var,
)  # fmt: skip
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import BufferStore, DeclBuffer
from metasched.ir.visit import walk
from metasched.target import Cpu, Target


class ModuleEmitter:
    """Collects the functions, declarations and constants of one LLVM module.

    Attributes:
        externs: foreign symbols that the object will need.
        messages: texts of the assertions, by return code.
        recorded: length of the failure record in 64-bit numbers, including the assertion's code.
        uses_tiles: whether an instruction uses AMX tiles.
        has_fma: whether the target has fused multiply-adds.
        rounds_bfloat: whether the target has an instruction that rounds like `round_bfloat`.
    """

    def __init__(self, target: Target, name: str) -> None:
        if not isinstance(target, Cpu):
            raise BuildError(f"no code generation for {target.kind} targets: build for a CPU")
        self.kind = target.kind
        self.arch = target.arch
        self.cores = target.num_cores
        self.features = frozenset(target.features)
        self.has_fma = "fma" in self.features or target.arch == "aarch64"
        self.saturates_vectors = target.arch == "aarch64"
        # AVX512-BF16 treats subnormal numbers as zero.
        self.rounds_bfloat = target.arch == "aarch64" and "bf16" in self.features
        self.vector_bits = target.vector_bits or 128
        self.name = name
        self.expression_rules = EXPRESSION_RULES
        self.statement_rules = STATEMENT_RULES
        self.declarations: dict[str, str] = {}
        self.definitions: dict[str, str] = {}
        self.constants: list[str] = []
        self.externs: set[str] = set()
        self.uses_tiles = False
        self.messages: list[str] = []
        self.recorded = 0
        self._functions = 0
        self.target_attribute = (
            f'nounwind "no-trapping-math"="true" "prefer-vector-width"="{self.vector_bits}" '
            f'"min-legal-vector-width"="{self.vector_bits}"'
        )

    def declare(self, name: str, signature: str, attributes: str = "") -> None:
        """Declare a foreign function or intrinsic once; another signature of the same name is an
        error."""
        line = f"declare {signature} {attributes}".rstrip()
        known = self.declarations.setdefault(name, line)
        if known != line:
            raise BuildError(f"{name} is called with two signatures: {known}; {line}")

    def fresh_function(self, base: str) -> str:
        """A new function name."""
        self._functions += 1
        return f"{base}{self._functions}"

    def text_constant(self, text: str) -> Val:
        """The address of a zero-terminated text."""
        size = len(text.encode()) + 1
        name = f"@{self.name}.text{len(self.constants)}"
        self.constants.append(f'{name} = private constant [{size} x i8] c"{llvm_string(text)}\\00"')
        return Val(name, HANDLE, 1, 0)

    def message_code(self, message: str) -> int:
        """The return code of a failed assertion with this text."""
        if message not in self.messages:
            self.messages.append(message)
        return FIRST_ASSERT + self.messages.index(message)

    def record(self, values: int) -> str:
        """The memory in which a failed assertion stores its code and `values` numbers."""
        self.recorded = max(self.recorded, 1 + values)
        return f"@{self.name}{RECORD}"

    def add_function(self, head: str, e: Emitter) -> None:
        """Finish the function written by `e`: `define HEAD { ... }`, which returns its %rc."""
        root = e.scopes[0]
        frees = []
        for slot in e.heap:
            held = e.fresh()
            frees += [f"{held} = load ptr, ptr {slot}", f"call void @free(ptr {held})"]
        lines = [
            f"define {head} noinline {self.target_attribute} {{",
            "entry:", "%rc = alloca i32", "store i32 0, ptr %rc",
            *e.allocas, *root.entry, "br label %start", "start:",
            *filter(None, root.lines), "br label %exit", "exit:",
            *frees, "%result = load i32, ptr %rc", "ret i32 %result", "}",
        ]  # fmt: skip
        self.definitions[head] = "\n".join(lines)

    def text(self) -> str:
        """The whole module."""
        defined = [d for n, d in self.declarations.items() if n not in self.definitions]
        kept = f"@{self.name}{RECORD} = global [{self.recorded} x i64] zeroinitializer"
        head = [*self.constants, *([kept] if self.recorded else []), *defined]
        return "\n".join([*head, *self.definitions.values(), ""])


def emit_function(
    module: ModuleEmitter, func: PrimFunc, lowered: PrimFunc, symbols: tuple[Var, ...], name: str,
    parallel: bool = True,
) -> Signature:  # fmt: skip
    """Add `lowered` to a module under the C name `name`; returns the signature of `func`.

    `symbols` are the 64-bit variables that replaced the shape variables during lowering.
    """
    e = Emitter(module, name, serial=not parallel, liberties=func.liberties)
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
    module.add_function(f"{inner}({', '.join(parameters)})", e)
    if module.uses_tiles:
        module.declare("syscall", "i64 @syscall(i64, ...)")
        code = module.message_code(TILES_REFUSED)
        module.definitions |= guarded(name, parameters, module.target_attribute, code)
    module.definitions[f"{name}_repeat"] = _repeat(module, name, parameters)
    return signature_of(func, lowered, name, tuple(module.messages))


def _scalar_parameter(e: Emitter, param: Var, position: int) -> str:
    """Read a scalar parameter: bool is passed as a byte, 16-bit floats as their bits."""
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
    if param.dtype == "bfloat16":
        lines.append(f"{name}.w = zext i16 {name} to i32")
        lines.append(f"{name}.h = shl i32 {name}.w, 16")
        lines.append(f"{held.text} = bitcast i32 {name}.h to float")
        return f"i16 {name}"
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


# -- the signature


def shape_symbols(func: PrimFunc) -> tuple[Var, ...]:
    """Variables in the shapes and strides of buffers that are not parameters themselves, in order
    of appearance."""
    params = {p for p in func.params if isinstance(p, Var)}
    found: dict[Var, None] = {}
    for buffer in func.buffers:
        for extent in (*buffer.shape, *buffer.strides):
            for var in _vars_in_order(extent):
                if var not in params:
                    found[var] = None
    return tuple(found)


def _vars_in_order(expr: Expr) -> list[Var]:
    if isinstance(expr, Var):
        return [expr]
    return [v for child in expr.children for v in _vars_in_order(child)]


_SIGNS = {Add: "+", Sub: "-", Mul: "*", FloorDiv: "//", FloorMod: "%", Min: "min", Max: "max"}


def signature_of(
    func: PrimFunc, lowered: PrimFunc, symbol: str, messages: tuple[str, ...]
) -> Signature:
    """The C parameters of `func`; the lowered body tells which buffers are read and written."""
    read, written = _touched(lowered)
    names: dict[Var, str] = {}
    taken: set[str] = set()

    def unique(var: Var) -> str:
        if var not in names:
            name, n = var.name, 1
            while name in taken:
                name, n = f"{var.name}_{n}", n + 1
            taken.add(name)
            names[var] = name
        return names[var]

    for param in func.params:
        unique(param.data if isinstance(param, Buffer) else param)
    symbols = tuple(unique(v) for v in shape_symbols(func))

    def extent(expr: Expr) -> Extent:
        if isinstance(expr, IntImm):
            return expr.value
        if isinstance(expr, Var):
            return unique(expr)
        if isinstance(expr, Cast):
            return extent(expr.value)
        if isinstance(expr, BinaryOp) and type(expr) in _SIGNS:
            return (_SIGNS[type(expr)], extent(expr.a), extent(expr.b))
        raise BuildError(f"{type(expr).__name__} in the shape of a parameter")

    params: list[BufferArg | ScalarArg] = []
    for param in func.params:
        if isinstance(param, Var):
            params.append(ScalarArg(unique(param), str(param.dtype)))
            continue
        params.append(
            BufferArg(
                unique(param.data), str(DType(param.dtype)),
                tuple(extent(s) for s in param.shape),
                tuple(extent(s) for s in param.row_major_strides()),
                not param.strides, param.data in read, param.data in written,
            )
        )  # fmt: skip
    return Signature(symbol, tuple(params), symbols, messages)


def _touched(lowered: PrimFunc) -> tuple[set[Expr], set[Expr]]:
    """Data pointers read from and written to (taking an address counts as both)."""
    read: set[Expr] = set()
    written: set[Expr] = set()
    views: dict[Expr, Expr] = {}
    for node in walk(lowered.body):
        if isinstance(node, BufferLoad):
            read.add(node.buffer.data)
        elif isinstance(node, BufferStore):
            written.add(node.buffer.data)
        elif isinstance(node, DeclBuffer):
            views[node.buffer.data] = node.source.data
        elif isinstance(node, Call):
            touched: set[Expr] = {a for a in node.args if isinstance(a, Var) and a.dtype.is_handle}
            if node.op.name == "address_of":
                touched |= {a.buffer.data for a in node.args if isinstance(a, BufferLoad)}
            read |= touched
            written |= touched
    for view, source in views.items():
        read |= {source} if view in read else set()
        written |= {source} if view in written else set()
    return read, written

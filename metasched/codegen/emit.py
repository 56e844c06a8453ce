"""The text of one LLVM function under construction: values, scopes, hoisting, labels.

Every loop body is a scope with two lists of lines: its entry and its body. An instruction without
side effects goes to the entry of the outermost scope at whose entry all its operands are known.
Each distinct text is written once, so address arithmetic is hoisted and shared. Loads, stores,
calls and the instructions that depend on them are written in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from metasched.codegen.known_memory import KnownMemory
from metasched.codegen.module import ModuleEmitter
from metasched.codegen.types import register_type
from metasched.codegen.values import INLINE, Val, literal
from metasched.codegen.windows import Windows
from metasched.errors import BuildError
from metasched.ir.dtype import BOOL, DType
from metasched.ir.expr import Expr, Var
from metasched.ir.intern import LARGE, tree_size
from metasched.ir.stmt import For, Stmt

TRUE_VAL = literal(1, BOOL)
SerialLoop: TypeAlias = "Callable[[Emitter, For, Val, Val], None]"
"""Emits a loop, from its first value to its end, one iteration after another."""


@dataclass(slots=True)
class TextSection:
    """A stretch of LLVM text: its lines, and the values that are known in it."""

    entry: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    known: dict[str, Val] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lane:
    """The vectorized loop being emitted: its variable, first iteration, number of lanes and body
    (None for a loop that is emitted in another form)."""

    var: Var
    base: Val
    lanes: int
    body: Stmt | None = None


@dataclass(slots=True)
class Team:
    """The threads that run a function together (see `codegen.team`).

    Attributes:
        me, size: the number of a thread and of all threads, as values of the function.
        serial_loop: emits a loop that all threads run.
        read, written: the pointers that threads may have used since the last barrier.
    """

    me: Val
    size: Val
    serial_loop: SerialLoop
    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Rules:
    """How each kind of node is emitted."""

    expressions: Mapping[type[Expr], Callable[[Emitter, Any], Val]]
    statements: Mapping[type[Stmt], Callable[[Emitter, Any], None]]


class Emitter:
    """One LLVM function: parameters and body text; rules for nodes write through its methods.

    Attributes:
        liberties: what the function allows, see `ir.func.LIBERTIES`.
        flags: the liberties as flags of LLVM's floating-point instructions.
        no_nan: the flags that comparisons take.
        env: the values of variables in scope.
        pointers: the data pointers of buffers in scope.
        elements: the element types behind data pointers.
        lane: the vectorized loop around the current place, None outside.
        windows: the vectors that overlap in the straight code around, None without them.
        bits: vectors of floats that were loaded as integers -> these integers.
        mask: which lanes are active, None for all.
        masks: the masks around this mask, outermost first.
        unfused: whether a product is rounded before it is added to something.
        known_memory: the values known to be in memory at the current place.
        shared: the values of expressions in the current basic block, None unless they are shared.
        team: the threads that run the function together, None where one thread runs it.
        stack: the number of elements at each pointer to memory on the stack.
        loops: (continue label, break label) of the loops around, innermost last.
    """

    def __init__(
        self,
        module: ModuleEmitter,
        rules: Rules,
        name: str,
        serial: bool,
        liberties: Sequence[str] = (),
    ) -> None:
        self.module, self.rules = module, rules
        self.liberties = tuple(liberties)
        self.flags = "".join(f" {word}" for word in liberties)
        if "reassoc" in liberties:
            self.flags += " nsz"
        self.no_nan = " nnan" if "nnan" in liberties else ""
        self.name = name
        self.serial = serial
        self.scopes = [TextSection()]
        self.env: dict[Expr, Val] = {}
        self.pointers: dict[Var, Val] = {}
        self.elements: dict[Var, DType] = {}
        self.lane: Lane | None = None
        self.windows: Windows | None = None
        self.bits: dict[str, str] = {}
        self.mask: Val | None = None
        self.masks: list[Val | None] = []
        self.unfused = False
        self.team: Team | None = None
        self.loops: list[tuple[str, str]] = []
        self.heap: list[str] = []
        self.allocas: list[str] = []
        self.stack_bytes = 0
        self.stack: dict[str, int] = {}
        self.unroll_steps = 0
        self.block = "start"
        self.known_memory = KnownMemory()
        self.shared: dict[object, Val] | None = None
        self._count = 0

    # -- names and lines

    def fresh(self, hint: str = "v") -> str:
        """A new register name."""
        self._count += 1
        return f"%{hint}{self._count}"

    def fresh_label(self, hint: str) -> str:
        """A new label name (without %)."""
        self._count += 1
        return f"{hint}{self._count}"

    def line(self, text: str) -> None:
        """Write an instruction without a result at the current place."""
        self.known_memory.settle()
        self.scopes[-1].lines.append(text)

    def label(self, name: str) -> None:
        """Start the basic block `name`; the line before must end the previous block."""
        self.scopes[-1].lines.append(f"{name}:")
        self.block = name
        self.known_memory.clear()
        if self.shared is not None:
            self.shared = {}

    def branch(self, target: str) -> None:
        """Jump to `target`."""
        self.line(f"br label %{target}")

    def branch_if(self, condition: Val, yes: str, no: str) -> None:
        """Jump to `yes` where the scalar `condition` holds, else to `no`."""
        self.line(f"br i1 {condition.text}, label %{yes}, label %{no}")

    # -- instructions with a result

    def pure(self, text: str, dtype: DType, lanes: int, *operands: Val) -> Val:
        """Write an instruction without side effects, once for each text, as far outside as its
        operands allow."""
        depth = 0
        for operand in operands:
            if operand.depth > depth:
                depth = operand.depth
        if depth == INLINE:
            return self.inline(text, dtype, lanes)
        scope = self.scopes[depth]
        found = scope.known.get(text)
        if found is None:
            name = self.fresh()
            scope.entry.append(f"{name} = {text}")
            found = scope.known[text] = Val(name, dtype, lanes, depth)
        if found.dtype is not dtype:  # i16 stands for int16 and uint16, and some rules ask which
            return Val(found.text, dtype, lanes, depth)
        return found

    def inline(self, text: str, dtype: DType, lanes: int = 1) -> Val:
        """Write an instruction that must stay at the current place: a load, a call, or a user of
        their results."""
        name = self.fresh()
        self.scopes[-1].lines.append(f"{name} = {text}")
        return Val(name, dtype, lanes, INLINE)

    def value(self, expr: Expr) -> Val:
        """The value of an expression, by the rule of its node kind."""
        if self.shared is None:
            if tree_size(expr) <= LARGE:
                return self.rules.expressions[type(expr)](self, expr)
            with self.sharing():
                return self.value(expr)
        shared, found = self.shared, self.shared_value(expr)
        if found is None:
            found = self.rules.expressions[type(expr)](self, expr)
            self.shared = shared  # basic blocks that the rule began end in one that follows this
            self.keep(expr, found)
        return found

    def shared_value(self, expr: Expr) -> Val | None:
        """The value of an expression that is computed here already, None for others. A value that
        is computed for more lanes serves, too."""
        if self.shared is not None:
            for mask in (self.mask, *reversed(self.masks)):
                found = self.shared.get(self._shared_key(expr, mask))
                if found is not None:
                    return found
        return None

    def keep(self, expr: Expr, value: Val) -> None:
        """Take `value` for further uses of an expression here."""
        if self.shared is not None:
            self.shared[self._shared_key(expr, self.mask)] = value

    def share(self, expr: Expr, mask: Val | None) -> None:
        """Compute an expression here, and take its value under a mask, too."""
        if self.shared is not None:
            self.shared[self._shared_key(expr, mask)] = self.value(expr)

    def _shared_key(self, expr: Expr, mask: Val | None) -> object:
        return expr, mask and mask.text, self.unfused

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Inside the `with` body, one expression under one mask is computed once. The body stores
        nothing that it loads, and no variable gets another value."""
        self.shared = {}
        yield
        self.shared = None

    def statement(self, stmt: Stmt) -> None:
        """The code of a statement, by the rule of its node kind."""
        self.rules.statements[type(stmt)](self, stmt)

    def define(self, head: str) -> None:
        """Add the written function to the module: `define HEAD { ... }`, which returns its %rc."""
        self.known_memory.clear()
        root = self.scopes[0]
        frees = []
        for slot in self.heap:
            held = self.fresh()
            frees += [f"{held} = load ptr, ptr {slot}", f"call void @free(ptr {held})"]
        lines = [
            f"define {head} noinline {self.module.target_attribute} {{",
            "entry:", "%rc = alloca i32", "store i32 0, ptr %rc",
            *self.allocas, *root.entry, "br label %start", "start:",
            *filter(None, root.lines), "br label %exit", "exit:",
            *frees, "%result = load i32, ptr %rc", "ret i32 %result", "}",
        ]  # fmt: skip
        self.module.definitions[head] = "\n".join(lines)

    # -- scopes

    @contextmanager
    def scope(self) -> Iterator[int]:
        """Open the scope of a loop body and give its depth; at the end its lines move to the scope
        around it."""
        self.scopes.append(TextSection())
        self.known_memory.clear()
        yield len(self.scopes) - 1
        self.known_memory.clear()
        inner = self.scopes.pop()
        self.scopes[-1].lines += inner.entry
        self.scopes[-1].lines += inner.lines

    @contextmanager
    def bound(self, var: Var, value: Val) -> Iterator[None]:
        """Inside the `with` body, `var` stands for `value`."""
        before, shared = self.env.get(var), self.shared
        self.env[var] = value
        if shared is not None:
            self.shared = {} if before is not None else dict(shared)
        yield
        self.shared = shared
        if before is None:
            del self.env[var]
        else:
            self.env[var] = before

    @contextmanager
    def masked(self, mask: Val) -> Iterator[None]:
        """Inside the `with` body, only lanes are active where `mask` and the mask around it
        hold."""
        before = self.mask
        self.masks.append(before)
        self.mask = mask if before is None else self.both(before, mask)
        yield
        self.mask = self.masks.pop()

    # -- shapes of values

    def both(self, a: Val, b: Val) -> Val:
        """The conjunction of two bool values with equal lanes."""
        if a.const is not None:
            return b if a.const else a
        if b.const is not None:
            return a if b.const else b
        return self.pure(f"and {a.type} {a.text}, {b.text}", BOOL, a.lanes, a, b)

    def widen(self, value: Val, lanes: int) -> Val:
        """Repeat a scalar `value` over `lanes`; a value with this number of lanes is returned
        unchanged."""
        if value.lanes == lanes:
            return value
        if value.lanes != 1:
            raise BuildError(f"a vector of {value.lanes} lanes meets one of {lanes}")
        if value.const is not None:
            return literal(value.const, value.dtype, lanes)
        kind = register_type(value.dtype, lanes)
        one = self.pure(
            f"insertelement {kind} poison, {value.typed}, i64 0", value.dtype, lanes, value
        )
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.pure(
            f"shufflevector {kind} {one.text}, {kind} poison, {zeros}", value.dtype, lanes, one
        )

    def same_lanes(self, *values: Val) -> list[Val]:
        """The values with equal lanes: scalars are repeated if there is a vector among the
        values."""
        lanes = max(v.lanes for v in values)
        return [self.widen(v, lanes) for v in values]

    def extract(self, value: Val, lane: int) -> Val:
        """One lane of a vector."""
        if value.lanes == 1:
            return value
        return self.pure(f"extractelement {value.typed}, i64 {lane}", value.dtype, 1, value)

    def part(self, value: Val, start: int, lanes: int) -> Val:
        """`lanes` lanes of a vector from `start` on."""
        order = ", ".join(f"i32 {start + i}" for i in range(lanes))
        text = f"shufflevector {value.typed}, {value.type} poison, <{lanes} x i32> <{order}>"
        return self.pure(text, value.dtype, lanes, value)

    def joined(self, parts: list[Val]) -> Val:
        """Concatenate vectors of equal size; the number of vectors is a power of two."""
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self._joined(a, b) for a, b in pairs]
        return parts[0]

    def _joined(self, a: Val, b: Val) -> Val:
        lanes = 2 * a.lanes
        order = ", ".join(f"i32 {i}" for i in range(lanes))
        if a.lanes == 1:
            one = f"insertelement {register_type(a.dtype, 2)} poison, {a.typed}, i64 0"
            start = self.pure(one, a.dtype, 2, a)
            return self.pure(f"insertelement {start.typed}, {b.typed}, i64 1", a.dtype, 2, start, b)
        text = f"shufflevector {a.typed}, {b.typed}, <{lanes} x i32> <{order}>"
        return self.pure(text, a.dtype, lanes, a, b)

    def intrinsic(self, name: str, dtype: DType, lanes: int, *operands: Val) -> Val:
        """Call an LLVM intrinsic without side effects, given by its fully mangled name."""
        kinds = ", ".join(v.type for v in operands)
        self.module.declare(name, f"{register_type(dtype, lanes)} @{name}({kinds})")
        typed = ", ".join(v.typed for v in operands)
        text = f"call {register_type(dtype, lanes)} @{name}({typed})"
        return self.pure(text, dtype, lanes, *operands)

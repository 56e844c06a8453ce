"""The state of a function being read, which statement words read and change."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from metasched.ir.buffer import Buffer, BufferRegion, Range
from metasched.ir.dtype import BOOL, HANDLE, VOID, DType
from metasched.ir.expr import TRUE, Expr, Var
from metasched.ir.stmt import (
    EMPTY,
    AssertStmt,
    ForKind,
    FrozenMap,
    IterKind,
    IterVar,
    LetStmt,
    MatchBufferRegion,
    Stmt,
    frozen,
)
from metasched.script.builder import MetaVar, Namespace, TypeWord, dtype_of, is_dtype, typed
from metasched.script.diagnostics import Source
from metasched.script.evaluate import Evaluator
from metasched.script.plain import Stored, describe


@dataclass
class BlockDraft:
    """A block being read."""

    name: str
    iters: list[IterVar] = field(default_factory=list)
    values: list[Expr] = field(default_factory=list)
    predicate: Expr = TRUE
    reads: tuple[BufferRegion, ...] | None = None
    writes: tuple[BufferRegion, ...] | None = None
    init: Stmt | None = None
    allocs: list[Buffer] = field(default_factory=list)
    matches: list[MatchBufferRegion] = field(default_factory=list)
    annotations: FrozenMap = EMPTY


@dataclass
class Loops:
    """The loops that a word after `in` describes, outermost first: (minimum, extent) of each, and
    the kind."""

    ranges: list[tuple[Expr, Expr]]
    kind: ForKind = ForKind.SERIAL
    thread: str | None = None
    annotations: FrozenMap = EMPTY
    step: Expr | None = None


@dataclass
class Scoped:
    """A statement around the statements that follow.

    `wrap` makes the statement from its body; `value` is bound to the name on the left.
    """

    wrap: Callable[[Stmt], Stmt]
    value: Any = None


@dataclass
class Region:
    """A part of a statement in progress with a body of its own: `init`, `then`, `else`, ..."""

    role: str
    value: Any = None


@dataclass
class Bound:
    """A value for the name on the left; nothing is added to the program."""

    value: Any = None


class Reader(Evaluator):
    """The state of one function being read, with the operations that statement words use."""

    def __init__(
        self, source: Source, captured: Mapping[str, Any], namespaces: Mapping[str, Namespace],
        outside: Stored,
    ) -> None:  # fmt: skip
        super().__init__(source, captured, namespaces, outside)
        self.attrs: dict[str, Any] = {}
        self.layout_free: list[Buffer] = []
        self.drafts: list[BlockDraft] = []
        self.implicit: BlockDraft | None = None
        self.loops: dict[Expr, Range] = {}
        self.threads: dict[Var, str] = {}
        self.handles: dict[Var, Buffer | None] = {}
        self.views: dict[Buffer, Buffer] = {}  # view -> the buffer that it is a view of
        self.hints: list[str] = []
        self.named: set[str] = set()  # blocks so far
        self.copies = 0  # of the statement being read, by loops over Python values
        self.call_stmts: list[Stmt | Scoped] = []  # of macro calls in the statement being read
        self.ret_type = VOID

    def loop(self, node: ast.Call, kind: ForKind, start: Any, stop: Any, step: Any,
             annotations: Mapping[str, Any] | None, as_python: bool = False) -> Loops:  # fmt: skip
        """One loop over start:stop:step, or over 0:start when there is no stop; see `domain`."""
        if stop is None:
            start, stop = 0, start
        low, size = self.domain(node, start, stop, step, as_python)
        if low.dtype is not size.dtype:
            self.fail(node, f"the bounds have different types, {low.dtype} and {size.dtype}")
        stride = None if step is None else self.guard(node, typed, step, size.dtype)
        notes = frozen(self.mapping(node, annotations or {}))
        return Loops([(low, size)], kind, None, notes, stride)

    def condition(self, node: ast.AST, value: Any) -> Expr:
        """`value` as a condition."""
        found = self.guard(node, typed, value, BOOL)
        if not found.dtype.is_bool:
            self.fail(node, f"a condition is needed, not {found.dtype}", "compare with != 0")
        if found.dtype.lanes > 1:
            self.fail(node, f"the condition has {found.dtype.lanes} lanes, one truth value is "
                      "needed", "use T.Select or T.if_then_else")  # fmt: skip
        return found  # type: ignore[no-any-return]

    def let(
        self, node: ast.AST, name: str, value: Any, dtype: DType | None, var: Var | None
    ) -> Scoped:
        """A let of `value`; a number takes `dtype`."""
        found = self.typed(node, value, dtype)
        want = var.dtype if var is not None else dtype
        if want is not None and found.dtype is not want:
            self.fail(node, f"the value is {found.dtype}, the variable {want}",
                      f'write T.cast(value, "{want}")')  # fmt: skip
        bound = Var(name, found.dtype) if var is None else var
        return Scoped(lambda body: LetStmt(bound, found, body), bound)

    def assertion(self, node: ast.AST, condition: Any, message: Any) -> AssertStmt:
        """A statement that stops the kernel with the message unless the condition holds."""
        if not isinstance(message, str):
            self.fail(node, f"the message of an assertion is a text, not {describe(message)}")
        return AssertStmt(self.condition(node, condition), message)

    def block_name(self, name: str) -> str:
        """The name of a block; an unused name where a text is read several times, as in macros."""
        found, number = name, 0
        while name and (self.depth or self.copies > 1) and found in self.named:
            number += 1
            found = f"{name}_{number}"
        self.named.add(found)
        return found

    def draft(self, node: ast.AST) -> BlockDraft:
        """The block being read; raises if there is none but the implicit root."""
        if not self.drafts or self.drafts[-1] is self.implicit:
            self.fail(node, "this word is allowed only in a block", 'write with T.block("name"):')
        return self.drafts[-1]

    def iterator(self, node: ast.AST, name: str, dom: Range, kind: IterKind, value: Any) -> Var:
        """A new iterator of the block being read."""
        draft = self.draft(node)
        bound = self.guard(node, typed, value, dom.extent.dtype)
        var = Var(name, dom.extent.dtype)
        draft.iters.append(IterVar(var, dom, kind))
        draft.values.append(bound)
        return var

    def bind_handle(self, node: ast.AST, handle: Var, buffer: Buffer) -> None:
        """`T.match_buffer(handle, ...)`: the parameter is this buffer."""
        if handle not in self.handles:
            self.fail(node, f"{handle.name} is not a T.handle parameter")
        if self.handles[handle] is not None:
            self.fail(node, f"{handle.name} is matched already")
        self.handles[handle] = buffer

    def mapping(self, node: ast.AST, value: Any) -> dict[str, Any]:
        """A dictionary with text keys."""
        if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
            self.fail(node, f"a dictionary with text keys is needed, not {describe(value)}")
        return dict(value)

    def annotation(self, node: ast.expr) -> Any:
        """Read a type annotation: a Buffer or a DType."""
        if isinstance(node, ast.Constant) and is_dtype(node.value):
            return DType(node.value)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            inner = ast.parse(node.value, mode="eval").body
            for part in ast.walk(inner):
                ast.copy_location(part, node)
            node = inner
        found = self.value(node)
        if isinstance(found, TypeWord):
            return found.dtype
        if isinstance(found, Var) and found.dtype is HANDLE:
            return HANDLE
        return dtype_of(found) if is_dtype(found) else found

    def hint(self, index: int, default: str) -> str:
        """The name on the left of the statement being read."""
        return self.hints[index] if index < len(self.hints) else default

    def _target_names(self, target: ast.expr | None) -> list[str]:
        if target is None:
            return []
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        starred = any(isinstance(t, ast.Starred) for t in parts)
        return [] if starred else [self._target_name(t) for t in parts]

    def spread(self, target: ast.expr, count: int) -> list[str]:
        """The names of `count` loops; a single name or a starred name may stand for several
        loops."""
        several = isinstance(target, (ast.Tuple, ast.List))
        parts = target.elts if several else [target if count == 1 else ast.Starred(target)]  # type: ignore[attr-defined]
        names: list[str] = []
        for part in parts:
            if isinstance(part, ast.Starred):
                name = self._target_name(part.value)
                names += [f"{name}_{i}" for i in range(count - len(parts) + 1)]
            else:
                names.append(self._target_name(part))
        return names

    def collected(self, target: ast.Tuple, values: tuple[Any, ...]) -> tuple[ast.Tuple, Any]:
        """The target without its star, and the values, in which the starred name's are one
        tuple."""
        stars = [i for i, t in enumerate(target.elts) if isinstance(t, ast.Starred)]
        if not stars or len(values) < len(target.elts) - 1:
            return target, values
        first, after = stars[0], len(target.elts) - stars[0] - 1
        last = len(values) - after
        plain = [t.value if isinstance(t, ast.Starred) else t for t in target.elts]
        whole = ast.copy_location(ast.Tuple(plain, ast.Store()), target)
        rest: Any = values[first:last]
        if any(isinstance(v, MetaVar) for v in rest):
            rest = MetaVar(tuple(v.value for v in rest))
        return whole, (*values[:first], rest, *values[last:])

    def _target_name(self, target: ast.expr) -> str:
        if not isinstance(target, ast.Name):
            self.fail(target, "a name is needed here")
        return target.id

    def _key(self, target: ast.expr) -> str:
        """Under which key of the scopes a name stands."""
        return self._target_name(target)

    def _bind(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            values = value if isinstance(value, tuple) else (value,)
            if isinstance(target, ast.Tuple):
                target, values = self.collected(target, values)
            if len(values) != len(target.elts):
                self.fail(target, f"{len(values)} values for {len(target.elts)} names")
            for part, item in zip(target.elts, values, strict=True):
                self._bind(part, item)
            return
        self._target_name(target)
        self.scopes[self._key(target)] = value

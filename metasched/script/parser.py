"""Scripts into programs: statements, functions, modules; from decorated functions or from text.

The source is read as Python's syntax tree. Nothing of the user's is executed: `evaluate` computes
numbers and builds expressions, `statements` says what each statement word builds, and this file
puts the pieces in order.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, FunctionType
from typing import Any, overload

from metasched.arith.regions import block_access_regions
from metasched.errors import ParseError
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.dtype import BOOL, HANDLE, VOID, DType, promote
from metasched.ir.expr import Expr, Var, cast
from metasched.ir.func import IRModule, Param, PrimFunc
from metasched.ir.op import Broadcast, Call
from metasched.ir.stmt import (
    AssertStmt,
    Block,
    BlockRealize,
    Break,
    BufferStore,
    Continue,
    Evaluate,
    For,
    ForKind,
    FrozenMap,
    IfThenElse,
    IterKind,
    IterVar,
    LetStmt,
    Return,
    Stmt,
    While,
    evolve,
    frozen,
    seq,
)
from metasched.ir.visit import walk
from metasched.script.builder import MetaVar, Namespace, StatementWord, TypeWord, renamed, typed
from metasched.script.diagnostics import Source, parse_text, source_of
from metasched.script.evaluate import Evaluator, describe
from metasched.script.statements import (
    STATEMENTS,
    BlockDraft,
    Bound,
    Loops,
    Region,
    Scoped,
    lookup,
)

Item = Stmt | Scoped


class Parser(Evaluator):
    """One function being read."""

    def __init__(self, source: Source, captured: Mapping[str, Any]) -> None:
        super().__init__(source, captured, NAMESPACES)
        self.attrs: dict[str, Any] = {}
        self.drafts: list[BlockDraft] = []
        self.implicit: BlockDraft | None = None
        self.loops: dict[Expr, Range] = {}
        self.threads: dict[Var, str] = {}
        self.handles: dict[Var, Buffer | None] = {}
        self.hints: list[str] = []
        self.ret_type = VOID

    # ---- functions -------------------------------------------------------------------------

    def function(self, node: ast.FunctionDef, *, private: bool, s_tir: bool) -> PrimFunc:
        """A whole function; without `s_tir` no root block is put around the body."""
        if s_tir:
            self.implicit = BlockDraft("root")
            self.drafts.append(self.implicit)
        with self.scope():
            params = [self._param(arg) for arg in self._plain_args(node)]
            self.ret_type = self._result(node.returns)
            body = self.body(node.body)
        if self.implicit is not None:
            body = self._under_root(body, self.implicit)
        attrs = dict(self.attrs)
        if not private and "global_symbol" not in attrs:
            attrs = {"global_symbol": node.name, **attrs}
        matched = [self.handles.get(p) or p if isinstance(p, Var) else p for p in params]
        return PrimFunc(tuple(matched), body, frozen(attrs), self.ret_type)

    def _plain_args(self, node: ast.FunctionDef) -> list[ast.arg]:
        spec = node.args
        for odd in (spec.vararg, spec.kwarg, *spec.kwonlyargs, *spec.defaults, *spec.posonlyargs):
            if odd is not None:
                self.fail(odd, "parameters are plain: no defaults, *args or keyword-only ones")
        return spec.args

    def _param(self, arg: ast.arg) -> Param:
        if arg.annotation is None:
            self.fail(arg, f"parameter {arg.arg!r} needs a type",
                      f'write {arg.arg}: T.Buffer((n, m), "float32") or {arg.arg}: T.int32')  # fmt: skip
        found = self.annotation(arg.annotation)
        param: Param
        if isinstance(found, Buffer):
            param = renamed(found, arg.arg)
        elif isinstance(found, DType):
            param = Var(arg.arg, found)
            if found is HANDLE:
                self.handles[param] = None
        else:
            self.fail(arg.annotation, f"a parameter is a buffer or a scalar, not {describe(found)}")
        self.scopes[arg.arg] = param
        return param

    def annotation(self, node: ast.expr) -> Any:
        """What an annotation says: a Buffer or a DType."""
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
        return DType(found) if found in (int, float, bool) else found

    def _result(self, node: ast.expr | None) -> DType:
        if node is None or (isinstance(node, ast.Constant) and node.value is None):
            return VOID
        found = self.annotation(node)
        if not isinstance(found, DType):
            self.fail(node, f"a function returns a scalar type, not {describe(found)}")
        return found

    def _under_root(self, body: Stmt, draft: BlockDraft) -> Stmt:
        if isinstance(body, BlockRealize) and not draft.allocs:
            if body.block.name == "root" and not body.iter_values:
                return body
        root = Block("root", (), (), (), body, None, tuple(draft.allocs))
        return BlockRealize.plain(root)

    # ---- statements ------------------------------------------------------------------------

    def body(self, nodes: Sequence[ast.stmt]) -> Stmt:
        """Statements in order; a scope wraps all that follows it."""
        with self.scope():
            items: list[Item] = []
            for node in nodes:
                items += self.statement(node)
        tail: list[Stmt] = []
        for item in reversed(items):
            tail = [item.wrap(seq(reversed(tail)))] if isinstance(item, Scoped) else [*tail, item]
        return seq(reversed(tail))

    def statement(self, node: ast.stmt) -> list[Item]:
        rule = _STATEMENTS.get(type(node))
        if rule is None:
            what = type(node).__name__
            self.fail(node, f"{what} has no meaning in a script", _HINTS.get(type(node), ""))
        return rule(self, node)

    def _for(self, node: ast.For) -> list[Item]:
        if node.orelse:
            self.fail(node.orelse[0], "a loop has no else")
        targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        names = [self._target_name(t) for t in targets]
        loops = self._loops(node.iter)
        if len(names) != len(loops.ranges):
            self.fail(node.target, f"{len(loops.ranges)} loops need as many variables, "
                      f"{len(names)} given")  # fmt: skip
        with self.scope():
            variables = []
            for name, (low, size) in zip(names, loops.ranges, strict=True):
                var = Var(name, size.dtype)
                self.scopes[name] = var
                if loops.step is None:
                    self.loops[var] = Range(low, size)
                variables.append(var)
            inner = self.body(node.body)
        for var, (low, size) in reversed(list(zip(variables, loops.ranges, strict=True))):
            notes = loops.annotations
            inner = For(var, low, size, loops.kind, inner, loops.thread, notes, loops.step)
        return [inner]

    def _loops(self, node: ast.expr) -> Loops:
        if isinstance(node, ast.Call):
            fn = self.value(node.func)
            if fn is range:
                args, kwargs = self.arguments(node)
                if kwargs or not 1 <= len(args) <= 3:
                    self.fail(node, "range takes one to three numbers")
                stop, step = [*args, None, None][1:3]
                return self.loop(node, ForKind.SERIAL, args[0], stop, step, None)
            found = self.word(node, fn)
            if isinstance(found, Loops):
                return found
        self.fail(node, "a loop runs over range, T.grid, T.serial, T.parallel, T.vectorized, "
                  "T.unroll or T.thread_binding")  # fmt: skip

    def loop(self, node: ast.Call, kind: ForKind, start: Any, stop: Any, step: Any,
             annotations: Mapping[str, Any] | None) -> Loops:  # fmt: skip
        """One loop over start:stop:step, or over 0:start when there is no stop."""
        if stop is None:
            start, stop = 0, start
        low, size = self.extent(node, start, stop, step)
        if low.dtype is not size.dtype:
            self.fail(node, f"the bounds have different types, {low.dtype} and {size.dtype}")
        stride = None if step is None else self.guard(node, typed, step, size.dtype)
        notes = frozen(self.mapping(node, annotations or {}))
        return Loops([(low, size)], kind, None, notes, stride)

    def _while(self, node: ast.While) -> list[Item]:
        if node.orelse:
            self.fail(node.orelse[0], "a loop has no else")
        condition = self.condition(node.test, self.operand(node.test))
        return [While(condition, self.body(node.body))]

    def _if(self, node: ast.If) -> list[Item]:
        condition = self.condition(node.test, self.operand(node.test))
        then = self.body(node.body)
        return [IfThenElse(condition, then, self.body(node.orelse) if node.orelse else None)]

    def condition(self, node: ast.AST, value: Any) -> Expr:
        """`value` as a condition."""
        found = self.guard(node, typed, value, BOOL)
        if not found.dtype.is_bool:
            self.fail(node, f"a condition is needed, not {found.dtype}", "compare with != 0")
        return found  # type: ignore[no-any-return]

    def _with(self, node: ast.With) -> list[Item]:
        return self._with_item(node, list(node.items))

    def _with_item(self, node: ast.With, items: list[ast.withitem]) -> list[Item]:
        """The first item around the others, and those around the body."""
        if not items:
            return [self.body(node.body)]
        call, target = items[0].context_expr, items[0].optional_vars
        if not isinstance(call, ast.Call):
            self.fail(call, "with takes a word of T that opens a scope, called: T.block(\"name\")")
        self.hints = self._target_names(target)
        found = self.word(call, self.value(call.func))
        if isinstance(found, Region):
            if len(items) > 1:
                self.fail(items[1].context_expr, "this scope stands in a with of its own")
            return self._region_body(node, call, found)
        if not isinstance(found, Scoped):
            self.fail(call, "this word opens no scope")
        with self.scope():
            if target is not None:
                self._bind(target, found.value)
            inner = self._with_item(node, items[1:])
        return [found.wrap(seq(i for i in inner if isinstance(i, Stmt)))]

    def _region_body(self, node: ast.With, call: ast.Call, found: Region) -> list[Item]:
        if found.role == "block":
            return [self._block(node, call, found.value)]
        if found.role == "while":
            return [While(found.value, self.body(node.body))]
        if found.role == "if":
            return [self._if_frames(node, found.value)]
        if found.role != "init":
            self.fail(call, "T.Then and T.Else stand inside `with T.If(condition):`")
        found.value.init = self.body(node.body)
        return []

    def _if_frames(self, node: ast.With, condition: Expr) -> Stmt:
        """with T.If(c): with T.Then(): ...; with T.Else(): ..."""
        parts: dict[str, Stmt] = {}
        for inner in node.body:
            call = inner.items[0].context_expr if isinstance(inner, ast.With) else None
            found = self.word(call, self.value(call.func)) if isinstance(call, ast.Call) else None
            if not isinstance(found, Region) or found.role not in ("then", "else"):
                self.fail(inner, "T.If holds `with T.Then():` and `with T.Else():`")
            assert isinstance(inner, ast.With)
            parts[found.role] = self.body(inner.body)
        if "then" not in parts:
            self.fail(node, "T.If needs `with T.Then():`")
        return IfThenElse(condition, parts["then"], parts.get("else"))

    def _block(self, node: ast.With, call: ast.Call, draft: BlockDraft) -> Stmt:
        if node.items[0].optional_vars is not None:
            self.fail(call, "a block's iterators are named in its body",
                      'write vi = T.axis.spatial(extent, i) below `with T.block("name"):`')  # fmt: skip
        outermost = all(d is self.implicit for d in self.drafts)
        self.drafts.append(draft)
        body = self.body(node.body)
        self.drafts.pop()
        block = Block(
            draft.name, tuple(draft.iters), draft.reads or (), draft.writes or (), body, draft.init,
            tuple(draft.allocs), tuple(draft.matches), draft.annotations,
        )  # fmt: skip
        root = outermost and draft.name == "root" and not draft.iters
        if not root and (draft.reads is None or draft.writes is None):
            block = self._infer(call, draft, block)
        return BlockRealize(tuple(draft.values), draft.predicate, block)

    def _infer(self, call: ast.Call, draft: BlockDraft, block: Block) -> Block:
        """The regions that T.reads and T.writes would have said."""
        for part in walk(block):
            pointers = part.args if isinstance(part, Call) else ()
            if any(isinstance(a, Var) and a.dtype is HANDLE for a in pointers):
                self.fail(call, f"block {draft.name!r} passes a pointer on, so what it touches "
                          "cannot be inferred", "write T.reads(...) and T.writes(...)")  # fmt: skip
        reads, writes = block_access_regions(block)
        return evolve(
            block,
            reads=reads if draft.reads is None else draft.reads,
            writes=writes if draft.writes is None else draft.writes,
        )

    def _expression(self, node: ast.Expr) -> list[Item]:
        value = node.value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return []
        if not isinstance(value, ast.Call):
            self.fail(node, "this expression does nothing", "write T.evaluate(...)")
        if isinstance(value.func, ast.Attribute) and value.func.attr == "vstore":
            return [self._vstore(value, value.func)]
        fn = self.value(value.func)
        self.hints = []
        found = self.word(value, fn) if isinstance(fn, StatementWord) else self.value(value)
        if isinstance(found, Bound):
            return []
        if isinstance(found, (Scoped, Stmt)):
            return [found]
        if isinstance(found, Region):
            self.fail(value, f"{describe(fn)} opens a scope", f"write with {describe(fn)}(...):")
        if isinstance(found, Loops):
            self.fail(value, f"{describe(fn)} stands in `for`", f"write for i in {describe(fn)}(...):")
        if not isinstance(found, Expr):
            self.fail(value, f"{describe(found)} is no statement")
        return [Evaluate(found)]

    def word(self, node: ast.Call, fn: Any) -> Any:
        """Call a statement word."""
        if not isinstance(fn, StatementWord):
            self.fail(node, f"{describe(fn)} does not belong here; a statement word of T does")
        handler = STATEMENTS[fn.name]
        args, kwargs = self.arguments(node)
        try:
            _signature(handler).bind(self, node, *args, **kwargs)
        except TypeError as error:
            self.fail(node, f"T.{fn.name}: {error}")
        return self.guard(node, handler, self, node, *args, **kwargs)

    # ---- assignments -----------------------------------------------------------------------

    def _assign(self, node: ast.Assign) -> list[Item]:
        if len(node.targets) != 1:
            self.fail(node, "assign to one target at a time")
        target = node.targets[0]
        if isinstance(target, ast.Subscript):
            return [self._store(target, node.value, self.operand(node.value))]
        self.hints = self._target_names(target)
        if isinstance(node.value, ast.Call):
            fn = self.value(node.value.func)
            if isinstance(fn, StatementWord):
                return self._assign_word(node.value, fn, target)
        found = self.value(node.value)
        if isinstance(found, Var) and isinstance(node.value, ast.Call):
            found = MetaVar(Var(self.hint(0, found.name), found.dtype))
        elif isinstance(found, Buffer) and found.name == "buffer":
            found = renamed(found, self.hint(0, "buffer"))
        return self._bind_values(node, target, found)

    def _assign_word(self, call: ast.Call, fn: StatementWord, target: ast.expr) -> list[Item]:
        found = self.word(call, fn)
        if not isinstance(found, (Bound, Scoped)) or found.value is None:
            self.fail(call, f"T.{fn.name} gives no value to assign")
        self._bind(target, found.value)
        return [found] if isinstance(found, Scoped) else []

    def _bind_values(self, node: ast.Assign, target: ast.expr, found: Any) -> list[Item]:
        if isinstance(target, ast.Tuple):
            if not isinstance(found, (tuple, list)) or len(found) != len(target.elts):
                self.fail(node, f"{len(target.elts)} names need as many values, not "
                          f"{describe(found)}")  # fmt: skip
            pairs = zip(target.elts, found, strict=True)
            return [item for part, value in pairs for item in self._bind_values(node, part, value)]
        if isinstance(found, (Expr, bool, int, float, BufferRegion)):
            value = self.lanes(node.value, found)
            scoped = self.let(node.value, self._target_name(target), value, None, None)
            self._bind(target, scoped.value)
            return [scoped]
        self._bind(target, found.value if isinstance(found, MetaVar) else found)
        return []

    def let(
        self, node: ast.AST, name: str, value: Any, dtype: DType | None, var: Var | None
    ) -> Scoped:
        """A let of `value`; a number takes `dtype`."""
        found = self.guard(node, typed, value, dtype)
        want = var.dtype if var is not None else dtype
        if want is not None and found.dtype is not want:
            self.fail(node, f"the value is {found.dtype}, the variable {want}",
                      f'write T.cast(value, "{want}")')  # fmt: skip
        var = var or Var(name, found.dtype)
        bound = var
        return Scoped(lambda body: LetStmt(bound, found, body), bound)

    def _annotated(self, node: ast.AnnAssign) -> list[Item]:
        name = self._target_name(node.target)
        found = self.value(node.annotation)
        dtype = None
        if not (isinstance(found, StatementWord) and found.name == "LetStmt"):
            dtype = self.annotation(node.annotation)
            if not isinstance(dtype, DType):
                self.fail(node.annotation, f"a variable has a scalar type, not {describe(dtype)}")
        if node.value is None:
            self.scopes[name] = Var(name, dtype or "int32")
            return []
        scoped = self.let(node.value, name, self.operand(node.value), dtype, None)
        self.scopes[name] = scoped.value
        return [scoped]

    def _augmented(self, node: ast.AugAssign) -> list[Item]:
        if isinstance(node.target, ast.Subscript):
            old = self.lanes(node.target, self.subscript(node.target))
            value = self.apply(node, node.op, old, self.operand(node.value))
            return [self._store(node.target, node.value, value)]
        name = self._target_name(node.target)
        old = self.name(ast.copy_location(ast.Name(name), node.target))
        value = self.apply(node, node.op, old, self.operand(node.value))
        scoped = self.let(node.value, name, value, None, None)
        self.scopes[name] = scoped.value
        return [scoped]

    def _store(self, target: ast.Subscript, node: ast.AST, value: Any) -> Stmt:
        buffer = self.value(target.value)
        if not isinstance(buffer, Buffer):
            self.fail(target, f"only buffers are stored to, not {describe(buffer)}")
        place = self.lanes(target, self.access(target, buffer))
        return BufferStore(buffer, self.stored(node, value, place.dtype), place.indices)

    def stored(self, node: ast.AST, value: Any, dtype: DType) -> Expr:
        """`value` in the type of its destination, widened where nothing can be lost."""
        found: Expr = self.guard(node, typed, value, dtype)
        if found.dtype is dtype:
            return found
        if found.dtype.scalar is dtype.scalar and found.dtype.lanes == 1:
            return Broadcast(found, dtype.lanes)
        if found.dtype.lanes != dtype.lanes or self.guard(node, promote, found.dtype, dtype) != dtype:
            self.fail(node, f"a value of type {found.dtype} is stored where {dtype} is kept",
                      f'write T.cast(value, "{dtype}")')  # fmt: skip
        return cast(dtype, found)

    def _vstore(self, node: ast.Call, func: ast.Attribute) -> Stmt:
        """A.vstore([i], value, predicate=mask)."""
        buffer = self.value(func.value)
        args, kwargs = self.arguments(node)
        if not isinstance(buffer, Buffer) or len(args) != 2 or set(kwargs) - {"predicate"}:
            self.fail(node, "write A.vstore([indices], value, predicate=mask)")
        items = args[0] if isinstance(args[0], (tuple, list)) else (args[0],)
        indices = [self.index(node, i) for i in items]
        place = self.guard(node, BufferLoad, buffer, indices)
        mask = kwargs.get("predicate")
        predicate = None if mask is None else self.guard(node, typed, mask)
        value = self.stored(node.args[1], args[1], place.dtype)
        return BufferStore(buffer, value, tuple(indices), predicate)

    def _return(self, node: ast.Return) -> list[Item]:
        if node.value is None:
            return [Return()]
        want = None if self.ret_type is VOID else self.ret_type
        return [Return(self.expr(node.value, want))]

    def _assert(self, node: ast.Assert) -> list[Item]:
        message = "" if node.msg is None else self.value(node.msg)
        return [self.assertion(node, self.operand(node.test), message)]

    def assertion(self, node: ast.AST, condition: Any, message: Any) -> AssertStmt:
        """The condition holds, or the kernel stops with the message."""
        if not isinstance(message, str):
            self.fail(node, f"the message of an assertion is a text, not {describe(message)}")
        return AssertStmt(self.condition(node, condition), message)

    # ---- what the statement words use ------------------------------------------------------

    def draft(self, node: ast.AST) -> BlockDraft:
        """The block being read; the implicit root is none."""
        if not self.drafts or self.drafts[-1] is self.implicit:
            self.fail(node, "this stands only inside a block", 'write with T.block("name"):')
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

    def owner_of(self, pointer: Var) -> Buffer | None:
        """The buffer in scope whose data this is."""
        for found in self.scopes.values():
            if isinstance(found, Buffer) and found.data is pointer:
                return found
        return None

    def mapping(self, node: ast.AST, value: Any) -> dict[str, Any]:
        """A dictionary with text keys."""
        if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
            self.fail(node, f"a dictionary with text keys is needed, not {describe(value)}")
        return dict(value)

    def hint(self, index: int, default: str) -> str:
        """The name on the left of the statement being read."""
        return self.hints[index] if index < len(self.hints) else default

    def _target_names(self, target: ast.expr | None) -> list[str]:
        if target is None:
            return []
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        return [self._target_name(t) for t in parts]

    def _target_name(self, target: ast.expr) -> str:
        if not isinstance(target, ast.Name):
            self.fail(target, "a name is needed here")
        return target.id

    def _bind(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            values = value if isinstance(value, tuple) else (value,)
            if len(values) != len(target.elts):
                self.fail(target, f"{len(values)} values for {len(target.elts)} names")
            for part, item in zip(target.elts, values, strict=True):
                self._bind(part, item)
            return
        self.scopes[self._target_name(target)] = value


_STATEMENTS: dict[type[ast.AST], Callable[[Parser, Any], list[Item]]] = {
    ast.For: Parser._for,
    ast.While: Parser._while,
    ast.If: Parser._if,
    ast.With: Parser._with,
    ast.Expr: Parser._expression,
    ast.Assign: Parser._assign,
    ast.AnnAssign: Parser._annotated,
    ast.AugAssign: Parser._augmented,
    ast.Return: Parser._return,
    ast.Assert: Parser._assert,
    ast.Pass: lambda p, n: [],
    ast.Break: lambda p, n: [Break()],
    ast.Continue: lambda p, n: [Continue()],
}
_HINTS: dict[type[ast.AST], str] = {
    ast.FunctionDef: "define functions side by side, in an @I.ir_module class if they belong together",
    ast.Import: "import at the top of the file",
    ast.ImportFrom: "import at the top of the file",
}


@functools.lru_cache(maxsize=256)
def _signature(handler: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(handler)


# ---- decorators and text ---------------------------------------------------------------------


@overload
def prim_func(func: FunctionType, /) -> PrimFunc: ...
@overload
def prim_func(
    *, private: bool = False, s_tir: bool = True, check_well_formed: bool = True
) -> Callable[[FunctionType], PrimFunc]: ...
def prim_func(
    func: FunctionType | None = None, /, *, private: bool = False, s_tir: bool = True,
    check_well_formed: bool = True,
) -> PrimFunc | Callable[[FunctionType], PrimFunc]:  # fmt: skip
    """Read a function as a program (decorator); the function is never executed.

    Args:
        private: leave out the attribute `global_symbol`, which is the function's name otherwise.
        s_tir: put the body under a root block unless one is written; False for lowered functions.
        check_well_formed: accepted for TVM's sake; `ir.verify` is a separate step.

    Raises:
        ParseError: with file, line, column and what to write instead.
    """

    def read(fn: FunctionType) -> PrimFunc:
        source, node = source_of(fn)
        parser = Parser(source, _captured(fn, sys._getframe(depth)))
        return parser.function(node, private=private, s_tir=s_tir)

    depth = 1 if func is None else 2
    return read if func is None else read(func)


def _captured(fn: FunctionType, frame: FrameType | None) -> ChainMap[str, Any]:
    """The names a function sees: its closure, the scopes around its definition, its globals."""
    closure: dict[str, Any] = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
        try:
            closure[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    around: list[dict[str, Any]] = []
    while frame is not None and frame.f_globals is fn.__globals__:
        around.append(dict(frame.f_locals))
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            break
        frame = frame.f_back
    return ChainMap(closure, *around, fn.__globals__)


def ir_module(cls: type) -> IRModule:
    """Read a class of functions as a module (decorator)."""
    functions = {k: v for k, v in vars(cls).items() if isinstance(v, PrimFunc)}
    for name, member in vars(cls).items():
        if isinstance(member, FunctionType):
            raise ParseError(f"{cls.__name__}.{name} has no @T.prim_func; modules hold functions")
    return IRModule(FrozenMap(functions), frozen(vars(cls).get(_ATTRS)))


_ATTRS = "_module_attrs"


def module_attrs(attrs: Mapping[str, Any]) -> None:
    """Attributes of the module, in the body of its class."""
    sys._getframe(1).f_locals[_ATTRS] = dict(attrs)


def _tir_word(name: str) -> Any:
    return _MARKS.get(name) or lookup(name)


_MARKS = {"prim_func": StatementWord("prim_func")}
_MODULE_WORDS = {n: StatementWord(n) for n in ("ir_module", "module_attrs")}
TIR = Namespace("T", _tir_word)
NAMESPACES = {
    "metasched.script.tir": TIR,
    "metasched.script.ir": Namespace("I", _MODULE_WORDS.__getitem__),
}


def parse(
    text: str, env: Mapping[str, Any] | None = None, name: str = "<script>"
) -> PrimFunc | IRModule:
    """The program that a text says: one function under @T.prim_func or one class of them.

    Args:
        text: the script; imports of `tir as T` and `ir as I` may stand above it.
        env: further names the script may use, with their values.
        name: what error messages call the text.

    Raises:
        ParseError: with line, column and what to write instead.
    """
    source, tree = parse_text(text, name)
    names: dict[str, Any] = {"T": TIR, "I": NAMESPACES["metasched.script.ir"], **(env or {})}
    found: PrimFunc | IRModule | None = None
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            _import(names, node)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            if found is not None:
                raise source.error(node, "a text holds one function or one class",
                                   "put several functions into an @I.ir_module class")  # fmt: skip
            found = _definition(source, node, names)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            raise source.error(node, "only imports and one definition stand in a text")
    if found is None:
        raise ParseError(f"{name}: no function and no class in the text")
    return found


def _import(names: dict[str, Any], node: ast.ImportFrom) -> None:
    for alias in node.names:
        for module, namespace in NAMESPACES.items():
            if alias.name == module.rsplit(".", 1)[1]:
                names[alias.asname or alias.name] = namespace


def _definition(
    source: Source, node: ast.FunctionDef | ast.ClassDef, names: Mapping[str, Any]
) -> PrimFunc | IRModule:
    if isinstance(node, ast.FunctionDef):
        options = _decorator(source, node, names, "prim_func")
        flags = {"private": False, "s_tir": True, **options}
        flags.pop("check_well_formed", None)
        unknown = sorted(flags.keys() - {"private", "s_tir"})
        if unknown:
            raise source.error(node.decorator_list[0], f"T.prim_func has no option {unknown[0]!r}")
        return Parser(source, names).function(node, **flags)
    _decorator(source, node, names, "ir_module")
    functions: dict[str, PrimFunc] = {}
    attrs: dict[str, Any] = {}
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            func = _definition(source, item, names)
            assert isinstance(func, PrimFunc)
            functions[item.name] = func
        elif isinstance(item, ast.Expr) and isinstance(item.value, ast.Call):
            reader = Parser(source, names)
            word = reader.value(item.value.func)
            if word is not _MODULE_WORDS["module_attrs"]:
                raise source.error(item, "a module holds functions and I.module_attrs({...})")
            attrs.update(reader.mapping(item, reader.arguments(item.value)[0][0]))
        elif not isinstance(item, ast.Pass) and not (
            isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)
        ):
            raise source.error(item, "a module holds functions and I.module_attrs({...})")
    return IRModule(FrozenMap(functions), frozen(attrs))


def _decorator(
    source: Source, node: ast.FunctionDef | ast.ClassDef, names: Mapping[str, Any], want: str
) -> dict[str, Any]:
    """The options of the decorator that must stand above a definition."""
    reader = Parser(source, names)
    letter = "T" if want == "prim_func" else "I"
    for item in node.decorator_list:
        target = item.func if isinstance(item, ast.Call) else item
        found = reader.value(target)
        if isinstance(found, StatementWord) and found.name == want:
            return reader.arguments(item)[1] if isinstance(item, ast.Call) else {}
    raise source.error(node, f"{node.name} has no @{letter}.{want}",
                       f"write @{letter}.{want} above it")  # fmt: skip

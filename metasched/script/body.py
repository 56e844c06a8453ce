"""Reads Python's statements in a script: loops, branches, scopes, blocks, assignments, stores."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from metasched.arith.regions import block_access_regions
from metasched.ir.buffer import Buffer, Range
from metasched.ir.dtype import HANDLE, VOID, DType
from metasched.ir.expr import Expr, Var, as_int
from metasched.ir.op import Call
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    Break,
    Continue,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    Return,
    Stmt,
    While,
    evolve,
    seq,
)
from metasched.ir.visit import walk
from metasched.script.buffers import renamed
from metasched.script.builder import (
    WORDS,
    MetaVar,
    StatementWord,
    TypeWord,
)
from metasched.script.calls import CallReader
from metasched.script.copies import copied, ends
from metasched.script.hints import STATEMENTS as HINTS
from metasched.script.lives import leaves
from metasched.script.macro import Macro, defined, expanding, macro
from metasched.script.plain import describe
from metasched.script.reader import BlockDraft, Bound, Loops, Region, Scoped
from metasched.script.scalars import counted, own_break
from metasched.script.sections import Section

Item = Stmt | Scoped


class BodyReader(CallReader):
    """Reads the statements of a function, in order."""

    def body(
        self, nodes: Sequence[ast.stmt], block: BlockDraft | None = None, side_by_side: bool = False
    ) -> Stmt:
        """Read statements in order; a statement that opens a scope wraps the statements after it.

        `block` is the block whose whole body the statements are. `side_by_side` says that the
        statements are the body of a loop whose iterations may run at the same time.
        """
        with self.scope(), self.frame(nodes, block, side_by_side) as frame:
            items: list[Item] = [*self.carried_parameters(frame)]
            items += self.statements(nodes)
        tail: list[Stmt] = []
        for item in reversed(items):
            tail = [item.wrap(seq(reversed(tail)))] if isinstance(item, Scoped) else [*tail, item]
        return self.around(frame, seq(reversed(tail)))

    def statements(self, nodes: Sequence[ast.stmt]) -> list[Item]:
        """Read statements in order; those after a jump of a copied body are not read."""
        items: list[Item] = []
        for node in nodes:
            items += self.statement(node)
            if self.copies and ends(items):
                break
        return items

    def statement(self, node: ast.stmt) -> list[Item]:
        rule = _STATEMENTS.get(type(node))
        if rule is None:
            hint = HINTS.get(type(node), "")
            self.fail(node, f"{type(node).__name__} has no meaning in a script", hint)
        before, self.call_stmts = self.call_stmts, []
        items = rule(self, node)
        items = [*self.call_stmts, *(i for i in items if not any(i is s for s in self.call_stmts))]
        self.call_stmts = before
        for item in items:
            if isinstance(item, Stmt):
                self.note(item, node)
        return items

    def _for(self, node: ast.For) -> list[Item]:
        if node.orelse:
            self.fail(node.orelse[0], "a loop has no else; set a flag, and write if behind it")
        described = self._loops(node.iter)
        if described is None:
            return copied(self, node, self.body)
        loops, lets = self.settled(described)
        names = self.spread(node.target, len(loops.ranges))
        if len(names) != len(loops.ranges):
            self.fail(node.target, f"{len(loops.ranges)} loops need as many variables, "
                      f"{len(names)} given")  # fmt: skip
        if len(names) > 1 and (found := own_break(node.body)):
            self.fail(found, "T.grid is one loop in Python, which break would leave",
                      "write nested loops over range: break leaves the innermost one")  # fmt: skip
        with self.scope():
            variables = []
            for name, (low, size) in zip(names, loops.ranges, strict=True):
                var = Var(name, size.dtype)
                if loops.step is None:
                    self.loops[var] = Range(low, size)
                variables.append(var)
            whole = len(variables) > 1 or isinstance(node.target, ast.Tuple)
            self._bind(node.target, tuple(variables) if whole else variables[0])
            ordered = loops.kind in (ForKind.SERIAL, ForKind.UNROLLED)
            runs = all((as_int(size) or 0) > 0 for _, size in loops.ranges)
            runs = runs and not leaves(node.body)
            with self.branch(runs):
                inner = self.body(node.body, side_by_side=not ordered)
        if ordered and runs:
            self.keep_last(node.target, variables, loops)
        for var, (low, size) in reversed(list(zip(variables, loops.ranges, strict=True))):
            notes, step = loops.annotations, loops.step
            if step is not None and (as_int(step) or 0) < 1:
                var, low, step, inner = counted(var, low, step, inner)
            inner = For(var, low, size, loops.kind, inner, loops.thread, notes, step)
        for let in reversed(lets):
            inner = let.wrap(inner)
        return [inner]

    def _loops(self, node: ast.expr) -> Loops | None:
        """The loops that the head of a loop describes; None for other heads."""
        if isinstance(node, ast.Call):
            fn = self.value(node.func)
            if fn is range:
                args, kwargs = self.arguments(node)
                if kwargs or not 1 <= len(args) <= 3:
                    self.fail(node, "range takes one to three numbers")
                stop, step = [*args, None, None][1:3]
                return self.loop(node, ForKind.SERIAL, args[0], stop, step, None, len(args) > 1)
            found = self.word(node, fn) if isinstance(fn, StatementWord) else None
            if isinstance(found, Loops):
                return found
        return None

    def _while(self, node: ast.While) -> list[Item]:
        if node.orelse:
            self.fail(node.orelse[0], "a loop has no else; set a flag, and write if behind it")
        condition = self.condition(node.test, self.operand(node.test))
        with self.branch():
            return [While(condition, self.body(node.body))]

    def _if(self, node: ast.If) -> list[Item]:
        test = self.operand(node.test)
        if not isinstance(test, (Expr, Section)) and not isinstance(node.test, ast.Constant):
            taken = node.body if self.guard(node.test, self.outside.truth, test) else node.orelse
            return self.statements(taken)
        condition = self.condition(node.test, test)
        before = set(self.assigned)
        then = self.body(node.body)
        after, left = self.assigned, self.left
        self.assigned, self.left = before, False
        orelse = self.body(node.orelse) if node.orelse else None
        if self.left:
            self.assigned = after
        elif not left:
            self.assigned &= after
        self.left = self.left and left
        return [IfThenElse(condition, then, orelse)]

    def _with(self, node: ast.With) -> list[Item]:
        return self._with_item(node, list(node.items))

    def _with_item(self, node: ast.With, items: list[ast.withitem]) -> list[Item]:
        """Read the items of a `with`: the first stands around the others, the last around the
        body."""
        if not items:
            return [self.body(node.body)]
        call, target = items[0].context_expr, items[0].optional_vars
        if not isinstance(call, ast.Call):
            self.fail(call, 'with takes a word of T that opens a scope, called: T.block("name")')
        self.hints = self._target_names(target)
        found = self.word(call, self.value(call.func))
        if isinstance(found, Region):
            if len(items) > 1:
                self.fail(items[1].context_expr, "this scope needs a separate `with`")
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
            with self.branch():
                return [While(found.value, self.body(node.body))]
        if found.role == "if":
            return [self._if_frames(node, found.value)]
        if found.role != "init":
            self.fail(call, "T.Then and T.Else stand inside `with T.If(condition):`")
        with self.branch():
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
            with self.branch():
                parts[found.role] = self.body(inner.body)
        if "then" not in parts:
            self.fail(node, "T.If needs `with T.Then():`")
        return IfThenElse(condition, parts["then"], parts.get("else"))

    def _block(self, node: ast.With, call: ast.Call, draft: BlockDraft) -> Stmt:
        if node.items[0].optional_vars is not None:
            self.fail(
                call,
                "a block's iterators are named in its body",
                'write vi = T.axis.spatial(extent, i) below `with T.block("name"):`',
            )
        outermost = all(d is self.implicit for d in self.drafts)
        self.drafts.append(draft)
        body = self.body(node.body, draft)
        self.drafts.pop()
        block = Block(
            draft.name, tuple(draft.iters), draft.reads or (), draft.writes or (), body, draft.init,
            tuple(draft.allocs), tuple(draft.matches), draft.annotations,
        )  # fmt: skip
        root = outermost and draft.name == "root" and not draft.iters
        if not root and (draft.reads is None or draft.writes is None):
            block = self._infer(call, draft, block)
        if not root:
            block = self.with_crossings(block)
        return BlockRealize(tuple(draft.values), draft.predicate, block)

    def _infer(self, call: ast.Call, draft: BlockDraft, block: Block) -> Block:
        """The block with inferred regions, in place of the missing T.reads and T.writes."""
        for part in walk(block):
            pointers = part.args if isinstance(part, Call) else ()
            if any(isinstance(a, Var) and a.dtype is HANDLE for a in pointers):
                self.fail(call, f"block {draft.name!r} passes a pointer on, so what it touches "
                          "cannot be inferred", "declare what is read and written through it: "
                          "T.reads(...) and T.writes(...) at the top of the block")  # fmt: skip
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
            return [self.vstore(value, value.func)]
        fn = self.value(value.func)
        self.hints = []
        if isinstance(fn, Macro):
            return [self._expand(value, fn)]
        found = self.word(value, fn) if isinstance(fn, StatementWord) else self.value(value)
        if found is None or isinstance(found, Bound):
            return []
        if isinstance(found, (Scoped, Stmt)):
            return [found]
        if isinstance(found, Region):
            self.fail(value, f"{describe(fn)} opens a scope", f"write with {describe(fn)}(...):")
        if isinstance(found, Loops):
            what = describe(fn)
            self.fail(value, f"{what} stands in `for`", f"write for i in {what}(...):")
        if not isinstance(found, Expr):
            self.fail(value, f"{describe(found)} is no statement")
        return [Evaluate(found)]

    def _expand(self, node: ast.Call, macro: Macro) -> Stmt:
        """The statements of a macro."""
        args, kwargs = self.arguments(node)
        with (
            expanding(self, node, macro, args, kwargs),
            self.function_of(macro.body, {}, macro.hygienic),
        ):
            return self.body(macro.body)

    def _define(self, node: ast.FunctionDef) -> list[Item]:
        """Define a macro inside a decorated function; it sees the names around it."""
        words = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
        if not self.outside.runs or [self.value(d) for d in words] != [macro]:
            self.fail(node, "FunctionDef has no meaning in a script",
                      "define functions side by side, in an @I.ir_module class, and statements "
                      "to be used again under @T.macro")  # fmt: skip
        made = defined(self, node)
        self.scopes[node.name] = made
        return []

    # ---- assignments -----------------------------------------------------------------------

    def _assign(self, node: ast.Assign) -> list[Item]:
        if len(node.targets) != 1:
            self.fail(node, "assign to one target at a time", "write b = value, then a = b")
        target = node.targets[0]
        if isinstance(target, ast.Subscript):
            return [self.store(node, target, node.value, None)]
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        elements = [part for part in parts if isinstance(part, ast.Subscript)]
        self.hints = [] if elements else self._target_names(target)
        if isinstance(node.value, ast.Call) and not elements:
            fn = self.value(node.value.func)
            if isinstance(fn, StatementWord):
                return self._assign_word(node.value, fn, target)
        if len(parts) > 1 and isinstance(node.value, (ast.Tuple, ast.List)):
            return self._assign_each(node, parts, node.value.elts)
        where = node if isinstance(target, ast.Tuple) else node.value
        return self._bind_values(where, target, self._named(target, node.value))

    def _assign_each(
        self, node: ast.Assign, targets: Sequence[ast.expr], values: Sequence[ast.expr]
    ) -> list[Item]:
        """`a, b = x, y`: all values are read before the first is assigned."""
        if len(targets) != len(values):
            self.fail(node, f"{len(targets)} names need as many values, not {len(values)}")
        pairs = list(zip(targets, values, strict=True))
        read = [self._read(target, value) for target, value in pairs]
        items: list[Item] = [let for lets, _ in read for let in lets]
        for (target, value), (_, found) in zip(pairs, read, strict=True):
            if isinstance(found, (Bound, Scoped)):
                self._bind(target, found.value)
                items += [found] if isinstance(found, Scoped) else []
            else:
                items += self._bind_values(value, target, found)
        return items

    def _read(self, target: ast.expr, value: ast.expr) -> tuple[list[Scoped], Any]:
        """The value for one name of a tuple, and lets for the parts of the value that read
        memory."""
        if isinstance(value, ast.Call) and not isinstance(target, ast.Subscript):
            fn = self.value(value.func)
            if isinstance(fn, StatementWord):
                self.hints = self._target_names(target)
                return [], self._given(value, fn)
        return self.kept(value, self._named(target, value))

    def _named(self, target: ast.expr, node: ast.expr) -> Any:
        """Evaluate the value of a target; new variables and buffers take the target's name."""
        found = self.value(node)
        if not isinstance(target, ast.Name):
            return found
        if isinstance(found, Var) and isinstance(node, ast.Call) and self._is_new(node):
            return MetaVar(Var(target.id, found.dtype))
        if isinstance(found, Buffer) and found.name == "buffer":
            return renamed(found, target.id)
        return found

    def _is_new(self, node: ast.Call) -> bool:
        """Whether a call makes a new variable, as T.int32(), T.var("int64") and T.handle() do."""
        fn = self.value(node.func)
        if isinstance(fn, TypeWord):
            return not node.args or fn.dtype.is_handle
        return fn is WORDS["Var"]

    def _assign_word(self, call: ast.Call, fn: StatementWord, target: ast.expr) -> list[Item]:
        found = self._given(call, fn)
        self._bind(target, found.value)
        return [found] if isinstance(found, Scoped) else []

    def _given(self, call: ast.Call, fn: StatementWord) -> Bound | Scoped:
        """The value that a word gives to the name on the left."""
        found = self.word(call, fn)
        if not isinstance(found, (Bound, Scoped)) or found.value is None:
            self.fail(call, f"T.{fn.name} gives no value to assign")
        return found

    def _bind_values(self, node: ast.AST, target: ast.expr, found: Any) -> list[Item]:
        if isinstance(target, ast.Subscript):
            return [self.store_value(node, target, found)]
        if isinstance(target, ast.Tuple):
            if isinstance(found, MetaVar) and isinstance(found.value, (tuple, list)):
                found = [MetaVar(value) for value in found.value]
            if isinstance(found, (tuple, list)):
                target, found = self.collected(target, tuple(found))
            if not isinstance(found, (tuple, list)) or len(found) != len(target.elts):
                self.fail(node, f"{len(target.elts)} names need as many values, not "
                          f"{describe(found)}")  # fmt: skip
            lets, found = self.kept(node, found)
            pairs = zip(target.elts, found, strict=True)
            inner = [item for part, v in pairs for item in self._bind_values(node, part, v)]
            return [*lets, *inner]
        if isinstance(found, Section):
            self.fail(node, "a slice is a view in NumPy, which later stores change",
                      f"copy it: {self._target_name(target)}: T.float32x4 = A[0:4], or "
                      "read the buffer where the value is needed")  # fmt: skip
        if isinstance(found, (Expr, bool, int, float)):
            value = self.lanes(node, found)
            store = self.scalar_store(node, target, value)
            if store is not None:
                return [store]
            if not isinstance(found, Expr):  # as in Python, its type is that of the other operand
                self._bind(target, found)
                return []
            scoped = self.let(node, self._target_name(target), value, None, None)
            self._bind(target, scoped.value)
            return [scoped]
        self.bound_once(node, target)
        lets, found = self.kept(node, found)
        self._bind(target, found.value if isinstance(found, MetaVar) else found)
        return [*lets]

    def _annotated(self, node: ast.AnnAssign) -> list[Item]:
        name = self._target_name(node.target)
        written: ast.expr | None = node.annotation
        if isinstance(written, ast.Subscript) and self._is_let(written.value):
            written = written.slice
        elif self._is_let(node.annotation):
            written = None
        dtype = None
        if written is not None:
            dtype = self.annotation(written)
            if not isinstance(dtype, DType):
                self.fail(node.annotation, f"a variable has a scalar type, not {describe(dtype)}")
        if node.value is None:
            self._bind(node.target, Var(name, dtype or "int32"))
            return []
        value = self.operand(node.value)
        store = self.scalar_store(node.value, node.target, value, dtype)
        if store is not None:
            if dtype is not None and store.value.dtype is not dtype:
                self.fail(node.value, f"the value is {store.value.dtype}, the variable {dtype}",
                          f'write T.cast(value, "{dtype}")')  # fmt: skip
            return [store]
        scoped = self.let(node.value, name, value, dtype, None)
        self._bind(node.target, scoped.value)
        return [scoped]

    def _is_let(self, node: ast.expr) -> bool:
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return False
        found = self.value(node)
        return isinstance(found, StatementWord) and found.name == "LetStmt"

    def _augmented(self, node: ast.AugAssign) -> list[Item]:
        if isinstance(node.target, ast.Subscript):
            return [self.store(node, node.target, node.value, node.op)]
        name = self._target_name(node.target)
        old = self.value(node.target)
        value = self.apply(node, node.op, old, self.weak(node.value))
        store = self.scalar_store(node, node.target, value)
        if store is not None:
            return [store]
        scoped = self.let(node.value, name, value, None, None)
        self._bind(node.target, scoped.value)
        return [scoped]

    def _return(self, node: ast.Return) -> list[Item]:
        if node.value is None:
            return self.leave(Return())
        if isinstance(node.value, ast.Name) and isinstance(self.value(node.value), Buffer):
            self.fail(node.value, "a function returns a scalar or nothing; results are stored",
                      f"leave the return out: {node.value.id} is filled in place if it is a "
                      "parameter")  # fmt: skip
        want = None if self.ret_type is VOID else self.ret_type
        return self.leave(Return(self.expr(node.value, want)))

    def leave(self, stmt: Stmt) -> list[Item]:
        """A break, continue or return; notes that the statements after it do not run."""
        self.left = True
        return [stmt]

    def _assert(self, node: ast.Assert) -> list[Item]:
        message = "" if node.msg is None else self.value(node.msg)
        return [self.assertion(node, self.operand(node.test), message)]


_STATEMENTS: dict[type[ast.AST], Callable[[BodyReader, Any], list[Item]]] = {
    ast.For: BodyReader._for,
    ast.While: BodyReader._while,
    ast.If: BodyReader._if,
    ast.With: BodyReader._with,
    ast.Expr: BodyReader._expression,
    ast.Assign: BodyReader._assign,
    ast.AnnAssign: BodyReader._annotated,
    ast.AugAssign: BodyReader._augmented,
    ast.Return: BodyReader._return,
    ast.Assert: BodyReader._assert,
    ast.FunctionDef: BodyReader._define,
    ast.Pass: lambda p, n: [],
    ast.Break: lambda p, n: p.leave(Break()),
    ast.Continue: lambda p, n: p.leave(Continue()),
}

"""Compiles statements to closures that run them in an environment of the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import numpy as np

from metasched.errors import InterpretError
from metasched.ir.describe import describe, show_expr
from metasched.ir.expr import TRUE, Var, as_expr, as_int
from metasched.ir.interp_expr import ExprCompiler
from metasched.ir.interp_fence import Env, Eval, outside
from metasched.ir.interp_lengths import refuse_no_result
from metasched.ir.interp_memory import allocate, declare_view, match_view
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
    ForKind,
    IfThenElse,
    IterKind,
    IterVar,
    LetStmt,
    Return,
    SeqStmt,
    Stmt,
    While,
)
from metasched.ir.visit import free_vars, layout_vars, walk, walk_stmts

Run: TypeAlias = Callable[[Env], None]


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


class ReturnSignal(Exception):
    """Raised to leave the function; `value` is the returned value."""

    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self.value = value


class StmtCompiler(ExprCompiler):
    """Compiles statements for one environment."""

    def one(self, stmt: Stmt) -> Run:
        """The function that runs a statement in one environment."""
        rule = _ONE.get(type(stmt))
        if rule is None:
            raise InterpretError(f"{type(stmt).__name__} has no rule in the interpreter")
        return rule(self, stmt)

    def lockstep(self, loop: For) -> Run:
        """The function that runs all iterations of a loop in lockstep; see `interp_lanes`."""
        raise InterpretError(f"cannot run in lockstep: {describe(loop)}")

    def _seq(self, s: SeqStmt) -> Run:
        items = [self.one(x) for x in s.items]
        if len(items) == 2:
            first, second = items

            def run2(env: Env) -> None:
                first(env)
                second(env)

            return run2

        def run(env: Env) -> None:
            for item in items:
                item(env)

        return run

    def _for(self, s: For) -> Run:
        if side_by_side(s):
            return self.lockstep(s)
        values, slot = self.values(s), self.slot(s.var)
        body = self.one(s.body)
        if _leaves(s.body):
            body = _stopping(body)
        if s.kind in (ForKind.PARALLEL, ForKind.THREAD_BINDING) and not crosses(s):

            def shuffled(env: Env) -> None:
                order = list(values(env))
                env[0].shuffle(order)
                for i in order:
                    env[slot] = i
                    body(env)

            return _until_break(shuffled, s.body)

        def run(env: Env) -> None:
            for i in values(env):
                env[slot] = i
                body(env)

        return _until_break(run, s.body)

    def values(self, s: For) -> Callable[[Env], range]:
        low, extent = as_int(s.min), as_int(s.extent)
        if low is not None and extent is not None and s.step is None:
            constant = range(low, low + extent)
            return lambda env: constant
        start, size = self.expr(s.min), self.expr(s.extent)
        step = (lambda env: 1) if s.step is None else self.expr(s.step)
        refuse = refuse_no_result(self, s, self.symbols)

        def values(env: Env) -> range:
            by = step(env)
            if by <= 0:
                raise InterpretError(f"{describe(s)}: the step is {by}")
            first, count = start(env), size(env)
            if count <= 0 and refuse is not None:
                refuse(env)
            return range(first, first + count * by, by)

        return values

    def _while(self, s: While) -> Run:
        condition, body = self.expr(s.condition), self.one(s.body)
        if _leaves(s.body):
            body = _stopping(body)

        def run(env: Env) -> None:
            while condition(env):
                body(env)

        return _until_break(run, s.body)

    def _if(self, s: IfThenElse) -> Run:
        condition, then = self.expr(s.condition), self.one(s.then)
        orelse = None if s.orelse is None else self.one(s.orelse)

        def run(env: Env) -> None:
            if condition(env):
                then(env)
            elif orelse is not None:
                orelse(env)

        return run

    def _store(self, s: BufferStore) -> Run:
        if s.predicate is not None or s.value.dtype.lanes > 1:
            prepare, commit = self.store_parts(s)
            return lambda env: commit(env, prepare(env))
        value, slot, buffer = self.expr(s.value), self.slot(s.buffer), s.buffer
        watch = self.check_undefined
        fenced = self.fences.guard(self, buffer, True, s.indices) is not None
        if len(s.indices) == 1 and not watch and not fenced:
            index = self.expr(s.indices[0])

            def store1(env: Env) -> None:
                v, i = value(env), index(env)
                if i < 0:
                    raise outside(buffer, (i,), env[slot])
                try:
                    env[slot][i] = v
                except (IndexError, TypeError):
                    raise outside(buffer, (i,), env[slot]) from None

            return store1
        at = self.place(s.buffer, s.indices, write=True)

        def store(env: Env) -> None:
            v = value(env)
            where = at(env)
            env[slot][where] = v
            if watch and env[slot + 1] is not None:
                env[slot + 1][where] = True

        return store

    def store_parts(self, s: BufferStore) -> tuple[Eval, Callable[[Env, Any], None]]:
        """Split a store into evaluation and write, because lanes in lockstep all evaluate first."""
        value, slot = self.expr(s.value), self.slot(s.buffer)
        if s.predicate is None and s.value.dtype.lanes == 1:
            at = self.place(s.buffer, s.indices, write=True)

            def write(env: Env, pair: Any) -> None:
                env[slot][pair[0]] = pair[1]
                if env[slot + 1] is not None:
                    env[slot + 1][pair[0]] = True

            return lambda env: (at(env), value(env)), write
        inner = s.buffer.dtype.lanes
        lanes = s.value.dtype.lanes // inner
        many = self.lanes_of(s.buffer, s.indices, s.predicate, lanes, write=True)

        def prepare(env: Env) -> Any:
            where, active = many(env)
            v = np.asarray(value(env))
            return where, (v.reshape(lanes, inner) if inner > 1 else v.reshape(lanes))[active]

        def commit(env: Env, pair: Any) -> None:
            env[slot][pair[0]] = pair[1]
            if env[slot + 1] is not None:
                env[slot + 1][pair[0]] = True

        return prepare, commit

    def _evaluate(self, s: Evaluate) -> Run:
        value = self.expr(s.value)
        if isinstance(s.value, Call) and s.value.op.name == "ret":

            def leave(env: Env) -> None:
                raise ReturnSignal(value(env))

            return leave

        def run(env: Env) -> None:
            value(env)

        return run

    def _let_stmt(self, s: LetStmt) -> Run:
        value, slot = self.expr(s.value), self.slot(s.var)
        body = self.one(s.body)

        def run(env: Env) -> None:
            env[slot] = value(env)
            body(env)

        return run

    def _attr(self, s: AttrStmt) -> Run:
        loop = launched(s)
        return self.one(s.body) if loop is None else self._for(loop)

    def _assert(self, s: AssertStmt) -> Run:
        condition = self.expr(s.condition)

        def run(env: Env) -> None:
            if not condition(env):
                raise InterpretError(f"assertion failed: {s.message} ({show_expr(s.condition)})")

        return run

    def _allocate(self, s: Allocate) -> Run:
        fresh, body = allocate(self, s.buffer), self.one(s.body)

        def run(env: Env) -> None:
            fresh(env)
            body(env)

        return run

    def _decl(self, s: DeclBuffer) -> Run:
        view, body = declare_view(self, s.buffer, s.source), self.one(s.body)

        def run(env: Env) -> None:
            view(env)
            body(env)

        return run

    def _realize(self, s: BlockRealize) -> Run:
        with self.inside(s.block):
            enter, starts = self.bind(s)
            with self.fences.around(self, s.block):
                init = None if s.block.init is None else self.one(s.block.init)
                body = self.one(s.block.body)

        def run(env: Env) -> None:
            if enter(env):
                if init is not None and starts(env):
                    init(env)
                body(env)

        return run

    @contextmanager
    def inside(self, block: Block) -> Iterator[None]:
        """Compile a block: the extents, strides and offsets that its matches define end with it.

        A copy of the block, beside it, defines the same variables again.
        """
        matched = layout_vars(block).difference(self.slots)
        yield
        for var in matched:
            self.slots.pop(var, None)

    def bind(self, s: BlockRealize) -> tuple[Callable[[Env], bool], Callable[[Env], bool]]:
        """The functions `enter` and `starts` of a block.

        `enter` binds the iterators and allocates the block's buffers; it returns False if the
        predicate fails. `starts` returns whether all reduce iterators are at their minimum.
        """
        block = s.block
        predicate = None if s.predicate is TRUE else self.expr(s.predicate)
        values = [self.expr(v) for v in s.iter_values]
        bounds = [(self.expr(v.dom.min), self.expr(v.dom.extent)) for v in block.iter_vars]
        slots = [self.slot(v.var) for v in block.iter_vars]
        setup = [
            _binder(block, iter_var, slot, value, bound)
            for iter_var, slot, value, bound in zip(
                block.iter_vars, slots, values, bounds, strict=True
            )
        ]
        reduce = [
            (slot, low)
            for v, slot, (low, _) in zip(block.iter_vars, slots, bounds, strict=True)
            if v.kind is IterKind.REDUCE
        ]
        with self.fences.around(self, block):
            setup += [allocate(self, b) for b in block.alloc_buffers]
            setup += [match_view(self, m) for m in block.match_buffers]

        def enter(env: Env) -> bool:
            if predicate is not None and not predicate(env):
                return False
            for step in setup:
                step(env)
            return True

        def starts(env: Env) -> bool:
            for slot, low in reduce:  # noqa: SIM110  a loop is faster here
                if env[slot] != low(env):
                    return False
            return True

        return enter, starts

    def _return(self, s: Return) -> Run:
        value = (lambda env: None) if s.value is None else self.expr(s.value)

        def leave(env: Env) -> None:
            raise ReturnSignal(value(env))

        return leave


def _binder(block: Block, v: IterVar, slot: int, value: Eval, bound: tuple[Eval, Eval]) -> Run:
    """Bind an iterator; raise if a spatial or reduce iterator leaves its domain."""
    low, high = as_int(v.dom.min), as_int(v.dom.min + v.dom.extent)

    def complain(x: int) -> InterpretError:
        return InterpretError(
            f"block {block.name}: iterator {v.var.name} = {x} is outside its domain ({describe(v)})"
        )

    def free(env: Env) -> None:
        env[slot] = value(env)

    def constant(env: Env) -> None:
        env[slot] = x = value(env)
        if not low <= x < high:
            raise complain(x)

    def symbolic(env: Env) -> None:
        env[slot] = x = value(env)
        if not 0 <= x - bound[0](env) < bound[1](env):
            raise complain(x)

    if v.kind not in (IterKind.SPATIAL, IterKind.REDUCE):
        return free
    return symbolic if low is None or high is None else constant


def _raise(error: type[Exception]) -> Callable[[StmtCompiler, Any], Run]:
    def leave(env: Env) -> None:
        raise error

    return lambda compiler, s: leave


_ONE: dict[type[Any], Callable[[Any, Any], Run]] = {
    SeqStmt: StmtCompiler._seq, For: StmtCompiler._for, While: StmtCompiler._while,
    IfThenElse: StmtCompiler._if, BufferStore: StmtCompiler._store, Return: StmtCompiler._return,
    Evaluate: StmtCompiler._evaluate, LetStmt: StmtCompiler._let_stmt, AttrStmt: StmtCompiler._attr,
    AssertStmt: StmtCompiler._assert, Allocate: StmtCompiler._allocate,
    DeclBuffer: StmtCompiler._decl, BlockRealize: StmtCompiler._realize,
    Break: _raise(_Break), Continue: _raise(_Continue),
}  # fmt: skip


def _leaves(body: Stmt) -> bool:
    return any(isinstance(s, (Break, Continue)) for s in walk_stmts(body))


def _stopping(body: Run) -> Run:
    def run(env: Env) -> None:
        with suppress(_Continue):
            body(env)

    return run


def _until_break(loop: Run, body: Stmt) -> Run:
    if not _leaves(body):
        return loop

    def run(env: Env) -> None:
        with suppress(_Break):
            loop(env)

    return run


def side_by_side(s: For) -> bool:
    """Whether iterations run in lockstep: lanes of a vector, threads that wait for each other."""
    if s.kind is ForKind.VECTORIZED:
        return True
    return (s.thread or "").startswith("threadIdx") and waits(s.body)


def waits(stmt: Stmt) -> bool:
    """Whether a statement holds a barrier, at which threads wait for each other."""
    return any(isinstance(e, Call) and e.op.name == "tvm_storage_sync" for e in walk(stmt))


def crosses(s: For) -> bool:
    """Whether a thread loop carries a reduction, which lowering makes a cross-thread reduction."""
    if s.kind is not ForKind.THREAD_BINDING:
        return False
    return any(
        v.kind is IterKind.REDUCE and s.var in free_vars(value)
        for r in walk_stmts(s.body)
        if isinstance(r, BlockRealize)
        for v, value in zip(r.block.iter_vars, r.iter_values, strict=True)
    )


def launched(s: AttrStmt) -> For | None:
    """The thread loop that an attribute `thread_extent` of a variable stands for."""
    if s.key not in ("thread_extent", "virtual_thread") or not isinstance(s.node, Var):
        return None
    zero = as_expr(0, s.value.dtype)
    return For(s.node, zero, s.value, ForKind.THREAD_BINDING, s.body, s.node.name)

"""Compiles statements to closures that run many environments in lockstep.

The environments are the lanes of a vectorized loop, or the threads of a loop with a barrier. All
environments finish a statement before any begins the next, and all evaluate the value of a store
before any environment writes. A loop with a break or a continue is one statement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from metasched.errors import InterpretError
from metasched.ir.describe import describe
from metasched.ir.interp_fence import Env
from metasched.ir.interp_memory import allocate, declare_view
from metasched.ir.interp_stmt import Run, StmtCompiler, crosses, launched, side_by_side, waits
from metasched.ir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    BlockRealize,
    BufferStore,
    DeclBuffer,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
    While,
)
from metasched.ir.visit import jumps

RunAll: TypeAlias = Callable[[list[Env]], None]


class LaneCompiler(StmtCompiler):
    """Compiles statements for one environment (`one`) and for lanes in lockstep (`all`)."""

    def all(self, stmt: Stmt) -> RunAll:
        """The function that runs a statement in many environments, each part in all before the
        next."""
        if isinstance(stmt, (For, While)) and jumps(stmt.body) and not waits(stmt):
            return self.one_by_one(stmt)
        rule = _ALL.get(type(stmt))
        if rule is not None:
            return rule(self, stmt)
        raise InterpretError(f"{type(stmt).__name__} cannot run in lockstep: {describe(stmt)}")

    def one_by_one(self, stmt: Stmt) -> RunAll:
        """A loop that each environment leaves by a jump: in one environment after the other."""
        alone = self.one(stmt)

        def run(envs: list[Env]) -> None:
            for env in envs:
                alone(env)

        return run

    def lockstep(self, s: For) -> Run:
        values, slot = self.values(s), self.slot(s.var)
        body = self.all(s.body)

        def run(env: Env) -> None:
            lanes = []
            for i in values(env):
                lane = env.copy()
                lane[slot] = i
                lanes.append(lane)
            if lanes:
                body(lanes)

        return run

    def _seq_all(self, s: SeqStmt) -> RunAll:
        items = [self.all(x) for x in s.items]

        def run(lanes: list[Env]) -> None:
            for item in items:
                item(lanes)

        return run

    def _for_all(self, s: For) -> RunAll:
        values, slot = self.values(s), self.slot(s.var)
        body = self.all(s.body)
        if side_by_side(s):

            def widen(lanes: list[Env]) -> None:
                wider = []
                for lane in lanes:
                    for i in values(lane):
                        one = lane.copy()
                        one[slot] = i
                        wider.append(one)
                if wider:
                    body(wider)

            return widen
        shuffles = s.kind in (ForKind.PARALLEL, ForKind.THREAD_BINDING) and not crosses(s)

        def run(lanes: list[Env]) -> None:
            ranges = [values(lane) for lane in lanes]
            order = list(range(max(len(r) for r in ranges)))
            if shuffles:
                lanes[0][0].shuffle(order)
            for step in order:
                active = []
                for lane, r in zip(lanes, ranges, strict=True):
                    if step < len(r):
                        lane[slot] = r[step]
                        active.append(lane)
                body(active)

        return run

    def _while_all(self, s: While) -> RunAll:
        condition, body = self.expr(s.condition), self.all(s.body)

        def run(lanes: list[Env]) -> None:
            active = [lane for lane in lanes if condition(lane)]
            while active:
                body(active)
                active = [lane for lane in active if condition(lane)]

        return run

    def _if_all(self, s: IfThenElse) -> RunAll:
        condition, then = self.expr(s.condition), self.all(s.then)
        orelse = None if s.orelse is None else self.all(s.orelse)

        def run(lanes: list[Env]) -> None:
            truths = [bool(condition(lane)) for lane in lanes]
            yes = [lane for lane, t in zip(lanes, truths, strict=True) if t]
            no = [lane for lane, t in zip(lanes, truths, strict=True) if not t]
            if yes:
                then(yes)
            if no and orelse is not None:
                orelse(no)

        return run

    def _store_all(self, s: BufferStore) -> RunAll:
        prepare, commit = self.store_parts(s)

        def run(lanes: list[Env]) -> None:
            pairs = [prepare(lane) for lane in lanes]
            for lane, pair in zip(lanes, pairs, strict=True):
                commit(lane, pair)

        return run

    def _let_all(self, s: LetStmt) -> RunAll:
        value, slot = self.expr(s.value), self.slot(s.var)
        body = self.all(s.body)

        def run(lanes: list[Env]) -> None:
            for lane in lanes:
                lane[slot] = value(lane)
            body(lanes)

        return run

    def _attr_all(self, s: AttrStmt) -> RunAll:
        loop = launched(s)
        return self.all(s.body) if loop is None else self._for_all(loop)

    def _scoped_all(self, s: Allocate | DeclBuffer) -> RunAll:
        if isinstance(s, Allocate):
            setup = allocate(self, s.buffer)
        else:
            setup = declare_view(self, s.buffer, s.source)
        body = self.all(s.body)

        def run(lanes: list[Env]) -> None:
            for lane in lanes:
                setup(lane)
            body(lanes)

        return run

    def _realize_all(self, s: BlockRealize) -> RunAll:
        with self.inside(s.block):
            enter, starts = self.bind(s)
            with self.fences.around(self, s.block):
                init = None if s.block.init is None else self.all(s.block.init)
                body = self.all(s.block.body)

        def run(lanes: list[Env]) -> None:
            inside = [lane for lane in lanes if enter(lane)]
            if init is not None:
                first = [lane for lane in inside if starts(lane)]
                if first:
                    init(first)
            if inside:
                body(inside)

        return run

    def _each(self, s: Stmt) -> RunAll:
        one = self.one(s)

        def run(lanes: list[Env]) -> None:
            for lane in lanes:
                one(lane)

        return run


_ALL: dict[type[Any], Callable[[Any, Any], RunAll]] = {
    SeqStmt: LaneCompiler._seq_all, For: LaneCompiler._for_all, While: LaneCompiler._while_all,
    IfThenElse: LaneCompiler._if_all, BufferStore: LaneCompiler._store_all,
    Evaluate: LaneCompiler._each, AssertStmt: LaneCompiler._each, LetStmt: LaneCompiler._let_all,
    AttrStmt: LaneCompiler._attr_all, Allocate: LaneCompiler._scoped_all,
    DeclBuffer: LaneCompiler._scoped_all, BlockRealize: LaneCompiler._realize_all,
}  # fmt: skip

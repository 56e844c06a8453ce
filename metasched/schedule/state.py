"""The state of a schedule: a module, an index into it, the table of handles, the random stream.

All these parts are immutable values, so a snapshot is seven references, and undo restores them.
`content` holds the work that is deferred until it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, TypeVar

from metasched.analysis.foreign import calls_out
from metasched.analysis.scope import Scope
from metasched.analysis.sizes import size_of, sizes_of
from metasched.arith.analyzer import Analyzer
from metasched.errors import ScheduleError
from metasched.ir.buffer import Buffer
from metasched.ir.dtype import HANDLE, DType
from metasched.ir.expr import Expr, Var, as_expr, as_int
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.intern import quick
from metasched.ir.stmt import Block, BlockRealize, BlockToken, DeclBuffer, For, Stmt
from metasched.ir.visit import bound_vars, free_vars, substitute, walk_stmts
from metasched.schedule import edit
from metasched.schedule.advice import advice
from metasched.schedule.content import Content, Index, Pending
from metasched.schedule.handles import RV, BlockRV, ExprRV, LoopRV, Mark
from metasched.schedule.rng import Rng
from metasched.script.printer import script_with_marks

H = TypeVar("H", LoopRV, BlockRV, ExprRV)


@cache
def _pooled_var(name: str, dtype: str, serial: int) -> Var:
    """The variable number `serial` with this name and type.

    All replays of a trace get the same objects, so that cached proofs about interned expressions
    are found again.
    """
    return Var(name, dtype, serial)


@lru_cache(maxsize=1 << 12)
def _pooled_buffer(serial: int, *given: Any) -> Buffer:
    """The buffer number `serial` with these fields; see `_pooled_var`."""
    return replace(Buffer(*given), data=Var(given[0], HANDLE, serial))


@quick
class Snapshot:
    """The data that `State.restore` needs; without an index, the index is rebuilt when needed."""

    mod: IRModule
    index: Index | None
    table: dict[RV, Any]
    serial: int
    rng: int
    func_name: str | None
    pending: Pending


class State:
    """The mutable cell that primitives work on.

    Attributes:
        content: module, index and table of handles (BlockToken, Var, int or Mark).
        rng: the random stream of sampling primitives.
        mode: how sampling steps treat a decision: live, stored, fresh, repair, keep
            (`sample.decide`).
        repairs: the number of repaired decisions.
        skip_legality_checks: whether checks marked with `checks.proof` are skipped.
        drawn: (decision, domain) of the sampling step that is running.
        canonical: arguments, by name, to record in a simpler form than given.
        calls_out: whether the module calls foreign functions, see `analysis.foreign`.
        same_order: whether all changes of the running primitive keep the instances of all blocks,
            and their order.
    """

    __slots__ = (
        "calls_out", "canonical", "content", "drawn", "func_name", "mode", "primitive", "repairs",
        "rng", "same_order", "serial", "skip_legality_checks",
    )  # fmt: skip

    def __init__(self, mod: IRModule, seed: int, *, check: bool = False) -> None:
        self.content = Content(mod, check)
        self.rng = Rng(seed)
        self.serial = _last_serial(mod)
        self.calls_out = calls_out(mod)
        self.same_order = False
        self.func_name: str | None = None
        self.primitive = ""
        self.drawn: tuple[Any, Any] | None = None
        self.canonical: dict[str, Any] | None = None
        self.mode = "live"
        self.repairs = 0
        self.skip_legality_checks = False

    @property
    def mod(self) -> IRModule:
        """The module as it stands."""
        return self.content.mod

    @property
    def sizes(self) -> Mapping[Var, Expr]:
        """The representative sizes of run-time extents (see `analysis.sizes`)."""
        return sizes_of(self.content.mod)

    def size(self, extent: Expr) -> int | None:
        """An extent as a number, at the representative sizes; None without one."""
        number = as_int(extent)
        return number if number is not None else size_of(extent, self.sizes)

    @property
    def index(self) -> Index:
        """The index of the module."""
        return self.content.index

    @property
    def table(self) -> dict[RV, Any]:
        """The table of handles, for reading only (see `writable_table`)."""
        return self.content.table

    @property
    def check(self) -> bool:
        """Whether every commit is verified."""
        return self.content.check

    # -- snapshots -------------------------------------------------------------------------------

    def snapshot(self, *, index: bool = False) -> Snapshot:
        """A snapshot of the state, with the index if `index` says so."""
        mod, made, table, pending = self.content.saved(index=index)
        return Snapshot(mod, made, table, self.serial, self.rng.state, self.func_name, pending)

    def restore(self, saved: Snapshot) -> None:
        self.take_place(saved)
        self.content.use_table(saved.table)
        self.rng.state, self.func_name = saved.rng, saved.func_name

    def copy(self) -> State:
        """An independent state in which the same handles resolve; its random stream is forked."""
        other = self.copy_for_trial()
        other.rng = Rng(self.rng.fork())
        return other

    def copy_for_trial(self) -> State:
        """A copy to try a step on; steps on it do not change this state or its random stream."""
        other = State.__new__(State)
        for name in State.__slots__:
            setattr(other, name, getattr(self, name))
        other.content, other.rng = self.content.lend(), Rng(self.rng.state)
        other.primitive, other.mode, other.repairs = "", "live", 0
        other.skip_legality_checks = False
        return other

    def take_place(self, saved: Snapshot) -> None:
        """Restore the module of a snapshot."""
        self.content.go_back(saved.mod, saved.index, saved.pending)
        self.serial = saved.serial

    def writable_table(self) -> dict[RV, Any]:
        """The table of handles, unshared, for entering or removing handles."""
        return self.content.writable_table()

    # -- lookup ----------------------------------------------------------------------------------

    def value(self, rv: RV) -> Any:
        """The token, variable, number or mark of a handle; an unknown handle is refused."""
        try:
            return self.table[rv]
        except KeyError:
            if isinstance(rv, str):
                raise self.error(
                    "not-a-handle",
                    f"{rv!r} is a name, and this argument is a handle",
                    hint="only blocks have names that steps take; get_loops gives handles of loops",
                ) from None
            kind = {BlockRV: "block", LoopRV: "loop"}.get(type(rv), "value")
            raise self.error(
                "unknown-handle",
                f"this {kind} handle belongs to another schedule or was removed",
                hint="get the handle from this schedule (get_block, get_loops)",
            ) from None

    def loop(self, rv: LoopRV) -> For:
        """The loop a handle stands for; a consumed loop or a mark is refused."""
        var = self.value(rv)
        node = self.index.loops.get(var)
        if node is None:
            if isinstance(var, Mark):
                raise self.error("not-a-loop", f"the handle is the mark {var!r}, not a loop")
            raise self.error(
                "stale-handle",
                f"the loop {var.name} is gone: an earlier step consumed it",
                hint="use the handles that the consuming step returned, or get_loops again",
            )
        return node

    def block(self, rv: BlockRV) -> BlockRealize:
        """The realised block a handle stands for; a block that is gone is refused."""
        node = self.index.blocks.get(self.value(rv))
        if node is None:
            raise self.error(
                "stale-handle",
                "the block is gone: an earlier step inlined or replaced it",
                hint="get_block finds the blocks that are left",
            )
        return node

    def labelled(self, rv: LoopRV | BlockRV) -> For | Block:
        """The loop or block of a handle, for a step that reads and changes only labels.

        The position and the parts of the node may be out of date; see `relabel`.
        """
        if not self.skip_legality_checks:
            self.content.apply_pending()
        key = self.value(rv)
        found = self.content.relabelled(key)
        if found is not None:
            return found
        index = self.content.before_pending()
        node = index.loops.get(key) if isinstance(rv, LoopRV) else index.blocks.get(key)
        if node is None:  # refused
            return self.loop(rv) if isinstance(rv, LoopRV) else self.block(rv).block
        return node if isinstance(node, For) else node.block

    def integer(self, value: Any) -> int | None:
        """The integer of a number, a sampled value or an expression over sampled values."""
        if isinstance(value, int):
            return value
        if isinstance(value, ExprRV):
            return self.value(value)  # type: ignore[no-any-return]
        return as_int(self.expr(value)) if isinstance(value, Expr) else None

    def expr(self, value: Any) -> Expr:
        """An expression with the sampled values in it replaced by their numbers."""
        expr = as_expr(value)
        names = expr_rvs(expr)
        return _folded(expr, *[(v, self.value(v)) for v in names]) if names else expr

    def parent(self, node: Stmt) -> Stmt | None:
        return self.index.parent[node]

    def ancestors(self, node: Stmt) -> Iterator[Stmt]:
        """From the parent of `node` up to the root's realisation."""
        parent = self.index.parent
        above = parent[node]
        while above is not None:
            yield above
            above = parent[above]

    def scope_block(self, node: Stmt) -> Block | None:
        """The block that encloses `node` (not `node` itself), None above the root."""
        parent = self.index.parent
        above = parent[node]
        while above is not None and type(above) is not Block:
            above = parent[above]
        return above

    def scope(self, node: Stmt) -> Scope:
        """The scope that encloses `node`."""
        block = self.scope_block(node)
        if block is None:
            raise self.error("is-root", "the root block is in no scope", node)
        return Scope.of(block)

    def loops_above(self, node: Stmt) -> tuple[For, ...]:
        """The loops between `node` and the block around it, outermost first."""
        parent = self.index.parent
        loops: list[For] = []
        above = parent[node]
        while above is not None and type(above) is not Block:
            if type(above) is For:
                loops.append(above)
            above = parent[above]
        loops.reverse()
        return tuple(loops)

    def func_of(self, node: Stmt) -> tuple[str, PrimFunc]:
        """Name and body of the function that holds `node`."""
        return self.content.func_of(node)

    def working_func(self) -> str:
        """The name of the function in which block names are looked up.

        This is the function chosen by `work_on`, or else the only function.
        """
        if self.func_name is not None:
            return self.func_name
        names = list(self.mod.functions)
        if len(names) == 1:
            return names[0]
        if "main" in names:
            return "main"
        raise self.error(
            "which-function",
            f"the module has several functions: {', '.join(names)}",
            hint="choose one with work_on(name) or pass func_name",
        )

    # -- new things ------------------------------------------------------------------------------

    def fresh_var(self, name: str, dtype: DType | str = "int32") -> Var:
        """A variable that no statement of the module binds."""
        self.serial += 1
        return _pooled_var(name, str(dtype), self.serial)

    def fresh_buffer(self, *given: Any) -> Buffer:
        """`Buffer(*given)` that the module does not have."""
        self.serial += 1
        return _pooled_buffer(self.serial, *given)

    def fresh_block_name(self, name: str) -> str:
        """`name`, or `name_1`, `name_2`, ... when a block has it already."""
        taken, candidate, n = self.index.by_name, name, 0
        while candidate in taken:
            n += 1
            candidate = f"{name}_{n}"
        return candidate

    def new_loop(self, var: Var | Mark) -> LoopRV:
        """A handle for a loop."""
        return self._named(LoopRV(), var)

    def new_loops(self, variables: Sequence[Var]) -> list[LoopRV]:
        made = [LoopRV() for _ in variables]
        self.writable_table().update(zip(made, variables, strict=True))
        return made

    def new_block(self, token: BlockToken) -> BlockRV:
        """A handle for a block."""
        return self._named(BlockRV(), token)

    def new_value(self, value: int) -> ExprRV:
        """A handle for a sampled integer."""
        return self._named(ExprRV(), value)

    def _named(self, rv: H, value: Any) -> H:
        self.writable_table()[rv] = value
        return rv

    # -- change ----------------------------------------------------------------------------------

    def relabel(self, node: For | Block, change: Callable[[Stmt], For | Block]) -> None:
        """Change the labels of a loop or block: its kind, thread and annotations, nothing else.

        Steps that relabel often follow each other, and each commit copies a path. So, if legality
        checks are skipped, the changes are deferred until the tree is read.
        """
        self.same_order = False
        if self.skip_legality_checks:
            self.content.defer_relabelling(node, change)
        else:
            self.commit(edit.wrap(node, change))

    def commit(self, *edits: edit.Edits, same_order: bool = False) -> None:
        """Apply edits, all stated in terms of the present tree.

        `same_order` says that the same instances of all blocks run, in the same order.
        """
        self.same_order = self.same_order and same_order
        self.content.commit(*edits)

    def set_func(self, name: str, func: PrimFunc) -> None:
        """Replace the function called `name`."""
        self.same_order = False
        self.content.set_func(name, func)

    # -- refusal ---------------------------------------------------------------------------------

    def error(
        self, reason: str, message: Any, node: Any = None, *, hint: str = ""
    ) -> ScheduleError:
        """The error of the primitive that is running; its script is rendered when read.

        Without a hint, the error has the hint of its reason (`schedule.advice`).
        """
        mod = self.mod
        excerpt = None
        if isinstance(node, (Stmt, Expr)):
            excerpt = lambda: script_with_marks(mod, [node])  # noqa: E731
        return ScheduleError(
            self.primitive, reason, message, block_or_loop=node,
            hint=hint or advice(self.primitive, reason), excerpt=excerpt,
        )  # fmt: skip


def _last_serial(mod: IRModule) -> int:
    """The largest pool number among the variables a module binds and its buffers."""
    drawn = [b.data for func in mod.functions.values() for b in func.buffers]
    for func in mod.functions.values():
        for node in walk_stmts(func.body):
            drawn.extend(bound_vars(node))
            if isinstance(node, Block):
                views = [m.buffer for m in node.match_buffers]
                drawn.extend(b.data for b in (*node.alloc_buffers, *views))
            elif isinstance(node, DeclBuffer):
                drawn.append(node.buffer.data)
    return max((var.serial for var in drawn), default=0)


def expr_rvs(expr: Expr) -> list[ExprRV]:
    """The sampled values an expression mentions."""
    return [v for v in free_vars(expr) if isinstance(v, ExprRV)]


@lru_cache(maxsize=1 << 12)
def _folded(expr: Expr, *known: tuple[ExprRV, int]) -> Expr:
    """An expression with its sampled values replaced by their numbers."""
    return Analyzer().simplify(substitute(expr, {rv: as_expr(value) for rv, value in known}))

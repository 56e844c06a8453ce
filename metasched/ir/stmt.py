"""Statements: frozen, slotted trees. Loops and blocks carry identities that edits keep.

Grammar:

    s ::= For(var, min, extent, kind, body, thread, annotations, step)
        | While(condition, body) | Break() | Continue() | Return(value)
        | IfThenElse(condition, then, orelse)
        | SeqStmt(stmts)                              two or more, never nested
        | BufferStore(buffer, value, indices, predicate)
        | Evaluate(value)                             for its effect
        | LetStmt(var, value, body)
        | AttrStmt(node, key, value, body)            key = value holds within body
        | AssertStmt(condition, message)
        | Allocate(buffer, body, annotations)         flat allocation, alive within body
        | DeclBuffer(buffer, source, body)            another view of source's memory
        | BlockRealize(iter_values, predicate, block) one instance of a block for each execution
    block ::= Block(name, iter_vars, reads, writes, body, init, alloc_buffers, match_buffers,
                    annotations, token)

A block is a contract: the types, bindings and predicate of its iterators, and the regions that it
reads and writes. In a schedule a block's body mentions iterators of the block and of blocks around
it, never loop variables. In a program as written, a body may mention loop variables;
`analysis.closing` then binds new iterators to them. Edits that keep a loop keep its `var`, and
those of a block its `token`. `ir.visit` traverses statements by `stmts`, `exprs` and `rebuild`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, NoReturn, TypeVar, TypeVarTuple

from metasched.ir.buffer import Buffer, BufferRegion, Range
from metasched.ir.expr import TRUE, Expr, IntImm, Var, as_expr
from metasched.ir.intern import quick
from metasched.ir.variables import note_role

R = TypeVar("R")
S = TypeVar("S", bound="Stmt")
Ts = TypeVarTuple("Ts")


class FrozenMap(dict[str, Any]):
    """An immutable dictionary, for annotations and attributes."""

    __slots__ = ()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("annotations are immutable; build a new mapping")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenMap, (dict(self),)


EMPTY = FrozenMap()


def frozen(values: Mapping[str, Any] | None) -> FrozenMap:
    """`values` as an immutable mapping."""
    return values if isinstance(values, FrozenMap) else FrozenMap(values) if values else EMPTY


class Stmt:
    """Base of all statements. `_facts` caches analysis results that depend on the subtree alone."""

    __slots__ = ("__weakref__", "_facts")
    _facts: dict[Any, Any]

    @property
    def facts(self) -> dict[Any, Any]:
        """The cache of facts about this subtree. It is never pickled, and stays valid, because
        nodes do not change."""
        try:
            return self._facts
        except AttributeError:
            object.__setattr__(self, "_facts", {})
            return self._facts

    @property
    def stmts(self) -> tuple[Stmt, ...]:
        """The statements directly below."""
        return ()

    @property
    def exprs(self) -> tuple[Expr, ...]:
        """The expressions directly held."""
        return ()

    def rebuild(self, stmts: Sequence[Stmt], exprs: Sequence[Expr]) -> Stmt:
        """A copy of the node with other parts, given in the order of `stmts` and `exprs`."""
        return self


def fact(fn: Callable[[S, *Ts], R]) -> Callable[[S, *Ts], R]:
    """Decorate a function of a statement (and further positional arguments) so that its results are
    cached on the statement."""

    @wraps(fn)
    def found(node: S, /, *args: *Ts) -> R:
        facts, key = node.facts, (fn, *args) if args else fn
        if key not in facts:
            facts[key] = fn(node, *args)
        return facts[key]  # type: ignore[no-any-return]

    return found


class _Around(Stmt):
    """A statement around one other, its body."""

    __slots__ = ()
    body: Stmt

    @property
    def stmts(self) -> tuple[Stmt, ...]:
        return (self.body,)


def evolve(node: S, /, **changes: Any) -> S:
    """A copy of `node` with some fields changed."""
    kind = type(node)
    values = [
        changes.pop(n) if n in changes else getattr(node, n)
        for n in kind.__dataclass_fields__  # type: ignore[attr-defined]
    ]
    if changes:
        raise TypeError(f"{kind.__name__} has no field {', '.join(sorted(changes))}")
    return kind(*values)


class ForKind(enum.Enum):
    """How the iterations of a loop are executed."""

    SERIAL = "serial"
    PARALLEL = "parallel"
    VECTORIZED = "vectorized"
    UNROLLED = "unroll"
    THREAD_BINDING = "thread_binding"


@quick
class For(_Around):
    """`for var in [min, min + extent * step)`; `thread` is a bound loop's tag (`blockIdx.x`)."""

    var: Var
    min: Expr
    extent: Expr
    kind: ForKind
    body: Stmt
    thread: str | None = None
    annotations: FrozenMap = EMPTY
    step: Expr | None = None

    @staticmethod
    def serial(var: Var, extent: Expr | int, body: Stmt) -> For:
        """A plain loop from zero."""
        return For(var, IntImm(var.dtype, 0), as_expr(extent, var.dtype), ForKind.SERIAL, body)

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (self.min, self.extent) if self.step is None else (self.min, self.extent, self.step)

    def rebuild(self, stmts: Sequence[Stmt], exprs: Sequence[Expr]) -> For:
        step = exprs[2] if self.step is not None else None
        notes = self.annotations
        return For(self.var, exprs[0], exprs[1], self.kind, stmts[0], self.thread, notes, step)


@dataclass(frozen=True, slots=True, eq=False)
class While(_Around):
    condition: Expr
    body: Stmt

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (self.condition,)

    def rebuild(self, stmts: Sequence[Stmt], exprs: Sequence[Expr]) -> While:
        return While(exprs[0], stmts[0])


@dataclass(frozen=True, slots=True, eq=False)
class Break(Stmt):
    """Leave the innermost While or serial For."""


@dataclass(frozen=True, slots=True, eq=False)
class Continue(Stmt):
    """Go on with the next iteration of the innermost While or serial For."""


@dataclass(frozen=True, slots=True, eq=False)
class Return(Stmt):
    """Leave the function (with a value, where it has a return type)."""

    value: Expr | None = None

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return () if self.value is None else (self.value,)

    def rebuild(self, stmts: Sequence[Stmt], exprs: Sequence[Expr]) -> Return:
        return Return(exprs[0] if exprs else None)


@dataclass(frozen=True, slots=True, eq=False)
class IfThenElse(Stmt):
    condition: Expr
    then: Stmt
    orelse: Stmt | None = None

    @property
    def stmts(self) -> tuple[Stmt, ...]:
        return (self.then,) if self.orelse is None else (self.then, self.orelse)

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (self.condition,)

    def rebuild(self, stmts: Sequence[Stmt], exprs: Sequence[Expr]) -> IfThenElse:
        return IfThenElse(exprs[0], stmts[0], stmts[1] if len(stmts) > 1 else None)


@quick
class SeqStmt(Stmt):
    """Statements in order. Build with `seq`, which flattens, and returns a single statement
    itself."""

    items: tuple[Stmt, ...]

    @property
    def stmts(self) -> tuple[Stmt, ...]:
        return self.items

    def rebuild(self, stmts: Sequence[Stmt], exprs: Sequence[Expr]) -> Stmt:
        return seq(stmts)


def seq(items: Iterable[Stmt]) -> Stmt:
    """Join statements into one; nested sequences are flattened, and no statement gives a no-op."""
    flat: list[Stmt] = []
    for item in items:
        if isinstance(item, SeqStmt):
            flat.extend(item.items)
        else:
            flat.append(item)
    if len(flat) == 1:
        return flat[0]
    return SeqStmt(tuple(flat)) if flat else Evaluate(as_expr(0))


@quick
class BufferStore(Stmt):
    """buffer[indices] = value; a `predicate` masks lanes of a vector store."""

    buffer: Buffer
    value: Expr
    indices: tuple[Expr, ...]
    predicate: Expr | None = None

    @property
    def exprs(self) -> tuple[Expr, ...]:
        tail = () if self.predicate is None else (self.predicate,)
        return (self.value, *self.indices, *tail)

    def rebuild(self, stmts: Sequence[Stmt], exprs: Sequence[Expr]) -> BufferStore:
        n = len(self.indices) + 1
        mask = exprs[n] if len(exprs) > n else None
        return BufferStore(self.buffer, exprs[0], tuple(exprs[1:n]), mask)


@dataclass(frozen=True, slots=True, eq=False)
class Evaluate(Stmt):
    value: Expr

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (self.value,)

    def rebuild(self, stmts: Sequence[Stmt], exprs: Sequence[Expr]) -> Evaluate:
        return Evaluate(exprs[0])


@dataclass(frozen=True, slots=True, eq=False)
class LetStmt(_Around):
    var: Var
    value: Expr
    body: Stmt

    def __post_init__(self) -> None:
        note_role(self.var, "named")

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (self.value,)

    def rebuild(self, stmts: Sequence[Stmt], exprs: Sequence[Expr]) -> LetStmt:
        return LetStmt(self.var, exprs[0], stmts[0])


@dataclass(frozen=True, slots=True, eq=False)
class AttrStmt(_Around):
    """`key` of `node` (a Buffer, Var, text or None) is `value` within `body`."""

    node: Buffer | Var | str | None
    key: str
    value: Expr
    body: Stmt

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (self.value,)

    def rebuild(self, stmts: Sequence[Stmt], exprs: Sequence[Expr]) -> AttrStmt:
        return AttrStmt(self.node, self.key, exprs[0], stmts[0])


@dataclass(frozen=True, slots=True, eq=False)
class AssertStmt(Stmt):
    """End the function with an error if `condition` is false.

    `values` are numbers that complete the message; only `lower.passes.check_bounds` gives values.
    """

    condition: Expr
    message: str
    values: tuple[Expr, ...] = ()

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (self.condition, *self.values)

    def rebuild(self, stmts: Sequence[Stmt], exprs: Sequence[Expr]) -> AssertStmt:
        return AssertStmt(exprs[0], self.message, tuple(exprs[1:]))


@dataclass(frozen=True, slots=True, eq=False)
class Allocate(_Around):
    """Fresh memory for `buffer`, alive within `body`; its contents start undefined."""

    buffer: Buffer
    body: Stmt
    annotations: FrozenMap = EMPTY

    def rebuild(self, stmts: Sequence[Stmt], exprs: Sequence[Expr]) -> Allocate:
        return Allocate(self.buffer, stmts[0], self.annotations)


@dataclass(frozen=True, slots=True, eq=False)
class DeclBuffer(_Around):
    """Within `body`, `buffer` is a view of the memory of `source`, with its own shape, strides and
    offset."""

    buffer: Buffer
    source: Buffer
    body: Stmt

    def rebuild(self, stmts: Sequence[Stmt], exprs: Sequence[Expr]) -> DeclBuffer:
        return DeclBuffer(self.buffer, self.source, stmts[0])


class IterKind(enum.Enum):
    """The kind of a block iterator: how its iterations may depend on each other."""

    SPATIAL = "spatial"
    REDUCE = "reduce"
    SCAN = "scan"
    OPAQUE = "opaque"


@quick
class IterVar:
    """A block iterator: its variable, domain and kind."""

    var: Var
    dom: Range
    kind: IterKind = IterKind.SPATIAL

    @property
    def is_spatial(self) -> bool:
        return self.kind is IterKind.SPATIAL

    @property
    def is_reduce(self) -> bool:
        return self.kind is IterKind.REDUCE


@dataclass(frozen=True, slots=True, eq=False)
class MatchBufferRegion:
    """`buffer` names the region `source` within the block."""

    buffer: Buffer
    source: BufferRegion


class BlockToken:
    """The identity of a block; edits that keep the block keep its token."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockToken, ()


@quick
class Block(Stmt):
    """A computation with a contract of its iterators and regions; see the module's docstring.

    `init` runs before the first update of each reduction result (all reduce iterators at their
    minimum). `alloc_buffers` live within the block.
    """

    name: str
    iter_vars: tuple[IterVar, ...]
    reads: tuple[BufferRegion, ...]
    writes: tuple[BufferRegion, ...]
    body: Stmt
    init: Stmt | None = None
    alloc_buffers: tuple[Buffer, ...] = ()
    match_buffers: tuple[MatchBufferRegion, ...] = ()
    annotations: FrozenMap = EMPTY
    token: BlockToken = field(default_factory=BlockToken)

    @property
    def stmts(self) -> tuple[Stmt, ...]:
        return (self.body,) if self.init is None else (self.init, self.body)

    @property
    def exprs(self) -> tuple[Expr, ...]:
        out: list[Expr] = []
        for iter_var in self.iter_vars:
            out += (iter_var.dom.min, iter_var.dom.extent)
        for region in (*self.reads, *self.writes, *(m.source for m in self.match_buffers)):
            for r in region.region:
                out += (r.min, r.extent)
        return tuple(out)

    def rebuild(self, stmts: Sequence[Stmt], exprs: Sequence[Expr]) -> Block:
        if tuple(exprs) == self.exprs:  # expressions compare by identity: only the body changed
            init = stmts[0] if self.init is not None else None
            return evolve(self, body=stmts[-1], init=init)
        left = iter(exprs)
        iters = tuple(IterVar(v.var, Range(next(left), next(left)), v.kind) for v in self.iter_vars)

        def again(regions: Iterable[BufferRegion]) -> tuple[BufferRegion, ...]:
            return tuple(
                BufferRegion(r.buffer, tuple(Range(next(left), next(left)) for _ in r.region))
                for r in regions
            )

        reads, writes = again(self.reads), again(self.writes)
        sources = again(m.source for m in self.match_buffers)
        matches = tuple(
            MatchBufferRegion(m.buffer, s) for m, s in zip(self.match_buffers, sources, strict=True)
        )
        init = stmts[0] if self.init is not None else None
        return Block(
            self.name, iters, reads, writes, stmts[-1], init,
            self.alloc_buffers, matches, self.annotations, self.token,
        )  # fmt: skip


@quick
class BlockRealize(Stmt):
    """Execute `block` with its iterators bound to `iter_values` where `predicate` holds."""

    iter_values: tuple[Expr, ...]
    predicate: Expr
    block: Block

    @staticmethod
    def plain(block: Block) -> BlockRealize:
        """A block without iterators, executed always."""
        return BlockRealize((), TRUE, block)

    @property
    def stmts(self) -> tuple[Stmt, ...]:
        return (self.block,)

    @property
    def bindings(self) -> dict[Var, Expr]:
        """The value that each iterator is bound to."""
        return dict(zip([v.var for v in self.block.iter_vars], self.iter_values, strict=True))

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (*self.iter_values, self.predicate)

    def rebuild(self, stmts: Sequence[Stmt], exprs: Sequence[Expr]) -> BlockRealize:
        block = stmts[0]
        assert isinstance(block, Block)
        return BlockRealize(tuple(exprs[:-1]), exprs[-1], block)

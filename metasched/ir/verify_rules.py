"""The table of rules of a well-formed program: slug, sentence, node classes and check of each.

A check is a generator of complaints: one sentence for each breach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.canonical import Leaf, expr_code
from metasched.ir.describe import describe, show_expr
from metasched.ir.dtype import VOID
from metasched.ir.expr import Add, Expr, Let, Mul, Select, Sub, Var, as_expr, as_int
from metasched.ir.func import LAYOUT_FREE, PrimFunc
from metasched.ir.op import Call
from metasched.ir.scopes import is_scope
from metasched.ir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    Block,
    BlockRealize,
    BlockToken,
    Break,
    BufferStore,
    Continue,
    DeclBuffer,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Return,
    SeqStmt,
    Stmt,
    While,
    fact,
)
from metasched.ir.visit import walk_exprs, walk_stmts

THREAD_TAGS = ("blockIdx", "threadIdx", "vthread", "clusterCtaIdx", "clusterIdx")


@dataclass(slots=True)
class WalkState:
    """The state of the walk at a node, which the rules read."""

    func: PrimFunc
    closed: bool = False  # see `verify`
    known: dict[Leaf, str] = field(default_factory=dict)  # leaf -> its kind, for messages
    hidden: set[Leaf] = field(default_factory=set)  # loop variables outside the innermost block
    bound: set[Var] = field(default_factory=set)
    tokens: set[BlockToken] = field(default_factory=set)
    stack: list[Any] = field(default_factory=list)
    loops: list[Stmt] = field(default_factory=list)  # loops inside the innermost block
    blocks: list[Block] = field(default_factory=list)


Check: TypeAlias = Callable[[WalkState, Any], Iterator[str]]


@dataclass(frozen=True)
class Rule:
    """A rule: its slug, the sentence that must hold, the node classes that are checked, the
    check."""

    slug: str
    sentence: str
    kinds: tuple[type[Any], ...]
    check: Check


RULES: list[Rule] = []
BY_KIND: dict[type[Any], list[Rule]] = {}


def rule(slug: str, sentence: str, *kinds: type[Any]) -> Callable[[Check], Check]:
    """Enter a check into the table."""

    def enter(check: Check) -> Check:
        entry = Rule(slug, sentence, kinds, check)
        RULES.append(entry)
        for kind in kinds:
            BY_KIND.setdefault(kind, []).append(entry)
        return check

    return enter


def walk_rule(slug: str, sentence: str) -> Rule:
    """A rule that the walk itself enforces."""
    entry = Rule(slug, sentence, (), lambda at, node: iter(()))
    RULES.append(entry)
    return entry


DEFINED = walk_rule("undefined-variable", "every variable is defined before it is used")
BUFFERS = walk_rule(
    "undefined-buffer", "every buffer is a parameter, or allocated, matched or declared in scope"
)
HIDDEN = walk_rule(
    "loop-variable-in-block",
    "the shapes of a block's buffers (in a schedule all of it) mention no loop variable around it",
)

NESTED = walk_rule("nested-deep", "statements nest a quarter as deep as Python calls may, or less")


@rule(
    "unique-variable",
    "every loop variable, iterator and let variable is bound once",
    For,
    LetStmt,
    Block,
)
def _unique_variable(at: WalkState, node: For | LetStmt | Block) -> Iterator[str]:
    names = [v.var for v in node.iter_vars] if isinstance(node, Block) else [node.var]
    for i, var in enumerate(names):
        if var in at.bound or var in names[:i]:
            yield f"variable {var.name} is bound twice"


@rule("unique-token", "no two blocks of a function carry the same token", Block)
def _unique_token(at: WalkState, block: Block) -> Iterator[str]:
    if block.token in at.tokens:
        yield f"block {block.name} carries the token of another block"


@rule("parameters", "parameters are distinct, scalars are not pointers", PrimFunc)
def _parameters(at: WalkState, func: PrimFunc) -> Iterator[str]:
    for i, param in enumerate(func.params):
        if any(param is other for other in func.params[:i]):
            yield f"parameter {param.name} occurs twice"
        if isinstance(param, Var) and (param.dtype.is_handle or param.dtype.lanes > 1):
            yield f"parameter {param.name} is {param.dtype}; pass a buffer"


@rule(
    "layout-free",
    f"{LAYOUT_FREE} lists the positions of different buffer parameters that are only read",
    PrimFunc,
)
def _layout_free(at: WalkState, func: PrimFunc) -> Iterator[str]:
    yield from wrong_marks(func)


def wrong_marks(func: PrimFunc) -> Iterator[str]:
    """What is wrong with the marks of constant weights."""
    marked = func.attrs.get(LAYOUT_FREE, ())
    if not isinstance(marked, (list, tuple)) or not all(type(i) is int for i in marked):
        yield f"{LAYOUT_FREE} is {marked!r}, not a list of integers"
        return
    for position in marked:
        if not 0 <= position < len(func.params):
            yield f"there is no parameter {position}, the function has {len(func.params)}"
        elif not isinstance(func.params[position], Buffer):
            yield f"parameter {func.params[position].name} is no buffer"
        elif marked.count(position) > 1:
            yield f"parameter {func.params[position].name} is listed twice"
    if marked:
        stored = {s.buffer for s in walk_stmts(func.body) if isinstance(s, BufferStore)}
        for buffer in func.constants:
            if buffer in stored:
                yield f"{buffer.name} is marked as constant and written"


@rule(
    "root-block",
    "a function with blocks is the realisation of a root block without iterators",
    PrimFunc,
)
def _root(at: WalkState, func: PrimFunc) -> Iterator[str]:
    if isinstance(func.body, BlockRealize) and func.body.block.iter_vars:
        yield f"the root block {func.body.block.name} has iterators"


@rule("bindings", "a block has one binding of the iterator's type for each iterator", BlockRealize)
def _bindings(at: WalkState, stmt: BlockRealize) -> Iterator[str]:
    iters, values = stmt.block.iter_vars, stmt.iter_values
    if len(iters) != len(values):
        yield f"block {stmt.block.name} has {len(iters)} iterators and {len(values)} bindings"
    for v, value in zip(iters, values, strict=False):
        if v.var.dtype is not value.dtype:
            yield f"iterator {v.var.name} is {v.var.dtype}, its binding {value.dtype}"


@rule("iterator-domain", "the domain of an iterator has the iterator's integer type", Block)
def _domains(at: WalkState, block: Block) -> Iterator[str]:
    for v in block.iter_vars:
        if not v.var.dtype.is_int:
            yield f"iterator {v.var.name} is {v.var.dtype}"
        if not v.dom.min.dtype is v.dom.extent.dtype is v.var.dtype:
            yield f"iterator {v.var.name} is {v.var.dtype}, its domain {v.dom.extent.dtype}"


@rule(
    "predicate",
    "predicates and conditions are single bools",
    BlockRealize,
    IfThenElse,
    While,
    AssertStmt,
)
def _conditions(at: WalkState, stmt: Any) -> Iterator[str]:
    condition = stmt.predicate if isinstance(stmt, BlockRealize) else stmt.condition
    if condition.dtype != "bool":
        yield f"{show_expr(condition)} is {condition.dtype}"


@rule("region-rank", "a region has one integer range for each dimension of its buffer", Block)
def _regions(at: WalkState, block: Block) -> Iterator[str]:
    for region in (*block.reads, *block.writes, *(m.source for m in block.match_buffers)):
        if len(region.region) != region.buffer.ndim:
            yield f"{describe(region)} has {len(region.region)} ranges"
        for r in region.region:
            if not (r.min.dtype.is_int and r.extent.dtype.is_int):
                yield f"{describe(region)} has a range of type {r.min.dtype}"


@rule("match-buffer", "a matched buffer has its source's type and not more dimensions", Block)
def _matches(at: WalkState, block: Block) -> Iterator[str]:
    for match in block.match_buffers:
        source = match.source.buffer
        if match.buffer.dtype is not source.dtype:
            yield f"{match.buffer.name} is {match.buffer.dtype}, its source {source.dtype}"
        if match.buffer.ndim > source.ndim:
            yield f"{match.buffer.name} has more dimensions than its source {source.name}"


@rule("init", "init writes only what the block writes", Block)
def _init(at: WalkState, block: Block) -> Iterator[str]:
    if block.init is None:
        return
    written = {r.buffer for r in block.writes}
    stack: list[Stmt] = [block.init]
    while stack:
        node = stack.pop()
        if isinstance(node, Block):  # a block inside has buffers of its own
            written.update(node.alloc_buffers, (m.buffer for m in node.match_buffers))
        if isinstance(node, BufferStore) and node.buffer not in written:
            yield f"the init of {block.name} writes {node.buffer.name}, the block does not"
        stack.extend(node.stmts)


@rule("loop-type", "a loop's variable, minimum, extent and step have one integer type", For)
def _loop_type(at: WalkState, loop: For) -> Iterator[str]:
    for part in loop.exprs:
        if part.dtype is not loop.var.dtype or not part.dtype.is_int or part.dtype.lanes != 1:
            yield f"loop {loop.var.name} is {loop.var.dtype}, {show_expr(part)} is {part.dtype}"


@rule("loop-step", "a step is a positive constant", For)
def _loop_step(at: WalkState, loop: For) -> Iterator[str]:
    if loop.step is not None and (as_int(loop.step) or 0) <= 0:
        yield f"loop {loop.var.name} has step {show_expr(loop.step)}"


@rule("counting-loop", "in a schedule, a loop counts by one", For)
def _counting_loop(at: WalkState, loop: For) -> Iterator[str]:
    if at.closed and loop.step is not None:
        yield f"loop {loop.var.name} has step {show_expr(loop.step)}"


@rule("loop-kind", "a vectorized loop has a constant extent and no step", For)
def _loop_kind(at: WalkState, loop: For) -> Iterator[str]:
    if loop.kind is ForKind.VECTORIZED and (as_int(loop.extent) is None or loop.step is not None):
        yield f"loop {loop.var.name} cannot be vectorized over {show_expr(loop.extent)}"


@rule("thread-tag", "thread-bound loops, and only they, have a known thread tag", For)
def _thread_tag(at: WalkState, loop: For) -> Iterator[str]:
    if loop.kind is not ForKind.THREAD_BINDING:
        if loop.thread is not None:
            yield f"loop {loop.var.name} is {loop.kind.value} but has the tag {loop.thread}"
    elif loop.thread is None or loop.thread.split(".")[0] not in THREAD_TAGS:
        yield f"loop {loop.var.name} has the thread tag {loop.thread}"


@rule(
    "store-type",
    "a store gives one integer index for each dimension and a value of the buffer's type",
    BufferStore,
)
def _store(at: WalkState, stmt: BufferStore) -> Iterator[str]:
    buffer, value = stmt.buffer, stmt.value.dtype
    if len(stmt.indices) != buffer.ndim:
        yield f"{buffer.name} has {buffer.ndim} dimensions, {len(stmt.indices)} indices given"
    if value.scalar is not buffer.dtype.scalar:
        yield f"{buffer.name} is {buffer.dtype}, the stored value {value}"
    lanes = max([buffer.dtype.lanes * i.dtype.lanes for i in stmt.indices], default=value.lanes)
    if lanes != value.lanes:
        yield f"{lanes} lanes of {buffer.name} get a value of {value.lanes} lanes"
    if any(not i.dtype.is_int for i in stmt.indices):
        yield f"{buffer.name} is indexed with {', '.join(str(i.dtype) for i in stmt.indices)}"


@rule("let-type", "a let variable has the type of its value", LetStmt)
def _let_type(at: WalkState, stmt: LetStmt) -> Iterator[str]:
    if stmt.var.dtype is not stmt.value.dtype:
        yield f"{stmt.var.name} is {stmt.var.dtype}, its value {stmt.value.dtype}"


@rule("sequence", "a sequence has two or more statements and is not nested", SeqStmt)
def _sequence(at: WalkState, stmt: SeqStmt) -> Iterator[str]:
    if len(stmt.items) < 2 or any(isinstance(s, SeqStmt) for s in stmt.items):
        yield f"a sequence of {len(stmt.items)} statements; build sequences with seq()"


@rule(
    "leave-loop",
    "break and continue stand inside a while or serial loop of their own block",
    Break,
    Continue,
)
def _leave(at: WalkState, stmt: Break | Continue) -> Iterator[str]:
    loop = at.loops[-1] if at.loops else None
    if loop is None or (isinstance(loop, For) and loop.kind is not ForKind.SERIAL):
        yield f"{type(stmt).__name__.lower()} has no loop to act on"


@rule("return", "a return gives a value of the function's return type", Return)
def _return(at: WalkState, stmt: Return) -> Iterator[str]:
    given = VOID if stmt.value is None else stmt.value.dtype
    if given is not at.func.ret_type:
        yield f"the function returns {at.func.ret_type}, this returns {given}"


@rule("storage-scope", "allocations have a known storage scope", Block, Allocate)
def _scopes(at: WalkState, node: Block | Allocate) -> Iterator[str]:
    for buffer in node.alloc_buffers if isinstance(node, Block) else (node.buffer,):
        if not is_scope(buffer.scope):
            yield f"buffer {buffer.name} has the scope {buffer.scope!r}"


@rule(
    "declared-reads",
    "in a schedule, what a block loads is declared in its reads (or is its own result)",
    Block,
)
def _declared_reads(at: WalkState, block: Block) -> Iterator[str]:
    loaded = touched(block)[0] if at.closed else set()
    for buffer in sorted(loaded - _declared(at, block, reads=True), key=lambda b: b.name):
        yield f"block {block.name} loads {buffer.name} without declaring it"


@rule("declared-writes", "in a schedule, what a block stores is declared in its writes", Block)
def _declared_writes(at: WalkState, block: Block) -> Iterator[str]:
    stored = touched(block)[1] if at.closed else set()
    for buffer in sorted(stored - _declared(at, block, reads=False), key=lambda b: b.name):
        yield f"block {block.name} stores {buffer.name} without declaring it"


@fact
def touched(block: Block) -> tuple[set[Buffer], set[Buffer]]:
    """The buffers that the block loads and stores, in nested blocks too; cached on the block."""
    loads: set[Buffer] = set()
    stores: set[Buffer] = set()
    inside = {*block.alloc_buffers, *(m.buffer for m in block.match_buffers)}
    stack: list[Stmt] = list(block.stmts)
    while stack:
        node = stack.pop()
        if isinstance(node, BlockRealize):
            inner = touched(node.block)
            loads |= inner[0]
            stores |= inner[1]
        else:
            stack.extend(node.stmts)
            if isinstance(node, BufferStore):
                stores.add(node.buffer)
            elif isinstance(node, (Allocate, DeclBuffer)):
                inside.add(node.buffer)
        loads.update(_loads(node.exprs))
    return loads - inside, stores - inside


def _loads(exprs: tuple[Expr, ...]) -> Iterator[Buffer]:
    for expr in exprs:
        if any(isinstance(leaf, Buffer) for leaf in expr_code(expr)[1]):
            for node in walk_exprs(expr):
                if isinstance(node, BufferLoad):
                    yield node.buffer


def _declared(at: WalkState, block: Block, *, reads: bool) -> set[Buffer]:
    """Buffers that the block may touch; a root block declares nothing and may touch everything."""
    if len(at.blocks) == 1 and not block.iter_vars and not block.reads and not block.writes:
        return touched(block)[0] | touched(block)[1]
    return {r.buffer for r in ((*block.reads, *block.writes) if reads else block.writes)}


@rule(
    "inside-regions",
    "elements a block touches lie in its declared regions, where that is plain",
    Block,
)
def _inside(at: WalkState, block: Block) -> Iterator[str]:
    if block.iter_vars or block.reads or block.writes:
        stored = {r.buffer: r for r in reversed(block.writes)}
        loaded = {**stored, **{r.buffer: r for r in reversed(block.reads)}}
        many = {b for regions in (block.reads, block.writes) for b in _repeated(regions)}
        for node, loops in _plain_accesses(block):
            region = (stored if isinstance(node, BufferStore) else loaded).get(node.buffer)
            both = not isinstance(node, BufferStore) and node.buffer in stored
            if (
                region is None
                or len(region.region) != len(node.indices)  # another rule says so
                or node.buffer in many
                or (both and region is not stored[node.buffer])
            ):
                continue
            if any(_outside(x, r, loops) for x, r in zip(node.indices, region.region, strict=True)):
                place = f"{node.buffer.name}[{', '.join(map(show_expr, node.indices))}]"
                yield f"{place} is outside the declared region {describe(region)}"


def _repeated(regions: tuple[BufferRegion, ...]) -> set[Buffer]:
    buffers = [r.buffer for r in regions]
    return {b for b in buffers if buffers.count(b) > 1}


Loops: TypeAlias = dict[Expr, tuple[int, int]]


def _plain_accesses(block: Block) -> Iterator[tuple[BufferStore | BufferLoad, Loops]]:
    """The accesses that always happen when the block runs, with the ranges of the loops around.

    They stand under no condition, in loops of constant positive extent.
    """
    stack: list[tuple[Stmt, Loops]] = [(s, {}) for s in block.stmts]
    while stack:
        node, loops = stack.pop()
        if isinstance(node, For):
            low, extent = as_int(node.min), as_int(node.extent)
            if low is None or extent is None or extent <= 0 or node.step is not None:
                continue
            stack.append((node.body, {**loops, node.var: (low, low + extent - 1)}))
        elif isinstance(node, BufferStore):
            if node.predicate is None:
                yield node, loops
            yield from ((load, loops) for e in node.exprs for load in _plain_loads(e))
        elif isinstance(node, (SeqStmt, AttrStmt, Allocate, DeclBuffer)):
            stack.extend((s, loops) for s in node.stmts)


def _plain_loads(expr: Expr) -> Iterator[BufferLoad]:
    if any(isinstance(leaf, Buffer) for leaf in expr_code(expr)[1]):
        stack, seen = [expr], {expr}
        while stack:
            node = stack.pop()
            if isinstance(node, (Call, Select, Let)):
                continue  # a choice may skip the load; a let hides the value of an index
            if isinstance(node, BufferLoad) and node.predicate is None:
                yield node
            new = [child for child in node.children if child not in seen]
            seen.update(new)
            stack += new


def _outside(index: Expr, r: Range, loops: Loops) -> bool:
    """Whether an index certainly leaves a range, decided by the bounds of their difference."""
    extent = as_int(r.extent)
    terms: dict[Expr, int] = {}
    if extent is None or not (_sum(index, 1, terms) and _sum(r.min, -1, terms)):
        return False
    low = high = terms.pop(_ONE, 0)
    for atom, scale in terms.items():
        if scale != 0:
            if atom not in loops:
                return False
            ends = sorted(scale * x for x in loops[atom])
            low, high = low + ends[0], high + ends[1]
    return low < 0 or high >= extent


_ONE = as_expr(1)


def _sum(expr: Expr, scale: int, terms: dict[Expr, int]) -> bool:
    """Add scale * expr to `terms` (atom -> coefficient, 1 the constant); not for vectors."""
    stack = [(expr, scale)]
    while stack:
        node, by = stack.pop()
        value = as_int(node)
        if node.dtype.lanes > 1:
            return False
        if isinstance(node, (Add, Sub)):
            stack += [(node.a, by), (node.b, by if isinstance(node, Add) else -by)]
        elif isinstance(node, Mul) and (factor := as_int(node.b)) is not None:
            stack.append((node.a, by * factor))
        else:
            atom = node if value is None else _ONE
            terms[atom] = terms.get(atom, 0) + by * (1 if value is None else value)
    return True

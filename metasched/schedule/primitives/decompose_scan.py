"""decompose_scan: splits a scan into independent chunks.

The two passes of a parallel prefix sum: G. Blelloch, Prefix sums and their applications, 1990.
"""

from __future__ import annotations

from dataclasses import dataclass

from metasched.analysis import block as block_facts
from metasched.analysis.access import injective_block
from metasched.analysis.scan import Scan, block_scan, in_fixed_order, one_store
from metasched.analysis.scope import may_overlap
from metasched.arith.affine import linear
from metasched.arith.analyzer import Analyzer
from metasched.arith.conditions import conjuncts
from metasched.arith.linear import Linear
from metasched.arith.regions import block_access_regions
from metasched.ir.buffer import Buffer, BufferLoad, Range
from metasched.ir.expr import (
    EQ,
    LT,
    TRUE,
    Expr,
    Var,
    as_expr,
    as_int,
    compare,
    logical_and,
)
from metasched.ir.op import call
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BlockToken,
    BufferStore,
    For,
    IterKind,
    IterVar,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import free_vars, fresh_copy, substitute
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    refuse_on,
    require_from_zero,
    require_one_block,
    require_serial,
)
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.state import State


@primitive(of_loop=ways.plain())
def decompose_scan(state: State, loop: LoopRV) -> list[BlockRV]:
    """Scan each chunk of a split scan from its own start value, independently of other chunks.

    `loop` runs over the chunks, a loop inside it over the steps of a chunk. A reduction first
    combines the values of each chunk but the last (block `X_total`, buffer `X_total`). A short scan
    of these totals gives the start value of each chunk (`X_start`). The chunks then are spatial:
    the given block scans each chunk from its start value. Returns the two new blocks. Like
    `rfactor`, the step changes the order in which floating-point numbers are combined.

    requires  one block under the loop, whose body is one store that combines its own last result
              with a new value by a sum, product, minimum or maximum; a scan iterator bound to
              `loop` * steps + step, both loops serial and from zero, with constant extents and at
              least two chunks; other iterators that are spatial, affine, and free of both loops;
              instances that write different elements; no instance that writes the element before
              the first element of a scan
    rewrite   for j, k in T.grid(4, 8): B(B[j * 8 + k] = B[j * 8 + k - 1] + A[j * 8 + k])
              ->
              for j, k in T.grid(3, 8): B_total(t[j] += A[j * 8 + k])
              for j in range(4): B_start(s[j] = s[j - 1] + t[j - 1])
              for j, k in T.grid(4, 8): B(b[j * 8 + k] = b[j * 8 + k - 1] + A[j * 8 + k])
    """
    chunks = state.loop(loop)
    realize, loops = _nest(state, chunks)
    found = _found(state, realize, loops, chunks)
    top, scope = loops[0], state.scope(realize).block
    total, start, final = found.totals(), found.starts(), found.within()
    _require_unwritten(state, realize, start, final.block)
    whole = {chunks: chunks.extent - 1}
    nests = (
        _under(state, [evolve(n, extent=whole.get(n, n.extent)) for n in loops], total),
        _under(state, [n for n in loops if n is not found.steps], start),
    )
    state.commit(
        edit.replace(realize, final),
        edit.wrap(top, lambda s: seq((*nests, s))),
        edit.wrap(
            scope,
            lambda s: evolve(s, alloc_buffers=(*s.alloc_buffers, found.total, found.start)),  # type: ignore[attr-defined]
        ),
    )
    return [state.new_block(_innermost(made).token) for made in nests]


def _nest(state: State, chunks: For) -> tuple[BlockRealize, tuple[For, ...]]:
    """The only block under a loop, and the loops that hold nothing but this block, outermost
    first. `chunks` must be one of these loops."""
    only = require_one_block(state, chunks)
    alone: list[For] = []
    inner: Stmt = only
    for loop in reversed(state.loops_above(only)):
        if loop.body is not inner:
            break
        alone.insert(0, loop)
        inner = loop
    if chunks not in alone:
        text = f"below {chunks.var.name} there is more than loops around {only.block.name}"
        raise state.error("not-a-chain", text, chunks)
    for loop in alone:
        require_serial(state, loop)
    return only, tuple(alone)


def _found(state: State, realize: BlockRealize, loops: tuple[For, ...], chunks: For) -> _Decomposed:
    """The parts of a scan; raises if the block is no scan, or if `chunks` does not run over its
    chunks."""
    block = realize.block
    scan = block_scan(block)
    along = block.iter_vars[scan[0]] if scan else None
    if not scan or not along or as_int(along.dom.extent) is None or scan[1].decay != 1:
        raise state.error(
            "no-scan", f"block {block.name} is no scan: one store that combines its own last "
            "result with a new value, along its only iterator that is not spatial", realize,
            hint="known are sums, products, minima and maxima of a constant number of steps",
        )  # fmt: skip
    if in_fixed_order(block, scan[0], scan[1]):
        raise state.error(
            "fixed-order", f"block {block.name} sums or multiplies floats, in the order of the "
            "loop", realize, hint="T.axis.scan for its iterator, or for plain loops "
            'T.func_attr({"tir.fast_math": "reassoc"}), permits any order',
        )  # fmt: skip
    steps = _steps(state, realize, loops, chunks, along)
    moving = {chunks.var, steps.var}
    for v, value in zip(block.iter_vars, realize.iter_values, strict=True):
        if v is not along and (moving & free_vars(value) or as_int(v.dom.extent) is None):
            raise state.error(
                "not-rectangular", f"iterator {v.var.name} depends on the loops of the scan, or "
                "has no constant extent", realize,
            )  # fmt: skip
    for loop in loops:
        if moving & (free_vars(loop.extent) | free_vars(loop.min)):
            text = f"the range of {loop.var.name} depends on a loop of the scan"
            raise state.error("dependent-extent", text, loop)
        if as_int(loop.extent) != 1 and all(
            loop.var not in free_vars(e) for e in realize.iter_values
        ):
            raise state.error("idle-loop", f"{loop.var.name} drives no iterator", loop)
    refuse_on(state, injective_block(block), realize)
    refuse_on(state, block_facts.affine_binding(state.scope(realize).child(block.token)), realize)
    return _Decomposed.of(state, realize, scan[1], along, chunks, steps)


def _steps(
    state: State, realize: BlockRealize, loops: tuple[For, ...], chunks: For, along: IterVar
) -> For:
    """The loop over the steps of a chunk.

    Raises unless `chunks` and this loop together drive the scan iterator `along`.
    """
    value = linear(realize.bindings[along.var])
    inside = loops[loops.index(chunks) + 1 :]
    steps = next((n for n in inside if value.terms.get(n.var) == 1), None)
    size, count = as_int(steps.extent) if steps else None, as_int(chunks.extent)
    extent = as_int(along.dom.extent) or 0
    if (
        steps is None or size is None or count is None or value.const
        or dict(value.terms) != {chunks.var: size, steps.var: 1}
        or not (count - 1) * size < extent <= count * size
    ):  # fmt: skip
        raise state.error(
            "not-split", f"{along.var.name} of block {realize.block.name} is not {chunks.var.name} "
            "times the extent of a loop inside it, plus this loop", chunks,
            hint="split the loop of the scan, and take the outer part",
        )  # fmt: skip
    if count < 2:
        text = f"{chunks.var.name} runs once: the scan has one chunk"
        raise state.error("one-chunk", text, chunks)
    require_from_zero(state, chunks)
    require_from_zero(state, steps)
    for part in conjuncts(realize.predicate):
        moves = {chunks.var, steps.var} & free_vars(part)
        if moves and not _same_bound(part, value, extent):
            raise state.error(
                "has-predicate", f"block {realize.block.name} skips steps of the scan", realize
            )
    return steps


def _same_bound(part: Expr, value: Linear, extent: int) -> bool:
    """Whether a condition is `value` < extent."""
    if not isinstance(part, LT):
        return False
    gap = linear(part.a).plus(linear(part.b), -1).plus(value, -1)
    return not gap.terms and gap.const == -extent


def _require_unwritten(
    state: State, realize: BlockRealize, start: BlockRealize, final: Block
) -> None:
    """Refuse a scan whose first step reads an element that an instance of the block writes."""
    buffer = final.writes[0].buffer
    if may_overlap(start.block, final, buffer, reads_a=True, reads_b=False):
        raise state.error(
            "start-written", f"block {final.name} may write the element of {buffer.name} that "
            "the first step of another scan reads", realize,
            hint="let the scan say how it starts: T.if_then_else(vj == 0, start, ...)",
        )  # fmt: skip


def _innermost(nest: Stmt) -> Block:
    while not isinstance(nest, BlockRealize):
        nest = nest.stmts[0]
    return nest.block


def _under(state: State, loops: list[For], body: Stmt) -> Stmt:
    """A block under fresh copies of loops."""
    for loop in reversed(loops):
        body = evolve(loop, body=body)
    return fresh_copy(body, lambda v: state.fresh_var(v.name, v.dtype))


@dataclass(frozen=True, slots=True)
class _Decomposed:
    """A scan in chunks: makes the new blocks, each over its own copies of the old iterators.

    Attributes:
        scan: the scan, as `block_scan` has read the block.
        along: the iterator of the scan.
        chunks, steps: the loop over the chunks, and the loop over the steps of a chunk.
        added: the value that a step adds. If the scan sets its own start value, the first step
            adds the start value.
        total, start: the buffer of the totals, and the buffer of the start values.
    """

    state: State
    realize: BlockRealize
    scan: Scan
    along: IterVar
    chunks: For
    steps: For
    added: Expr
    total: Buffer
    start: Buffer

    @classmethod
    def of(
        cls,
        state: State,
        realize: BlockRealize,
        scan: Scan,
        along: IterVar,
        chunks: For,
        steps: For,
    ) -> _Decomposed:
        """Create the buffers for the totals and the start values of a scan."""
        block = realize.block
        extents = [v.dom.extent for v in block.iter_vars]
        at = block.iter_vars.index(along)
        written = block.writes[0].buffer
        buffers = []
        for suffix, less in (("total", 1), ("start", 0)):
            extents[at] = chunks.extent - less
            content = (f"{written.name}_{suffix}", tuple(extents), written.dtype, "global")
            buffers.append(state.fresh_buffer(*content))
        return cls(state, realize, scan, along, chunks, steps, _added(scan, along.var), *buffers)

    def totals(self) -> BlockRealize:
        """The block that reduces each chunk but the last to its total."""
        iters, inside, at = self._iterators(self.chunks.extent - 1, IterKind.REDUCE)
        start = BufferStore(self.total, self.scan.identity, at)
        value = self._combined(BufferLoad(self.total, at), substitute(self.added, inside))
        return self._block("total", iters, BufferStore(self.total, value, at), start)

    def starts(self) -> BlockRealize:
        """The block that scans the totals, which gives the start value of each chunk."""
        iters, inside, at = self._iterators(self.chunks.extent, None)
        position = self.realize.block.iter_vars.index(self.along)
        chunk = iters[position].var
        last = (*at[:position], chunk - 1, *at[position + 1 :])
        following = self._combined(BufferLoad(self.start, last), BufferLoad(self.total, last))
        first = substitute(_first(self.scan, self.along.var), inside)
        value = call("if_then_else", compare(EQ, chunk, 0), first, following)
        iters[position] = IterVar(chunk, iters[position].dom, IterKind.SCAN)
        return self._block("start", iters, BufferStore(self.start, value, at))

    def within(self) -> BlockRealize:
        """The given block, changed to scan each chunk from its start value."""
        iters, inside, at = self._iterators(self.chunks.extent, self.along.kind)
        store = one_store(self.realize.block.body)
        assert store is not None
        added, before, plain = (
            substitute(e, inside) for e in (self.added, self.scan.before, self.scan.added)
        )
        step = iters[self.realize.block.iter_vars.index(self.along) + 1].var
        first = self._combined(BufferLoad(self.start, at), added)
        value = call("if_then_else", compare(EQ, step, 0), first, self._combined(before, plain))
        indices = tuple(substitute(i, inside) for i in store.indices)
        return self._block(None, iters, BufferStore(store.buffer, value, indices))

    def _iterators(
        self, count: Expr, steps: IterKind | None
    ) -> tuple[list[IterVar], dict[Var, Expr], tuple[Expr, ...]]:
        """New iterators for a block, in which a chunk and a step replace the scan iterator.

        Args:
            count: the number of chunks.
            steps: the kind of the step iterator; None to leave it out.

        Returns the iterators; the value of each old iterator over them; and the indices of a
        chunk's element in `total` and `start`.
        """
        iters: list[IterVar] = []
        inside: dict[Var, Expr] = {}
        at: list[Expr] = []
        for v in self.realize.block.iter_vars:
            name, dtype = v.var.name, v.var.dtype
            var = self.state.fresh_var(name, dtype)
            if v is not self.along:
                iters.append(IterVar(var, v.dom, v.kind))
                inside[v.var] = var
                at.append(var if as_int(v.dom.min) == 0 else var - v.dom.min)
                continue
            zero, size = as_expr(0, dtype), self.steps.extent.astype(dtype)
            iters.append(IterVar(var, Range(zero, count.astype(dtype))))
            at.append(var)
            inside[v.var] = var * size
            if steps is not None:
                step = self.state.fresh_var(f"{name}_step", dtype)
                iters.append(IterVar(step, Range(zero, size), steps))
                inside[v.var] = var * size + step
        return iters, inside, tuple(at)

    def _combined(self, a: Expr, b: Expr) -> Expr:
        combined: Expr = self.scan.kind(a, b)
        return combined

    def _block(
        self, suffix: str | None, iters: list[IterVar], body: Stmt, init: Stmt | None = None
    ) -> BlockRealize:
        """A block with its bindings: a new block named by `suffix`, or the old block for None."""
        old = self.realize.block
        block = evolve(old, iter_vars=tuple(iters), body=body, init=init)
        if suffix is not None:
            name = self.state.fresh_block_name(f"{old.name}_{suffix}")
            block = Block(name, tuple(iters), (), (), body, init, token=BlockToken())
        reads, writes = block_access_regions(block)
        block = evolve(block, reads=tuple(reads), writes=tuple(writes))
        values: list[Expr] = []
        for v, value in zip(old.iter_vars, self.realize.iter_values, strict=True):
            moved = [n.var.astype(v.var.dtype) for n in (self.chunks, self.steps)]
            values += (
                [value] if v is not self.along else moved[: 1 + len(iters) - len(old.iter_vars)]
            )
        return BlockRealize(tuple(values), self._predicate(suffix), block)

    def _predicate(self, suffix: str | None) -> Expr:
        """The predicate of a new block: the conditions that do not use the loops of the scan.

        Without a suffix, the whole predicate of the old block.
        """
        if suffix is None:
            return self.realize.predicate
        moving = {self.chunks.var, self.steps.var}
        kept: Expr = TRUE
        for part in conjuncts(self.realize.predicate):
            if moving.isdisjoint(free_vars(part)):
                kept = logical_and(kept, part)
        return kept


def _added(scan: Scan, along: Var) -> Expr:
    """The value that a step adds: the scan's start value where the scan restarts."""
    if scan.restarts is None or scan.start is None:
        return scan.added
    first: dict[Var, Expr] = {along: as_expr(0, along.dtype)}
    known = Analyzer()
    here = [known.simplify(substitute(e, first)) for e in (scan.added, scan.start)]
    if here[0] is here[1] and known.prove(substitute(scan.restarts, first)):
        return scan.added
    return call("if_then_else", scan.restarts, scan.start, scan.added)


def _first(scan: Scan, along: Var) -> Expr:
    """The start value of the first chunk: the identity, or the element before the first step."""
    first: dict[Var, Expr] = {along: as_expr(0, along.dtype)}
    before = substitute(scan.before, first)
    if scan.restarts is None:
        return before
    restarts = substitute(scan.restarts, first)
    if Analyzer().prove(restarts):
        return scan.identity
    return call("if_then_else", restarts, scan.identity, before)

"""What the layout primitives share: which buffer is meant, how a block accesses it, new stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from metasched.analysis import block as block_facts
from metasched.analysis.access import accesses
from metasched.analysis.overlap import Outside, overlap_distances
from metasched.arith.affine import linear, range_interval
from metasched.arith.analyzer import Analyzer
from metasched.arith.indexmap import IndexMap, MapLike
from metasched.arith.intset import covers, intersect, lower_region, relax_ranges
from metasched.arith.regions import block_access_regions, inputs
from metasched.errors import MetaschedError
from metasched.ir.buffer import Buffer, BufferLoad, Range
from metasched.ir.expr import (
    LE,
    LT,
    TRUE,
    Div,
    Expr,
    FloorDiv,
    FloorMod,
    IntImm,
    Let,
    Mod,
    Var,
    as_int,
    compare,
    logical_and,
)
from metasched.ir.op import Call
from metasched.ir.stmt import (
    AttrStmt,
    Block,
    BlockRealize,
    BufferStore,
    For,
    IfThenElse,
    IterVar,
    LetStmt,
    SeqStmt,
    Stmt,
    While,
    evolve,
    seq,
)
from metasched.ir.visit import free_vars, reads_memory, substitute, walk, walk_exprs, walk_stmts
from metasched.schedule import edit
from metasched.schedule.checks import (
    by_name,
    function_vars,
    refuse_on,
    refuse_opaque,
    require_from_zero,
)
from metasched.schedule.instruction import handles_in
from metasched.schedule.rebind import nest, ranges_of
from metasched.schedule.state import State

BufferChoice: TypeAlias = "tuple[str | int, ...] | str | Buffer"
Indices: TypeAlias = tuple[Expr, ...]


def buffer_by_index(given: dict[str, Any]) -> dict[str, Any]:
    """`buffer_index=` with `buffer_index_type=` ("read" or "write") for `buffer=`."""
    names = ("buffer_index", "buffer_index_type")
    if "buffer" in given or "buffer_index" not in given:
        return given
    if "buffer_index_type" not in given:
        at = given["buffer_index"]
        raise TypeError(
            f"a buffer_index is of the buffers that a block reads, or of those that it writes: "
            f'write buffer=("read", {at!r}) or buffer=("write", {at!r})'
        )
    rest = {key: value for key, value in given.items() if key not in names}
    return {**rest, "buffer": (given["buffer_index_type"], given["buffer_index"])}


def choose_buffer(
    state: State, realize: BlockRealize, which: BufferChoice
) -> tuple[str, int, Buffer]:
    """(side, position, buffer) of a buffer given as ("read", i), ("write", i), name or itself."""
    block = realize.block
    sides = {"read": block.reads, "write": block.writes}
    if isinstance(which, (tuple, list)):
        given = list(which)
        if len(given) == 2 and given[0] in sides:
            position = given[1]
            regions = sides[given[0]]
            if type(position) is int and 0 <= position < len(regions):
                return given[0], position, regions[position].buffer
    else:
        for side, regions in sides.items():
            for position, region in enumerate(regions):
                if side == "read" and region not in inputs(block):
                    continue  # an accumulator: the name means what is written
                if region.buffer is which or region.buffer.name == which:
                    return side, position, region.buffer
    names = [", ".join(r.buffer.name for r in regions) or "nothing" for regions in sides.values()]
    raise state.error(
        "no-such-buffer",
        f"{block.name} has no buffer {which!r}; it reads {names[0]} and writes {names[1]}",
        realize,
        hint='give ("read", i), ("write", i), a name or the buffer',
    )


def as_index_map(state: State, source: MapLike, ndim: int, node: Stmt) -> IndexMap:
    """The map a user gave, for `ndim` indices; what is no map of so many is refused."""
    if not isinstance(source, IndexMap) and not callable(source):
        raise state.error(
            "bad-index-map", f"{source!r} is neither a function nor an index map", node
        )
    try:
        mapping = IndexMap.of(source, ndim)
    except MetaschedError as error:
        raise state.error("bad-index-map", str(error), node) from None
    if {*handles_in(mapping)}:
        mapping = IndexMap(mapping.inputs, tuple(map(state.expr, mapping.outputs)))
    if not all(e.dtype.is_int for e in mapping.outputs):
        raise state.error("bad-index-map", "the index map gives something else than integers", node)
    known = function_vars(state, node)
    found = [by_name(e, known, mapping.inputs) for e in mapping.outputs]
    foreign = [v for _, unknown in found for v in unknown]
    if foreign:
        raise state.error(
            "bad-index-map",
            f"the index map mentions {foreign[0].name}, which is no variable of the function",
            node,
            hint="use the indices, scalar parameters, and extents of the function's buffers",
        )
    return IndexMap(mapping.inputs, tuple([e for e, _ in found]), mapping.inverse_map)


def foreign_vars(mapping: IndexMap) -> list[Var]:
    """The variables in a map that are not its inputs."""
    used = frozenset().union(*(free_vars(e) for e in mapping.outputs))
    return sorted(used - set(mapping.inputs), key=lambda v: v.name)


def one_pattern(
    state: State, realize: BlockRealize, buffer: Buffer, place: int | None = None
) -> Indices:
    """The indices of the only element of `buffer` that a leaf block touches, over its iterators;
    or of the one at a position among several."""
    block = realize.block
    refuse_on(state, block_facts.is_leaf(block), realize)
    refuse_opaque(state, block, buffer)
    found: dict[Indices, None] = {}
    for node in walk(block):
        if isinstance(node, (BufferLoad, BufferStore)) and node.buffer is buffer:
            found.setdefault(node.indices)
    if place is not None and 0 <= place < len(found):
        found = dict.fromkeys([list(found)[place]])
    if len(found) != 1:
        raise state.error(
            "several-patterns",
            f"{block.name} accesses {buffer.name} at {len(found)} different places",
            realize,
            hint="one new index can only stand for one old index",
        )
    indices = next(iter(found))
    if any(i.dtype.lanes > 1 for i in indices):
        raise state.error(
            "vector-index", f"{block.name} accesses {buffer.name} by vectors", realize
        )
    own = {v.var for v in block.iter_vars}
    foreign = [v for i in indices for v in free_vars(i) if v not in own and _bound_in(block, v)]
    if foreign:
        raise state.error(
            "inner-variable",
            f"the indices of {buffer.name} in {block.name} use {foreign[0].name}, which the block "
            "binds inside",
            realize,
        )
    loads = [e for i in indices for e in walk_exprs(i) if isinstance(e, BufferLoad)]
    if loads:
        raise state.error(
            "indirect-access",
            f"{block.name} finds its element of {buffer.name} through {loads[0].buffer.name}",
            realize,
        )
    return indices


def _bound_in(block: Block, var: Var) -> bool:
    return any(getattr(n, "var", None) is var for n in walk_stmts(block))


def refuse_partial(
    state: State, realize: BlockRealize, buffer: Buffer, outer: Sequence[For] = ()
) -> None:
    """The block stores for every value of its iterators: all that it may write is written. With
    `outer`, loops above it that stand still: for every value while the others run."""
    block = realize.block
    if not _stores_always(block.body, buffer):
        raise state.error(
            "conditional-store",
            f"{block.name} stores to {buffer.name} under a condition, so a copy of its whole "
            "result would hold elements that were never written",
            realize,
        )
    loops = state.loops_above(realize)
    ranges = ranges_of([n for n in loops if n not in outer])
    points = [Range(v, IntImm(v.dtype, 1)) for v in realize.iter_values]
    still = Analyzer(ranges_of(outer))
    filled = lower_region(points, ranges, realize.predicate, still if outer else None)
    if filled is not None:
        taken = run_ranges(state, realize, outer)
        if covers(filled, taken, still if outer else Analyzer(ranges)):
            return
    raise state.error(
        "partial-domain",
        f"{block.name} is not proved to run for all values of its iterators, so a copy of its "
        "whole result would hold elements that were never written",
        realize,
    )


def steering(block: Block) -> Iterator[Expr]:
    """What decides which parts of a block run and how often, and values that it names."""
    for node in walk(block):
        if isinstance(node, (IfThenElse, While)):
            yield node.condition
        elif isinstance(node, For):
            yield from (node.min, node.extent)
        elif isinstance(node, (Let, LetStmt)):
            yield node.value
        elif isinstance(node, Call) and node.op.name == "if_then_else":
            yield node.args[0]


def unsafe_divisors(block: Block, an: Analyzer) -> list[Expr]:
    """The divisors of integer divisions in a block that `an` does not prove to differ from zero."""
    return [
        node.b
        for node in walk(block)
        if isinstance(node, (Div, Mod, FloorDiv, FloorMod))
        and node.dtype.is_int
        and not (an.prove(node.b > 0) or an.prove(node.b < 0))
    ]


def known_ranges(state: State, realize: BlockRealize) -> dict[Var, Range]:
    """The ranges of the block's iterators and of those of the blocks around it."""
    out = {v.var: v.dom for v in realize.block.iter_vars}
    for above in state.ancestors(realize):
        if isinstance(above, Block):
            out.update((v.var, v.dom) for v in above.iter_vars)
    return out


def run_ranges(state: State, realize: BlockRealize, outer: Sequence[For] = ()) -> list[Range]:
    """The values that each iterator takes while the scope around the block runs once, or only the
    loops above the block that are not among `outer`."""
    loops = [n for n in state.loops_above(realize) if n not in outer]
    still = Analyzer(ranges_of(outer))
    inner = {n.var for n in state.ancestors(realize) if isinstance(n, LetStmt)}
    out = []
    for v, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        found: list[Range] | None = [Range(value, IntImm(value.dtype, 1))]
        for loop in reversed(loops):  # an inner loop's bounds may mention outer loops
            found = None if found is None else relax_ranges(found, ranges_of([loop]))
        if found is not None and any(
            reads_memory(e) or not free_vars(e).isdisjoint(inner)
            for r in found
            for e in (r.min, r.extent)
        ):
            found = None  # known at the block only
        if found is None or covers(found, [v.dom], still):
            out.append(v.dom)
        elif covers([v.dom], found, still):
            out.append(found[0])
        else:
            out.append(intersect(found, [v.dom], still)[0])
    return out


def init_around(state: State, realize: BlockRealize) -> Block | None:
    """The block in whose init this one stands, if it does."""
    below: Stmt = realize
    for above in state.ancestors(realize):
        if isinstance(above, Block):
            return above if above.init is below else None
        below = above
    return None


def require_free_of_init(state: State, realize: BlockRealize) -> None:
    """The block does not stand in an init, which may write nothing but its block's results."""
    above = init_around(state, realize)
    if above is not None:
        raise state.error(
            "in-init", f"{realize.block.name} stands in the init of {above.name}, which may write "
            "nothing but its results", realize,
        )  # fmt: skip


def _stores_always(stmt: Stmt, buffer: Buffer) -> bool:
    if isinstance(stmt, BufferStore):
        return stmt.buffer is buffer and stmt.predicate is None
    if isinstance(stmt, (SeqStmt, LetStmt, AttrStmt)):
        return any(_stores_always(s, buffer) for s in stmt.stmts)
    return (
        isinstance(stmt, For)
        and (as_int(stmt.extent) or 0) > 0
        and (_stores_always(stmt.body, buffer))
    )


def top_of(state: State, node: Stmt) -> Stmt:
    """The statement right in the enclosing block (or in a sequence there) that holds `node`."""
    parent = state.parent(node)
    while parent is not None and not isinstance(parent, Block):
        if isinstance(parent, SeqStmt) and isinstance(state.parent(parent), Block):
            break
        node, parent = parent, state.parent(parent)
    return node


def chain_above(state: State, realize: BlockRealize) -> tuple[For, ...]:
    """The loops above a block that hold nothing but it; others above it are refused."""
    loops = state.loops_above(realize)
    top: Stmt = realize
    for loop in reversed(loops):
        if loop.body is not top:
            raise state.error(
                "not-single-branch",
                f"the loop {loop.var.name} holds more than the block {realize.block.name}",
                loop,
                hint="the block must be alone below the loops of its block",
            )
        top = loop
    return loops


def own_loops(state: State, realize: BlockRealize) -> tuple[For, ...]:
    """The loops that are a block's iterators, one each, with nothing else below them."""
    loops = chain_above(state, realize)
    refuse_on(state, block_facts.trivial_binding(realize, loops), realize)
    if realize.predicate is not TRUE:
        raise state.error("has-predicate", f"{realize.block.name} has a predicate", realize)
    an = Analyzer()
    for loop, v in zip(loops, realize.block.iter_vars, strict=True):
        require_from_zero(state, loop)
        if as_int(v.dom.min) != 0 or not an.equal(v.dom.extent, loop.extent):
            raise state.error(
                "other-domain",
                f"the loop {loop.var.name} does not run over the domain of {v.var.name}",
                loop,
            )
    return loops


def tells(indices: Sequence[Expr], iters: Sequence[IterVar]) -> Var | None:
    """An iterator whose value is not proved to follow from `indices`; None when all do."""
    ranges = {v.var: range_interval(v.dom.min, v.dom.extent) for v in iters}
    box = [(linear(i), 1.0) for i in indices]
    met = overlap_distances(box, box, Outside(ranges), ranges)
    if met is None:
        return None
    for var, (low, high) in ranges.items():
        if low != high and met.get(var, (low, high)) != (0, 0):
            return var
    return None


def in_bounds(indices: Sequence[Expr], region: Sequence[Range], analyzer: Analyzer) -> Expr:
    """The conditions, beyond those proved, under which `indices` lie within `region`."""
    out: Expr = TRUE
    for index, r in zip(indices, region, strict=True):
        for condition in (compare(LE, r.min, index), compare(LT, index, r.min + r.extent)):
            if not analyzer.prove(condition):
                out = logical_and(out, condition)
    return out


def stage(
    state: State,
    name: str,
    domains: Sequence[Range],
    body: Callable[[tuple[Var, ...]], Stmt],
    guard: Callable[[tuple[Var, ...]], Expr] | None = None,
    loops: Sequence[Range] | None = None,
    taken: Sequence[str] = (),
) -> tuple[Stmt, Block]:
    """A new block of spatial iterators under a loop for each, and the block itself.

    Args:
        domains: the values of each iterator.
        body: the statement over the iterators; the regions are found from it.
        guard: the predicate, over the iterators.
        loops: what each iterator really runs over (default: its domain).
        taken: names that other new blocks of the same step have.
    """
    iters = tuple(IterVar(state.fresh_var(f"v{d}", r.min.dtype), r) for d, r in enumerate(domains))
    point = tuple(v.var for v in iters)
    fresh, number = state.fresh_block_name(name), 0
    while fresh in taken:
        number += 1
        fresh = state.fresh_block_name(f"{name}_{number}")
    block = Block(fresh, iters, (), (), body(point))
    reads, writes = block_access_regions(block)
    block = evolve(block, reads=reads, writes=writes)
    run = domains if loops is None else loops
    above: list[tuple[Var, Expr | int]] = [
        (state.fresh_var(f"ax{d}", r.min.dtype), r.extent) for d, r in enumerate(run)
    ]
    values = tuple(
        var if as_int(r.min) == 0 else r.min + var for r, (var, _) in zip(run, above, strict=True)
    )
    predicate = TRUE if guard is None else guard(point)
    predicate = substitute(predicate, dict(zip(point, values, strict=True)))
    return nest(above, BlockRealize(values, predicate, block)), block


def with_buffers(*new: Buffer, before: Stmt | None = None) -> Callable[[Stmt], Stmt]:
    """The edit of a scope block that allocates buffers, and runs `before` first."""

    def change(node: Stmt) -> Stmt:
        assert isinstance(node, Block)
        body = node.body if before is None else seq((before, node.body))
        return evolve(node, body=body, alloc_buffers=(*node.alloc_buffers, *new))

    return change


def updates(block: Block, buffer: Buffer) -> bool:
    """Whether a body without an init reads of a buffer, also where that is not declared."""
    body = accesses(block) if block.init is None else ()
    return any(a.buffer is buffer and not a.is_write for a in body)


def beside(anchor: Stmt, before: Sequence[Stmt] = (), after: Sequence[Stmt] = ()) -> edit.Edits:
    """Statements right before and right after `anchor`."""
    return edit.wrap(anchor, lambda s: seq((*before, s, *after)))


def with_extent(extent: Expr) -> Callable[[Stmt], Stmt]:
    """The edit of a loop that gives it another extent."""

    def change(node: Stmt) -> Stmt:
        assert isinstance(node, For)
        return evolve(node, extent=extent.astype(node.var.dtype))

    return change


def plain_int(state: State, value: Any, what: str) -> int:
    """An integer argument (or a sampled one); anything else is refused."""
    number = state.integer(value) if not isinstance(value, bool) else None
    if number is None:
        raise state.error("not-an-integer", f"{what} is {value!r}, not an integer")
    return number

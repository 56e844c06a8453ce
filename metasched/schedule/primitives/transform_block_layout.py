"""transform_block_layout: replaces a block's iterators by a bijective map of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from metasched.analysis import block as block_facts
from metasched.analysis.dependence import carried_dependence
from metasched.arith.analyzer import Analyzer
from metasched.arith.indexmap import IndexMap
from metasched.errors import MetaschedError
from metasched.ir.buffer import BufferLoad, BufferRegion, Range
from metasched.ir.expr import TRUE, Compare, Expr, FloorDiv, FloorMod, IntImm, Var
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    IterKind,
    IterVar,
    MatchBufferRegion,
    Stmt,
    evolve,
)
from metasched.ir.visit import free_vars, reads_memory, substitute, transform, walk_exprs
from metasched.schedule import edit, ways
from metasched.schedule.checks import refuse_on, require_from_zero, require_root_free
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.layout_arguments import as_index_map
from metasched.schedule.primitives.new_stage import chain_above
from metasched.schedule.rebind import nest
from metasched.schedule.state import State


@primitive(of_block=ways.plain(ways.reversed_indices))
def transform_block_layout(
    state: State, block: BlockLike, index_map: IndexMap | Callable[..., Any]
) -> None:
    """Let `block` iterate over `index_map` of its iterators, with a new loop for each new iterator.

    The step consumes the loops above the block; get_loops gives the new loops.

    requires  the block alone below loops without kind or annotation, which count from zero and are
              the values of its iterators; only spatial and reduce iterators; a map that is
              bijective on their domains and mixes no kinds; a new order of iterations that keeps
              every dependence
    rewrite   for i, j in T.grid(4, 8): B(B[vi, vj] = A[vi, vj])
              -> for ax0 in range(32): B(B[v // 8, v % 8] = A[v // 8, v % 8])
    """
    assert isinstance(block, BlockRV)
    realize = require_root_free(state, block)
    old = realize.block
    mapping = as_index_map(state, index_map, len(old.iter_vars), realize)
    state.canonical = {"index_map": IndexMap.of(index_map, len(old.iter_vars))}
    loops = plain_loops(state, realize, ordered=True)
    kinds = [_kind_of(state, realize, output, mapping) for output in mapping.outputs]
    shape = [v.dom.extent for v in old.iter_vars]
    try:
        sizes = mapping.map_shape(shape)
        back = mapping.inverse(shape)
    except MetaschedError as error:
        raise state.error("not-bijective", str(error), realize) from None
    _require_order(state, realize, loops, mapping)
    iters = tuple(
        IterVar(state.fresh_var(f"v{n}", size.dtype), Range(IntImm(size.dtype, 0), size), kind)
        for n, (size, kind) in enumerate(zip(sizes, kinds, strict=True))
    )
    known = {v.var: v.dom for v in iters}
    analyzer = Analyzer(known)
    inverse = back.apply([v.var for v in iters], analyzer)
    values = {
        v.var: value.astype(v.var.dtype) for v, value in zip(old.iter_vars, inverse, strict=True)
    }
    new = evolve(replaced_iters(old, values, analyzer), iter_vars=iters)
    new_loops: list[tuple[Var, Expr | int]] = [
        (state.fresh_var(f"ax{n}", v.var.dtype), v.dom.extent) for n, v in enumerate(iters)
    ]
    top: Stmt = loops[0] if loops else realize
    bound = BlockRealize(tuple(var for var, _ in new_loops), TRUE, new)
    state.commit(edit.replace(top, nest(new_loops, bound)))


def plain_loops(state: State, realize: BlockRealize, *, ordered: bool = False) -> tuple[For, ...]:
    """The loops above a block, one for each iterator and without kind or annotation.

    Args:
        ordered: accept opaque iterators, too.
    """
    loops = chain_above(state, realize)
    refuse_on(state, block_facts.trivial_binding(realize, loops), realize)
    if realize.predicate is not TRUE:
        raise state.error("has-predicate", f"{realize.block.name} has a predicate", realize)
    for loop, v in zip(loops, realize.block.iter_vars, strict=True):
        require_from_zero(state, loop)
        if loop.kind.value != "serial" or loop.annotations:
            raise state.error(
                "loop-has-kind",
                f"the loop {loop.var.name} has a kind or annotations that would be lost",
                loop,
                hint="transform the block before it is scheduled",
            )
        if not (v.is_spatial or v.is_reduce or (ordered and v.kind is IterKind.OPAQUE)):
            raise state.error(
                "iterator-kind",
                f"the iterator {v.var.name} is {v.kind.value}, so its order counts",
                realize,
            )
        same = Analyzer().equal(v.dom.extent, loop.extent) and Analyzer().equal(v.dom.min, loop.min)
        if not same:
            raise state.error(
                "other-domain",
                f"the loop {loop.var.name} does not run over the domain of {v.var.name}",
                loop,
            )
    return loops


def _kind_of(state: State, realize: BlockRealize, output: Expr, mapping: IndexMap) -> IterKind:
    """The kind of the iterators that one output of the map uses; raises if it mixes kinds."""
    used = free_vars(output)
    pairs = zip(mapping.inputs, realize.block.iter_vars, strict=True)
    kinds = {v.kind for name, v in pairs if name in used}
    if len(kinds) > 1:
        raise state.error(
            "mixed-kinds",
            f"{output} mixes iterators of different kinds",
            realize,
            hint="each new iterator must come from iterators of one kind",
        )
    return kinds.pop() if kinds else IterKind.SPATIAL


def _require_order(
    state: State, realize: BlockRealize, loops: Sequence[For], mapping: IndexMap
) -> None:
    """Refuse a map that changes the order of iterations if a dependence needs the old order."""
    scope = state.scope(realize)
    failure = block_facts.complete_or_reduction(scope, realize.block.token, sole=False)
    if failure is None:
        return
    dependences = [carried_dependence(loop, scope, private=False) for loop in loops]
    if all(found is None for found in dependences):
        return
    if _in_order(mapping, [loop.extent for loop in loops]) or _keeps_tail(
        mapping, next(n for n, found in enumerate(dependences) if found is not None)
    ):
        return
    raise state.error(
        "order-matters",
        f"the iterations of {realize.block.name} may depend on their order: {failure.message}",
        realize,
    )


def _in_order(mapping: IndexMap, shape: Sequence[Expr]) -> bool:
    """Whether the outputs, read as digits, count the inputs in row-major order."""
    sizes = mapping.map_shape(shape)
    total_in: Expr = IntImm("int32", 0)
    total_out: Expr = IntImm("int32", 0)
    for var, size in zip(mapping.inputs, shape, strict=True):
        total_in = total_in * size + var
    for output, size in zip(mapping.outputs, sizes, strict=True):
        total_out = total_out * size + output
    ranges = {v: Range.of(0, s) for v, s in zip(mapping.inputs, shape, strict=True)}
    return Analyzer(ranges).equal(total_in, total_out)


def _keeps_tail(mapping: IndexMap, first: int) -> bool:
    """Whether the inputs from `first` on stay as they are, in their order: between iterations that
    differ in an earlier input there is no dependence."""
    tail = mapping.inputs[first:]
    kept = [output for output in mapping.outputs if not free_vars(output).isdisjoint(tail)]
    return kept == list(tail)


def replaced_iters(block: Block, values: Mapping[Var, Expr], analyzer: Analyzer) -> Block:
    """The block with its iterators replaced in body, init, regions and views, indices simplified,
    and comparisons of digits, too.

    `iter_vars` of the result are still the old iterators.
    """

    def simple(indices: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple(analyzer.simplify(i) if i.children else i for i in indices)

    def on_expr(node: Expr) -> Expr | None:  # iterators stay: regions mention them
        if isinstance(node, BufferLoad):
            return BufferLoad(node.buffer, simple(node.indices), node.predicate)
        if isinstance(node, Compare) and _has_digits(node):
            return analyzer.simplify(node)
        return None

    def on_stmt(node: Stmt) -> Stmt | None:
        return evolve(node, indices=simple(node.indices)) if isinstance(node, BufferStore) else None

    def part(stmt: Stmt) -> Stmt:
        return transform(substitute(stmt, values), on_stmt, on_expr)

    def regions(given: Sequence[BufferRegion]) -> tuple[BufferRegion, ...]:
        return tuple(
            BufferRegion(
                r.buffer,
                tuple(
                    Range(
                        analyzer.simplify(substitute(x.min, values)),
                        analyzer.simplify(substitute(x.extent, values)),
                    )
                    for x in r.region
                ),
            )
            for r in given
        )

    return evolve(
        block,
        body=part(block.body),
        init=None if block.init is None else part(block.init),
        reads=regions(block.reads),
        writes=regions(block.writes),
        match_buffers=tuple(
            MatchBufferRegion(m.buffer, *regions((m.source,))) for m in block.match_buffers
        ),
    )


def _has_digits(test: Compare) -> bool:
    """Whether a comparison of numbers that are no elements of memory divides."""
    divides = any(isinstance(e, FloorDiv | FloorMod) for e in walk_exprs(test))
    return divides and not test.a.dtype.is_float and not reads_memory(test)

"""expand_reduction: sums the terms of a product of integer sums apart, factors taken out.

The zero points of quantized operands are such sums. Multiplied out,

    sum over k of (A[i, k] - a) * (B[k, j] - b[j])
    = (sum of A[i, k] * B[k, j]) - b[j] * (sum of A[i, k]) - a * (sum of B[k, j]) + steps * a * b[j]

leaves a product of plain operands, which instructions for short integers compute, and sums over a
row or a column. Integers wrap, so both sides are equal (Jacob et al. 2018, section 2.3).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from metasched.arith.products import Product, products_of
from metasched.arith.regions import block_access_regions
from metasched.ir.buffer import BufferLoad
from metasched.ir.dtype import DType
from metasched.ir.expr import (
    TRUE,
    Expr,
    IntImm,
    Var,
    add,
    as_expr,
    as_int,
    cast,
    mul,
    sub,
)
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BlockToken,
    BufferStore,
    IterVar,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import free_vars, loads_of, substitute
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    require_reduction,
    require_root_free,
    require_stage_pipeline,
)
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.new_stage import with_buffers
from metasched.schedule.primitives.transform_block_layout import plain_loops
from metasched.schedule.rebind import nest
from metasched.schedule.state import State


@primitive(of_block=ways.plain())
def expand_reduction(state: State, block: BlockLike) -> list[BlockRV]:
    """Multiply out what an integer sum adds, and sum each term apart; returns the summing blocks.

    A term is a product of factors. Factors without a reduce iterator are taken out of the sum.
    Terms with the same factors under the sum share it, and a sum runs over the spatial iterators of
    its factors alone. The sums over most iterators come last. The given handle stands for the block
    that adds the sums, times the factors taken out.

    requires  a reduction block in a stage pipeline, alone below loops without kind or annotation,
              which count from zero and are its iterators; one integer sum from zero; more than one
              term, or a factor to take out
    rewrite   for i, k in T.grid(4, 8): C(C[i] += A[i, k] * (B[k] - Z[i]))
              ->
              for ax0, ax1 in T.grid(4, 8): C_sum(C_sum[i] += A[i, k] * B[k])
              for ax0, ax1 in T.grid(4, 8): C_sum_1(C_sum_1[i] += A[i, k])
              for i in range(4): C(C[i] = C_sum[i] - Z[i] * C_sum_1[i])
    """
    assert isinstance(block, BlockRV)
    realize = require_root_free(state, block)
    scope = require_stage_pipeline(state, realize)
    require_reduction(state, scope, realize)
    loops = plain_loops(state, realize)
    store, products = _added(state, realize)
    old = realize.block
    reduced = frozenset(v.var for v in old.iter_vars if v.is_reduce)
    sums = _sums(products, reduced)
    if len(sums) == 1 and all(term.outside == () for term in sums[0].terms):
        raise state.error(
            "one-term", f"{old.name} adds one product, of which no factor can be taken out", realize
        )
    parts = [_Part.of(state, old, store.buffer.dtype, each) for each in sums if each.factors]
    parts.sort(key=lambda part: len(part.iters))
    names: set[str] = set()
    nests = [part.nested(state, old, names) for part in parts]
    values = {part.sum.factors: part.load for part in parts}
    body = evolve(store, value=_total(old, sums, values, store.buffer.dtype))
    spatial = tuple(v for v in old.iter_vars if v.is_spatial)
    last = evolve(old, iter_vars=spatial, body=body, init=None)
    reads, writes = block_access_regions(last)
    last = evolve(last, reads=tuple(reads), writes=tuple(writes))
    kept = [(loop.var, loop.extent) for loop, v in zip(loops, old.iter_vars, strict=True)
            if v.is_spatial]  # fmt: skip
    bound = tuple(var for var, _ in kept)
    top: Stmt = loops[0] if loops else realize
    state.commit(
        edit.replace(
            top, seq((*(n for n, _ in nests), nest(kept, BlockRealize(bound, TRUE, last))))
        ),
        edit.wrap(scope.block, with_buffers(*(part.load.buffer for part in parts))),
    )
    return [state.new_block(made.token) for _, made in nests]


def _added(state: State, realize: BlockRealize) -> tuple[BufferStore, list[Product]]:
    """The store of a block, and the products that it adds; raises unless the block is one sum of
    integers that starts from zero."""
    block = realize.block
    body, init = block.body, block.init
    if isinstance(body, BufferStore) and isinstance(init, BufferStore) and body.predicate is None:
        if not body.value.dtype.is_int:
            raise state.error(
                "rounded-sum", f"{block.name} computes {body.value.dtype}, whose sums round",
                realize, hint="multiplied out, a sum of integers alone stays the same",
            )  # fmt: skip
        own = BufferLoad(body.buffer, body.indices)
        zero = as_int(init.value) == 0 and BufferLoad(init.buffer, init.indices) is own
        products = list(products_of(body.value))
        mine = [p for p in products if p == (1, (own,))]
        rest = [p for p in products if p != (1, (own,))]
        memory = body.buffer.data
        reads = (load for _, factors in rest for f in factors for load in loads_of(f))
        if zero and len(mine) == 1 and rest and not any(
            load.buffer.data is memory for load in reads
        ):  # fmt: skip
            return body, rest
    raise state.error("no-sum", f"{block.name} is no single sum that starts from zero", realize)


@dataclass(frozen=True, slots=True)
class _Term:
    """A product of what does not depend on reduce iterators, with a sign."""

    sign: int
    outside: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class _Sum:
    """Terms with the same factors under the sum; without factors they count the steps."""

    factors: tuple[Expr, ...]
    terms: tuple[_Term, ...]


def _sums(products: Sequence[Product], reduced: frozenset[Var]) -> list[_Sum]:
    """The products as terms, grouped by their factors under the sum, in the order of occurrence."""
    groups: dict[frozenset[tuple[Expr, int]], list[_Term]] = {}
    order: dict[frozenset[tuple[Expr, int]], tuple[Expr, ...]] = {}
    for sign, factors in products:
        inside = tuple(f for f in factors if not reduced.isdisjoint(free_vars(f)))
        outside = tuple(f for f in factors if reduced.isdisjoint(free_vars(f)))
        # a square is not its factor: repeated factors are told apart by their number
        key = frozenset((f, inside.count(f)) for f in inside)
        order.setdefault(key, inside)
        groups.setdefault(key, []).append(_Term(sign, outside))
    return [_Sum(order[key], tuple(terms)) for key, terms in groups.items()]


@dataclass(frozen=True, slots=True)
class _Part:
    """A sum with the buffer that holds its results.

    Attributes:
        iters: of the block that computes the sum, the spatial iterators first.
        load: of a result, by the spatial iterators.
    """

    sum: _Sum
    iters: tuple[IterVar, ...]
    load: BufferLoad

    @staticmethod
    def of(state: State, block: Block, dtype: DType, each: _Sum) -> _Part:
        used = frozenset().union(*map(free_vars, each.factors))
        iters = tuple(v for v in block.iter_vars if v.var in used)
        spatial = [v for v in iters if v.is_spatial]
        shape = tuple(v.dom.extent for v in spatial) or (IntImm("int32", 1),)
        name = f"{block.name}_sum"
        buffer = state.fresh_buffer(name, shape, dtype, "global")
        return _Part(
            each, iters, BufferLoad(buffer, [v.var for v in spatial] or [IntImm("int32", 0)])
        )

    def nested(self, state: State, block: Block, names: set[str]) -> tuple[Stmt, Block]:
        """The block that computes the sum, under loops of its own."""
        fresh = {v.var: state.fresh_var(v.var.name, v.var.dtype) for v in self.iters}
        at = BufferLoad(self.load.buffer, [substitute(i, fresh) for i in self.load.indices])
        value = substitute(functools.reduce(mul, self.sum.factors), fresh)
        name, number = state.fresh_block_name(f"{block.name}_sum"), 0
        while name in names:
            number += 1
            name = state.fresh_block_name(f"{block.name}_sum_{number}")
        names.add(name)
        made = Block(
            name, tuple(IterVar(fresh[v.var], v.dom, v.kind) for v in self.iters), (), (),
            BufferStore(at.buffer, add(at, value), at.indices),
            init=BufferStore(at.buffer, as_expr(0, at.dtype), at.indices),
        )  # fmt: skip
        reads, writes = block_access_regions(made)
        made = evolve(made, reads=tuple(reads), writes=tuple(writes), token=BlockToken())
        loops = [
            (state.fresh_var(f"ax{n}", v.var.dtype), v.dom.extent) for n, v in enumerate(self.iters)
        ]
        return nest(loops, BlockRealize(tuple(var for var, _ in loops), TRUE, made)), made


def _total(
    block: Block, sums: Sequence[_Sum], loads: dict[tuple[Expr, ...], BufferLoad], dtype: DType
) -> Expr:
    """The sums, each times the steps that it leaves out and times the factors taken out."""
    total: Expr = as_expr(0, dtype)
    for each in sums:
        used = frozenset().union(*map(free_vars, each.factors))
        steps: Expr = as_expr(1, dtype)
        for v in block.iter_vars:
            if v.is_reduce and v.var not in used:
                steps = mul(steps, cast(dtype, v.dom.extent))
        for term in each.terms:
            value = functools.reduce(mul, term.outside, steps)
            if each.factors:
                value = mul(value, loads[each.factors])
            total = add(total, value) if term.sign > 0 else sub(total, value)
    return total

"""Reductions that begin behind the minimum of their domain, and so never run their init.

The init of a block runs where all reduce iterators are at their minimum. In

    for k in range(i, 8):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])

that is the row 0 alone; all other rows go on from what the memory held. Analyses and edits take a
block with an init to set its results first. So such an init becomes a condition in the body of its
block, whose reduce iterators become opaque because their order counts. An init that never runs is
dropped.
"""

from __future__ import annotations

from collections.abc import Mapping

from metasched.analysis.block import init_reads
from metasched.arith.affine import linear
from metasched.arith.analyzer import Analyzer
from metasched.arith.conditions import conjuncts
from metasched.arith.intset import union_regions
from metasched.ir.buffer import BufferRegion, Range
from metasched.ir.expr import (
    EQ,
    TRUE,
    Expr,
    FloorDiv,
    FloorMod,
    Var,
    compare,
    logical_and,
    logical_not,
)
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    For,
    IfThenElse,
    IterKind,
    IterVar,
    Stmt,
    evolve,
    fact,
    seq,
)
from metasched.ir.visit import free_vars, loads_of, map_body, substitute

Values = Mapping[Var, Expr]


def begin_reductions(func: PrimFunc) -> PrimFunc:
    """`func`, where each block with an init runs it for all its results; `func` itself if so."""
    made = _begun_body(func.body)
    return func if made is None else map_body(func, lambda _: made)


def without_init(block: Block) -> Block:
    """The block without its init; it declares that it reads its own output."""
    reads = {r.buffer: r for r in block.writes}
    for region in block.reads:
        own = reads.get(region.buffer)  # other elements of the buffer may be read as well
        box = region.region if own is None else union_regions(own.region, region.region)
        reads[region.buffer] = BufferRegion(region.buffer, tuple(box))
    return evolve(block, init=None, reads=tuple(reads.values()))


def with_init_in_body(block: Block) -> Block:
    """The block whose init is a condition in its body."""
    if block.init is None:
        return block
    first: Expr = TRUE
    for item in block.iter_vars:
        if item.is_reduce:
            first = logical_and(first, compare(EQ, item.var, item.dom.min))
    init = block.init if first is TRUE else IfThenElse(first, block.init)
    return evolve(block, init=None, body=seq((init, block.body)))


@fact
def _begun_body(body: Stmt) -> Stmt | None:
    """The body of a function whose reductions begin; None where all do (cached)."""
    made = _begin(body, (), {})
    return None if made is body else made


def _begin(stmt: Stmt, loops: tuple[For, ...], values: Values) -> Stmt:
    """A statement below `loops`; `values` has the iterators of the blocks around it."""
    if isinstance(stmt, For):
        loops = (*loops, stmt)
    if isinstance(stmt, BlockRealize):
        own = (substitute(value, values) for value in stmt.iter_values)
        values = {**values, **dict(zip((v.var for v in stmt.block.iter_vars), own, strict=True))}
    below = [_begin(s, loops, values) for s in stmt.stmts]
    if any(a is not b for a, b in zip(below, stmt.stmts, strict=True)):
        stmt = stmt.rebuild(below, stmt.exprs)
    if not isinstance(stmt, BlockRealize) or stmt.block.init is None:
        return stmt
    return _begin_block(stmt, loops, values)


def _begin_block(realize: BlockRealize, loops: tuple[For, ...], values: Values) -> BlockRealize:
    block = realize.block
    runs = _runs_init(realize, loops, values)
    if runs is True:
        return realize
    if runs is False:
        return evolve(realize, block=without_init(block))
    reads = {r.buffer: r for r in without_init(block).reads}
    for region in init_reads(block):
        reads.setdefault(region.buffer, region)
    made = with_init_in_body(block)
    kinds = ((v, IterKind.OPAQUE if v.is_reduce else v.kind) for v in made.iter_vars)
    iters = tuple(IterVar(v.var, v.dom, kind) for v, kind in kinds)
    return evolve(realize, block=evolve(made, iter_vars=iters, reads=tuple(reads.values())))


def _runs_init(realize: BlockRealize, loops: tuple[For, ...], values: Values) -> bool | None:
    """Whether the init runs for each result: False if it never runs, None if that depends on the
    result or is not known."""
    pairs = [(v, values[v.var]) for v in realize.block.iter_vars]
    kept = frozenset().union(*(free_vars(e) for v, e in pairs if not v.is_reduce))
    own = {n.var: n for n in loops if n.var not in kept}
    everywhere = Analyzer({n.var: Range(n.min, n.extent) for n in loops})
    outside = Analyzer({n.var: Range(n.min, n.extent) for n in loops if n.var not in own})
    first: dict[Var, Expr] = {}
    sure = exact = True
    for item, value in pairs:
        if not item.is_reduce:
            continue
        behind = value - substitute(item.dom.min, values)
        if everywhere.prove(behind >= 1):
            return False
        first.update(_ends(behind, own))
        at_first = outside.simplify(_at(behind, first))
        exact = exact and outside.prove(compare(EQ, at_first, 0))
        # a predicate leaves out what is below the domain; a digit of a shared loop gets all values
        sure = sure and (outside.prove(at_first <= 0) or _begins_in_digits(at_first, outside))
    for condition in conjuncts(substitute(realize.predicate, values)) if exact else ():
        sure = sure and not outside.prove(logical_not(_at(condition, first)))
    written = {region.buffer for region in realize.block.writes}
    for loop in loops:  # the first iteration must set all results
        end = loop.min + loop.extent
        changes = any(load.buffer in written for e in (loop.min, end) for load in loads_of(e))
        if loop.var not in own and (changes or not free_vars(end).isdisjoint(own)):
            start = _at(loop.min, first) <= loop.min
            sure = (
                sure
                and not changes
                and everywhere.prove(start)
                and everywhere.prove(_at(end, first) >= end)
            )
    return sure or None


def _begins_in_digits(start: Expr, known: Analyzer) -> bool:
    """Whether a value is at most zero where all its quotients and remainders are smallest."""
    form = linear(start)
    least = form.const
    for atom, factor in form.terms.items():
        low = known.bounds(atom).lo
        if low is None or factor < 0 or not isinstance(atom, (FloorDiv, FloorMod)):
            return False
        least += factor * low
    return least <= 0


def _ends(value: Expr, loops: Mapping[Var, For]) -> dict[Var, Expr]:
    """The end of each loop at which a value is smallest; its start, if the value is not linear."""
    ends: dict[Var, Expr] = {var: loops[var].min for var in free_vars(value) & {*loops}}
    for atom, factor in linear(value).terms.items():
        if isinstance(atom, Var) and atom in loops and factor < 0:
            ends[atom] = loops[atom].min + loops[atom].extent - 1
    return ends


def _at(expr: Expr, ends: Mapping[Var, Expr]) -> Expr:
    """An expression at the ends of loops, of which the inner may mention the outer."""
    for _ in ends:
        expr = substitute(expr, ends)
    return expr

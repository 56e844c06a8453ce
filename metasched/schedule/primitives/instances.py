"""Finds which instances of a block must, or can, run in one iteration of a loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from metasched.analysis.cover import bound_regions
from metasched.analysis.scope import Child
from metasched.analysis.threads import thread_loops, thread_rank
from metasched.arith.analyzer import Analyzer
from metasched.arith.conditions import conjuncts
from metasched.arith.intset import of_index_type, relax, relax_ranges, union_regions
from metasched.arith.inverse import left_inverse
from metasched.arith.regions import inputs, without_loads
from metasched.errors import ScheduleError
from metasched.ir.buffer import Buffer, BufferRegion, Range
from metasched.ir.dtype import DType
from metasched.ir.expr import (
    LT,
    TRUE,
    Add,
    Expr,
    FloorDiv,
    IntImm,
    Mul,
    Sub,
    Var,
    as_expr,
    as_int,
    compare,
)
from metasched.ir.stmt import Block, For
from metasched.ir.visit import free_vars, loads_of
from metasched.schedule.primitives.inline import require_within
from metasched.schedule.rebind import ranges_of
from metasched.schedule.state import State


class Instances(NamedTuple):
    """The instances of a block that run in one iteration of a loop.

    Attributes:
        domains: the ranges of the iterators that the iteration limits; a missing iterator takes all
            values of its domain.
        conditions: further conditions on the iterators.
        exact: whether the domains must not be widened.
        buffer: the buffer whose elements determine the instances.
        guards: conditions on the loops, without which no instance runs: ranges may read memory
            that exists under these conditions alone.
    """

    domains: dict[Var, Range]
    conditions: tuple[Expr, ...]
    exact: bool
    buffer: Buffer
    guards: tuple[Expr, ...] = ()


def needed_instances(
    state: State, child: Child, consumers: Sequence[Child], loop: For, *, updated: bool = False
) -> Instances:
    """The instances of a producer that compute all that its consumers read in one iteration.

    With `updated`, also what they overwrite: they update results of the producer.
    """
    block, analyzer = child.block, _analyzer(state, loop)
    iters = {v.var: v.dom for v in block.iter_vars}
    domains: dict[Var, Range] = {}
    boxes = [_touched(state, r.buffer, consumers, loop, True, updated) for r in block.writes]
    inner = [n for c in consumers for n in _below(state, c, loop)]
    guards = load_guards(consumers, inner, [r for box in boxes for r in box or ()])
    for region, box in zip(block.writes, boxes, strict=True):
        if box is None:
            continue
        if guards is None:
            box = list(without_loads(BufferRegion(region.buffer, tuple(box))).region)
        for var, dom in _covering(analyzer, region, box, iters).items():
            old = domains.get(var)
            domains[var] = dom if old is None else union_regions([old], [dom], analyzer)[0]
    return Instances(domains, (), False, block.writes[0].buffer, guards or ())


def load_guards(
    users: Sequence[Child], inner: Sequence[For], box: Sequence[Range]
) -> tuple[Expr, ...] | None:
    """The conditions under which users evaluate the loads in the bounds of a box.

    The box is what the users touch while the loops `inner` run. The result is empty if the box
    loads nothing; None if the conditions of the users differ, or vary with the loops `inner`.
    """
    loads = [x for r in box for e in (r.min, r.extent) for x in loads_of(e)]
    predicates = dict.fromkeys(c.realize.predicate for c in users)
    if not loads or [*predicates] == [TRUE]:
        return ()
    if len(predicates) > 1:
        return None
    parts = conjuncts(*predicates, hints=False)
    running = {n.var for n in inner}
    used = frozenset().union(*map(free_vars, loads))
    if any(not running.isdisjoint(free_vars(p)) and used & free_vars(p) for p in parts):
        return None
    return tuple(p for p in parts if running.isdisjoint(free_vars(p)))


def ready_instances(state: State, child: Child, producers: Sequence[Child], loop: For) -> Instances:
    """The instances of a consumer whose inputs are computed by one iteration.

    One buffer decides: an instance runs in the iteration that computes its element of this buffer.
    Region cover confirms afterwards that the other inputs are written by then.
    """
    block, analyzer = child.block, _analyzer(state, loop)
    iters = {v.var: v.dom for v in block.iter_vars}
    best: Instances | None = None
    made: Buffer | None = None
    for region in inputs(block):
        box = _touched(state, region.buffer, producers, loop, False, True)
        if box is None:
            continue
        made = made or region.buffer
        where = (analyzer, region, box, iters)
        found = _exact_instances(*where) or _conditional_instances(*where)
        if found is not None and (best is None or len(found.domains) > len(best.domains)):
            best = found
    if best is None:
        assert made is not None
        raise _not_ready(state, block, made, loop)
    require_within(state, child.realize, best.buffer)
    if not best.domains and any(as_int(d.extent) != 1 for d in iters.values()):
        raise state.error(
            "not-ready",
            f"the elements that {loop.var.name} computes determine no iterator of {block.name}",
            loop,
        )
    return best


def _analyzer(state: State, loop: For) -> Analyzer:
    return Analyzer(ranges_of([*state.loops_above(loop), loop]))


def _not_ready(state: State, block: Block, buffer: Buffer, loop: For) -> ScheduleError:
    return state.error(
        "not-ready",
        f"an instance of {block.name} may read elements of {buffer.name} that other iterations "
        f"of {loop.var.name} compute",
        loop,
        hint="choose an outer loop",
    )


def _touched(
    state: State, buffer: Buffer, others: Sequence[Child], loop: For, reads: bool, writes: bool
) -> list[Range] | None:
    """The box of `buffer` that the other blocks read or write in one iteration of `loop`."""
    outer = state.loops_above(loop)
    box: list[Range] | None = None
    for other in others:
        inner = _below(state, other, loop)
        if reads:
            shared = thread_loops([*outer, loop], buffer.scope)
            inner += [n for n in shared if thread_rank(n.thread or "")]  # blocks do not wait
        found = bound_regions(other, writes=False) if reads else []
        found = [*found, *(bound_regions(other, writes=True) if writes else ())]
        for where, region in found:
            if where is not buffer:
                continue
            here = BufferRegion(buffer, tuple(Range(low, extent) for low, extent in region))
            ranges = list(relax(here, ranges_of(inner)).region)
            box = ranges if box is None else union_regions(box, ranges)
    return None if box is None else [of_index_type(r) for r in box]


def _below(state: State, child: Child, loop: For) -> list[For]:
    """The loops around a block inside of `loop`."""
    outer = state.loops_above(loop)
    return [n for n in child.loops if n not in outer and n is not loop]


def _covering(
    analyzer: Analyzer, region: BufferRegion, box: Sequence[Range], iters: Mapping[Var, Range]
) -> dict[Var, Range]:
    """Ranges of iterators over which a region covers a box; a missing iterator takes all values."""
    domains: dict[Var, Range] = {}
    tangled = False
    for have, want in zip(region.region, box, strict=True):
        solved = _solve(analyzer, have, want, iters, exact=False)
        if solved is None:
            tangled |= not free_vars(have.min).isdisjoint(iters)
            continue
        var, dom = solved
        old = domains.get(var)
        domains[var] = dom if old is None else union_regions([old], [dom], analyzer)[0]
    if tangled:
        for var, dom in (_inverted(analyzer, region, box, iters) or {}).items():
            domains.setdefault(var, dom)
    return {var: _simple(analyzer, dom) for var, dom in domains.items()}


def _exact_instances(
    analyzer: Analyzer, region: BufferRegion, box: Sequence[Range], iters: Mapping[Var, Range]
) -> Instances | None:
    """The instances whose region lies in a box, as ranges of iterators.

    None if the region of an instance may lie partly in the box and partly outside.
    """
    domains: dict[Var, Range] = {}
    for have, want in zip(region.region, box, strict=True):
        solved = _solve(analyzer, have, want, iters, exact=True)
        if solved is None:
            if not _covers(analyzer, have, want, iters):
                return None
            continue
        var, dom = solved[0], _simple(analyzer, solved[1])
        if var in domains and not _same(analyzer, domains[var], dom):
            return None
        domains[var] = dom
    return Instances(domains, (), True, region.buffer)


def _conditional_instances(
    analyzer: Analyzer, region: BufferRegion, box: Sequence[Range], iters: Mapping[Var, Range]
) -> Instances | None:
    """The instances that read an element of a box, as ranges and conditions; None unless each
    instance reads one element."""
    domains = _inverted(analyzer, region, box, iters)
    if domains is None or not all(r.is_point for r in region.region):
        return None
    conditions: list[Expr] = []
    for have, want in zip(region.region, box, strict=True):
        index = have.min.astype(want.min.dtype)
        conditions += [want.min <= index, compare(LT, index, want.min + want.extent)]
    domains = {var: _simple(analyzer, dom) for var, dom in domains.items()}
    return Instances(domains, tuple(conditions), False, region.buffer)


def _simple(analyzer: Analyzer, dom: Range) -> Range:
    return Range(analyzer.simplify(dom.min), analyzer.simplify(dom.extent))


def _same(analyzer: Analyzer, a: Range, b: Range) -> bool:
    return analyzer.equal(a.min, b.min) and analyzer.equal(a.extent, b.extent)


def _solve(
    analyzer: Analyzer, have: Range, want: Range, iters: Mapping[Var, Range], *, exact: bool
) -> tuple[Var, Range] | None:
    """The iterator v in `have`, and the range of v over which `have` covers `want`.

    Handles v + c, v * e + c with an extent of e, and v // e; None for another form. With `exact`
    no value in the range moves `have` outside of `want`.
    """
    low, width, offset = have.min, as_int(have.extent), 0
    while isinstance(low, (Add, Sub)) and isinstance(low.b, IntImm):
        offset += low.b.value if isinstance(low, Add) else -low.b.value
        low = low.a
    begin = want.min - offset
    if isinstance(low, Var) and low in iters and width == 1:
        return low, Range(begin, want.extent)
    if isinstance(low, Mul) and isinstance(low.a, Var) and low.a in iters:
        factor = as_int(low.b)
        if factor is not None and width is not None and 0 < width <= factor:
            aligned = not exact or (
                analyzer.equal(begin % factor, as_expr(0, begin.dtype))
                and analyzer.equal(want.extent % factor, as_expr(0, want.extent.dtype))
            )
            if width == factor and aligned:
                first = begin // factor
                return low.a, Range(first, (begin + want.extent - 1) // factor - first + 1)
            return None
    if isinstance(low, FloorDiv) and isinstance(low.a, Var) and low.a in iters and width == 1:
        factor = as_int(low.b)
        if factor is not None and factor > 0:
            return low.a, Range(begin * factor, want.extent * factor)
    return None


def _inverted(
    analyzer: Analyzer, region: BufferRegion, box: Sequence[Range], iters: Mapping[Var, Range]
) -> dict[Var, Range] | None:
    """Ranges that hold all iterators whose region meets a box; None if they cannot be solved."""
    point = tuple([_element(k, r.min.dtype) for k, r in enumerate(region.region)])
    before: dict[Var, Range] = {}
    for var, have, want in zip(point, region.region, box, strict=True):
        reach = have.extent - 1  # a region that begins this far before the box still meets it
        before[var] = Range(want.min - reach, want.extent + reach)
    solved = left_inverse([r.min for r in region.region], iters, point)
    if isinstance(solved, str):
        return None
    found = [
        relax_ranges([Range(value, IntImm(value.dtype, 1))], before, None, analyzer)
        for value in solved.values()
    ]
    return {var: r[0] for var, r in zip(solved, found, strict=True) if r is not None}


@lru_cache(maxsize=64)
def _element(axis: int, dtype: DType) -> Var:
    return Var(f"e{axis}", dtype)


def _covers(analyzer: Analyzer, have: Range, want: Range, iters: Mapping[Var, Range]) -> bool:
    """Whether `want` holds all of `have` for all values of the block's iterators."""
    box = _relaxed(have, iters)
    if box is None:
        return False
    return analyzer.prove(want.min <= box.min) and analyzer.prove(
        box.min + box.extent <= want.min + want.extent
    )


def _relaxed(r: Range, iters: Mapping[Var, Range]) -> Range | None:
    """The range that holds `r` for all values of the iterators."""
    if free_vars(r.min).isdisjoint(iters) and free_vars(r.extent).isdisjoint(iters):
        return r
    found = relax_ranges([r], iters)
    return None if found is None else found[0]

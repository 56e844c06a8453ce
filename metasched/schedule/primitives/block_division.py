"""Divides a block's iterators between the loops outside and inside a new block around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metasched.arith.analyzer import Analyzer
from metasched.arith.conditions import conjuncts
from metasched.arith.intset import relax_ranges
from metasched.arith.iterlimit import narrowed_ranges
from metasched.arith.subspace import Divided, Division, subspace_divide
from metasched.ir.buffer import Buffer, Range
from metasched.ir.describe import show_expr
from metasched.ir.expr import TRUE, Expr, IntImm, Var, as_int, logical_and
from metasched.ir.stmt import Block, BlockRealize, For, IterVar, Stmt, evolve
from metasched.ir.visit import free_vars, loads_of, substitute
from metasched.schedule.rebind import ranges_of
from metasched.schedule.state import State


@dataclass(frozen=True, slots=True)
class Part:
    """A block over its inner loops, and its iterators and predicate over the outer loops."""

    iters: list[IterVar]
    bindings: list[Expr]
    predicate: Expr
    inner: BlockRealize
    loops: tuple[For, ...]

    def nested(self) -> Stmt:
        """The inner block under its loops, which are taken from the old tree."""
        return under(self.loops, self.inner)


def under(loops: Sequence[For], body: Stmt) -> Stmt:
    for loop in reversed(loops):
        body = evolve(loop, body=body)
    return body


def divided(
    state: State, realize: BlockRealize, top: Stmt, loops: tuple[For, ...], preserve: bool
) -> Part:
    """Divide the block between the loops above `top` and `loops`, which run from `top` down."""
    block = realize.block
    above = state.loops_above(top)
    outside = {n.var for n in above}
    for loop in loops:
        for expr in loop.exprs:
            if not free_vars(expr).isdisjoint(outside | {n.var for n in loops}):
                raise state.error(
                    "dependent-bound", f"a bound of {loop.var.name} uses another loop, which the "
                    "domain of an iterator may not", loop,
                )  # fmt: skip
    division = _divide(realize, above, loops)
    if division is None:
        _refuse_cut_tile(state, realize, outside, {n.var for n in loops})
        raise state.error(
            "not-divisible",
            f"the bindings of {block.name} do not divide into a part over the loops outside and a "
            "part over the loops inside the new block",
            realize,
            hint="split so that the inner loops cover whole tiles, and reorder them innermost",
        )
    iters: list[IterVar] = []
    bindings: list[Expr] = []
    inner_iters: list[IterVar] = []
    inner_bindings: list[Expr] = []
    values: dict[Var, Expr] = {}
    for old, binding, parts in zip(
        block.iter_vars, realize.iter_values, division.bindings, strict=True
    ):
        var, dtype = old.var, old.var.dtype
        outer = state.fresh_var(f"{var.name}_o", dtype)
        if parts.is_outer:
            iters.append(IterVar(outer, old.dom, old.kind))
            bindings.append(_kept(binding, parts, outside) if preserve else parts.outer)
            values[var] = outer
            continue
        zero = IntImm(dtype, 0)
        inner = state.fresh_var(f"{var.name}_i", dtype)
        outer_dom = _closed_domain(state, Range(zero, parts.outer_extent.astype(dtype)), above, top)
        iters.append(IterVar(outer, outer_dom, old.kind))
        bindings.append(_unit_loop(binding, parts, above) if preserve else parts.outer)
        whole = parts.is_inner
        changing = _changing(block, parts.inner_extent)
        if changing and not whole:
            raise state.error(
                "ends-change", f"{block.name} writes {changing[0].name}, which the ends of the "
                "loops inside the new block read", realize,
            )  # fmt: skip
        dom = old.dom if whole and (changing or not _from_zero(parts, loops)) else (
            Range(zero, parts.inner_extent.astype(dtype))
        )  # fmt: skip
        inner_iters.append(IterVar(inner, dom, old.kind))
        inner_bindings.append(parts.inner)
        values[var] = inner if whole else outer * parts.inner_extent.astype(dtype) + inner
    body = _substituted(block, values, tuple(inner_iters))
    inside = BlockRealize(tuple(inner_bindings), division.inner_predicate, body)
    return Part(iters, bindings, _within(state, top, division, iters, bindings), inside, loops)


def _within(
    state: State, top: Stmt, division: Division, iters: Sequence[IterVar], bindings: Sequence[Expr]
) -> Expr:
    """The outer predicate, which also keeps the outer bindings in their domains.

    The inner predicate may rule out every inner iteration where an outer binding has left its
    domain; so the added conditions leave out no iteration of the block.
    """
    predicate = division.outer_predicate
    if division.inner_predicate is TRUE:
        return predicate
    around = state.scope_block(top)
    domains = {} if around is None else {v.var: v.dom for v in around.iter_vars}
    ranges = {**domains, **ranges_of(state.loops_above(top))}
    known = Analyzer(narrowed_ranges(ranges, predicate))
    for v, value in zip(iters, bindings, strict=True):
        for condition in (value >= v.dom.min, value < v.dom.min + v.dom.extent):
            if not known.prove(condition):
                predicate = condition if predicate is TRUE else logical_and(predicate, condition)
    return predicate


def _changing(block: Block, extent: Expr) -> list[Buffer]:
    """The buffers that an extent reads and the block writes: no domain of the block can have it."""
    written = {r.buffer for r in block.writes}
    return [load.buffer for load in loads_of(extent) if load.buffer in written]


def _refuse_cut_tile(
    state: State, realize: BlockRealize, outside: set[Var], inside: set[Var]
) -> None:
    """Raise if a condition uses outer and inner loops together, which cuts the last tile short."""
    for condition in conjuncts(realize.predicate):
        used = free_vars(condition)
        if used & outside and used & inside:
            raise state.error(
                "cut-tile",
                lambda c=condition: (
                    f"the condition {show_expr(c)} cuts the last tile of {realize.block.name} short"
                ),
                realize,
                hint="split by a factor that divides, or make the extent a multiple of it first "
                "(pad_einsum, overcompute)",
            )


def _divide(realize: BlockRealize, above: Sequence[For], loops: Sequence[For]) -> Division | None:
    """Divide affine bindings, or others if each uses only outer or only inner loops; else None."""
    ranges = ranges_of([*above, *loops])
    mine = {n.var for n in loops}
    # an empty inner loop would leave an empty domain to the outer part
    if all(as_int(n.extent) != 0 for n in loops):
        found = subspace_divide(realize.iter_values, ranges, mine, realize.predicate)
        if found is not None:
            return found
    if realize.predicate is not TRUE:
        return None
    parts: list[Divided] = []
    outside = {n.var for n in above}
    for old, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        zero, one = IntImm(value.dtype, 0), IntImm(value.dtype, 1)
        if free_vars(value).isdisjoint(mine):
            parts.append(Divided(value, old.dom.extent, zero, one))
        elif free_vars(value).isdisjoint(outside):
            parts.append(Divided(zero, one, value, old.dom.extent))
        else:
            return None
    return Division(tuple(parts), TRUE, TRUE)


def _kept(binding: Expr, parts: Divided, outside: set[Var]) -> Expr:
    """The outer part of a binding, including its loops of extent one."""
    return binding if free_vars(binding) <= outside else parts.outer


def _unit_loop(binding: Expr, parts: Divided, above: Sequence[For]) -> Expr:
    """The outer part of a binding; if it is zero, the only unit loop that the binding mentions."""
    if parts.is_inner and as_int(parts.outer) == 0:
        units = [n.var for n in above if as_int(n.extent) == 1 and as_int(n.min) == 0]
        units = [v for v in units if v in free_vars(binding) and v.dtype is binding.dtype]
        if len(units) == 1:
            return units[0]
    return parts.outer


def _from_zero(parts: Divided, loops: Sequence[For]) -> bool:
    """Whether the inner part is proved to lie in [0, its extent) for all starts of the loops."""
    known = Analyzer(ranges_of(loops))
    return known.prove(parts.inner >= 0) and known.prove(parts.inner < parts.inner_extent)


def _substituted(block: Block, values: dict[Var, Expr], iters: tuple[IterVar, ...]) -> Block:
    """The block over its new iterators, with simplified indices."""
    known = Analyzer({v.var: v.dom for v in iters})

    def simple(expr: Expr) -> Expr:
        new = substitute(expr, values)
        return expr if new is expr else known.simplify(new)

    exprs = [simple(e) for e in block.exprs]
    changed = block.rebuild([substitute(s, values) for s in block.stmts], exprs)
    return evolve(changed, iter_vars=iters)


def fixed_domain(state: State, loop: For) -> Range:
    """The range of a loop, or, if it depends on outer loops, a range that holds all its values."""
    return _closed_domain(state, Range(loop.min, loop.extent), state.loops_above(loop), loop)


def _closed_domain(state: State, domain: Range, above: Sequence[For], where: Stmt) -> Range:
    """A range that holds all values of `domain` and mentions none of the loops `above`."""
    box = [domain]
    for outer in reversed(above):
        box = relax_ranges(box, ranges_of([outer])) or box
    if not (free_vars(box[0].min) | free_vars(box[0].extent)).isdisjoint(n.var for n in above):
        name = where.var.name if isinstance(where, For) else "the block"
        raise state.error(
            "dependent-bound", f"the range of {name} depends on loops around it", where
        )
    return box[0]

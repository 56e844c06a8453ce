"""Blocks of an axis that a mask hides as a whole (see `rolling_update` and `analysis.masks`)."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from metasched.analysis.masks import Instances, Masked, infinite, is_zero
from metasched.arith.analyzer import Analyzer
from metasched.arith.conditions import conjuncts, negate
from metasched.ir.buffer import Buffer, Range
from metasched.ir.expr import (
    TRUE,
    Expr,
    FloatImm,
    Select,
    Var,
    as_expr,
    cast,
    logical_and,
)
from metasched.ir.op import Call
from metasched.ir.stmt import BlockToken, evolve
from metasched.ir.visit import free_vars, loads_of, walk_exprs
from metasched.schedule.primitives.rolling_members import Member
from metasched.schedule.state import State


@dataclass(frozen=True, slots=True)
class Hidden:
    """What a mask hides.

    Attributes:
        alive: the condition under which a block of the axis is not hidden.
        rest: what hidden blocks still add to the results of members: a product of zero and a value
            that may be infinite, or a sum without a mask.
    """

    alive: Expr
    rest: Mapping[Member, Expr]


def hidden(
    members: Sequence[Member], values: Mapping[Member, Expr], over: Var, size: int,
    private: Container[Buffer], shifts: Container[Buffer], finite: bool,
) -> Hidden | None:  # fmt: skip
    """Find the blocks of the axis of which nothing, or little, needs to be computed.

    Args:
        members: in order.
        values: what each one computes, over the running results.
        over: the loop over blocks of the axis.
        size: of a block of the axis.
        private: buffers that only members use.
        shifts: the stand-ins of running extrema.
        finite: whether no element of a buffer is infinite or NaN.
    """
    at = {m: _instances(m, over, size) for m in members}
    conditions = dict.fromkeys(
        part for m in members for c in _conditions(values[m]) for part in conjuncts(at[m].alive(c))
    )
    alive: Expr = TRUE
    rest: dict[Member, Expr] | None = None
    for condition in conditions:
        found = _rest(members, values, at, private, Masked(condition, {}, shifts, finite))
        if found is not None and rest in (None, found):
            alive, rest = logical_and(alive, condition), found
    return None if rest is None else Hidden(alive, rest)


def _instances(member: Member, over: Var, size: int) -> Instances:
    """The instances of a member in one block of the axis."""
    along, loop = member.along, member.loop
    values = dict(member.realize.bindings)
    start = cast(along.var.dtype, over) * size + along.dom.min
    values[along.var] = start + values[along.var]
    dom = {each.var: Range(each.min, each.extent) for each in member.chain}
    dom[loop.var] = Range(loop.min, as_expr(size, loop.var.dtype))
    return Instances(values, dom)


def _conditions(value: Expr) -> list[Expr]:
    """The conditions of the choices in a value, and their opposites."""
    found = []
    for e in walk_exprs(value):
        if isinstance(e, Select) or (isinstance(e, Call) and e.op.name == "if_then_else"):
            found += [e.children[0], negate(Analyzer(), e.children[0])]
    return found


def _rest(
    members: Sequence[Member], values: Mapping[Member, Expr], at: Mapping[Member, Instances],
    private: Container[Buffer], masked: Masked,
) -> dict[Member, Expr] | None:  # fmt: skip
    """What members add in a block that a mask hides; None if they need stages of that block."""
    own = {m.store.buffer for m in members}
    rest: dict[Member, Expr] = {}
    for member in members:
        value = masked.value(values[member], at[member])
        if member.found is None:
            if member.store.buffer not in private:
                return None
            if isinstance(value, FloatImm) and member.block.init is None:
                constant = {**masked.constant, member.store.buffer: value}
                masked = replace(masked, constant=constant)
        elif not _changes_nothing(member, value):
            used = {load.buffer for load in loads_of(value)}
            extremum = member.found.name in ("max", "min")
            if extremum or used & own or any(b in masked.shifts for b in used):
                return None
            rest[member] = value
    return rest


def _changes_nothing(member: Member, value: Expr) -> bool:
    """Whether a reduction keeps its result where it combines it with a value."""
    assert member.found is not None
    if member.found.name == "sum":
        return is_zero(value)
    sign = {"max": -1, "min": 1}.get(member.found.name)
    return value is member.found.identity[0] or (sign is not None and infinite(value) == sign)


def of_rest(state: State, member: Member, value: Expr) -> Member:
    """A member that computes the rest: over the iterators alone on which the value depends."""
    used = free_vars(value)
    kept = [v in used or v is member.along.var for v in (v.var for v in member.block.iter_vars)]
    pairs = zip(member.block.iter_vars, member.realize.iter_values, kept, strict=True)
    iters, bound = zip(*((v, e) for v, e, keep in pairs if keep), strict=True)
    name = state.fresh_block_name(f"{member.block.name}_rest")
    block = evolve(member.block, name=name, iter_vars=iters, token=BlockToken())
    loops = frozenset().union(*map(free_vars, bound))
    chain = tuple(loop for loop in member.chain if loop.var in loops)
    realize = evolve(member.realize, iter_values=bound, block=block)
    return replace(member, realize=realize, chain=chain)


def chooses(value: Expr) -> bool:
    """Whether a value is chosen by a condition, which may be the mask of a sum."""
    return bool(_conditions(value))

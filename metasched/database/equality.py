"""ModuleEquality: which functions count as one workload when a database is searched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from metasched.analysis.flops import flops
from metasched.ir.equal import structural_hash
from metasched.ir.expr import Expr, FloatImm, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Block
from metasched.ir.visit import blocks_of, map_body, transform
from metasched.registry import Registry
from metasched.schedule.anchor import schedule_using_anchor_trace
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace


@dataclass(frozen=True, slots=True)
class ModuleEquality:
    """When two functions count as the same workload.

    Attributes:
        key: gives a text for a function; functions with the same text are equal.
        apply: applies the trace of a function to a schedule of an equal function; raises
            ScheduleError or TraceError if the trace does not fit.
    """

    key: Callable[[PrimFunc], str]
    apply: Callable[[Schedule, Trace], object]


EQUALITIES: Registry[ModuleEquality] = Registry("module equality", ModuleEquality)


def without_constants(func: PrimFunc) -> PrimFunc:
    """A function with zero for each floating constant."""

    def zero(expr: Expr) -> Expr:
        return FloatImm(expr.dtype, 0.0) if isinstance(expr, FloatImm) else expr

    return map_body(func, lambda body: transform(body, on_expr=zero))


def anchor_block(func: PrimFunc) -> Block | None:
    """The block with the most operations, the first of several; None without a block."""

    def operations(block: Block) -> float:
        extents = [as_int(one.dom.extent) for one in block.iter_vars]
        return flops(block) * prod(1 if extent is None else extent for extent in extents)

    leaves = [one.block for one in blocks_of(func.root.body)]
    return max(leaves, key=operations, default=None)


def _anchor_key(func: PrimFunc) -> str:
    block = anchor_block(func)
    return structural_hash(func if block is None else block)


def _apply(sch: Schedule, trace: Trace) -> None:
    trace.apply(sch)


EQUALITIES.register("structural", ModuleEquality(structural_hash, _apply))
EQUALITIES.register(
    "ignore-constants",
    ModuleEquality(lambda func: structural_hash(without_constants(func)), _apply),
)
EQUALITIES.register("anchor-block", ModuleEquality(_anchor_key, schedule_using_anchor_trace))

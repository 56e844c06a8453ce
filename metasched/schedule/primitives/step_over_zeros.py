"""step_over_zeros: leave out the iterations that do nothing because of a remainder.

A convolution with zeros between its inputs (a transposed convolution) reads an input where
(y + k) % s is zero, and adds zero elsewhere. For each y every s-th k counts. The same holds for a
statement under the test: of a red-black sweep, `if (i + j) % 2 == c`, every other j counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from metasched.analysis.reducer import Reduction, match_reducer
from metasched.analysis.scope import Scope
from metasched.arith.affine import linear
from metasched.arith.analyzer import Analyzer
from metasched.arith.conditions import conjuncts
from metasched.arith.linear import Linear, emit
from metasched.arith.regions import block_access_regions
from metasched.ir.buffer import BufferLoad, Range
from metasched.ir.describe import show_expr
from metasched.ir.expr import (
    EQ,
    NE,
    TRUE,
    Cast,
    Expr,
    FloatImm,
    FloorMod,
    IntImm,
    Mul,
    Select,
    Var,
    as_expr,
    as_int,
    floormod,
    logical_and,
)
from metasched.ir.func import FINITE
from metasched.ir.op import Call
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    IfThenElse,
    IterVar,
    Stmt,
    evolve,
)
from metasched.ir.visit import free_vars, reads_memory, substitute, transform_expr, walk_stmts
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    require_one_block,
    require_plain_loop,
    require_reduction,
    require_serial,
    require_stage_pipeline,
)
from metasched.schedule.handles import LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.transform_block_layout import replaced_iters
from metasched.schedule.state import State


@primitive(of_loop=ways.plain())
def step_over_zeros(state: State, loop: LoopRV) -> None:
    """Let a loop run over the terms of a sum, or iterations of a statement, that a remainder picks.

    A term is zero where a condition of an `if_then_else` with zero fails, or where a factor is an
    element of a stage that such an `if_then_else` filled. A block without init, all of whose body
    is under an `if`, does nothing where a condition of the `if` fails.

    requires  a serial loop that alone drives an iterator of one block, of a constant extent; for a
              sum, a reduce iterator, which starts from zero; a sum that starts from zero; a term
              that is zero unless (c * k + rest) % s == r, with c and s coprime, and s divides the
              extent; if a float factor is zero there and not the whole term, the promise
              tir.finite, and at most two factors, which are loads; for a block without init, an
              `if` without `else` with such a condition, which reads no memory, and whose rest
              only outer loops decide
    rewrite   for i, k in T.grid(8, 4): C(C[i] += T.if_then_else((i - k) % 2 == 0, A[k], 0))
              ->
              for i, k in T.grid(8, 2): C(C[i] += A[k * 2 + i % 2])
    """
    node = require_plain_loop(state, loop, from_zero=False)
    require_serial(state, node)
    realize = require_one_block(state, node)
    plan: _Steps | _Tested
    if _tested(realize.block) is not None:
        plan = _Tested(state, realize, node)
    else:
        scope = require_stage_pipeline(state, realize)
        require_reduction(state, scope, realize)
        plan = _Steps(state, scope, realize, node)
    start, extent = as_expr(0, node.extent.dtype), plan.extent.astype(node.extent.dtype)
    state.commit(
        edit.replace(realize, evolve(realize, block=plan.block())),
        edit.wrap(node, lambda s: evolve(s, min=start, extent=extent)),
    )


@dataclass(frozen=True, slots=True)
class _Class:
    """The iterations at which a condition holds: `first` and each `step`-th after it."""

    part: Expr
    step: int
    first: Expr


class _Steps:
    """The block of a sum, with an iterator that steps over zeros."""

    def __init__(self, state: State, scope: Scope, realize: BlockRealize, loop: For) -> None:
        self.state, self.scope, self.realize = state, scope, realize
        self.old = _iterator(state, realize, loop)
        self._require_whole()
        self.sum = self._sum()
        self.found = self._class()
        self.extent = self._extent()

    def _require_whole(self) -> None:
        """Refuse an iterator that is no reduce iterator from zero."""
        name = self.realize.block.name
        if not self.old.is_reduce:
            text = f"{self.old.var.name} is no reduce iterator of {name}"
            raise self.state.error("not-the-iterator", text, self.realize)
        if as_int(self.old.dom.min) != 0:
            text = f"{self.old.var.name} of {name} does not run from zero to a constant"
            raise self.state.error("no-limit", text, self.realize)

    def _sum(self) -> Reduction:
        block = self.realize.block
        found = match_reducer(block.init, block.body)
        start = block.init.value if isinstance(block.init, BufferStore) else None
        if found is None or found.name != "sum" or len(found.buffers) != 1 or not _is_zero(start):
            text = f"{block.name} is no single sum that starts from zero"
            raise self.state.error("no-sum", text, self.realize)
        return found

    def _class(self) -> _Class:
        """The iterations that count, from the first condition that says it."""
        own = self.old.var
        for part in self._conditions(self.sum.rhs[0]):
            found = _class_of(
                part, own, Analyzer({v.var: v.dom for v in self.realize.block.iter_vars})
            )
            if found is not None:
                return found
        raise self.state.error(
            "no-zeros",
            f"no remainder of {own.name} makes what {self.realize.block.name} adds zero",
            self.realize,
            hint="a zero factor makes a product of floats zero only under the promise tir.finite",
        )

    def _extent(self) -> Expr:
        extent, step = self.old.dom.extent, self.found.step
        if (as_int(extent) or 0) % step:
            raise self.state.error(
                "no-whole-steps",
                f"{step} does not divide {show_expr(extent)}, the extent of {self.old.var.name}: "
                "the results have different numbers of terms",
                self.realize,
            )
        return as_expr((as_int(extent) or 0) // step, extent.dtype)

    # -- where a term is zero

    def _conditions(self, term: Expr) -> Iterator[Expr]:
        """Conditions outside of which a term is zero."""
        guarded = _guarded(term)
        if guarded is not None:
            yield from conjuncts(guarded[0])
            yield from self._conditions(guarded[1])
            return
        factors = _factors(term)
        values = [_guarded(f) or (TRUE, f) for f in factors]
        # of three finite factors, the product of two may be infinite
        loads = len(values) <= 2 and all(isinstance(value, BufferLoad) for _, value in values)
        finite = bool(self.state.func_of(self.realize)[1].attrs.get(FINITE, False))
        if all(f.dtype.is_int for f in factors) or (finite and loads):
            for condition, value in values:
                yield from conjuncts(condition)
                yield from self._of_stage(value)

    def _of_stage(self, value: Expr) -> Iterator[Expr]:
        """Conditions outside of which an element of a stage is zero."""
        if not isinstance(value, BufferLoad) or value.buffer not in self.scope.block.alloc_buffers:
            return
        writers = self.scope.writers(value.buffer)
        store = writers[0].block.body if len(writers) == 1 else None
        if not isinstance(store, BufferStore) or writers[0].block.init is not None:
            return
        guarded = _guarded(store.value)
        own = {v.var for v in writers[0].block.iter_vars}
        if guarded is None or store.predicate is not None or not own.issuperset(store.indices):
            return
        at = {v: i for v, i in zip(store.indices, value.indices, strict=True) if isinstance(v, Var)}
        for part in conjuncts(guarded[0]):
            if free_vars(part) <= at.keys() and not reads_memory(part):
                yield substitute(part, at)

    # -- the new block

    def block(self) -> Block:
        """The block over the terms that count."""
        old, own = self.realize.block, self.old.var
        here = own * self.found.step + self.found.first

        def passed(node: Expr) -> Expr | None:
            return TRUE if node is self.found.part else None

        term = substitute(transform_expr(self.sum.rhs[0], passed, {}), {own: here})
        iters = [
            IterVar(v.var, Range(v.dom.min, self.extent), v.kind) if v is self.old else v
            for v in old.iter_vars
        ]
        known = Analyzer({v.var: v.dom for v in iters})
        (value,) = self.sum.combine(self.sum.lhs, (known.simplify(term),))
        store = BufferStore(self.sum.buffers[0], value, self.sum.indices)
        made = evolve(old, iter_vars=tuple(iters), body=store)
        reads, writes = block_access_regions(made)
        return evolve(made, reads=reads, writes=writes)


class _Tested:
    """A block whose body is under a test, with an iterator that steps over failing iterations."""

    def __init__(self, state: State, realize: BlockRealize, loop: For) -> None:
        self.realize = realize
        self.old = _iterator(state, realize, loop)
        self.known = Analyzer({v.var: v.dom for v in realize.block.iter_vars})
        test = _tested(realize.block)
        assert test is not None
        self.parts = list(conjuncts(test.condition))
        # where inner loops decide which iterations count, the order of iterations would change
        inside = {n.var for n in walk_stmts(loop.body) if isinstance(n, For)}
        late = {v for v, value in realize.bindings.items() if inside & free_vars(value)}
        for part in self.parts:
            found = _class_of(part, self.old.var, self.known)
            if found is not None and late.isdisjoint(free_vars(found.first)):
                self.found = found
                break
        else:
            text = f"no remainder of {self.old.var.name} decides whether {realize.block.name} runs"
            raise state.error("no-zeros", text, realize)
        size = as_int(self.old.dom.extent) or 0
        self.whole = size % self.found.step == 0
        self.extent = as_expr(-(-size // self.found.step), self.old.dom.extent.dtype)

    def block(self) -> Block:
        """The block over the iterations that count."""
        old, own, dom = self.realize.block, self.old.var, self.old.dom
        step, zero = self.found.step, as_expr(0, own.dtype)
        iters = tuple(
            IterVar(v.var, Range(zero, self.extent), v.kind) if v is self.old else v
            for v in old.iter_vars
        )
        known = Analyzer({v.var: v.dom for v in iters})
        ahead = floormod(self.found.first - dom.min, IntImm(own.dtype, step))
        here = known.simplify(own * step + (ahead + dom.min))
        test = _tested(old)
        assert test is not None
        left = [part for part in self.parts if part is not self.found.part]
        left = left if self.whole else [own < dom.min + dom.extent, *left]
        made = replaced_iters(evolve(old, body=test.then), {own: here}, known)
        start: Expr = TRUE
        condition = known.simplify(substitute(reduce(logical_and, left, start), {own: here}))
        body = made.body if condition is TRUE else IfThenElse(condition, made.body)
        made = evolve(made, iter_vars=iters, body=body)
        reads, writes = block_access_regions(made)
        return evolve(made, reads=reads, writes=writes)


def _tested(block: Block) -> IfThenElse | None:
    """The test that all of a block without init is under."""
    body = block.body
    if block.init is None and isinstance(body, IfThenElse) and body.orelse is None:
        return body
    return None


def _iterator(state: State, realize: BlockRealize, loop: For) -> IterVar:
    """The iterator that a loop alone drives over a constant range."""
    block, bindings = realize.block, realize.bindings
    driven = [v for v in block.iter_vars if loop.var in free_vars(bindings[v.var])]
    alone = len(driven) == 1 and bindings[driven[0].var] is loop.var
    ends = any(loop.var in free_vars(e) for s in walk_stmts(loop.body) for e in _ends(s))
    if not alone or ends or loop.var in free_vars(realize.predicate):
        text = f"{loop.var.name} is not alone the value of one iterator of {block.name}"
        raise state.error("not-the-iterator", text, realize)
    dom, size, start = driven[0].dom, as_int(loop.extent), as_int(loop.min)
    if not size or start is None or as_int(dom.min) != start or as_int(dom.extent) != size:
        text = f"{driven[0].var.name} of {block.name} does not run over a constant range"
        raise state.error("no-limit", text, realize)
    return driven[0]


def _ends(stmt: Stmt) -> Sequence[Expr]:
    """What a statement around a block evaluates."""
    return () if isinstance(stmt, (BlockRealize, Block)) else stmt.exprs


def _guarded(expr: Expr) -> tuple[Expr, Expr] | None:
    """The condition outside of which an expression is 0, and its value where the condition
    holds."""
    if isinstance(expr, Select):
        condition, value, other = expr.condition, expr.a, expr.b
    elif isinstance(expr, Call) and expr.op.name == "if_then_else":
        condition, value, other = expr.args
    else:
        return None
    return (condition, value) if _is_zero(other) else None


def _is_zero(value: Expr | None) -> bool:
    """Whether a value is 0, and not -0.0."""
    return isinstance(value, (FloatImm, IntImm)) and value.value == 0 and not _minus(value.value)


def _minus(number: float) -> bool:
    return math.copysign(1, number) < 0


def _factors(term: Expr) -> list[Expr]:
    if isinstance(term, Mul):
        return _factors(term.a) + _factors(term.b)
    return _factors(term.value) if isinstance(term, Cast) else [term]


def _class_of(part: Expr, own: Var, known: Analyzer) -> _Class | None:
    """The values of a variable at which `part` holds, if it compares a remainder of a multiple."""
    if not isinstance(part, EQ | NE) or reads_memory(part):
        return None
    for side, other in ((part.a, part.b), (part.b, part.a)):
        if not isinstance(side, FloorMod):
            continue
        step = as_int(side.b) or 0
        if step < 2 or not (known.prove(other >= 0) and known.prove(other < step)):
            continue
        if isinstance(part, NE) and step != 2:
            continue
        wanted = linear(other).plus(Linear({}, int(isinstance(part, NE))))
        found = _first(linear(side.a).plus(wanted, -1), step, own)
        if found is not None:
            return _Class(part, step, found)
    return None


def _first(form: Linear, step: int, own: Var) -> Expr | None:
    """The smallest value of a variable, from zero, at which `step` divides a sum."""
    factor = form.terms.get(own, 0)
    others = {t: n for t, n in form.terms.items() if t is not own}
    if math.gcd(factor, step) != 1:
        return None
    if any(own in free_vars(t) or t.dtype is not own.dtype for t in others):
        return None
    inverse = pow(factor, -1, step)
    first = Linear({t: -n * inverse % step for t, n in others.items() if n % step},
                   -form.const * inverse % step)  # fmt: skip
    made = emit(first, own.dtype)
    return None if made is None else floormod(made, IntImm(own.dtype, step))

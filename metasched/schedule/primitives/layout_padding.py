"""Padding of a transformed buffer: which elements are padding, and the edits that fill them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from metasched.analysis.binding import trivial_binding
from metasched.arith.analyzer import Analyzer
from metasched.arith.indexmap import IndexMap, replaced
from metasched.arith.regions import block_access_regions
from metasched.errors import MetaschedError
from metasched.ir.buffer import Buffer, BufferLoad, Range
from metasched.ir.expr import (
    EQ,
    FALSE,
    LE,
    LT,
    TRUE,
    Expr,
    IntImm,
    Or,
    Var,
    as_expr,
    as_int,
    compare,
    logical_and,
    logical_not,
    logical_or,
)
from metasched.ir.func import PrimFunc
from metasched.ir.op import call
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IterVar,
    Stmt,
    evolve,
)
from metasched.ir.visit import blocks_of
from metasched.schedule import edit
from metasched.schedule.primitives.new_stage import beside, stage, top_of, with_buffers
from metasched.schedule.primitives.transform_block_layout import replaced_iters
from metasched.schedule.rebind import nest
from metasched.schedule.state import State


def _no_value(point: Sequence[Expr]) -> Expr:
    raise AssertionError("a padding without a value")


@dataclass(frozen=True, slots=True)
class Padding:
    """The elements of a new layout that correspond to no element of the old layout.

    Attributes:
        inputs: variables that stand for the new indices.
        outside: the condition, over `inputs`, that an element is padding.
        back: the old indices of an element, over `inputs`.
        value: a function from the new indices of a padding element to its value.
    """

    inputs: tuple[Var, ...]
    outside: Expr
    back: tuple[Expr, ...]
    value: Callable[[Sequence[Expr]], Expr] = field(default=_no_value)

    def at(self, point: Sequence[Expr]) -> tuple[Expr, tuple[Expr, ...]]:
        """The condition that the element at `point` is padding, and its old indices."""
        values = dict(zip(self.inputs, point, strict=True))
        return replaced(self.outside, values), tuple([replaced(b, values) for b in self.back])


def padding_of(mapping: IndexMap, shape: Sequence[Expr], new: Sequence[Expr]) -> Padding | str:
    """The padding of a map from `shape` to `new`; a text that says why if there is no inverse."""
    reason = "its inverse cannot be found"
    try:
        inverse = mapping.inverse(shape)
        return Padding(inverse.inputs, FALSE, inverse.outputs)
    except MetaschedError as error:
        reason = str(error)
    try:
        inverse, _ = mapping.non_surjective_inverse(shape)
    except MetaschedError:
        return reason
    known = {v: Range.of(as_expr(0, v.dtype), s) for v, s in zip(inverse.inputs, new, strict=True)}
    an = Analyzer(known)
    again = mapping.apply(inverse.outputs, an)
    if not all(an.equal(a, v) for a, v in zip(again, inverse.inputs, strict=True)):
        return "it leaves gaps between elements, and gaps look like elements"
    outside: Expr = FALSE
    for index, extent in zip(inverse.outputs, shape, strict=True):
        for condition in _beyond(an, index, as_int(extent) or 0):
            outside = logical_or(outside, condition)
    return Padding(inverse.inputs, outside, inverse.outputs)


def _beyond(an: Analyzer, index: Expr, extent: int) -> list[Expr]:
    """The conditions for `index` to lie outside of [0, extent), digit by digit."""
    out = []
    if not an.prove(index >= 0):
        low = an.linear(index).const
        found = _digits(an, index - low, -low, False)
        out.append(an.simplify(index < 0) if found is None else found)
    if not an.prove(index < extent):
        base = an.linear(index).const
        found = _digits(an, index - base, extent - base, True)
        plain = an.simplify(compare(LE, as_expr(extent, index.dtype), index))
        out.append(plain if found is None else found)
    return out


def _digits(an: Analyzer, index: Expr, limit: int, above: bool) -> Expr | None:
    """The condition `index >= limit` (`index < limit` unless `above`) over the digits of `index`.

    The digits are `index = high * c + low` with `low < c`. None if `index` has another form, or if
    values of `high` beside its last (its first, unless `above`) satisfy the condition, too.
    """
    terms = sorted(an.linear(index).terms.items(), key=lambda t: -t[1])
    if len(terms) != 2 or terms[1][1] != 1:
        return None
    (high, c), (low, _) = terms
    if not (an.prove(low < c) and an.prove(low >= 0)):
        return None
    whole, rest = divmod(limit, c)
    if above and an.prove(high <= whole):
        edge, side = compare(EQ, high, whole), compare(LE, as_expr(rest, low.dtype), low)
        return edge if rest == 0 else logical_and(edge, side)
    if not above and whole == 0:
        return logical_and(compare(EQ, high, 0), compare(LT, low, rest))
    return None


def padding_edits(
    state: State, site: Block, old: Buffer, new: Buffer, padding: Padding, func: PrimFunc
) -> list[edit.Edits]:
    """The edits that store the pad value in the padding; for an input, that assume it is there."""
    writers = [r for r in blocks_of(site) if any(w.buffer is old for w in r.block.writes)]
    writers = [r for r in writers if r.block is not site]
    if not writers:
        if any(p is old for p in func.params):
            return [edit.wrap(site, with_buffers(before=_assumption(state, new, padding)))]
        return []
    if len(writers) == 1:
        plain = _element_wise(state, writers[0], old)
        if plain is not None:
            top, store = plain
            return [edit.replace(top, _written_along(state, writers[0], store, new, padding))]
    outer = [r for r in writers if state.scope_block(r) is site]
    last = outer[-1]
    fill, _ = stage(
        state, f"{last.block.name}_pad_{old.name}", _domains(new),
        lambda point: IfThenElse(
            padding.at(point)[0], BufferStore(new, padding.value(point), point)
        ),
    )  # fmt: skip
    return [beside(top_of(state, last), after=[fill])]


def _domains(buffer: Buffer) -> list[Range]:
    return [Range.of(as_expr(0, s.dtype), s) for s in buffer.shape]


def _assumption(state: State, new: Buffer, padding: Padding) -> Stmt:
    """The `T.assume` statement that the padding of an input holds the pad value."""

    def body(point: tuple[Var, ...]) -> Stmt:
        inside = logical_not(padding.at(point)[0])
        holds = compare(EQ, BufferLoad(new, point), padding.value(point))
        return Evaluate(call("assume", Or(inside, holds), dtype="bool"))

    return stage(state, f"buffer_{new.name}_assumption", _domains(new), body)[0]


def _element_wise(
    state: State, realize: BlockRealize, old: Buffer
) -> tuple[Stmt, BufferStore] | None:
    """The outermost loop and the store of a block that only stores each element in order; None
    for other blocks."""
    block, loops = realize.block, state.loops_above(realize)
    store = block.body
    if not isinstance(store, BufferStore) or block.init is not None or store.predicate is not None:
        return None
    if block.alloc_buffers or block.match_buffers or block.annotations:
        return None
    if not all(v.is_spatial for v in block.iter_vars) or realize.predicate is not TRUE:
        return None
    if store.indices != tuple(v.var for v in block.iter_vars) or not loops:
        return None
    if any(r.buffer is old for r in block.reads) or trivial_binding(realize, loops) is not None:
        return None
    top: Stmt = realize
    for loop, v, extent in reversed(list(zip(loops, block.iter_vars, old.shape, strict=True))):
        sizes = (as_int(loop.extent), as_int(v.dom.extent), as_int(extent))
        if loop.body is not top or not _is_plain(loop) or len({*sizes}) != 1 or sizes[0] is None:
            return None
        top = loop
    return top, store


def _is_plain(loop: For) -> bool:
    serial = loop.kind is ForKind.SERIAL and not loop.annotations
    return serial and as_int(loop.min) == 0


def _written_along(
    state: State, realize: BlockRealize, store: BufferStore, new: Buffer, padding: Padding
) -> Stmt:
    """The element-wise block over the new indices; it also stores the pad value in the padding."""
    block = realize.block
    iters = tuple(
        IterVar(state.fresh_var(f"v{n}", s.dtype), Range(IntImm(s.dtype, 0), s))
        for n, s in enumerate(new.shape)
    )
    point = tuple(v.var for v in iters)
    outside, back = padding.at(point)
    an = Analyzer({v.var: v.dom for v in iters})
    values = {v.var: b.astype(v.var.dtype) for v, b in zip(block.iter_vars, back, strict=True)}
    moved = replaced_iters(block, values, an).body
    assert isinstance(moved, BufferStore)
    value = call("if_then_else", outside, padding.value(point), moved.value)
    changed = evolve(block, iter_vars=iters, body=BufferStore(new, value, point))
    reads, writes = block_access_regions(changed)
    changed = evolve(changed, reads=reads, writes=writes)
    loops: list[tuple[Var, Expr | int]] = [
        (state.fresh_var(f"ax{n}", v.var.dtype), v.dom.extent) for n, v in enumerate(iters)
    ]
    return nest(loops, BlockRealize(tuple(var for var, _ in loops), TRUE, changed))

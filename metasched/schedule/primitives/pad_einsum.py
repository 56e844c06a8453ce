"""pad_einsum: pads the iterators of an einsum-like block, and pads its inputs with zeros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metasched.analysis.added import control_exprs, unsafe_divisors
from metasched.analysis.guarded import guarded_reads
from metasched.analysis.reducer import identity_holds, match_reducer
from metasched.arith.analyzer import Analyzer
from metasched.arith.regions import inputs
from metasched.ir.buffer import Buffer, BufferLoad, Range
from metasched.ir.describe import show_expr
from metasched.ir.expr import (
    LT,
    TRUE,
    Add,
    Cast,
    Expr,
    FloatImm,
    IntImm,
    Max,
    Min,
    Mul,
    Select,
    Sub,
    Var,
    as_expr,
    as_int,
    cast,
    compare,
    logical_and,
)
from metasched.ir.op import Call, call
from metasched.ir.stmt import Block, BlockRealize, BufferStore, IterVar, Stmt, evolve
from metasched.ir.visit import free_vars, loads_of, reads_memory, substitute_buffers, transform_expr
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    require_complete_or_reduction,
    require_root_free,
    require_stage_pipeline,
)
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.access_pattern import (
    Indices,
    one_pattern,
    refuse_partial,
)
from metasched.schedule.primitives.layout_arguments import plain_int
from metasched.schedule.primitives.new_stage import (
    beside,
    own_loops,
    require_free_of_init,
    stage,
    top_of,
    with_buffers,
    with_extent,
)
from metasched.schedule.state import State


@primitive(of_block=ways.with_twos)
def pad_einsum(state: State, block: BlockLike, padding: Sequence[int]) -> None:
    """Round the extent of each iterator of `block` up to a multiple of its number in `padding`.

    Inputs indexed by a padded iterator are read from copies `<buffer>_pad`, which hold zeros in the
    padding. Results are stored to a padded buffer, too, and then copied back. Handles stay valid.

    requires  a complete or reduction block in a stage pipeline, alone below its iterators' loops;
              every buffer accessed at one place, by distinct iterators and constants where padded
              or written; one positive integer for each iterator, one of which pads; zeros in a
              padded reduction change nothing; no padded step divides by zero or reads elsewhere
    rewrite   C[i] += A[i, k] * B[k] for 7 i
              -> A_pad[i, k] = T.if_then_else(i < 7 and k < 7, A[i, k], 0);
                 B_pad[k] = T.if_then_else(k < 7, B[k], 0);
                 (init: C_pad[i] = 0); C_pad[i] += A_pad[i, k] * B_pad[k]; C[i] = C_pad[i] for 7 i
    """
    assert isinstance(block, BlockRV)
    realize = require_root_free(state, block)
    require_free_of_init(state, realize)
    old = realize.block
    scope = require_stage_pipeline(state, realize)
    require_complete_or_reduction(state, scope, realize)
    grown = _grown(state, realize, padding)
    loops = own_loops(state, realize)
    accesses = {buffer: _indices(state, realize, buffer, grown) for buffer in _buffers(old)}
    _require_defined(state, realize, grown, accesses)
    _require_neutral(state, realize, grown, accesses)
    written = {r.buffer for r in old.writes}
    renamed: dict[Buffer, Buffer] = {}
    names: list[str] = []
    before: list[Stmt] = []
    after: list[Stmt] = []
    for buffer, indices in accesses.items():
        if not any(i in grown for i in indices):
            continue
        shape = tuple(grown.get(i, s) for i, s in zip(indices, buffer.shape, strict=True))
        pad = state.fresh_buffer(f"{buffer.name}_pad", shape, buffer.dtype, buffer.scope)
        renamed[buffer] = pad
        if buffer in written:
            refuse_partial(state, realize, buffer)
        stage_of = _trimmed if buffer in written else _padded
        nested, made = stage_of(state, old, buffer, pad, indices, names)
        names.append(made.name)
        (after if buffer in written else before).append(nested)
    iters = tuple(
        IterVar(v.var, Range(v.dom.min, grown.get(v.var, v.dom.extent)), v.kind)
        for v in old.iter_vars
    )

    def on_block(node: Stmt) -> Stmt:
        changed = substitute_buffers(node, renamed)
        assert isinstance(changed, Block)
        return evolve(changed, iter_vars=iters)

    edits = [edit.wrap(old, on_block)]
    for loop, v in zip(loops, old.iter_vars, strict=True):
        if v.var in grown:
            edits.append(edit.wrap(loop, with_extent(grown[v.var])))
    edits.append(beside(top_of(state, realize), before, after))
    edits.append(edit.wrap(scope.block, with_buffers(*renamed.values())))
    state.commit(*edits)


def _grown(state: State, realize: BlockRealize, padding: Sequence[int]) -> dict[Expr, Expr]:
    """The padded iterators and their new extents."""
    iters = realize.block.iter_vars
    factors = [plain_int(state, n, "a padding") for n in padding]
    if len(factors) != len(iters) or any(n < 1 for n in factors):
        raise state.error(
            "bad-padding",
            f"{realize.block.name} has {len(iters)} iterators; {factors} is not one positive "
            "integer for each",
            realize,
        )
    an = Analyzer()
    out: dict[Expr, Expr] = {}
    for v, factor in zip(iters, factors, strict=True):
        extent = v.dom.extent
        if not an.prove(compare(LT, (extent % factor), 1)):
            out[v.var] = an.simplify((extent + (factor - 1)) // factor * factor)
    if not out:
        raise state.error(
            "nothing-to-pad",
            f"the iterators of {realize.block.name} are multiples of {factors} already",
            realize,
        )
    return out


def _buffers(block: Block) -> list[Buffer]:
    """The buffers the block touches: those it reads, then those it writes."""
    return list(dict.fromkeys(r.buffer for r in (*inputs(block), *block.writes)))


def _indices(
    state: State, realize: BlockRealize, buffer: Buffer, grown: Mapping[Expr, Expr]
) -> Indices:
    """The only indices at which the block accesses `buffer`.

    Raises unless each padded iterator is an index by itself, once; of a written buffer, unless each
    index is a constant or an iterator of its own.
    """
    indices = one_pattern(state, realize, buffer)
    written = any(r.buffer is buffer for r in realize.block.writes)
    own = {v.var for v in realize.block.iter_vars}
    used = [v for i in indices for v in free_vars(i)]
    outer = next((v for v in used if v not in own), None)
    if outer is not None:
        raise state.error(
            "outer-iterator",
            f"{realize.block.name} accesses {buffer.name} at {outer.name}, an iterator of an outer "
            "block, which a padded copy would not follow",
            realize,
            hint="pad before blockize",
        )
    kept = [i for i in indices if written or not grown.keys().isdisjoint(free_vars(i))]
    plain = all(isinstance(i, Var) or as_int(i) is not None for i in kept)
    variables = [i for i in kept if isinstance(i, Var)]
    if not plain or len(set(variables)) != len(variables):
        raise state.error(
            "not-plain-index",
            f"the indices of {buffer.name} in {realize.block.name} are not distinct iterators and "
            "constants where they are padded or written",
            realize,
            hint="reindex the buffer first",
        )
    return indices


def _require_neutral(
    state: State,
    realize: BlockRealize,
    grown: Mapping[Expr, Expr],
    accesses: Mapping[Buffer, Indices],
) -> None:
    """Refuse a reduction whose result would be changed by a padded step."""
    block = realize.block
    for v in block.iter_vars:
        for region in block.writes:
            if v.is_spatial and v.var in grown and v.var not in accesses[region.buffer]:
                raise state.error(
                    "not-in-result",
                    f"{region.buffer.name} is not indexed by {v.var.name}, so padded iterations "
                    "would overwrite its elements",
                    realize,
                )
    reduced = [v for v in block.iter_vars if v.is_reduce and v.var in grown]
    if not reduced:
        return
    found = match_reducer(block.init, block.body)
    if found is None or found.name in ("argmin", "argmax", "tuple"):
        raise state.error(
            "unknown-reduction", f"{block.name} is no single reduction that can be padded", realize
        )
    for v in reduced:

        def zero(node: Expr, var: Var = v.var) -> Expr | None:
            if isinstance(node, BufferLoad) and var in accesses[node.buffer]:
                return as_expr(0, node.dtype)
            return _folded(node)

        value = transform_expr(found.rhs[0], zero)
        if not identity_holds(found.name, value):
            raise state.error(
                "not-neutral",
                f"zeros in the padded part of {v.var.name} would change the {found.name} that "
                f"{block.name} computes",
                realize,
                hint="pad spatial iterators only, or write the reduction so that zeros vanish",
            )


def _require_defined(
    state: State,
    realize: BlockRealize,
    grown: Mapping[Expr, Expr],
    accesses: Mapping[Buffer, Indices],
) -> None:
    """Refuse a block whose padded steps may divide by zero or read outside a buffer."""
    block = realize.block
    domains = {v.var: Range(v.dom.min, grown.get(v.var, v.dom.extent)) for v in block.iter_vars}
    an = Analyzer(domains)
    written = {r.buffer for r in block.writes}
    steered = any(
        not grown.keys().isdisjoint(free_vars(e)) or any(x.buffer in written for x in loads_of(e))
        for e in control_exprs(block)
    )
    for divisor in unsafe_divisors(block, an):
        loads = reads_memory(divisor)
        if loads or steered or not grown.keys().isdisjoint(free_vars(divisor)):
            what = "a value that is zero in the padding" if loads else show_expr(divisor)
            why = "" if loads else ", which may be zero in a padded iteration"
            raise state.error("divides", f"{block.name} divides by {what}{why}", realize)
    if not steered:
        return  # an unpadded step reads the same element
    known = guarded_reads(block) or ()
    for buffer, indices in accesses.items():
        reads = [r for r in known if r.buffer is buffer]
        places = [(r.indices, r.conditions) for r in reads] or [(indices, ())]
        for point, conditions in places:
            within = an
            for condition in conditions:
                within = within.assume(condition)
            for index, size in zip(point, buffer.shape, strict=True):
                if index in grown or _inside(within, index, size):
                    continue
                raise state.error(
                    "reads-outside",
                    f"{block.name} may read {show_expr(BufferLoad(buffer, point))}, which is "
                    f"outside of {buffer.name}, in a padded step: the conditions that guard this "
                    "read mention a padded iterator",
                    realize,
                    hint="cache_read the buffer first, or pad before transform_layout",
                )


def _inside(an: Analyzer, index: Expr, size: Expr) -> bool:
    return an.prove(index >= 0) and an.prove(index < size)


def _folded(node: Expr) -> Expr | None:
    """Fold arithmetic on zeros; None if nothing folds. 0 * x folds only if x cannot be infinite."""
    if isinstance(node, Cast):
        return as_expr(0, node.dtype) if _is_zero(node.value) else cast(node.dtype, node.value)
    if isinstance(node, (Add, Sub, Max, Min)) and _is_zero(node.a) and _is_zero(node.b):
        return as_expr(0, node.dtype)
    choice = isinstance(node, Select) or (isinstance(node, Call) and node.op.name == "if_then_else")
    if choice and all(map(_is_zero, node.children[1:])):
        return as_expr(0, node.dtype)
    if isinstance(node, Mul):
        zeros = [_is_zero(node.a), _is_zero(node.b)]
        other = node.b if zeros[0] else node.a
        if all(zeros) or (any(zeros) and (node.dtype.is_int or _finite(other))):
            return as_expr(0, node.dtype)
    return None


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, (IntImm, FloatImm)) and expr.value == 0


def _finite(expr: Expr) -> bool:
    """Whether `expr` cannot be infinite: it is a number, or made of integers alone."""
    if isinstance(expr, FloatImm):
        return abs(expr.value) < float("inf")
    return isinstance(expr, Cast) and expr.value.dtype.is_int


def _padded(
    state: State, block: Block, buffer: Buffer, pad: Buffer, indices: Indices, taken: Sequence[str]
) -> tuple[Stmt, Block]:
    """The stage that copies `buffer` inside the iterators' old domains and stores zero outside.

    A dimension that is read at one constant index is copied at this index only.
    """
    extents = {v.var: v.dom.extent for v in block.iter_vars}

    an = Analyzer()

    def body(point: tuple[Var, ...]) -> Stmt:
        inside: Expr = TRUE
        for var, index, size, room in zip(point, indices, pad.shape, buffer.shape, strict=True):
            end = extents[index] if isinstance(index, Var) else room
            limits = (end,) if an.prove(end <= room) else (room, end)
            if an.prove(room <= end):
                limits = (room,)
            for limit in limits:
                if not an.prove(size <= limit):
                    inside = logical_and(inside, compare(LT, var, limit))
        value = BufferLoad(buffer, point)
        zero = as_expr(0, buffer.dtype)
        return BufferStore(pad, call("if_then_else", inside, value, zero), point)

    domains = [Range.of(as_expr(0, s.dtype), s) for s in pad.shape]
    run = [
        whole if as_int(index) is None else Range.of(index, as_expr(1, index.dtype))
        for index, whole in zip(indices, domains, strict=True)
    ]
    return stage(state, pad.name, domains, body, loops=run, taken=taken)


def _trimmed(
    state: State, block: Block, buffer: Buffer, pad: Buffer, indices: Indices, taken: Sequence[str]
) -> tuple[Stmt, Block]:
    """The stage `buffer = pad` over the old domains of the iterators."""
    extents: dict[Expr, Expr] = {v.var: v.dom.extent for v in block.iter_vars}
    domains, run = [], []
    for index, size in zip(indices, buffer.shape, strict=True):
        domains.append(Range.of(as_expr(0, size.dtype), size))
        point = Range.of(index, as_expr(1, index.dtype))
        run.append(Range.of(as_expr(0, size.dtype), extents[index]) if index in extents else point)

    def body(point: tuple[Var, ...]) -> Stmt:
        return BufferStore(buffer, BufferLoad(pad, point), point)

    return stage(state, pad.name, domains, body, loops=run, taken=taken)

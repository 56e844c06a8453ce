"""blockize: wraps the code below a loop, or several neighbouring blocks, in a new block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metasched.analysis.begun import without_init
from metasched.analysis.block import init_reads, reduction
from metasched.arith.regions import block_access_regions
from metasched.ir.expr import Expr, Var, as_int
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    For,
    IterKind,
    IterVar,
    SeqStmt,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import free_vars, fresh_copy, substitute
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    refuse_on,
    require_root_free,
    require_same_scope,
    require_set_once,
)
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.block_division import Part, divided, under
from metasched.schedule.primitives.decompose_reduction import require_iterations
from metasched.schedule.state import State


def _target_by_kind(given: dict[str, Any]) -> dict[str, Any]:
    """Rename the keyword `loop=` or `blocks=` to `target=`."""
    if "target" in given or len(given.keys() & {"loop", "block", "blocks"}) != 1:
        return given
    return {"target" if k in ("loop", "block", "blocks") else k: v for k, v in given.items()}


@primitive(respell=_target_by_kind, of_loop=ways.plain(), of_block=ways.as_list)
def blockize(
    state: State,
    target: LoopRV | BlockRV | str | list[BlockRV | str],
    preserve_unit_iters: bool = True,
) -> BlockRV:
    """Wrap the code below a loop, or several blocks that follow each other, in one new block.

    The loops above become the bindings of the new block, which is returned. Its name is `<name>_o`,
    or `outer_<names>_o` for several blocks. The loops below stay inside the new block. The given
    blocks keep their handles. The init of a reduction moves to the new block. Of several blocks, an
    iterator that is opaque in one is opaque in the new block.

    requires  for a loop: exactly one block below, under a chain of loops whose bounds use no loop
              above the chain; bindings that divide into a part over the outer loops and a part over
              the inner loops; a block with init must be a reduction that no inner loop repeats, of
              at least one iteration.
              for several blocks: they follow each other, their parts over the outer loops have
              equal conditions, and no block reduces over an outer loop
    rewrite   for i, j in T.grid(8, 16): B(vi = i * 16 + j)
              ->
              for i in range(8): B_o(vio = i: for j in range(16): B(vi_i = j))
    """
    if isinstance(target, LoopRV):
        loop = state.loop(target)
        made = blockized(state, loop, preserve_unit_iters)
        early = made.block.init is not None  # the init runs before all that is inside
        state.commit(edit.replace(loop, made), same_order=not early)
    else:
        blocks = target if isinstance(target, (list, tuple)) else [target]
        made = _blockize_run(state, blocks, preserve_unit_iters)
    return state.new_block(made.block.token)


def blockized(state: State, loop: For, preserve_unit_iters: bool) -> BlockRealize:
    """The new block that replaces `loop`."""
    loops, realize = _only_block(state, loop)
    outer = divided(state, realize, loop, loops, preserve_unit_iters)
    return _outer_of_loop(state, outer, realize)


def _only_block(state: State, loop: For) -> tuple[tuple[For, ...], BlockRealize]:
    """The chain of loops from `loop` down, and the only block inside it."""
    loops = [loop]
    while isinstance(loops[-1].body, For):
        loops.append(loops[-1].body)
    realize = loops[-1].body
    if not isinstance(realize, BlockRealize):
        raise state.error(
            "not-one-block", f"the loops from {loop.var.name} on are not a chain around one block",
            loops[-1], hint="give a list of blocks to put several blocks into one",
        )  # fmt: skip
    return tuple(loops), realize


def _outer_of_loop(state: State, part: Part, old: BlockRealize) -> BlockRealize:
    """The new block around a loop; an init moves into it, under the spatial inner loops."""
    inner = part.inner.block
    init: Stmt | None = None
    body = part.nested()
    if inner.init is not None:
        scope = state.scope(old)
        token = inner.token
        refuse_on(state, reduction(scope, token, among=[scope.child(token)]), old)
        _require_one_start(state, part, old)
        require_set_once(state, old, part.loops)
        init = _init_nest(state, part)
        require_iterations(state, old, part.loops)
        body = under(part.loops, evolve(part.inner, block=without_init(inner)))
    name = state.fresh_block_name(f"{inner.name}_o")
    made = Block(name, tuple(part.iters), (), (), body, init)
    reads, writes = block_access_regions(made)
    made = evolve(made, reads=reads, writes=writes)
    return BlockRealize(tuple(part.bindings), part.predicate, made)


def _require_one_start(state: State, part: Part, old: BlockRealize) -> None:
    """Refuse an inner loop that repeats the reduction, because the init runs once for the loop."""
    used = frozenset().union(*map(free_vars, old.iter_values))
    for loop in part.loops:
        if loop.var not in used and as_int(loop.extent) != 1:
            what = f"{old.block.name} restarts in each iteration of {loop.var.name}"
            raise state.error("repeated-reduction", what, loop, hint="blockize an inner loop")


def _init_nest(state: State, part: Part) -> Stmt:
    """The init as a block under copies of the inner loops that spatial iterators use."""
    inner, old = part.inner, part.inner.block
    assert old.init is not None
    spatial = [
        (v, e) for v, e in zip(old.iter_vars, inner.iter_values, strict=True) if not v.is_reduce
    ]
    used = frozenset().union(*(free_vars(e) for _, e in spatial))
    kept = [n for n in part.loops if n.var in used]
    dropped = {n.var for n in part.loops} - {n.var for n in kept}
    if not free_vars(inner.predicate).isdisjoint(dropped):
        raise state.error(
            "reduction-predicate", f"the predicate of {old.name} limits a reduction loop inside "
            "the new block, so its init cannot be a separate block", inner,
            hint="decompose_reduction first, or split by a factor that divides",
        )  # fmt: skip
    block = Block(
        state.fresh_block_name(f"{old.name}_init"), tuple(v for v, _ in spatial), init_reads(old),
        old.writes, old.init,
    )  # fmt: skip
    realize = BlockRealize(tuple(e for _, e in spatial), inner.predicate, block)
    return fresh_copy(under(kept, realize), lambda v: state.fresh_var(f"{v.name}_init", v.dtype))


def _blockize_run(state: State, blocks: Sequence[BlockRV | str], preserve: bool) -> BlockRealize:
    """Put the blocks of a list, which follow each other, into one new block."""
    nodes = [require_root_free(state, rv) for rv in blocks if isinstance(rv, BlockRV)]
    if not nodes or len(set(nodes)) != len(nodes):
        raise state.error("no-blocks", "blockize needs one block or several different ones")
    require_same_scope(state, nodes)
    tops = _run(state, nodes)
    parts = [_part_of(state, node, top, preserve) for node, top in tops]
    iters: list[IterVar] = []
    bindings: list[Expr] = []
    for number, part in enumerate(parts):
        if number and part.predicate is not parts[0].predicate:
            raise state.error(
                "other-predicate", "the blocks run under different conditions on the outer loops",
                part.inner,
            )  # fmt: skip
        parts[number] = _share(state, part, iters, bindings)
    names = "_".join(p.inner.block.name for p in parts)
    body = seq(p.nested() for p in parts)
    made = Block(state.fresh_block_name(f"outer_{names}_o"), tuple(iters), (), (), body)
    reads, writes = block_access_regions(made)
    made = evolve(made, reads=reads, writes=writes)
    realize = BlockRealize(tuple(bindings), parts[0].predicate, made)
    first, rest = tops[0][1], [top for _, top in tops[1:]]
    deleted = [edit.delete(top) for top in rest]
    state.commit(edit.replace(first, realize), *deleted, same_order=True)
    return realize


def _run(state: State, nodes: Sequence[BlockRealize]) -> list[tuple[BlockRealize, Stmt]]:
    """The blocks in program order, each with the outermost statement that holds no other block.

    Raises unless these statements are neighbours.
    """
    paths = [[n, *state.ancestors(n)] for n in nodes]
    if len(nodes) == 1:
        return [(nodes[0], nodes[0])]
    common = next(s for s in paths[0] if s is not nodes[0] and all(s in p for p in paths))
    pairs = [(n, p[p.index(common) - 1]) for n, p in zip(nodes, paths, strict=True)]
    order = {s: k for k, s in enumerate(common.stmts)}
    pairs.sort(key=lambda pair: order[pair[1]])
    places = [order[top] for _, top in pairs]
    run = places == list(range(places[0], places[0] + len(places)))
    if not isinstance(common, SeqStmt) or not run:
        raise state.error(
            "not-consecutive", "the blocks do not follow each other directly", pairs[0][0],
            hint="there are statements between them, or two blocks share a loop",
        )  # fmt: skip
    return pairs


def _part_of(state: State, realize: BlockRealize, top: Stmt, preserve: bool) -> Part:
    """Divide one block of a list; raise if it reduces over a loop outside."""
    loops: list[For] = []
    node = top
    while isinstance(node, For):
        loops.append(node)
        node = node.body
    if node is not realize:
        raise state.error(
            "not-one-block", f"{realize.block.name} shares its loops with other statements", realize
        )
    part = divided(state, realize, top, tuple(loops), preserve)
    for iter_var in part.iters:
        combines = iter_var.kind not in (IterKind.SPATIAL, IterKind.OPAQUE)
        if combines and as_int(iter_var.dom.extent) != 1:
            raise state.error(
                "outer-reduction",
                f"{realize.block.name} reduces over a loop outside the new block",
                realize,
            )
    return part


def _share(state: State, part: Part, iters: list[IterVar], bindings: list[Expr]) -> Part:
    """The part with its outer iterators replaced by equal ones that earlier blocks added."""
    free = list(range(len(iters)))
    values: dict[Var, Expr] = {}
    for mine, value in zip(part.iters, part.bindings, strict=True):
        unit = as_int(mine.dom.extent) == 1  # the only value, whatever the binding is called
        kind = IterKind.SPATIAL if unit else mine.kind
        found = next(
            (k for k in free if (unit or bindings[k] is value) and _same(iters[k], mine)), None
        )
        if found is None:
            iters.append(IterVar(mine.var, mine.dom, kind))
            bindings.append(value)
            continue
        free.remove(found)
        if kind is IterKind.OPAQUE:
            iters[found] = IterVar(iters[found].var, iters[found].dom, kind)
        values[mine.var] = iters[found].var
    if not values:
        return part
    block = substitute(part.inner.block, values)
    assert isinstance(block, Block)
    inner = evolve(part.inner, block=block)
    return Part(part.iters, part.bindings, part.predicate, inner, part.loops)


def _same(a: IterVar, b: IterVar) -> bool:
    return a.dom.min is b.dom.min and a.dom.extent is b.dom.extent

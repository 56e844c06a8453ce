"""merge: joins loop nests that follow each other into one nest."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from metasched.analysis.loops import is_chain
from metasched.analysis.scope import Scope, collect, header_reads
from metasched.analysis.sequence import interleaving_violation
from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import Buffer
from metasched.ir.expr import Expr, Var
from metasched.ir.stmt import BlockToken, Break, Continue, For, SeqStmt, Stmt, evolve, seq
from metasched.ir.visit import blocks_of, substitute
from metasched.schedule import edit, ways
from metasched.schedule.checks import (
    refuse_jumps,
    refuse_on,
    require_plain_loop,
    require_same_scope,
    require_serial,
)
from metasched.schedule.handles import LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.state import State


@primitive(of_loop=ways.with_siblings)
def merge(state: State, *loops: LoopRV) -> LoopRV:
    """Merge nests that follow each other into one nest; returns its innermost loop.

    Each given loop is the innermost loop to merge of its nest; the loops above are merged, too, up
    to the sequence that holds all nests. The merged nest runs the bodies one after the other.

    requires  two loops or more of one scope, in nests of equal depth, starts and extents that are
              neighbours, or between which stand only statements independent of the later nest; each
              loop plain, serial, without break and continue, and the only statement of the loop
              before; no iteration touches what a later iteration of an earlier nest writes, or
              writes what that iteration reads
    rewrite   for i: B(i); for i: C(i) -> for i_m: B(i_m); C(i_m)
    """
    nodes = [require_plain_loop(state, rv, from_zero=False) for rv in loops]
    if len(nodes) < 2 or len(set(nodes)) != len(nodes):
        raise state.error("too-few-loops", "merge needs two or more different loops")
    around = require_same_scope(state, nodes)
    nests, parent = _nests(state, nodes)
    first, rest = nests[0], nests[1:]
    for node in (n for one in nests for n in one):
        require_serial(state, node)
        refuse_jumps(state, node, Break, Continue)
        if node not in nodes:
            handle = state.new_loop(node.var)
            require_plain_loop(state, handle, from_zero=False)
            del state.writable_table()[handle]
    _require_equal(state, nests)
    fresh = [state.fresh_var(f"{n.var.name}_m", n.var.dtype) for n in first]
    bodies = [_renamed(one, fresh) for one in nests]
    named = dict(zip((n.var for n in first), fresh, strict=True))
    merged: Stmt = seq(bodies)
    for node, var in zip(reversed(first), reversed(fresh), strict=True):
        low, extent = (substitute(e, named) for e in (node.min, node.extent))
        merged = For(var, low, extent, node.kind, merged)
    moved = [one[0] for one in nests]
    for one in rest:
        _require_movable(state, parent, moved, one[0])
    state.commit(edit.replace(first[0], merged), *(edit.delete(one[0]) for one in rest))
    _require_interleaved(state, around.token, fresh, bodies)
    return state.new_loop(fresh[-1])


def _nests(state: State, nodes: Sequence[For]) -> tuple[list[list[For]], SeqStmt]:
    """For each loop the chain of loops down to it from the sequence that holds all nests.

    The chains are in program order; the sequence is returned, too.
    """
    paths = [[n, *state.ancestors(n)] for n in nodes]
    common = next((s for s in paths[0] if all(s in p for p in paths)), None)
    if not isinstance(common, SeqStmt):
        raise state.error(
            "not-siblings", "one of the loops is inside another", nodes[0],
            hint="merge takes loops of nests that follow each other",
        )  # fmt: skip
    order = {s: k for k, s in enumerate(common.items)}
    found: list[tuple[int, list[For]]] = []
    for node, path in zip(nodes, paths, strict=True):
        chain = list(reversed(path[: path.index(common)]))
        loops = [s for s in chain if isinstance(s, For)]
        if len(loops) != len(chain) or not is_chain(loops):
            raise state.error(
                "not-a-chain",
                f"{node.var.name} is not in a chain of loops below the scope of both nests",
                node,
            )
        found.append((order[chain[0]], loops))
    found.sort(key=lambda pair: pair[0])
    return [one for _, one in found], common


def _require_equal(state: State, nests: Sequence[Sequence[For]]) -> None:
    """Refuse nests of different depth, or whose starts, extents or types differ at any level."""
    first, known = nests[0], Analyzer()
    for one in nests[1:]:
        if len(one) != len(first):
            raise state.error(
                "other-depth", f"the nest of {one[-1].var.name} has {len(one)} loops, the nest of "
                f"{first[-1].var.name} has {len(first)}", one[-1],
            )  # fmt: skip
        same: dict[Var, Expr] = {}
        for mine, theirs in zip(first, one, strict=True):
            extent = substitute(theirs.extent, same)
            typed = mine.var.dtype is theirs.var.dtype
            if not typed or not known.equal(mine.extent, extent):
                raise state.error(
                    "other-extent", f"{theirs.var.name} and {mine.var.name} have different extents",
                    theirs,
                )  # fmt: skip
            if not known.equal(mine.min, substitute(theirs.min, same)):
                raise state.error(
                    "other-start", f"{theirs.var.name} and {mine.var.name} start at different "
                    "numbers", theirs,
                )  # fmt: skip
            same[theirs.var] = mine.var


def _renamed(loops: Sequence[For], fresh: Sequence[Var]) -> Stmt:
    """The body of a nest over the merged nest's variables, always as a new object."""
    values: dict[Var, Expr] = {n.var: v for n, v in zip(loops, fresh, strict=True)}
    body = substitute(loops[-1].body, values)
    return evolve(body) if not isinstance(body, SeqStmt) else SeqStmt(body.items)


def _require_movable(state: State, parent: SeqStmt, nests: Sequence[For], moved: For) -> None:
    """Refuse a statement between the first nest and a later one if it or the later nest depends on
    the other; nests to merge run before the later nest as they did."""
    items = parent.items[parent.items.index(nests[0]) + 1 : parent.items.index(moved)]
    between = [stmt for stmt in items if stmt not in nests]
    scope = state.scope(moved)
    mine = {r.block.token for r in blocks_of(moved)}
    heads = _heads(scope, mine)
    for stmt in between:
        theirs = {r.block.token for r in blocks_of(stmt)}
        _, loose = collect([stmt])
        if loose:
            text = "a statement that is not a block is between the nests"
            raise state.error("in-between", text, loose[0][0])
        changed = _written(scope, theirs) & heads | _written(scope, mine) & _heads(scope, theirs)
        if changed:
            name = next(iter(changed)).name
            raise state.error(
                "in-between", f"a loop around blocks in or between the nests reads {name}, which "
                "the other blocks write", stmt,
            )  # fmt: skip
        for edge in scope.edges:
            pair = (edge.src, edge.dst)
            if (pair[0] in theirs and pair[1] in mine) or (pair[0] in mine and pair[1] in theirs):
                name = scope.child(edge.src).block.name
                raise state.error(
                    "in-between", f"{name} is between the nests, and the later nest depends on "
                    f"it by {edge.buffer.name}", stmt,
                )  # fmt: skip


def _heads(scope: Scope, tokens: Collection[BlockToken]) -> frozenset[Buffer]:
    """What the ends of loops, bindings and predicates of blocks read."""
    return frozenset().union(*(header_reads(c) for c in scope.realizes if c.token in tokens))


def _written(scope: Scope, tokens: Collection[BlockToken]) -> frozenset[Buffer]:
    found = (c for c in scope.realizes if c.token in tokens)
    return frozenset(r.buffer for c in found for r in c.block.writes)


def _require_interleaved(
    state: State, around: object, fresh: Sequence[Var], bodies: Sequence[Stmt]
) -> None:
    """Refuse a merged program in which an instance runs before an instance that it depends on."""
    loops = [state.index.loops[v] for v in fresh]
    scope: Scope = state.scope(loops[0])
    assert scope.block.token is around
    groups = [
        [scope.child(r.block.token) for r in blocks_of(b) if scope.get(r.block.token) is not None]
        for b in bodies
    ]
    for k, later in enumerate(groups):
        for earlier in groups[:k]:
            failure = interleaving_violation(scope, loops, earlier, later)
            hint = "let the later nest start some iterations later with delay"
            refuse_on(state, failure, loops[0], hint)

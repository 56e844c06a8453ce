"""Properties of a block within its scope, which the legality checks of primitives require.

Every check returns None when the property holds, and a Failure with the reason when not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from metasched.analysis.access import (
    accesses,
    exact_accesses,
    injective_block,
    one_value,
    updates_in_place,
)
from metasched.analysis.binding import affine_binding as affine_binding
from metasched.analysis.binding import trivial_binding as trivial_binding
from metasched.analysis.failure import Failure
from metasched.analysis.producers import region_cover as region_cover
from metasched.analysis.scope import (
    Child,
    Edge,
    EdgeKind,
    Scope,
    may_overlap,
    undetermined_iters,
    writes,
)
from metasched.arith.affine import linear
from metasched.arith.regions import block_access_regions, inputs
from metasched.ir.buffer import Buffer, BufferRegion
from metasched.ir.describe import describe, show_region
from metasched.ir.expr import Expr, Var, as_int
from metasched.ir.stmt import Block, BlockRealize, BlockToken, For, IterKind, evolve, fact
from metasched.ir.variables import is_named
from metasched.ir.visit import free_vars, reads_memory, stmt_vars, walk_stmts


def is_spatial_only(block: Block) -> Failure | None:
    """Whether all iterators of a block are spatial."""
    for v in block.iter_vars:
        if not v.is_spatial:
            text = f"iterator {v.var.name} of block {block.name} is {v.kind.value}, not spatial"
            return Failure("not-spatial", text, block)
    return None


@fact
def is_leaf(block: Block) -> Failure | None:
    """Whether no other block stands inside `block` (cached)."""
    inner = next((s for s in walk_stmts(block) if isinstance(s, BlockRealize)), None)
    if inner is None:
        return None
    text = f"block {block.name} is no leaf: block {inner.block.name} stands inside it"
    return Failure("not-leaf", text, block)


def is_output(scope_block: Block, block: Block) -> bool:
    """Whether `block` writes a buffer that its scope block does not allocate."""
    own = scope_block.alloc_buffers
    return any(all(r.buffer is not b for b in own) for r in block.writes)


def dominant(
    scope: Scope, token: BlockToken, *, sole: bool = True, among: Sequence[Child] | None = None
) -> Failure | None:
    """Whether no other child writes the elements that a child writes.

    Args:
        sole: require the child to be the only writer of each buffer; otherwise other writers are
            allowed where their regions are proved disjoint from this block's.
        among: the children to compare with (default: all of the scope).
    """
    block = scope.child(token).block
    for region in block.writes:
        for other in scope.realizes if among is None else among:
            if other.token is token or not writes(other.block, region.buffer):
                continue
            if sole or may_overlap(block, other.block, region.buffer, reads_a=False, reads_b=False):
                return _two_writers(block, other.block, region.buffer, sole)
    return None


def _two_writers(block: Block, other: Block, buffer: Buffer, sole: bool) -> Failure:
    def sentence() -> str:
        if sole:
            what, too = buffer.name, "writes it too"
        else:
            what, too = f"its elements of {buffer.name}", "may write them too"
        return f"block {block.name} is not the only writer of {what}: {other.name} {too}"

    return Failure("not-dominant", sentence, block)


def complete(
    scope: Scope, token: BlockToken, *, sole: bool = True, among: Sequence[Child] | None = None
) -> Failure | None:
    """Whether a child is complete: its instances may run in any order and any number of times.

    All its iterators are spatial, no other child writes its elements (see `dominant` for `sole` and
    `among`), and the child reads no buffer that it writes. Instances that set one element set it to
    one value.
    """
    block = scope.child(token).block
    return _complete_alone(block) or dominant(scope, token, sole=sole, among=among)


@fact
def _complete_alone(block: Block) -> Failure | None:
    first = is_spatial_only(block) or _reads_own_output(block) or _sets_other_values(block)
    return first or _uses_variable(block)


def _uses_variable(block: Block) -> Failure | None:
    """Whether an instance depends on more than iterators: on what a statement around names."""
    named = sorted(v.name for v in stmt_vars(block) if is_named(v))
    if not named:
        return None
    text = f"block {block.name} uses the variable {named[0]}, which is defined around it"
    return Failure("uses-variable", text, block)


def _sets_other_values(block: Block) -> Failure | None:
    """Whether two instances may set one element to different values: the last one counts."""
    if one_value(block):
        return None
    for region in block.writes:
        for var in undetermined_iters(block, region):

            def sentence(var: Var = var, region: BufferRegion = region) -> str:
                where = f"{show_region(region)} again for another value of {var.name}"
                return f"block {block.name} may set {where}: the order of its instances counts"

            return Failure("sets-again", sentence, block)
    return None


def _reads_own_output(block: Block) -> Failure | None:
    for region in block.writes:
        for read in inputs(block):
            if read.buffer is region.buffer:
                name = region.buffer.name
                text = f"block {block.name} both reads and writes {name}"
                return Failure("reads-own-output", text, block)
    return None


def reduction(
    scope: Scope,
    token: BlockToken,
    *,
    sole: bool = True,
    among: Sequence[Child] | None = None,
    loops: Sequence[For] | None = None,
    ordered: bool = False,
    bound: BlockRealize | None = None,
) -> Failure | None:
    """Whether a child is a reduction block: its updates commute and start from its init.

    The block has an init, an affine binding, and only spatial and reduction iterators. No other
    child writes its elements, and the block reads no result but the element that it updates. No
    reduction iterator occurs in the indices of its writes.

    Args:
        sole, among: as for `dominant`.
        loops: the loops that iterate (default: all); variables of other loops are constants.
        ordered: the instances keep their order, so the block may read its other results.
        bound: the child without some of its conditions, whose bindings are checked in its place.
    """
    child = scope.child(token)
    loops = child.loops if loops is None else loops
    return (
        _reduction_alone(child.block)
        or (None if ordered else _reads_other_results(child.block))
        or dominant(scope, token, sole=sole, among=among)
        or affine_binding(bound or child.realize, loops)
    )


@fact
def _reduction_alone(block: Block) -> Failure | None:
    return _has_init(block) or _spatial_or_reduce(block) or _reduction_free_output(block)


def _has_init(block: Block) -> Failure | None:
    if block.init is not None:
        return None
    return Failure("no-init", f"block {block.name} has no init that runs for each result", block)


def _spatial_or_reduce(block: Block) -> Failure | None:
    for v in block.iter_vars:
        if not (v.is_spatial or v.is_reduce):
            text = f"iterator {v.var.name} of block {block.name} is {v.kind.value}"
            return Failure("iterator-kind", f"{text}, not spatial or reduce", block)
    return None


def _reduction_free_output(block: Block) -> Failure | None:
    reduced = frozenset(v.var for v in block.iter_vars if v.is_reduce)
    for region in block.writes:
        for r in region.region:
            hit = (free_vars(r.min) | free_vars(r.extent)) & reduced
            if hit:
                names = ", ".join(sorted(v.name for v in hit))

                def sentence(region=region, names=names) -> str:  # type: ignore[no-untyped-def]
                    where = f"{show_region(region)} of block {block.name}"
                    return f"reduction iterator {names} indexes the output {where}"

                return Failure("reduction-indexes-output", sentence, block)
    return None


@fact
def _reads_other_results(block: Block) -> Failure | None:
    for region in block.writes:
        if not updates_in_place(block, region.buffer):
            name = region.buffer.name
            text = f"block {block.name} reads elements of {name} other than the one it updates"
            return Failure("reads-other-results", text, block)
    return None


def update(scope: Scope, token: BlockToken) -> Failure | None:
    """Whether a child is an update: its instances may run in any order, but each only once.

    All its iterators are spatial, each instance reads and sets an element of its own, and no other
    child writes the buffer.
    """
    return _update_alone(scope.child(token).block) or dominant(scope, token)


@fact
def _update_alone(block: Block) -> Failure | None:
    if block.init is not None or exact_accesses(block) is None:
        return Failure("no-update", f"block {block.name} has an init, or unknown accesses", block)
    if _reads_own_output(block) is None:
        return Failure("no-update", f"block {block.name} reads none of its results", block)
    return is_spatial_only(block) or injective_block(block) or _reads_other_results(block)


def set_again(realize: BlockRealize, moving: Collection[Var]) -> Failure | None:
    """Whether the init of a block may set an element again when variables of loops change: some
    spatial iterator that they drive is not determined by the element."""
    block, at = realize.block, realize.bindings
    spatial = {v.var for v in block.iter_vars if v.is_spatial}
    for region in block.writes:
        for var in undetermined_iters(block, region):
            if var in spatial and not free_vars(at[var]).isdisjoint(moving):
                where = f"an element of {region.buffer.name} again for another value of {var.name}"
                return Failure("set-again", f"block {block.name} may set {where}", block)
    return None


def complete_or_reduction(
    scope: Scope, token: BlockToken, *, sole: bool = True, among: Sequence[Child] | None = None
) -> Failure | None:
    """Whether a child is a complete or a reduction block."""
    first = complete(scope, token, sole=sole, among=among)
    if first is None:
        return None
    second = reduction(scope, token, sole=sole, among=among)
    if second is None:
        return None

    def sentence() -> str:
        name = scope.child(token).block.name
        return (
            f"block {name} is neither complete ({first.message}) nor a reduction ({second.message})"
        )

    return Failure("not-complete-or-reduction", sentence, scope.child(token).block)


def stage_pipeline(
    scope: Scope, moved: Block | None = None, *, in_place: bool = False
) -> Failure | None:
    """Whether a scope is a pipeline of stages, each reading only results of earlier stages.

    The statements of the scope are loops and blocks only, no block overwrites an element that an
    earlier block reads, and every child has region cover. Cached with the scope.

    Args:
        moved: the block that a step changes, None for any block. With a block, only blocks that
            read its buffers need region cover, and only what this block reads or overwrites
            matters: the other blocks keep their order.
        in_place: the block is not moved, so what blocks overwrite does not matter.
    """
    failure = _stage_pipeline(scope.block)
    if failure is None or moved is None or failure.slug == "not-structured":
        return failure
    own = (*scope.incoming(moved.token), *scope.outgoing(moved.token))
    edges = () if in_place else (e for e in own if e.kind is EdgeKind.WAR)
    mine = {r.buffer for r in (*inputs(moved), *moved.writes)}
    return next((overwritten(scope, e) for e in edges), None) or _covered(scope, mine)


@fact
def _stage_pipeline(block: Block) -> Failure | None:
    scope = Scope.of(block)
    for stmt, _ in scope.loose:

        def foreign(stmt=stmt) -> str:  # type: ignore[no-untyped-def]
            return f"scope {scope.block.name} holds more than loops and blocks: {describe(stmt)}"

        return Failure("not-structured", foreign, stmt)
    for edge in scope.edges:
        if edge.kind is EdgeKind.WAR:
            return overwritten(scope, edge)
    return _covered(scope)


def overwritten(scope: Scope, edge: Edge) -> Failure:
    """A block overwrites what an earlier block reads, as a failure."""

    def sentence() -> str:
        src, dst = scope.child(edge.src).block, scope.child(edge.dst).block
        return f"block {dst.name} overwrites {edge.buffer.name}, which {src.name} reads"

    return Failure("write-after-read", sentence, scope.child(edge.dst).block)


def _covered(scope: Scope, among: Collection[Buffer] | None = None) -> Failure | None:
    for child in scope.realizes:
        if among is not None and not any(r.buffer in among for r in inputs(child.block)):
            continue
        failure = region_cover(scope, child.token)
        if failure is not None:
            return failure
    return None


def loop_iter_kind(loop: For, children: Iterable[Child]) -> IterKind:
    """The kind of the iterators that a loop drives: reduce, spatial, or opaque for a mixture.

    A loop that no binding mentions is spatial.
    """
    kinds = set()
    for child in children:
        for value, v in zip(child.realize.iter_values, child.block.iter_vars, strict=True):
            if loop.var in free_vars(value):
                kinds.add(v.kind)
    if kinds <= {IterKind.SPATIAL}:
        return IterKind.SPATIAL
    return IterKind.REDUCE if kinds == {IterKind.REDUCE} else IterKind.OPAQUE


TILED = "meta_schedule.tiling_structure"
"""The annotation of a block that multi-level tiling has been applied to."""
AUTO_TENSORIZE = "meta_schedule.auto_tensorize"
"""Annotation of a block: the tensor intrinsics that compute it, separated by commas."""
TENSOR_CHOICE = "meta_schedule.auto_tensorize_choice"
"""Annotation of a block: the position of the chosen tensor intrinsic, 0 for no intrinsic."""
FOLD = "pragma_fold_lanes"
"""Annotation of a reduction whose innermost loop may be summed in any order, so in vector lanes."""
SCAN = "pragma_scan_lanes"
"""Annotation of a scan (see `analysis.scan`): the number of steps of its innermost loop that are
computed at once, as vector lanes. The lanes add in another order."""


def needs_multi_level_tiling(scope: Scope, token: BlockToken) -> Failure | None:
    """Whether tiling can speed up a child, because the child reuses data.

    A read reuses data if a spatial iterator does not occur in its indices, or if windows overlap,
    as in a pooling: the spatial iterator moves the read by less than the reduction does.
    """
    child = scope.child(token)
    return has_reuse(child.block) or trivial_binding(child)


def _scatters(block: Block) -> bool:
    """Whether each step of a reduction updates results that memory names, as S[K[i], j] for each i:
    no register holds a result from one step to the next."""
    steps = {v.var for v in block.iter_vars if not v.is_spatial and as_int(v.dom.extent) != 1}
    places = [i for a in accesses(block) if a.is_write for i in a.indices if reads_memory(i)]
    return any(steps <= free_vars(i) for i in places)


@fact
def has_reuse(block: Block) -> Failure | None:
    """Whether a block reuses data, whatever loops are above it (`needs_multi_level_tiling`)."""

    def no(slug: str, why: str) -> Failure:
        return Failure(slug, f"block {block.name} {why}", block)

    if TILED in block.annotations:
        return no("already-tiled", "has been tiled already")
    if {SCAN, FOLD} & block.annotations.keys():
        return no("in-lanes", "combines values in vector lanes along its loop")
    if len(block.writes) != 1 or not inputs(block):
        return no("not-tileable", "must write one buffer and read at least one")
    if is_spatial_only(block) is None:
        return no("no-reduction", "has only spatial iterators, so nothing is reused")
    if _scatters(block):
        return no("scattered", "updates results that memory names anew at each step")
    buffers = [r.buffer for r in inputs(block)]
    if len(set(map(id, buffers))) != len(buffers):
        return no("repeated-read", "reads one buffer in two ways")
    spatial = [v.var for v in block.iter_vars if v.is_spatial and as_int(v.dom.extent) != 1]
    exact = exact_accesses(block)
    if exact is not None:
        read = [(a.buffer, a.indices) for a in exact if not a.is_write and not a.in_init]
    elif any(as_int(r.extent) is None for read in inputs(block) for r in read.region):
        return no("symbolic-region", "reads in a region without a size")
    else:
        read = [(r.buffer, tuple(x.min for x in r.region)) for r in inputs(block)]
    reduced = {v.var: (as_int(v.dom.extent) or 2) - 1 for v in block.iter_vars if not v.is_spatial}
    for buffer, indices in read:
        if buffer is not block.writes[0].buffer:
            used: set[Var] = set().union(*(free_vars(i) for i in indices))
            windows = any(_overlap(linear(i).terms, spatial, reduced) for i in indices)
            if windows or not used.issuperset(spatial):
                return None
    return no("no-reuse", "uses every element of its inputs once")


def _overlap(terms: Mapping[Expr, int], spatial: Sequence[Var], reduced: Mapping[Var, int]) -> bool:
    """Whether windows of an index overlap: vh * 2 + vi for vi below 3."""
    reach = sum(abs(terms.get(v, 0)) * most for v, most in reduced.items())
    return any(0 < abs(terms.get(v, 0)) <= reach for v in spatial)


def needs_rfactor(scope: Scope, token: BlockToken, max_parallel: int) -> Failure | None:
    """Whether factoring its reduction can speed up a child, because its spatial loops are short.

    Args:
        scope: the scope of the child.
        token: the token of the child.
        max_parallel: the number of parallel iterations beyond which more do not help.
    """
    child = scope.child(token)
    block = child.block

    def no(slug: str, why: str) -> Failure:
        return Failure(slug, f"block {block.name} {why}", block)

    if TILED in block.annotations:
        return no("already-tiled", "has been tiled already")
    if {SCAN, FOLD} & block.annotations.keys():
        return no("in-lanes", "combines values in vector lanes along its loop")
    failure = reduction(scope, token) or trivial_binding(child)
    if failure is not None:
        return failure
    space = reduce = 1
    bodies = [*child.loops[1:], child.realize]
    for loop, body in zip(child.loops, bodies, strict=True):
        extent = as_int(loop.extent)
        if loop.body is not body:
            return no("not-perfect", f"is not alone below loop {loop.var.name}")
        if extent is None:
            return no("symbolic-extent", f"has loop {loop.var.name} of unknown extent")
        kind = loop_iter_kind(loop, (child,))
        if kind is IterKind.REDUCE:
            reduce *= extent
        elif kind is IterKind.SPATIAL:
            space *= extent
        else:
            return no("loop-kind", f"mixes iterator kinds in loop {loop.var.name}")
    if reduce <= 1:
        return no("no-reduction", "has no reduction longer than one")
    if needs_multi_level_tiling(scope, token) is None and (space >= reduce or space > max_parallel):
        return no("enough-parallelism", f"has {space} spatial iterations, reduction {reduce}")
    return None


__all__ = [
    "AUTO_TENSORIZE",
    "TENSOR_CHOICE",
    "TILED",
    "Failure",
    "affine_binding",
    "complete",
    "complete_or_reduction",
    "dominant",
    "is_leaf",
    "is_output",
    "is_spatial_only",
    "loop_iter_kind",
    "needs_multi_level_tiling",
    "needs_rfactor",
    "reduction",
    "region_cover",
    "stage_pipeline",
    "trivial_binding",
]


def init_reads(block: Block) -> tuple[BufferRegion, ...]:
    """The regions that the init of a block reads."""
    assert block.init is not None
    return tuple(block_access_regions(evolve(block, init=None, body=block.init))[0])

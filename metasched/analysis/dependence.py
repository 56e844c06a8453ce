"""Instance-wise dependence: may different iterations of a loop touch the same element?

Iterator kinds are promises of the author. The tests here read the accesses themselves, as functions
of the loops. An in-place stencil or scan is refused where loops would run in parallel or in another
order. Accesses whose indices are proved to differ are accepted.

Two accesses to one element are harmless when
- the buffer is private: allocated in the scope and used only below the loop. Every iteration reads
  only elements that the same iteration wrote before, so each iteration can use a copy; or
- every element gets one value only: one block writes it, and different instances write different
  elements, or the block is a copy. The elements that the block reads get one value only, too.
Under a change of order, updates of one element by a commutative reduction are harmless as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import inf

from metasched.analysis.access import (
    Access,
    accesses,
    bound_access,
    copies,
    exact_accesses,
    index_side,
    injective_block,
    updates_in_place,
)
from metasched.analysis.commuting import feeds_reduction
from metasched.analysis.cover import bound_regions, loop_ranges
from metasched.analysis.failure import Failure
from metasched.analysis.guards import access_guards, predicate_guards, tight
from metasched.analysis.instances import Place, bare, stays_equal
from metasched.analysis.overlap import Kept, Outside, Side, overlap_distances
from metasched.analysis.polyhedra import never_ahead
from metasched.analysis.producers import self_contained
from metasched.analysis.scope import (
    Child,
    Scope,
    buffer_uses,
    may_overlap,
)
from metasched.analysis.threads import scope_rank, thread_rank
from metasched.analysis.written import loose_below, written_below
from metasched.arith.affine import Ranges, form_interval, interval, linear
from metasched.arith.bounds import Interval
from metasched.arith.linear import Linear
from metasched.arith.regions import inputs
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion
from metasched.ir.describe import describe, show_region
from metasched.ir.expr import TRUE, Expr, Var, as_int
from metasched.ir.op import Effect, effect_of
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    Break,
    BufferStore,
    Continue,
    DeclBuffer,
    For,
    LetStmt,
    Return,
    Stmt,
    While,
    fact,
)
from metasched.ir.visit import free_vars, loads_of, reads_memory, stmt_vars


@dataclass(slots=True, eq=False)
class Touch:
    """One access of a buffer below a loop: a region of a child block, or a load or store outside.

    Attributes:
        buffer: the buffer that is accessed.
        writes: whether the access is a write.
        where: the region as declared (over the block's iterators).
        box: the region over loop variables.
        loops: all loops around the access, from the scope block down, also inside the block.
        inner: the variables bound inside the block.
        child: the block; None for an access outside of blocks.
        guards: linear forms that are at most 0 whenever the access happens, by the block's
            predicate and the conditions around a load.
        known_place: the result of `place`, once it was asked for.
    """

    buffer: Buffer
    writes: bool
    where: BufferRegion
    box: tuple[Side, ...]
    loops: tuple[For, ...]
    inner: frozenset[Var] = frozenset()
    child: Child | None = None
    guards: tuple[Linear, ...] = ()
    known_place: Place | None = None

    def show(self) -> str:
        """The access in words."""
        who = f"block {self.child.block.name}" if self.child is not None else "a statement"
        return f"{who} {'writes' if self.writes else 'reads'} {show_region(self.where)}"


def touches(child: Child, among: frozenset[Buffer]) -> list[Touch]:
    """Every access of a child to the buffers `among`, and the loads in its bindings.

    The accesses of the body count where `exact_accesses` knows them, otherwise the declared
    regions. Cached with the block realize, without the child and its loops: these would close a
    cycle of references.
    """
    above = child.loops
    return [
        Touch(t.buffer, t.writes, t.where, t.box, (*above, *t.loops), t.inner, child, t.guards)
        for t in _own_touches(child.realize, among)
    ]


def header_touches(child: Child, top: For, among: frozenset[Buffer]) -> list[Touch]:
    """The loads of the buffers `among` in the ends of the loops around a child below `top`."""
    inside = next(k for k, n in enumerate(child.loops) if n.var is top.var) + 1
    return [
        _point(load, False, child.loops[:k])
        for k, loop in enumerate(child.loops)
        if k >= inside
        for expr in loop.exprs
        for load in loads_of(expr)
        if load.buffer in among
    ]


@fact
def _own_touches(realize: BlockRealize, among: frozenset[Buffer]) -> list[Touch]:
    child = Child(realize, ())
    guards, exact = predicate_guards(child), exact_accesses(realize.block)
    made = _declared(child, guards) if exact is None else _in_body(child, guards, among)
    found = [t for t in made if t.buffer in among]
    for expr in realize.exprs:
        found += [_point(load, False, ()) for load in loads_of(expr) if load.buffer in among]
    return found


def _guard_pairs(a: Place, b: Place, ranges: Ranges) -> Iterator[tuple[Kept | None, Kept | None]]:
    """The bounds that the predicates of two accesses add to the ranges of their loops.

    Two bounds on equal terms form a pair. A bound that only one access has is paired with None. If
    its loops are shared, the bound is also paired with the interval of its terms without predicate.
    """
    mine, theirs = tight(a.guards, ranges), tight(b.guards, ranges)
    shared = {n.var for n in a.loops} & {n.var for n in b.loops}
    for terms in {**mine, **theirs}:
        left, right = mine.get(terms), theirs.get(terms)
        yield left, right
        form = (left or right or (None,))[0]
        if form is not None and (left is None or right is None):
            whole = form, form_interval(form, ranges)
            if all(free_vars(x) <= shared for x in form.terms) and -inf < whole[1][0]:
                yield left or whole, right or whole


def kept_twice(child: Child) -> list[tuple[Kept, Kept]]:
    """The bounds that the predicate of a block puts on two of its instances, as pairs."""
    return [(k, k) for k in tight(predicate_guards(child), loop_ranges(child.loops)).values()]


def _declared(child: Child, guards: tuple[Linear, ...]) -> Iterator[Touch]:
    for writes in (False, True):
        declared = child.block.writes if writes else inputs(child.block)
        bound = bound_regions(child, writes=writes)
        for where, (buffer, region) in zip(declared, bound, strict=True):
            box = tuple((linear(low), interval(extent, {})[1]) for low, extent in region)
            yield Touch(buffer, writes, where, box, (), guards=guards)


def _in_body(child: Child, guards: tuple[Linear, ...], among: frozenset[Buffer]) -> Iterator[Touch]:
    """The accesses of the body over loop variables."""
    for access, where in _distinct(child.block):
        if access.buffer not in among:
            continue
        box = bound_access(access, child)
        inner = access.inner
        known = guards + access_guards(child, access)
        yield Touch(access.buffer, access.is_write, where, box, access.loops, inner, guards=known)


@fact
def _distinct(block: Block) -> list[tuple[Access, BufferRegion]]:
    """The accesses of a body, one for each element (cached).

    A load of an element that the body also writes (C[i] in an update of C[i]) is left out: it
    conflicts with other accesses exactly where the write does.
    """
    found: dict[tuple[Buffer, tuple[Expr, ...]], Access] = {}
    for access in sorted(accesses(block), key=lambda a: not a.is_write):
        if all(access.buffer is not b for b in block.alloc_buffers):
            found.setdefault((access.buffer, access.indices), access)
    return [(access, BufferRegion.point(*key)) for key, access in found.items()]


def _point(access: BufferLoad | BufferStore, writes: bool, loops: tuple[For, ...]) -> Touch:
    region = BufferRegion.point(access.buffer, access.indices)
    box = tuple(index_side(i) for i in access.indices)
    return Touch(access.buffer, writes, region, box, loops)


def _touches_under(loop: For, scope: Scope) -> Iterator[Touch]:
    """The accesses below a loop to buffers that are written below this loop."""
    headers: set[For] = set()
    among = written_below(loop, scope)
    for child in scope.under(loop):
        yield from touches(child, among)
        headers.update(child.loops)
    for stmt, loops in loose_below(loop, scope):
        headers.update(loops)
        if isinstance(stmt, BufferStore):
            yield _point(stmt, True, loops)
        for expr in stmt.exprs:
            yield from (_point(load, False, loops) for load in loads_of(expr))
    for header in headers:
        for expr in header.exprs:
            yield from (_point(load, False, (loop,)) for load in loads_of(expr))


def loops_below(loops: Sequence[For], top: For) -> list[For]:
    for k, loop in enumerate(loops):
        if loop.var is top.var:
            return list(loops[k:])
    return []


def moving_vars(a: Touch, b: Touch, scope: Scope, top: For) -> frozenset[Var]:
    """The variables that may differ between two accesses in one iteration of the loops above."""
    below = [*loops_below(a.loops, top), *loops_below(b.loops, top)]
    return _named_below(scope, top).union([loop.var for loop in below], a.inner, b.inner)


def _named_below(scope: Scope, top: For) -> frozenset[Var]:
    """The variables that statements below a loop define: each iteration has its own values."""
    return frozenset(
        s.var
        for s, loops in scope.loose
        if isinstance(s, LetStmt) and any(n.var is top.var for n in loops)
    )


def _apart(scope: Scope, loop: For, a: Touch, b: Touch) -> bool:
    """Whether two accesses are proved to touch no element in different iterations of `loop`."""
    moving = moving_vars(a, b, scope, loop)
    pairs = ((a, b), (b, a))
    return all(never_ahead(place(x), place(y), moving, (loop.var,)) for x, y in pairs)


def meet(
    a: Touch, b: Touch, scope: Scope, top: For, within: Mapping[Var, Interval] | None = None
) -> Mapping[Var, Interval] | None:
    """`overlap_distances` of `a` and `b` in two iterations of `top`."""
    if a.buffer is not b.buffer:
        return None
    moving, limits = moving_vars(a, b, scope, top), tuple((within or {}).items())
    changed = None
    if _loaded(a.box) or _loaded(b.box):
        changed = frozenset(buffer.data for buffer in written_below(top, scope))
    return distances_within(place(a), place(b), moving, limits, changed)


@lru_cache(maxsize=1 << 12)
def _loaded(box: tuple[Side, ...]) -> bool:
    return any(reads_memory(atom) for form, _ in box for atom in form.terms)


@lru_cache(maxsize=1 << 12)
def distances_within(
    a: Place,
    b: Place,
    moving: frozenset[Var],
    limits: tuple[tuple[Var, Interval], ...] = (),
    written: frozenset[Var] | None = None,
) -> Mapping[Var, Interval] | None:
    """`overlap_distances` of two accesses of one buffer, with their loops and guards.

    Args:
        moving: the variables that may have different values for the two accesses.
        limits: for some variables, the interval to which their differences are limited.
        written: the pointers to memory that may change between the accesses; None for all.
    """
    ranges = loop_ranges((*a.loops, *b.loops))
    kept = _guard_pairs(a, b, ranges)
    return overlap_distances(a.box, b.box, Outside(moving, written), ranges, kept, dict(limits))


def conflicts(
    scope: Scope, top: For, harmless: Callable[[Touch, Touch], bool]
) -> Iterator[tuple[Touch, Touch, Mapping[Var, Interval]]]:
    """The pairs of accesses below `top`, one a write, that may conflict in one element."""
    for a, b in _pairs(scope, top):
        distance = None if harmless(a, b) else meet(a, b, scope, top)
        if distance is not None:
            yield a, b, distance


def _pairs(scope: Scope, top: For) -> Iterator[tuple[Touch, Touch]]:
    """The pairs of accesses to one buffer below `top`, at least one access a write."""
    by_buffer: dict[Buffer, list[Touch]] = {}
    for touch in _touches_under(top, scope):
        by_buffer.setdefault(touch.buffer, []).append(touch)
    for group in by_buffer.values():
        if any(t.writes for t in group):
            yield from ((t, t) for t in group if t.writes)
            yield from ((a, b) for a, b in combinations(group, 2) if a.writes or b.writes)


def carried_dependence(
    loop: For,
    scope: Scope,
    *,
    thread: str | None = None,
    private: bool = True,
    allow_reduction: bool = False,
    lanes: bool = False,
) -> Failure | None:
    """Whether different iterations of `loop` may touch one element, at least one writing it.

    None means that the iterations may run at the same time.

    Args:
        loop: a loop of the scope.
        scope: the scope the loop belongs to.
        thread: the thread tag the loop is to be bound to; memory that the threads share is then
            not private.
        private: accept buffers of which each iteration can have a private copy (right for
            `parallel`, whose iterations allocate; wrong for lanes of a vector).
        allow_reduction: accept iterations that update one element by a commutative reduction (the
            loop is to become a cross-thread reduction).
        lanes: accept a store that reads what later iterations write: the lanes of a vector load
            before they store.
    """
    unknown = unknown_effects(loop, scope, nested_jumps=private and thread is None)
    if unknown is not None:
        return unknown
    extent = as_int(loop.extent)
    if extent is not None and extent <= 1:
        return None
    excused: dict[Buffer, bool] = {}

    def excuse(buffer: Buffer) -> bool:
        if buffer not in excused:
            excused[buffer] = harmless(buffer, scope, loop, thread, private)
        return excused[buffer]

    own = set(scope.block.alloc_buffers) if private else set()  # (a cheaper test than `meet`)
    for a, b, distance in conflicts(scope, loop, lambda a, b: a.buffer in own and excuse(a.buffer)):
        if distance.get(loop.var) == (0, 0):
            continue
        if a is b and a.child is not None and idempotent(a.child, scope, loop):
            continue
        if not excuse(a.buffer):
            reduces = a.child is b.child and a.child is not None and feeds_reduction(loop, a.child)
            if reduces and allow_reduction:
                continue
            if not reduces and _apart(scope, loop, a, b):
                continue
            if lanes and _reads_ahead(scope, loop, a, b):
                continue
            if reduces or not stays_equal(place(a), place(b), loop.var):
                return _carried(loop, a, b, reduces)
    return None


def _reads_ahead(scope: Scope, loop: For, a: Touch, b: Touch) -> bool:
    """Whether `loop` runs one store alone, which reads no element that an earlier iteration wrote.

    One of `a` and `b` is the read, the other the write.
    """
    block = loop.body.block if isinstance(loop.body, BlockRealize) else None
    alone = block is not None and block.init is None and isinstance(block.body, BufferStore)
    if not alone or a.writes == b.writes:
        return False
    read, write = (b, a) if a.writes else (a, b)
    moving = moving_vars(read, write, scope, loop)
    return never_ahead(place(read), place(write), moving, (loop.var,))


def place(touch: Touch) -> Place:
    """An access with its box, loops and predicate. (Loads in a predicate are unconditional.)"""
    if touch.known_place is None:
        guarded = touch.child is not None and touch.guards
        condition = touch.child.realize.predicate if touch.child and guarded else TRUE
        loops = tuple(map(bare, touch.loops))
        touch.known_place = Place(touch.box, loops, condition, touch.guards)
    return touch.known_place


def unknown_effects(loop: For, scope: Scope, nested_jumps: bool = False) -> Failure | None:
    """Statements outside of blocks whose accesses or control flow are not analysed.

    With `nested_jumps`, a jump out of a loop inside of `loop` is a condition of what follows.
    """
    for stmt, loops in scope.loose:
        opaque = isinstance(stmt, (While, Break, Continue, Return, DeclBuffer))
        if nested_jumps and isinstance(stmt, (Break, Continue)) and loops[-1].var is not loop.var:
            continue
        if any(effect_of(e) > Effect.READ for e in stmt.exprs):
            opaque = True
        if opaque and any(above.var is loop.var for above in loops):

            def sentence(stmt: Stmt = stmt) -> str:
                return f"loop {loop.var.name} holds a statement of unknown effect: {describe(stmt)}"

            return Failure("unknown-effect", sentence, stmt)
    return None


def _carried(loop: For, a: Touch, b: Touch, reduces: bool) -> Failure:
    slug = "carried-reduction" if reduces else "carried-dependence"

    def sentence() -> str:
        what = a.show() if a is b else f"{a.show()} and {b.show()}"
        why = " (a reduction)" if reduces else ""
        return (
            f"different iterations of loop {loop.var.name} may touch the same element of "
            f"{a.buffer.name}{why}: {what}"
        )

    return Failure(slug, sentence, loop)


def idempotent(child: Child, scope: Scope, loop: For, seen: frozenset[int] = frozenset()) -> bool:
    """Whether an instance of `child` writes the same values in every iteration of `loop`."""
    block = child.block
    mine = buffer_uses(block)
    if not stmt_vars(block).isdisjoint(_named_below(scope, loop)):
        return False
    if id(block) in seen or any(f.reads and f.writes for f in mine.values()):
        return False
    if any(not updates_in_place(block, b) for b, f in mine.items() if f.writes):
        return False
    if not block.writes or (injective_block(block) is not None and not copies(block)):
        return False
    seen |= {id(block)}
    inputs = [buffer for buffer, use in mine.items() if use.reads]
    return all(single_valued(buffer, scope, loop, seen) for buffer in inputs)


def single_valued(
    buffer: Buffer, scope: Scope, loop: For, seen: frozenset[int] = frozenset()
) -> bool:
    """Whether all writes below `loop` to one element of `buffer` write the same value."""
    var = loop.var
    writers = [c for c in scope.writers(buffer) if any(p.var is var for p in c.loops)]
    if any(
        may_overlap(a.block, b.block, buffer, reads_a=False, reads_b=False)
        for a, b in combinations(writers, 2)
    ):
        return False
    return all(idempotent(c, scope, loop, seen) for c in writers)


def harmless(buffer: Buffer, scope: Scope, loop: For, thread: str | None, private: bool) -> bool:
    """Whether accesses of different iterations to `buffer` cannot disturb each other."""
    allocated = any(buffer is b for b in scope.block.alloc_buffers)
    if thread is not None:
        allocated = allocated and scope_rank(buffer.scope) > thread_rank(thread)
    if not (allocated and private) and not single_valued(buffer, scope, loop):
        return False
    return self_contained(buffer, scope, loop)


def disjoint(buffer: Buffer, scope: Scope, loop: For) -> bool:
    """Whether different iterations of `loop` touch different elements of `buffer`, or only read."""
    return all(
        distance.get(loop.var) == (0, 0) or _apart(scope, loop, a, b)
        for a, b, distance in conflicts(scope, loop, lambda a, b: a.buffer is not buffer)
    )

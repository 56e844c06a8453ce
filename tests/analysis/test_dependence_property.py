"""Dependence against enumeration: random affine programs, every pair of accesses executed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from analysis.programs import refused
from hypothesis import given
from hypothesis import strategies as st

from metasched.analysis.access import index_side
from metasched.analysis.dependence import carried_dependence
from metasched.analysis.overlap import Outside, overlap_distances
from metasched.analysis.reordering import reorder_violation
from metasched.analysis.scope import Scope
from metasched.arith.affine import linear
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.expr import (
    EQ,
    GE,
    LT,
    NE,
    TRUE,
    Add,
    Expr,
    FloorDiv,
    FloorMod,
    IntImm,
    Mul,
    Sub,
    Var,
    as_expr,
    compare,
    floordiv,
    floormod,
)
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    IfThenElse,
    IterVar,
    Stmt,
    seq,
)

X = Buffer.of("X", (1 << 20,))
Y = Buffer.of("Y", (1 << 10, 1 << 10))


def value(expr: Expr, env: dict[Var, int]) -> int:
    """The value of an index expression."""
    if isinstance(expr, Var):
        return env[expr]
    if isinstance(expr, IntImm):
        return expr.value
    a, b = (value(e, env) for e in expr.children)
    kind = type(expr)
    if kind in (Add, Sub):
        return a + b if kind is Add else a - b
    return {Mul: a * b, FloorDiv: a // (b or 1), FloorMod: a % (b or 1)}[kind]


def holds(condition: Expr, env: dict[Var, int]) -> bool:
    """Whether a comparison of index expressions holds."""
    if isinstance(condition, IntImm):
        return bool(condition.value)
    a, b = (value(e, env) for e in condition.children)
    return {EQ: a == b, NE: a != b, LT: a < b, GE: a >= b}[type(condition)]


@st.composite
def sums(draw: st.DrawFn, names: list[Var]) -> Expr:
    total: Expr = as_expr(draw(st.integers(-2, 2)))
    for v in names:
        total = total + v * draw(st.sampled_from([0, 0, 1, 1, 1, 2, 3, 4, -1]))
    return total


@st.composite
def indices(draw: st.DrawFn, names: list[Var]) -> Expr:
    """An index: a sum, a quotient, a remainder, a sum of those, or a part of a remainder."""
    base = draw(sums(names))
    shape = draw(st.sampled_from(["sum", "sum", "div", "mod", "mix", "part"]))
    by = draw(st.sampled_from([2, 3, 4]))
    if shape == "div":
        return floordiv(base, by)
    if shape == "mod":
        return floormod(base, by)
    if shape == "part":
        rest = floormod(base * draw(st.sampled_from([1, 2, 5])), by * draw(st.sampled_from([1, 3])))
        return draw(st.sampled_from([floordiv, floormod]))(rest, by)
    if shape == "mix":
        return floordiv(base, by) * draw(st.sampled_from([1, 2, 4])) + floormod(base, by)
    return base


@dataclass
class Step:
    """A block that writes one element and reads another, where a condition holds."""

    realize: BlockRealize
    write: BufferLoad
    read: BufferLoad | None
    condition: Expr = TRUE


@dataclass
class Program:
    loops: list[For]
    scope: Scope
    steps: list[Step]

    def instances(self) -> Iterator[tuple[tuple[int, ...], int, list[tuple[object, bool]]]]:
        """(loop values, position of the block, what it touches) in order of execution."""
        extents = [range(p.extent.value) for p in self.loops]  # type: ignore[attr-defined]
        for point in itertools.product(*extents):
            outer = {p.var: n for p, n in zip(self.loops, point, strict=True)}
            for position, step in enumerate(self.steps):
                block = step.realize.block
                env = {
                    v.var: value(e, outer)
                    for v, e in zip(block.iter_vars, step.realize.iter_values, strict=True)
                }
                loads = [(step.write, True), (step.read, False)]
                if not holds(step.condition, env):
                    loads = []
                touched = [
                    ((x.buffer, tuple(value(i, env) for i in x.indices)), w)
                    for x, w in loads
                    if x is not None
                ]
                yield point, position, touched

    def conflicts(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Loop values of every two executions that touch one element, one of them writing."""
        every = list(self.instances())
        for (p, _, a), (q, _, b) in itertools.combinations(every, 2):
            if any(x == y and (w or v) for x, w in a for y, v in b):
                yield p, q


@st.composite
def programs(draw: st.DrawFn) -> Program:
    depth = draw(st.integers(1, 3))
    extents = [draw(st.sampled_from([1, 2, 3, 4, 6])) for _ in range(depth)]
    names = [Var(n) for n in "ijk"[:depth]]
    steps = []
    for _ in range(draw(st.integers(1, 2))):
        iters = [Var(f"v{n.name}") for n in names]
        bindings = tuple(names)
        buffer = draw(st.sampled_from([X, Y]))

        def element(iters: list[Var] = iters, buffer: Buffer = buffer) -> BufferLoad:
            return BufferLoad(buffer, [draw(indices(iters)) for _ in buffer.shape])

        write = element()
        read = element() if draw(st.booleans()) else None
        stored = as_expr(1.0) if read is None else read
        condition: Expr = TRUE
        if draw(st.booleans()):
            kind = draw(st.sampled_from([EQ, EQ, NE, LT, GE]))
            condition = compare(kind, draw(indices(iters)), as_expr(draw(st.integers(0, 2))))
        store: Stmt = BufferStore(buffer, stored, write.indices)
        block = Block(
            "b",
            tuple(IterVar(v, Range.of(0, e)) for v, e in zip(iters, extents, strict=True)),
            () if read is None else (BufferRegion.point(buffer, read.indices),),
            (BufferRegion.point(buffer, write.indices),),
            store if condition is TRUE else IfThenElse(condition, store),
        )
        steps.append(Step(BlockRealize(bindings, TRUE, block), write, read, condition))
    body: Stmt = seq([s.realize for s in steps])
    for v, e in zip(reversed(names), reversed(extents), strict=True):
        body = For.serial(v, e, body)
    loops: list[For] = []
    inner = body
    while isinstance(inner, For):
        loops.append(inner)
        inner = inner.body
    return Program(loops, Scope.of(Block("root", (), (), (), body)), steps)


@given(programs())
def test_accepted_loops_carry_no_dependence(program: Program) -> None:
    pairs = list(program.conflicts())
    for depth, loop in enumerate(program.loops):
        if carried_dependence(loop, program.scope) is None:
            for p, q in pairs:
                assert p[:depth] != q[:depth] or p[depth] == q[depth], (loop.var, p, q)


@given(programs(), st.randoms(use_true_random=False))
def test_accepted_reorders_keep_the_order_of_conflicts(program: Program, random: object) -> None:
    order = list(range(len(program.loops)))
    random.shuffle(order)  # type: ignore[attr-defined]
    new = [program.loops[n] for n in order]
    if reorder_violation(program.loops, new, program.scope) is None:
        for p, q in program.conflicts():
            moved = [tuple(x[n] for n in order) for x in (p, q)]
            assert (p < q) == (moved[0] < moved[1]) and (p == q) == (moved[0] == moved[1])


@st.composite
def tilings(draw: st.DrawFn) -> tuple[Expr, dict[Var, tuple[int, int]], int]:
    """A loop of n iterations after random splits and fuses: an expression with n values."""
    n = 1
    ranges: dict[Var, tuple[int, int]] = {}
    expr: Expr = as_expr(0)
    for k in range(draw(st.integers(1, 4))):
        extent = draw(st.sampled_from([2, 3, 4]))
        v = Var(f"t{k}")
        ranges[v] = (0, extent - 1)
        expr = expr * extent + v
        n *= extent
    return expr, ranges, n


@given(tilings(), st.sampled_from([2, 3, 4, 5, 8]), st.integers(-3, 3))
def test_tiled_and_fused_indices_are_proved_different(
    tiling: tuple[Expr, dict[Var, tuple[int, int]], int], by: int, shift: int
) -> None:
    """Quotient and remainder of a tiled loop, with any shift, determine every loop variable."""
    expr, ranges, _ = tiling
    split = [index_side(floordiv(expr, by)), index_side(floormod(expr, by) + shift)]
    met = overlap_distances(split, split, Outside(ranges), ranges)
    assert met is not None
    assert all(met[v] == (0, 0) for v in ranges)


@given(st.data())
def test_overlapping_boxes_are_never_proved_disjoint(data: st.DataObject) -> None:
    names = [Var(n) for n in "abc"]
    ranges = {v: (0, data.draw(st.integers(0, 3))) for v in names}
    fixed = names[:1]
    x, y = (data.draw(indices(names)) for _ in range(2))
    kept, times = data.draw(sums(names)), data.draw(st.sampled_from([0, 1, 1, 2]))
    shift, most = data.draw(st.integers(-1, 1)), data.draw(st.integers(0, 9))
    x, y = x + kept * times, y + kept * times  # a guarded iterator, bound to `kept`
    if data.draw(st.booleans()):  # or to a part of it
        part, by = data.draw(st.sampled_from([floordiv, floormod])), data.draw(st.integers(2, 4))
        x, y = x + part(kept + times, by), y + part(kept + times, by)
    widths = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    sides = [(index_side(e)[0], w) for e, w in zip((x, y), widths, strict=True)]
    known = data.draw(st.sampled_from([(True, True), (True, False), (False, True)]))
    fact_x, fact_y = (linear(kept), (0, most)), (linear(kept + shift), (shift, most))
    facts = [(fact_x if known[0] else None, fact_y if known[1] else None)]
    met = overlap_distances(sides[:1], sides[1:], Outside(names[1:]), ranges, facts)
    points = list(itertools.product(*[range(r[1] + 1) for r in ranges.values()]))
    for p, q in itertools.product(points, points):
        if p[0] != q[0]:
            continue
        at = [dict(zip(names, point, strict=True)) for point in (p, q)]
        within = 0 <= value(kept, at[0]) <= most, 0 <= value(kept, at[1]) <= most - shift
        if any(k and not w for k, w in zip(known, within, strict=True)):
            continue
        low_x, low_y = value(x, at[0]), value(y, at[1])
        if low_x < low_y + widths[1] and low_y < low_x + widths[0]:
            assert met is not None, (p, q)
            for v, span in met.items():
                if v not in fixed:
                    assert span[0] <= at[0][v] - at[1][v] <= span[1]


def test_a_fused_spatial_and_reduction_loop_keeps_its_place():
    """After fuse(i, j), split by 8 and reorder, an update would run before its init."""
    from metasched.analysis.reordering import reorder_violation
    from metasched.analysis.scope import Scope
    from metasched.schedule.schedule import Schedule
    from metasched.script import parse

    func = parse(
        """
@T.prim_func
def f(A: T.Buffer((3, 20), "float32"), S: T.Buffer((3,), "float32")):
    for i, j in T.grid(3, 20):
        with T.block("S"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + A[vi, vj]
"""
    )
    sch = Schedule(func, seed=0)
    outer, inner = sch.split(sch.fuse(*sch.get_loops("S")), [None, 8])
    loops = [sch.get(outer), sch.get(inner)]
    failure = reorder_violation(loops, loops[::-1], Scope.of(sch.func.root))
    refused(failure, "init-late", "an update could come before the init")

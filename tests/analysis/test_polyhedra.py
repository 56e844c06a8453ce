"""never_ahead and order_kept on random triangular nests: every claim against enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from operator import add, mod, mul, sub
from operator import floordiv as int_floordiv

from hypothesis import given
from hypothesis import strategies as st
from oracle import check_refused, check_transform

from metasched.analysis.instances import Place
from metasched.analysis.polyhedra import never_ahead, order_kept
from metasched.arith.affine import linear
from metasched.ir.expr import (
    Add,
    Expr,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Mul,
    Sub,
    Var,
    as_expr,
    floordiv,
    floormod,
    maximum,
    minimum,
)
from metasched.ir.stmt import Evaluate, For, ForKind
from metasched.schedule.schedule import Schedule
from metasched.script import parse

I, J = (Var(name, "int64") for name in "ij")
MEANING = {
    Add: add, Sub: sub, Mul: mul, FloorDiv: int_floordiv, FloorMod: mod, Min: min, Max: max,
}  # fmt: skip


@st.composite
def forms(draw: st.DrawFn, names: tuple[Var, ...]) -> Expr:
    """A sum of variables, now and then a quotient, remainder, minimum or maximum of sums."""
    total: Expr = as_expr(draw(st.integers(-2, 3)), I.dtype)
    for v in names:
        total = total + v * draw(st.sampled_from([-1, 0, 0, 1, 1, 2]))
    kind = draw(st.sampled_from(["sum"] * 4 + ["div", "mod", "min", "max"]))
    other = names[0] if names else as_expr(1, I.dtype)
    if kind in ("div", "mod"):
        return (floordiv if kind == "div" else floormod)(total, as_expr(2, I.dtype))
    return {"sum": lambda a, b: a, "min": minimum, "max": maximum}[kind](total, other)


@st.composite
def nests(draw: st.DrawFn) -> tuple[For, ...]:
    """Two loops, the inner one with ends that depend on the outer one."""
    low = as_expr(draw(st.integers(0, 2)), I.dtype)
    outer = For(I, low, as_expr(4, I.dtype), ForKind.SERIAL, Evaluate(I))
    inner = For(J, draw(forms((I,))), draw(forms((I,))), ForKind.SERIAL, Evaluate(I))
    return outer, inner


def number(expr: Expr, at: dict[Var, int]) -> int:
    """The value of an index expression."""
    if isinstance(expr, (Var, IntImm)):
        return at[expr] if isinstance(expr, Var) else expr.value
    a, b = (number(e, at) for e in expr.children)
    return MEANING[type(expr)](a, b)


def points(loops: tuple[For, ...]) -> Iterator[dict[Var, int]]:
    outer, inner = loops
    for i in range(number(outer.min, {}), number(outer.min + outer.extent, {})):
        low = number(inner.min, {I: i})
        for j in range(low, low + number(inner.extent, {I: i})):
            yield {I: i, J: j}


@given(st.data(), nests())
def test_claims_hold_for_all_pairs_of_iterations(data, loops):
    indices = [data.draw(forms((I, J))) for _ in range(2)]
    guard = data.draw(forms((I, J)))
    boxes = [((linear(e), 1.0),) for e in indices]
    guarded, other = Place(boxes[0], loops, guards=(linear(guard),)), Place(boxes[1], loops)
    order = data.draw(st.sampled_from([(I,), (J,), (I, J)]))
    moving = frozenset({I, J} if order[0] is I else {J})
    if never_ahead(guarded, other, moving, order):
        for p, q in itertools.product(points(loops), repeat=2):
            same = all(p[v] == q[v] for v in (I, J) if v not in moving)
            if same and number(guard, p) <= 0 and number(indices[0], p) == number(indices[1], q):
                assert [p[v] for v in order] <= [q[v] for v in order]


@given(st.data(), nests(), st.booleans())
def test_orders_are_kept_for_all_pairs_of_iterations(data, loops, alone):
    """Two accesses, or one access with itself, in the order (i, j) and in the order (j, i)."""
    indices = [data.draw(forms((I, J))) for _ in range(2)]
    guard = data.draw(forms((I, J)))
    a = Place(((linear(indices[0]), 1.0),), loops, guards=(linear(guard),))
    b = a if alone else Place(((linear(indices[1]), 1.0),), loops)
    if order_kept(a, b, frozenset({I, J}), (I, J), (J, I)):
        for p, q in itertools.product(points(loops), repeat=2):
            theirs = number(indices[0 if alone else 1], q)
            inside = number(guard, p) <= 0 and (not alone or number(guard, q) <= 0)
            if inside and number(indices[0], p) == theirs:
                old, new = ([[at[v] for v in order] for at in (p, q)] for order in ((I, J), (J, I)))
                assert (old[0] < old[1]) == (new[0] < new[1]) or p == q


MIRROR = """
@T.prim_func
def f(A: T.Buffer((6, 5), "int32"), C: T.Buffer((6, 6), "int32")):
    for i in range(6):
        for j in range({low}, {high}):
            with T.block("double"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, 0] * A[vj, 1]
            with T.block("mirror"):
                C[j, i] = C[i, j]
"""


def test_a_triangle_is_disjoint_from_its_mirror_image():
    func = parse(MIRROR.format(low="i", high="6"))
    sch = Schedule(func, check=True)
    sch.fission(sch.get_loops("double")[1])
    sch.fission(sch.get_loops("double")[0])
    check_transform(func, sch)


def test_a_square_overlaps_its_mirror_image():
    sch = Schedule(parse(MIRROR.format(low="0", high="6")))
    sch.fission(sch.get_loops("double")[1])
    message = "in two nests their order is reversed"
    loop = sch.get_loops("double")[0]
    check_refused(sch, lambda: sch.fission(loop), "backward-dependence", message)


def test_the_rows_below_a_pivot_are_independent():
    func = parse("""
@T.prim_func
def f(A: T.Buffer((7, 7), "int32")):
    for k in range(7):
        for i, j in T.grid(6 - k, 6 - k):
            with T.block("A"):
                vi = T.axis.spatial(7, k + 1 + i)
                vj = T.axis.spatial(7, k + 1 + j)
                vk = T.axis.opaque(7, k)
                A[vi, vj] = A[vi, vj] - A[vi, vk] * A[vk, vj]
""")
    sch = Schedule(func, check=True)
    for loop in sch.get_loops("A")[1:]:
        sch.parallel(loop)
        sch.undo()
    outer = sch.get_loops("A")[0]
    message = "different iterations of loop k may touch the same element of A"
    check_refused(sch, lambda: sch.parallel(outer), "carried-dependence", message)

"""Reducers: recognised reductions with their identities, and updates that are no reduction."""

from __future__ import annotations

import pytest
from analysis.programs import matmul, scope_of

from metasched.analysis.reducer import Reduction, identity_holds, match_reducer
from metasched.ir.buffer import Buffer
from metasched.ir.dtype import DType
from metasched.ir.expr import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    Add,
    And,
    Expr,
    FloatImm,
    IntImm,
    Max,
    Min,
    Mul,
    Or,
    Select,
    Sub,
    Var,
    as_expr,
)  # fmt: skip
from metasched.ir.stmt import BufferStore, Evaluate, LetStmt, Stmt, seq
from metasched.ir.visit import walk_exprs

V = Var("v")
K = Var("k")


def single(value: object, start: Expr, dtype: str = "float32") -> Reduction | None:
    c, a = Buffer.of("C", (8,), dtype), Buffer.of("A", (8,), dtype)
    return match_reducer(
        BufferStore(c, start, (V,)),
        BufferStore(c, value(c[V], a[K]), (V,)),  # type: ignore[operator]
    )


def f32(x: float) -> Expr:
    return FloatImm("float32", x)


LARGEST = DType("float32").largest


@pytest.mark.parametrize(
    ("value", "start", "name"),
    [
        (Add, f32(0), "sum"),
        (lambda c, a: Add(a, c), f32(0), "sum"),
        (lambda c, a: Add(Add(c, a), a), f32(-0.0), "sum"),
        (Sub, f32(0), "sum"),
        (Mul, f32(1), "prod"),
        (Min, f32(float("inf")), "min"),
        (Min, f32(LARGEST), "min"),
        (Max, f32(-LARGEST), "max"),
    ],
)
def test_single_reducers(value: object, start: Expr, name: str) -> None:
    found = single(value, start)
    assert found is not None
    assert (found.name, found.identity, found.commutative) == (name, (start,), True)
    assert found.lhs[0] not in set(walk_exprs(found.rhs[0]))
    x, y = Var("x", "float32"), Var("y", "float32")
    (both,) = found.combine([x], [y])
    assert set(both.children) == {x, y}


def test_a_difference_sums_the_negative() -> None:
    found = single(Sub, f32(0))
    assert found is not None
    assert isinstance(found.rhs[0], Sub)
    assert isinstance(found.combine(found.lhs, found.rhs)[0], Add)


@pytest.mark.parametrize(
    ("value", "start"),
    [
        (Add, f32(1)),  # not the identity
        (lambda c, a: Mul(Add(c, a), a), f32(0)),  # another operator outside
        (lambda c, a: Add(Mul(c, a), a), f32(0)),
        (lambda c, a: Add(c, Mul(c, a)), f32(0)),  # the result again in what is added
        (lambda c, a: Sub(a, c), f32(0)),
        (Max, f32(0)),
        (Add, as_expr(0.0, "float32") + Var("z", "float32")),
    ],
)
def test_updates_that_are_no_reducers_are_not_matched(value: object, start: Expr) -> None:
    assert single(value, start) is None


def test_integer_identities() -> None:
    assert single(Max, IntImm("int8", -128), "int8") is not None
    assert single(Max, IntImm("int8", -127), "int8") is None
    assert single(Min, IntImm("uint8", 255), "uint8") is not None
    assert identity_holds("prod", IntImm("int32", 1))


@pytest.mark.parametrize(
    ("dtype", "value"), [("float16", 65504.0), ("bfloat16", 3.3895313892515355e38)]
)
def test_largest_floats(dtype: str, value: float) -> None:
    assert DType(dtype).largest == value


def test_the_block_of_a_matmul() -> None:
    block = scope_of(matmul).realizes[0].block
    found = match_reducer(block.init, block.body)
    assert found is not None
    assert found.name == "sum"
    assert isinstance(found.rhs[0], Mul)
    assert match_reducer(None, block.body) is None


def test_other_statements_are_no_reducer() -> None:
    c = Buffer.of("C", (8,))
    nothing = Evaluate(as_expr(0))
    assert match_reducer(BufferStore(c, f32(0), (V,)), nothing) is None
    elsewhere = BufferStore(c, c[V + 1] + f32(1), (V + 1,))
    assert match_reducer(BufferStore(c, f32(0), (V,)), elsewhere) is None


def test_sums_side_by_side() -> None:
    s, q, a = (Buffer.of(n, (8,)) for n in "SQA")
    init = seq([BufferStore(s, f32(0), (V,)), BufferStore(q, f32(0), (V,))])
    update = seq([BufferStore(s, s[V] + a[K], (V,)), BufferStore(q, q[V] + a[K] * a[K], (V,))])
    found = match_reducer(init, update)
    assert found is not None
    assert (found.name, found.buffers) == ("tuple", (s, q))
    assert found.combine(found.lhs, found.rhs) == (s[V] + a[K], q[V] + a[K] * a[K])


I, W = Buffer.of("I", (8,), "int32"), Buffer.of("W", (8,))
A = Buffer.of("A", (8,))


def arg(compare: type, by_index: bool, start: float, lets: bool = True) -> Reduction | None:
    """The update of an argmin or argmax over A[k], index first."""
    wins: Expr = compare(W[V], A[K])
    chosen = wins
    if by_index:
        wins = Or(wins, And(EQ(W[V], A[K]), LT(I[V], K)))
    new_index, new_value = Select(wins, I[V], K), Select(chosen, W[V], A[K])
    init = seq([BufferStore(I, as_expr(-1), (V,)), BufferStore(W, f32(start), (V,))])
    x, y = Var("x"), Var("y", "float32")
    stores: Stmt = seq(
        [
            BufferStore(I, x if lets else new_index, (V,)),
            BufferStore(W, y if lets else new_value, (V,)),
        ]
    )
    if lets:
        stores = LetStmt(x, new_index, LetStmt(y, new_value, stores))
    return match_reducer(init, stores)


@pytest.mark.parametrize(
    ("compare", "by_index", "name"),
    [
        (GT, True, "argmax"), (LT, True, "argmin"), (GE, False, "argmax"), (LE, False, "argmin"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("lets", [True, False])
def test_arg_reducers(compare: type, by_index: bool, name: str, lets: bool) -> None:
    found = arg(compare, by_index, -LARGEST if name == "argmax" else LARGEST, lets)
    assert found is not None
    assert (found.name, found.commutative, found.rhs) == (name, by_index, (K, A[K]))
    index, best = found.combine(found.lhs, found.rhs)
    assert isinstance(best, Select)
    assert best.condition is compare(W[V], A[K])
    assert isinstance(index, Select)
    assert isinstance(index.condition, Or) == by_index


def test_only_the_last_of_equal_values_needs_an_identity() -> None:
    assert arg(GT, True, 0.0) is not None
    assert arg(GE, False, LARGEST) is not None
    assert arg(GT, False, -LARGEST) is None
    last = arg(GT, False, -float("inf"))
    assert last is not None and last.liberties == {"nnan"}


def test_a_store_that_reads_an_earlier_one_is_no_tuple() -> None:
    value = BufferStore(W, Select(GE(W[V], A[K]), W[V], A[K]), (V,))
    index = BufferStore(I, Select(GE(W[V], A[K]), I[V], K), (V,))
    init = seq([BufferStore(I, as_expr(-1), (V,)), BufferStore(W, f32(-LARGEST), (V,))])
    assert match_reducer(init, seq([value, index])) is None

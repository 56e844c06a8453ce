"""Expressions: interning, folding, types, pickling."""

import gc
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import metasched as ms
from metasched.arith import regions
from metasched.errors import TypeMismatchError
from metasched.ir import expr as E
from metasched.ir.buffer import Buffer, Range
from metasched.ir.dtype import DType, wrap
from metasched.ir.op import Call, Effect, Ramp, Shuffle, call, effect_of
from metasched.ir.stmt import Block, BufferStore, Evaluate, For, ForKind, LetStmt
from metasched.ir.visit import free_vars, substitute, transform_expr, walk_exprs, walk_unseen
from metasched.script import tir as T

i, j = E.Var("i"), E.Var("j")


def test_equal_nodes_are_one_object():
    assert (i + 1) * j is (i + 1) * j
    assert i + 1 is not j + 1
    assert E.Var("i") is not E.Var("i")


def test_constants_differ_by_type_and_bits():
    values = [
        E.IntImm("int32", 1), E.IntImm("int64", 1), E.TRUE, E.FloatImm("float32", 1.0),
        E.FloatImm("float64", 1.0), E.FloatImm("float32", 0.0), E.FloatImm("float32", -0.0),
        E.StringImm("1"),
    ]  # fmt: skip
    assert len({id(v) for v in values}) == len(values)
    nan = float("nan")
    assert E.FloatImm("float32", nan) is E.FloatImm("float32", nan)


def test_constants_equal_python_numbers_by_value():
    whole, half = E.IntImm("int32", 64), E.FloatImm("float32", 0.5)
    assert whole == 64 and 64 == whole and whole != 65 and whole == 64.0 and whole == np.int64(64)
    assert half == 0.5 and half != 1 and half == np.float32(0.5) and half != "0.5"
    assert E.TRUE == True and E.TRUE == 1 and E.TRUE != False  # noqa: E712
    assert E.FloatImm("float32", -0.0) == 0.0 and E.FloatImm("float32", float("nan")) != 0
    assert whole in (1, 64) and {64: "x"}.get(whole) is None  # a node is a key of its own
    assert E.Var("n") != 64 and (i + 1 == 1) is False  # only identity


def test_nodes_compare_by_identity_and_differ_from_numbers():
    ones = [
        E.IntImm("int32", 1), E.IntImm("int64", 1), E.IntImm("uint8", 1), E.TRUE,
        E.FloatImm("float32", 1.0), E.FloatImm("float64", 1.0),
    ]  # fmt: skip
    zeros = [E.FloatImm("float32", 0.0), E.FloatImm("float32", -0.0), E.FALSE]
    for nodes in (ones, zeros):
        table = {node: k for k, node in enumerate(nodes)}
        assert [table[node] for node in nodes] == list(range(len(nodes)))
        assert all((a == b) is (a is b) for a in nodes for b in nodes)
        assert len({nodes[0].value, *nodes}) == 1 + len(nodes)
    largest = {E.Max(n, n) for n in ones}
    assert len(largest) == len(ones)


def test_the_extent_of_a_loop_can_be_compared():
    @T.prim_func
    def f(A: T.Buffer((64,), "float32")):
        for k in range(64):
            A[k] = T.float32(0)

    sch = ms.Schedule(f)
    loop = sch.mod["main"].body.block.body
    assert loop.extent == 64 and loop.min == 0 and loop.extent != 63


def test_nodes_die_with_their_last_use():
    from metasched.ir.intern import _TABLE

    gc.collect()
    before = len(_TABLE)
    keep = [E.Var("x") + k for k in range(2, 50)]
    assert len(_TABLE) > before
    del keep
    gc.collect()
    assert len(_TABLE) <= before + 1


def test_nodes_are_immutable_and_have_no_truth_value():
    with pytest.raises(AttributeError, match="Add is immutable"):
        (i + 1).a = j
    with pytest.raises(TypeError, match="no truth value"):
        bool(i < j)


def test_quickly_made_nodes_are_those_of_the_frozen_class():
    body = Evaluate(E.as_expr(0))
    loop = For(i, E.as_expr(0), E.as_expr(4), ForKind.SERIAL, body)
    assert type(loop) is For and (loop.extent.value, loop.thread, loop.step) == (4, None, None)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'kind'"):
        loop.kind = ForKind.PARALLEL
    first, second = (Block("b", (), (), (), body) for _ in range(2))
    assert first.token is not second.token
    assert Block("b", (), (), (), body, token=first.token).token is first.token
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'body'"):
        For(i, E.as_expr(0), E.as_expr(4), ForKind.SERIAL)


@given(st.integers(-300, 300), st.integers(-300, 300))
def test_folding_agrees_with_wrapped_integers(a, b):
    t = DType("int8")
    x, y = E.as_expr(wrap(t, a), t), E.as_expr(wrap(t, b), t)
    p, q = int(x), int(y)
    assert int(x + y) == wrap(t, p + q)
    assert int(x - y) == wrap(t, p - q)
    assert int(x * y) == wrap(t, p * q)
    if q:
        assert int(x // y) == wrap(t, p // q)
        assert int(x % y) == wrap(t, p % q)
    assert (E.compare(E.LT, x, y) is E.TRUE) == (p < q)
    assert int(E.minimum(x, y)) == min(p, q) and int(E.maximum(x, y)) == max(p, q)


def test_neutral_elements_fold():
    assert i + 0 is i and 0 + i is i and i - 0 is i and i * 1 is i and 1 * i is i and i // 1 is i
    assert E.as_int(i * 0) == 0 and E.as_int(0 * i) == 0 and E.as_int(i % 1) == 0
    assert E.minimum(i, i) is i
    x = E.Var("x", "float32")
    assert isinstance(x * 0, E.Mul)  # NaN * 0 is NaN


def test_python_numbers_take_the_other_type():
    assert (E.Var("x", "int64") + 1).dtype == "int64"
    assert (1 - E.Var("x", "float16")).dtype == "float16"
    assert (i + E.Var("x", "int64")).dtype == "int64"
    assert (i / 2).dtype == "int32" and isinstance(i / 2, E.Div)


def test_logic_folds():
    c = i < j
    assert E.logical_and(E.TRUE, c) is c and E.logical_and(c, E.FALSE) is E.FALSE
    assert E.logical_or(E.FALSE, c) is c and E.logical_or(c, E.TRUE) is E.TRUE
    assert E.logical_not(E.logical_not(c)) is c and E.logical_not(E.TRUE) is E.FALSE


def test_a_scalar_meeting_a_vector_is_broadcast():
    v = Ramp(i, E.as_expr(1), 4)
    total = v + 3
    assert total.dtype == "int32x4" and isinstance(total.b, E.Broadcast)
    assert isinstance((v + j).b, E.Broadcast)
    assert E.cast("float32x4", i).dtype == "float32x4"
    with pytest.raises(TypeMismatchError, match="lanes differ"):
        E.Cast("int64x2", v)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: E.IntImm("int8", 128), "128 does not fit in int8"),
        (lambda: E.FloatImm("float16", -65520.0), "-65520 does not fit in float16"),
        (lambda: E.FloatImm("int32", 1.0), "needs a floating-point type"),
        (lambda: E.Add(i, E.Var("x", "int64")), "Add: operands are int32 and int64"),
        (lambda: E.And(i, i), "And needs bool"),
        (lambda: E.Not(i), "Not needs bool"),
        (lambda: E.Select(i, i, i), "Select needs bool"),
        (lambda: E.Let(i, E.as_expr(1.0), i), "Let: i is int32"),
        (lambda: call("exp"), "exp takes 1 arguments, not 0"),
        (lambda: call("call_extern", "f"), "result's type must be given"),
        (lambda: Shuffle([i], [1]), "outside 1 lanes"),
        (lambda: Ramp(E.as_expr(1.0), E.as_expr(1.0), 2), "Ramp: base is float32"),
        (lambda: Buffer.of("A", (4, 4))[i], "A has 2 dimensions, 1 indices"),
    ],
)
def test_ill_typed_nodes_are_refused(build, message):
    with pytest.raises(TypeMismatchError, match=message):
        build()


def test_pickling_interns_again_and_keeps_sharing():
    a = Buffer.of("A", (4, E.Var("n")))
    e = E.Let(j, i + 1, E.Select(i < j, call("exp", a[i, j]), E.cast("float32", j)))
    other = Shuffle([Ramp(i, E.as_expr(2), 4)], [0, 2])
    copy, first, shuffled, k = pickle.loads(pickle.dumps((e, a, other, i)))
    assert k is not i and copy is not e
    renamed = substitute(other, {i: k})
    assert shuffled is renamed
    assert copy.body.a.args[0].buffer is first
    constant = E.as_expr(3) + E.IntImm("int32", 4)
    assert pickle.loads(pickle.dumps(constant)) is constant


def test_rebuild_gives_the_same_node():
    a = Buffer.of("A", (8,))
    whole = E.Select(
        E.Not(i < j),
        a[i] + E.Let(j, i * 2, E.cast("float32", j)),
        call("if_then_else", i < 3, a[j], E.as_expr(0.0)),
    )
    for node in walk_exprs(whole):
        assert node.rebuild(node.children) is node


def test_free_variables_and_substitution():
    e = E.Let(j, i + 1, j * i) + j
    assert free_vars(e) == {i, j}
    k = E.Var("k")
    assert substitute(i * 2 + j, {i: k}) is k * 2 + j
    assert substitute(e, {k: i}) is e


def test_sums_of_thousands_of_terms():
    total = E.as_expr(0)
    for k in range(5000):
        total = E.Add(total, E.Mul(i, E.as_expr(k)))
    assert free_vars(total) == {i}
    moved = substitute(total, {i: j})
    assert free_vars(moved) == {j}
    assert transform_expr(total, lambda e: None) is total


def test_effects_and_ranges():
    assert effect_of(call("exp", E.as_expr(1.0))) is Effect.PURE
    assert effect_of(Call("int32", call("call_extern", "f", dtype="int32").op, [])) is Effect.OPAQUE
    r = Range.of(0, E.Var("n", "int64"))
    assert r.min.dtype == r.extent.dtype == "int64"
    assert Range.of(i, 1).is_point


def test_row_major_strides():
    n = E.Var("n")
    assert Buffer.of("A", (4, n, 2)).row_major_strides() == (2 * n, E.as_expr(2), E.as_expr(1))
    assert Buffer.of("A", (4, 3)).constant_shape() == (4, 3)
    assert Buffer.of("A", (4, n)).constant_shape() is None


@pytest.mark.parametrize("given", [{"align": 0}, {"offset_factor": 0}])
def test_an_alignment_of_zero_is_refused(given) -> None:
    """In a script 0 stands for the default, so that such a buffer would not read back as itself."""
    with pytest.raises(ValueError, match="of A count from 1"):
        Buffer.of("A", (4,), **given)


@given(st.lists(st.sampled_from([1, 3, 64, i]), max_size=4))
def test_constant_strides_are_the_strides_that_are_numbers(shape):
    dense = Buffer.of("A", shape)
    assert dense.constant_strides() == [E.as_int(step) for step in dense.row_major_strides()]
    strided = Buffer.of("A", shape, strides=shape)
    assert strided.constant_strides() == [E.as_int(step) for step in shape]


def _sides(node):
    """The parts of a node, a side of a choice under its condition."""
    if isinstance(node, Call) and node.op.name == "if_then_else":
        condition, then, orelse = node.args
        return [(condition, ()), (then, (condition,)), (orelse, (E.logical_not(condition),))]
    return [(child, ()) for child in node.children]


def test_a_walk_leaves_out_what_earlier_walks_saw_without_conditions():
    part, flag = i * 3, E.Var("flag", "bool")
    choice = T.if_then_else(flag, part, j)
    seen = set()
    assert (part, (flag,)) in [*walk_unseen(choice, (), _sides, seen)]
    assert part not in seen and choice in seen
    assert [*walk_unseen(choice, (), _sides, seen)] == []
    assert (part, ()) in [*walk_unseen(part + 1, (), _sides, seen)]
    assert [node for node, _ in walk_unseen(part + 2, (), _sides, seen)] == [part + 2, E.as_expr(2)]
    other = [node for node, _ in walk_unseen(T.if_then_else(flag, part, j + 5), (), _sides, seen)]
    assert part not in other and j + 5 in other


def test_the_regions_of_chained_variables_are_collected_once_each(monkeypatch):
    """Each variable's value holds the values of all variables before."""
    source = Buffer("A", (64,), DType("float32"))
    value, lets = source[i], []
    for n in range(200):
        lets.append((E.Var(f"x{n}", "float32"), value))
        value = lets[-1][0] * T.float32(0.5) + source[i + n % 3]
    body = BufferStore(source, value, (i,))
    for var, bound in reversed(lets):
        body = LetStmt(var, bound, body)
    visited = []
    real = regions._chosen
    monkeypatch.setattr(regions, "_chosen", lambda node: visited.append(node) or real(node))
    reads, writes = regions.block_access_regions(Block("b", (), (), (), body))
    assert [E.as_int(r.region[0].extent) for r in reads] == [3] and len(writes) == 1
    assert len(visited) < 5 * 200

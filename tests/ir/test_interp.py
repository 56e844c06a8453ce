"""The interpreter: every statement, wrong results of illegal schedules, argument errors."""

# ruff: noqa: E731

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import funcs, function, random_args, random_func, stage

from metasched.errors import InterpretError
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.dtype import VOID, DType
from metasched.ir.expr import (
    FALSE,
    TRUE,
    Broadcast,
    Let,
    Select,
    Var,
    as_expr,
    cast,
    logical_and,
)
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.interp import run
from metasched.ir.op import Ramp, Shuffle, call
from metasched.ir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    Block,
    BlockRealize,
    Break,
    BufferStore,
    Continue,
    DeclBuffer,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IterKind,
    IterVar,
    LetStmt,
    MatchBufferRegion,
    Return,
    While,
    evolve,
    seq,
)
from metasched.ir.verify import verify
from metasched.ir.visit import transform
from metasched.runtime.build import build
from metasched.script import parse

i, j, k = Var("i"), Var("j"), Var("k")
ZERO = as_expr(0)


def store(buffer, value, *indices, mask=None):
    return BufferStore(buffer, as_expr(value, buffer.dtype), tuple(map(as_expr, indices)), mask)


def func(params, body, ret=VOID):
    return PrimFunc(tuple(params), body, ret_type=DType(ret))


def loop(var, n, body, kind=ForKind.SERIAL, **kw):
    return evolve(For.serial(var, n, body), kind=kind, **kw)


def with_kinds(f, kinds):
    """`f` with the kinds of some loops changed, by the names of their variables."""

    def on(node):
        if isinstance(node, For) and node.var.name in kinds:
            return evolve(node, kind=kinds[node.var.name])
        return None

    return f.with_body(transform(f.body, on))


def matmul(n=6, dtype="float32"):
    a, b, c = (Buffer.of(x, (n, n), dtype) for x in "ABC")
    value = lambda i, j, k: c[i, j] + a[i, k] * b[k, j]
    axes = [("i", n, "S"), ("j", n, "S"), ("k", n, "R")]
    return function([a, b, c], [stage("C", axes, c, lambda i, j, k: (i, j), value, 0)], [])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int32", "uint8"])
def test_matmul_agrees_with_numpy(dtype):
    f = matmul(dtype=dtype)
    a, b, c = random_args(f, random.Random(1))
    run(f, a, b, c)
    assert c.dtype == dtype and np.array_equal(c, (a @ b).astype(dtype))


@given(funcs(), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_results_are_deterministic_and_defined(f, seed):
    verify(f)
    args = random_args(f, random.Random(seed))
    again = [a.copy() for a in args]
    run(f, *args, check_undefined=True)
    run(f, *again, seed=seed + 1)
    for a, b in zip(args, again, strict=True):
        assert np.array_equal(a, b)


@given(funcs(), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_spatial_loops_may_run_in_any_order(f, seed):
    args = random_args(f, random.Random(seed))
    again = [a.copy() for a in args]
    run(f, *args)
    shuffled = with_kinds(f, {"i": ForKind.PARALLEL})
    run(shuffled, *again, seed=seed)
    for a, b in zip(args, again, strict=True):
        assert np.array_equal(a, b)


def test_an_illegal_parallel_loop_gives_wrong_results():
    a = Buffer.of("A", (8,), "int32")
    body = store(a, a[i - 1] + 1, i)
    serial = func([a], evolve(loop(i, 7, body), min=as_expr(1)))
    x, y = np.zeros(8, "int32"), np.zeros(8, "int32")
    run(serial, x)
    assert x.tolist() == list(range(8))
    run(with_kinds(serial, {"i": ForKind.PARALLEL}), y)
    assert y.tolist() != x.tolist()


def test_an_illegal_vectorized_loop_gives_wrong_results():
    a = Buffer.of("A", (8,), "int32")
    serial = func([a], evolve(loop(i, 7, store(a, a[i - 1] + 1, i)), min=as_expr(1)))
    y = np.zeros(8, "int32")
    run(with_kinds(serial, {"i": ForKind.VECTORIZED}), y)
    assert y.tolist() == [0, 1, 1, 1, 1, 1, 1, 1]


def test_a_parallel_reduction_gives_wrong_results():
    f = with_kinds(matmul(4), {"k": ForKind.PARALLEL})
    a, b, c = random_args(f, random.Random(1))
    a[:], b[:] = 1, 1
    run(f, a, b, c)
    assert not np.array_equal(c, a @ b)


def test_lanes_finish_a_statement_before_the_next():
    """a[i] = i; b[i] = a[7 - i]: only in lockstep does every lane see all of a."""
    a, b = (Buffer.of(x, (8,), "int32") for x in "AB")
    body = seq([store(a, i, i), store(b, a[7 - i], i)])
    f = func([a, b], loop(i, 8, body, ForKind.VECTORIZED))
    x, y = np.zeros((2, 8), "int32")
    run(f, x, y)
    assert y.tolist() == list(range(7, -1, -1))


def test_lockstep_through_every_statement():
    """Private memory, masks, inner loops with lane-dependent extents, lets, whiles."""
    a = Buffer.of("A", (4,), "int32")
    t, n = Buffer.of("t", (1,), "int32"), Var("n")
    count = loop(j, i, store(t, t[0] + j + 1, 0))
    odd = IfThenElse(call("bitwise_and", i, 1) > 0, store(t, t[0] * 10, 0), store(t, t[0] + 1, 0))
    drain = While(t[0] > 40, store(t, t[0] - 40, 0))
    inner = seq([store(t, 0, 0), count, odd, drain, LetStmt(n, t[0] * 2, store(a, n, i))])
    body = AttrStmt(None, "x", ZERO, Allocate(t, seq([inner, AssertStmt(t[0] >= 0, "t")])))
    f = func([a], loop(i, 4, body, ForKind.VECTORIZED))
    x, y = np.zeros((2, 4), "int32")
    run(f, x)
    run(with_kinds(f, {"i": ForKind.SERIAL}), y)
    assert x.tolist() == y.tolist() == [2, 20, 8, 40]


def test_blocks_in_lockstep():
    f = matmul(4)
    g = with_kinds(f, {"j": ForKind.VECTORIZED})
    a, b, c = random_args(f, random.Random(3))
    run(g, a, b, c)
    assert np.array_equal(c, a @ b)


def test_threads_with_a_barrier_run_side_by_side():
    a, b, shared = (Buffer.of(x, (8,), "int32") for x in "ABs")
    sync = Evaluate(call("tvm_storage_sync", "shared", dtype="int32"))
    body = seq([store(shared, a[i], i), sync, store(b, shared[7 - i], i)])
    threads = loop(i, 8, body, ForKind.THREAD_BINDING, thread="threadIdx.x")
    x, y = np.arange(8, dtype="int32"), np.zeros(8, "int32")
    run(func([a, b], Allocate(shared, threads)), x, y)
    assert y.tolist() == x[::-1].tolist()


def test_lanes_leave_a_loop_by_a_jump_each_for_itself():
    a = Buffer.of("A", (4,), "int32")
    counted = loop(j, 8, seq([IfThenElse(j >= i, Break()), store(a, a[i] + 1, i)]))
    x = np.zeros(4, "int32")
    run(func([a], loop(i, 4, counted, ForKind.VECTORIZED)), x)
    assert x.tolist() == [0, 1, 2, 3]


def test_threads_wait_in_no_loop_that_they_leave_by_a_jump():
    """One thread after the other would pass the barrier alone."""
    a = Buffer.of("A", (4,), "int32")
    sync = Evaluate(call("tvm_storage_sync", "shared", dtype="int32"))
    waiting = loop(j, 8, seq([IfThenElse(j >= i, Break()), sync, store(a, a[3 - i] + 1, i)]))
    threads = loop(i, 4, waiting, ForKind.THREAD_BINDING, thread="threadIdx.x")
    with pytest.raises(InterpretError, match="Break cannot run in lockstep"):
        run(func([a], threads), np.zeros(4, "int32"))


def test_a_reduction_across_threads_runs_in_order():
    f = matmul(4)

    def on(node):
        if isinstance(node, For) and node.var.name == "k":
            return evolve(node, kind=ForKind.THREAD_BINDING, thread="threadIdx.x")
        return None

    g = f.with_body(transform(f.body, on))
    verify(g)
    a, b, c = random_args(f, random.Random(3))
    run(g, a, b, c)
    assert np.array_equal(c, a @ b)


def test_the_attribute_form_of_threads():
    a, tx = Buffer.of("A", (4,), "int32"), Var("tx")
    f = func([a], AttrStmt(tx, "thread_extent", as_expr(4), store(a, tx * 2, tx)))
    x = np.zeros(4, "int32")
    run(f, x)
    assert x.tolist() == [0, 2, 4, 6]


def test_fresh_memory_is_undefined():
    a, t = Buffer.of("A", (2,)), Buffer.of("t", (2,))
    f = func([a], Allocate(t, loop(i, 2, store(a, t[i], i))))
    x = np.zeros(2, "float32")
    run(f, x)
    assert np.isnan(x).all()
    with pytest.raises(InterpretError, match=r"t\[0\] is read but was never written"):
        run(f, x, check_undefined=True)
    n, u = Buffer.of("A", (2,), "int16"), Buffer.of("t", (2,), "int16")
    y = np.zeros(2, "int16")
    run(func([n], Allocate(u, loop(i, 2, store(n, u[i], i)))), y)
    assert (y == np.int16(0xA5A5 - 0x10000)).all()


def test_init_runs_at_the_minimum_of_the_reduce_domain():
    a, s = Buffer.of("A", (8,), "int32"), Buffer.of("S", (1,), "int32")
    vk = Var("vk")
    block = Block(
        "s", (IterVar(vk, Range.of(2, 6), IterKind.REDUCE),), (BufferRegion.point(a, [vk]),),
        (BufferRegion.point(s, [ZERO]),), store(s, s[0] + a[vk], 0), store(s, 0, 0),
    )  # fmt: skip
    f = func([a, s], loop(k, 6, BlockRealize((k + 2,), TRUE, block)))
    x, y = np.arange(8, dtype="int32"), np.full(1, 99, "int32")
    run(f, x, y)
    assert y[0] == sum(range(2, 8))


def test_predicates_and_domains():
    a, v = Buffer.of("A", (5,), "int32"), Var("v")
    block = Block(
        "b", (IterVar(v, Range.of(0, 5)),), (), (BufferRegion.point(a, [v]),), store(a, 1, v)
    )
    guarded = func([a], loop(i, 8, BlockRealize((i,), i < 5, block)))
    x = np.zeros(5, "int32")
    run(guarded, x)
    assert x.sum() == 5
    with pytest.raises(InterpretError, match="iterator v = 5 is outside its domain"):
        run(func([a], loop(i, 8, BlockRealize((i,), TRUE, block))), x)


def test_matched_buffers_are_views():
    a = Buffer.of("A", (4, 6), "int32")
    s0, s1, off = Var("s0"), Var("s1"), Var("off")
    w = Buffer.of("W", (2, 3), "int32", strides=[s0, s1], elem_offset=off)
    row = Buffer.of("R", (3,), "int32")
    v = Var("v")
    box = BufferRegion(a, (Range.of(v * 2, 2), Range.of(1, 3)))
    line = BufferRegion(a, (Range.of(v * 2, 1), Range.of(3, 3)))
    body = seq([store(w, s0 * 100 + off, 1, 2), store(row, s1, 2)])
    matches = (MatchBufferRegion(w, box), MatchBufferRegion(row, line))
    block = Block("b", (IterVar(v, Range.of(0, 2)),), (), (box, line), body, None, (), matches)
    f = func([a], loop(i, 2, BlockRealize((i,), TRUE, block)))
    verify(f)
    x = np.zeros((4, 6), "int32")
    run(f, x)
    expected = np.zeros((4, 6), "int32")
    expected[1, 3], expected[3, 3] = 601, 613
    expected[0, 5] = expected[2, 5] = 1
    assert np.array_equal(x, expected)


@pytest.mark.parametrize(
    ("match", "message"),
    [
        (lambda a: (Buffer.of("W", (2,), "int32"), (Range.of(3, 2),)), r"W matches .* is outside"),
        (lambda a: (Buffer.of("W", (3,), "int32"), (Range.of(0, 2),)), "extent 0 of W is 2"),
        (
            lambda a: (Buffer.of("W", (2,), "int32", strides=[2]), (Range.of(0, 2),)),
            "stride 0 of W is 1",
        ),
    ],
)
def test_bad_matches(match, message):
    a = Buffer.of("A", (4,), "int32")
    w, region = match(a)
    block = Block(
        "b", (), (), (), store(w, 1, 0), None, (), (MatchBufferRegion(w, BufferRegion(a, region)),)
    )
    with pytest.raises(InterpretError, match=message):
        run(func([a], BlockRealize.plain(block)), np.zeros(4, "int32"))


def test_declared_views():
    a = Buffer.of("A", (2, 4), "float32")
    flat, strided = Buffer.of("F", (8,)), Buffer.of("S", (2, 2), strides=[4, 2], elem_offset=1)
    bits = Buffer.of("B", (8,), "int32")
    body = seq([store(flat, 7.0, 6), store(strided, 5.0, 1, 0), store(bits, 0x3F800000, 0)])
    f = func([a], DeclBuffer(flat, a, DeclBuffer(strided, a, DeclBuffer(bits, a, body))))
    x = np.zeros((2, 4), "float32")
    run(f, x)
    assert x.tolist() == [[1, 0, 0, 0], [0, 5, 7, 0]]
    big = Buffer.of("G", (9,))
    with pytest.raises(InterpretError, match="G reaches element 8 of memory that has 8"):
        run(func([a], DeclBuffer(big, a, store(big, 0, 0))), x)


def test_control_flow():
    a = Buffer.of("A", (10,), "int32")
    leave = IfThenElse(i >= 7, Break())
    skip = IfThenElse(call("bitwise_and", i, 1) > 0, Continue())
    f = func([a], loop(i, 10, seq([leave, skip, store(a, i + 1, i)])))
    x = np.zeros(10, "int32")
    run(f, x)
    assert x.tolist() == [1, 0, 3, 0, 5, 0, 7, 0, 0, 0]
    n = Buffer.of("N", (1,), "int32")
    count = func([n], While(n[0] < 5, store(n, n[0] + 1, 0)))
    y = np.zeros(1, "int32")
    run(count, y)
    assert y[0] == 5


def test_loops_with_steps_and_without_iterations():
    a = Buffer.of("A", (10,), "int32")
    x = np.zeros(10, "int32")
    run(
        func([a], For(i, as_expr(1), as_expr(3), ForKind.SERIAL, store(a, 1, i), step=as_expr(4))),
        x,
    )
    assert x.tolist() == [0, 1, 0, 0, 0, 1, 0, 0, 0, 1]
    run(func([a], loop(i, 0, store(a, 9, i, mask=None))), x)
    run(func([a], loop(i, -3, store(a, 9, i))), x)
    assert 9 not in x


def test_returns():
    f = func([i], seq([IfThenElse(i > 3, Return(i * 2)), Return(i)]), "int32")
    assert run(f, 5) == 10 and run(f, 2) == 2
    assert run(func([i], Evaluate(call("ret", i + 1)), "int32"), 1) == 2


def test_let_select_and_lazy_choice():
    a = Buffer.of("A", (2,), "int32")
    x = np.array([4, 5], "int32")
    lazy = call("if_then_else", logical_and(i >= 0, i < 2), a[i], as_expr(-1))
    assert run(func([a, i], Return(lazy), "int32"), x, 7) == -1
    with pytest.raises(InterpretError, match=r"A\[7\] is outside the buffer of shape \(2,\)"):
        run(func([a, i], Return(Select(i < 2, a[i], as_expr(-1))), "int32"), x, 7)
    assert run(func([i], Return(Let(j, i + 1, j * j)), "int32"), 2) == 9


@pytest.mark.parametrize("where", [(-1,), (4,), (0, -1), (2, 0), (0, 0, 9), (-1, 0, 0)])
def test_accesses_outside_name_buffer_index_and_shape(where):
    shape = (2,) * len(where)
    a = Buffer.of("A", shape, "int32")
    x = np.zeros(shape, "int32")
    spot = ", ".join(map(str, where))
    message = rf"A\[{spot}\] is outside the buffer of shape \({', '.join(['2'] * len(where))}"
    with pytest.raises(InterpretError, match=message):
        run(func([a], store(a, 1, *where)), x)
    with pytest.raises(InterpretError, match=message):
        run(func([a], Evaluate(a[tuple(as_expr(w) for w in where)])), x)
    assert not x.any()


def test_vectors():
    a, b = Buffer.of("A", (8,)), Buffer.of("B", (8,))
    even = Ramp(ZERO, as_expr(2), 4)
    first = Ramp(ZERO, as_expr(1), 4)
    mask = first < 3
    picked = Shuffle([a[first], a[even]], [7, 0, 5, 2])
    body = seq(
        [
            store(b, a[even] * 2.0, first),
            store(b, Broadcast(as_expr(9.0), 4), first + 4, mask=mask),
            store(a, picked, first),
        ]
    )
    x, y = np.arange(8, dtype="float32"), np.zeros(8, "float32")
    run(func([a, b], body), x, y)
    assert y.tolist() == [0, 4, 8, 12, 9, 9, 9, 0]
    assert x.tolist() == [6, 0, 2, 2, 4, 5, 6, 7]


def test_masked_lanes_are_not_touched():
    a = Buffer.of("A", (3,), "int32")
    lanes = Ramp(ZERO, as_expr(1), 4)
    load = BufferLoad(a, [lanes], lanes < 3)
    total = Buffer.of("B", (4,), "int32")
    x, y = np.arange(3, dtype="int32"), np.zeros(4, "int32")
    run(func([a, total], store(total, load, lanes)), x, y)
    assert y.tolist()[:3] == [0, 1, 2]
    with pytest.raises(InterpretError, match=r"A\[\[0, 1, 2, 3\]\] is outside"):
        run(func([a], Evaluate(a[lanes])), x)


def test_buffers_of_vectors():
    a = Buffer.of("A", (2,), "float32x4")
    f = func([a], store(a, a[0] + a[1], 1))
    x = np.arange(8, dtype="float32").reshape(2, 4)
    run(f, x)
    assert x[1].tolist() == [4, 6, 8, 10]


@pytest.mark.parametrize("extent, n", [
    ("n + 1", 6), ("1 + n", 6), ("n - 2", 9), ("20 - n", 13), ("3 * n", None), ("n * 7", 1),
    ("(n + 1) * 7 - 7", 1), ("n + m", 4), ("n * m", None),
])  # fmt: skip
def test_an_extent_is_solved_for_its_new_variable(extent, n):
    """Row pointers have one element more than the rows: `(n + 1,)` alone gives n."""
    func = parse(f"""
@T.prim_func
def f(p: T.handle, q: T.handle):
    n, m = T.int32(), T.int32()
    P = T.match_buffer(p, ({extent},), "int32")
    Q = T.match_buffer(q, (m,), "int32")
    Q[0] = n
""")
    pointers, found = np.zeros(7, np.int32), np.zeros(3, np.int32)
    if n is None:
        with pytest.raises(InterpretError, match="extent 0 of P is 7, declared as"):
            run(func, pointers, found)
        return
    run(func, pointers, found)
    assert found[0] == n
    compiled = np.zeros(3, np.int32)
    build(func)(pointers, compiled)
    assert compiled[0] == n


def test_symbolic_extents_come_from_the_arrays():
    n = Var("n")
    a, b = Buffer.of("A", (n, n + 1)), Buffer.of("B", (n * 2,))
    f = func([b, a], loop(i, n, store(b, a[i, n] + cast("float32", n), i)))
    x, y = np.ones((3, 4), "float32"), np.zeros(6, "float32")
    run(f, y, x)
    assert y.tolist() == [4, 4, 4, 0, 0, 0]
    with pytest.raises(InterpretError, match="extent 0 of B is 5, declared as"):
        run(f, np.zeros(5, "float32"), x)


@pytest.mark.parametrize("n", [3, 0, -1, -100, -(10**6)])
def test_memory_of_an_extent_below_zero_is_empty(n):
    """A step such as `reindex` adds memory of as many elements as a loop has iterations."""
    func = parse("""
@T.prim_func
def f(A: T.Buffer((4,), "int32"), B: T.Buffer((1,), "int32"), n: T.int32):
    C = T.alloc_buffer((n, 1000), "int32")
    for i in range(n):
        with T.block("C"):
            vi = T.axis.spatial(n, i)
            C[vi, 0] = A[vi]
    for i in range(n):
        with T.block("B"):
            vi = T.axis.spatial(n, i)
            T.reads(C[vi, 0])
            T.writes(B[0])
            B[0] = B[0] + C[vi, 0]
""")
    a, got, compiled = np.arange(4, dtype=np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32)
    run(func, a, got, n)
    build(func)(a, compiled, n)
    assert got[0] == compiled[0] == sum(range(max(n, 0)))


def test_scalars_and_modules():
    a, x = Buffer.of("A", (1,)), Var("x", "float16")
    f = func([a, x], store(a, cast("float32", x), 0))
    out = np.zeros(1, "float32")
    run(IRModule.of({"f": f, "g": matmul()}), out, 0.1, name="f")
    assert out[0] == np.float32(np.float16(0.1))
    with pytest.raises(InterpretError, match="x: 70000 does not fit in float16"):
        run(f, out, 70000)
    with pytest.raises(InterpretError, match="has 2 functions; choose one"):
        run(IRModule.of({"f": f, "g": f}))
    with pytest.raises(InterpretError, match="no function 'h'"):
        run(IRModule.of(f), name="h")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "2 arguments expected, 0 given"),
        ((np.zeros(2, "int32"), 1), "A is float32, not int32"),
        (([1.0], 1), "A is a buffer, list was given"),
        ((np.zeros((2, 2), "float32")[:, ::2], 1), "A has 1 dimensions, the array 2"),
        ((np.zeros(3, "float32"), 1), "extent 0 of A is 3, declared as 2"),
        ((np.zeros(2, "float32"), 300), "i: 300 does not fit in int8"),
        ((np.zeros(2, "float32"), np.zeros(2)), "i is a scalar of type int8"),
    ],
)
def test_arguments_that_do_not_fit(args, message):
    a, n = Buffer.of("A", (2,)), Var("i", "int8")
    with pytest.raises(InterpretError, match=message):
        run(func([a, n], Evaluate(ZERO)), *args)


def test_flat_parameters_take_arrays_of_any_rank():
    a = Buffer.of("A", (6,), "int32")
    x = np.zeros((2, 3), "int32")
    run(func([a], store(a, 4, 5)), x)
    assert x[1, 2] == 4


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda: AssertStmt(FALSE, "told you"), "assertion failed: told you"),
        (lambda: Evaluate(i // ZERO), "integer division of 1 by zero"),
        (lambda: Evaluate(j), "variable j is used where it has no value"),
        (lambda: Evaluate(call("call_extern", "f", dtype="int32")), "call_extern cannot be interp"),
        (lambda: Evaluate(call("address_of", i, dtype="handle")), "address_of cannot be interp"),
        (lambda: Evaluate(Buffer.of("B", (1,))[0]), "buffer B has no memory here"),
        (lambda: loop(j, 2, Break(), ForKind.VECTORIZED), "Break cannot run in lockstep"),
        (lambda: Evaluate(call("shift_left", i, 40)), "a shift of int32 by 40"),
    ],
)
def test_interpreter_refuses_meaningless_operations(body, message):
    with pytest.raises(InterpretError, match=message):
        run(func([i], body()), 1)


def test_foreign_code_that_does_not_run_is_no_error():
    foreign = Evaluate(call("call_extern", "f", dtype="int32"))
    run(func([i], IfThenElse(i > 5, foreign)), 1)
    hints = [
        Evaluate(call("prefetch", call("address_of", i, dtype="handle"), dtype="int32")),
        Evaluate(call("assume", i > 5)),
        IfThenElse(call("likely", i > 0), Evaluate(ZERO)),
    ]
    run(func([i], seq(hints)), 1)


def test_deep_sums_do_not_overflow_the_stack():
    total = i
    for n in range(3000):
        total = total + call("bitwise_and", i, n)
    assert run(func([i], Return(total), "int32"), 1) == 1 + 1500


def test_random_programs_keep_their_number():
    """The generator is stable: recorded seeds elsewhere stay meaningful within one run."""
    first, second = (random_func(random.Random(7)) for _ in range(2))
    assert [p.name for p in first.params] == [p.name for p in second.params]


def copy_func(reads, writes, value):
    a, b, v = Buffer.of("A", (8,)), Buffer.of("B", (8,)), Var("v")
    block = Block(
        "copy", (IterVar(v, Range.of(0, 4)),), (BufferRegion(a, (reads(v),)),),
        (BufferRegion(b, (writes(v),)),), BufferStore(b, a[value(v)], (v,)),
    )  # fmt: skip
    root = Block("root", (), (), (), loop(i, 4, BlockRealize((i,), TRUE, block)))
    return func([a, b], BlockRealize.plain(root))


@pytest.mark.parametrize("kind", [ForKind.SERIAL, ForKind.VECTORIZED])
def test_check_regions_finds_undeclared_accesses(kind):
    good = copy_func(lambda v: Range.of(v, 2), lambda v: Range.of(v, 1), lambda v: v + 1)
    reads = copy_func(lambda v: Range.of(v, 1), lambda v: Range.of(v, 1), lambda v: v // 2)
    writes = copy_func(lambda v: Range.of(0, 8), lambda v: Range.of(0, 3), lambda v: v)
    x, y = np.ones((2, 8), "float32")
    run(with_kinds(good, {"i": kind}), x, y, check_regions=True)
    with pytest.raises(InterpretError, match=r"block copy reads A\[0\] outside .* \(A\[v\]\)"):
        run(with_kinds(reads, {"i": kind}), x, y, check_regions=True)
    with pytest.raises(InterpretError, match=r"block copy writes B\[3\] outside"):
        run(with_kinds(writes, {"i": kind}), x, y, check_regions=True)
    run(writes, x, y)


@pytest.mark.parametrize(
    ("reads", "inside"),
    [
        ("A[vi, vj]", True),
        ("A[vi, 0:8]", True),
        ("A[vi, vj + 1:8]", False),  # from the second index on
        ("A[vi + 1, vj]", False),
        ("A[vi, vj:vj + n]", True),
        ("A[vi, vj:vj + n - 1]", False),  # no element
        ("A[vi + 1, vj], A[vi, vj]", True),  # the second of two regions
        ("A[vi + 1, vj], A[vi, vj + 1]", False),
    ],
)
def test_each_index_is_compared_with_its_range(reads, inside):
    func = parse(f"""
@T.prim_func
def f(A: T.Buffer((8, 8), "int32"), B: T.Buffer((8,), "int32"), n: T.int32):
    for i, j in T.grid(2, 3):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.reads({reads})
            T.writes(B[vi])
            B[vi] = A[vi, vj]
""")
    for checked in (func, with_kinds(func, {"j": ForKind.VECTORIZED})):
        arrays = np.arange(64, dtype="int32").reshape(8, 8), np.zeros(8, "int32")
        if inside:
            run(checked, *arrays, 1, check_regions=True)
            assert arrays[1].tolist() == [2, 10, *[0] * 6]
        else:
            with pytest.raises(InterpretError, match=r"block B reads A\[0, 0\] outside its decl"):
                run(checked, *arrays, 1, check_regions=True)


def test_loads_in_region_bounds_are_no_accesses_of_a_block():
    """Random machine, case 62010077: a load in the outer declaration is not checked by the inner
    fence, which does not declare I[1]."""
    text = """
@T.prim_func
def f(A: T.Buffer((4,), "float32"), I: T.Buffer((2,), "int32"), B: T.Buffer((4,), "float32")):
    with T.block("outer"):
        T.reads(A[T.min(I[0], I[1]):4], I[0:2])
        T.writes(B[0])
        with T.block("inner"):
            T.reads(A[I[0]], I[0])
            T.writes(B[0])
            B[0] = A[I[0]]
"""
    rows, where, got = np.arange(4, dtype="float32"), np.array([2, 1], "int32"), np.zeros(4, "f4")
    run(parse(text), rows, where, got, check_regions=True)
    assert got[0] == 2


@given(funcs())
@settings(max_examples=20, deadline=None)
def test_random_programs_keep_their_contracts(f):
    run(f, *random_args(f, random.Random(0)), check_undefined=True, check_regions=True)

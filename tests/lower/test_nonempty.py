"""Assertions that the reductions of a kernel have an iteration for each result."""

import numpy as np
import pytest

import metasched as ms
from metasched.errors import InterpretError, KernelError, MetaschedError
from metasched.ir.describe import show_expr
from metasched.ir.interp import run
from metasched.ir.stmt import AssertStmt
from metasched.ir.visit import walk_stmts
from metasched.lower.passes.nonempty import assert_lengths
from metasched.script import parse
from metasched.script import tir as T


@T.prim_func
def product(a: T.handle, b: T.handle, c: T.handle):
    m, n, k = T.int32(), T.int32(), T.int32()
    A = T.match_buffer(a, (m, k), "float32")
    B = T.match_buffer(b, (k, n), "float32")
    C = T.match_buffer(c, (m, n), "float32")
    for i, j, p in T.grid(m, n, k):
        with T.block("C"):
            vi, vj, vp = T.axis.remap("SSR", [i, j, p])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] += A[vi, vp] * B[vp, vj]


@T.prim_func
def squares(a: T.handle, c: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n, n), "float32")
    C = T.match_buffer(c, (n,), "float32")
    for i, p in T.grid(n, n):
        with T.block("C"):
            vi, vp = T.axis.remap("SR", [i, p])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] += A[vi, vp] * A[vi, vp]


@T.prim_func
def inner(a: T.handle, c: T.Buffer((3,), "float32")):
    n = T.int32()
    A = T.match_buffer(a, (3, n), "float32")
    for i, p in T.grid(3, n - 2):
        with T.block("C"):
            vi, vp = T.axis.remap("SR", [i, p])
            with T.init():
                c[vi] = T.float32(0)
            c[vi] += A[vi, vp + 1]


@T.prim_func
def chosen(a: T.handle, c: T.Buffer((3,), "float32"), low: T.int32):
    n = T.int32()
    A = T.match_buffer(a, (3, n), "float32")
    for i, p in T.grid(3, n):
        with T.block("C"):
            vi, vp = T.axis.remap("SR", [i, p])
            T.where(low + p < 5)
            with T.init():
                c[vi] = T.float32(0)
            c[vi] += A[vi, vp]


@T.prim_func
def triangle(a: T.handle, c: T.Buffer((3,), "float32")):
    n = T.int32()
    A = T.match_buffer(a, (3, n + 3), "float32")
    for i in range(3):
        for p in range(n + i):
            with T.block("C"):
                vi = T.axis.spatial(3, i)
                vp = T.axis.reduce(n + 3, p)
                with T.init():
                    c[vi] = T.float32(0)
                c[vi] += A[vi, vp]


@T.prim_func
def whole(A: T.Buffer((3, 4), "float32"), C: T.Buffer((3,), "float32"), n: T.int32):
    for i, p in T.grid(3, 4):
        with T.block("C"):
            vi, vp = T.axis.remap("SR", [i, p])
            with T.init():
                C[vi] = T.cast(n, "float32")
            C[vi] += A[vi, vp]


@T.prim_func
def rows(indptr: T.handle, a: T.handle, c: T.handle):
    n, m = T.int32(), T.int32()
    P = T.match_buffer(indptr, (n + 1,), "int32")
    A = T.match_buffer(a, (m,), "float32")
    C = T.match_buffer(c, (n,), "float32")
    for i in range(n):
        for p in range(P[i + 1] - P[i]):
            with T.block("C"):
                vi = T.axis.spatial(n, i)
                vp = T.axis.reduce(m, P[i] + p)
                with T.init():
                    C[vi] = T.float32(0)
                C[vi] += A[vp]


@T.prim_func
def repeated(a: T.handle, c: T.Buffer((3,), "float32"), times: T.int32):
    n = T.int32()
    A = T.match_buffer(a, (3, n), "float32")
    for t, i, p in T.grid(times, 3, n):
        with T.block("C"):
            vi, vp = T.axis.remap("SR", [i, p])
            with T.init():
                c[vi] = T.float32(0)
            c[vi] += A[vi, vp]


def steps_of(name):
    """A schedule of the product after one step; the name says which."""
    sch = ms.Schedule(product)
    block = sch.get_block("C")
    i, j, p = sch.get_loops(block)
    STEPS[name](sch, block, i, j, p)
    return sch


STEPS = {
    "as_written": lambda s, b, i, j, p: None,
    "fuse": lambda s, b, i, j, p: s.fuse(i, j, p),
    "cache_write": lambda s, b, i, j, p: s.cache_write(b, 0, "global"),
    "pad_einsum": lambda s, b, i, j, p: s.pad_einsum(b, [4, 4, 4]),
    "reindex": lambda s, b, i, j, p: s.reindex(b, ("write", 0)),
    "split": lambda s, b, i, j, p: s.split(p, [None, 4]),
    "rfactor": lambda s, b, i, j, p: s.rfactor(p, 0),
    "parallel": lambda s, b, i, j, p: s.parallel(i),
}
INIT_APART = {
    "blockize": lambda s, b, i, j, p: s.blockize(p),
    "decompose_reduction": lambda s, b, i, j, p: s.decompose_reduction(b, i),
    "between": lambda s, b, i, j, p: s.decompose_reduction(b, p),
    "cached": lambda s, b, i, j, p: (s.cache_write(b, 0, "global"), s.decompose_reduction(b, i)),
}
STEPS |= INIT_APART


def operands(m: int, n: int, k: int) -> list[np.ndarray]:
    given = [np.ones(shape, "float32") for shape in ((m, k), (k, n))]
    return [*given, np.full((m, n), 7, "float32")]


@pytest.mark.parametrize("name", STEPS)
def test_a_kernel_refuses_a_reduction_without_an_iteration(name):
    """An init that is a block of its own gives the result of no iteration."""
    kernel = ms.build(steps_of(name))
    sizes = [(2, 3, 5), (0, 3, 5), (2, 0, 0), (0, 0, 0), (5, 9, 1)]
    if name in INIT_APART:
        sizes.append((2, 3, 0))
    else:
        with pytest.raises(KernelError, match=r"C(_rf)? has no result: .*; pass larger extents"):
            kernel(*operands(2, 3, 0))
    for size in sizes:
        given = operands(*size)
        kernel(*given)
        np.testing.assert_array_equal(given[2], given[0] @ given[1])


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("size", [(2, 3, 0), (2, 3, 5), (0, 3, 0), (2, 0, 0), (2, 3, 1)])
def test_the_interpreter_refuses_the_calls_that_the_kernel_refuses(name, size):
    sch, outcomes = steps_of(name), []
    for call in (ms.build(sch), lambda *given: run(sch.mod, *given)):
        given = operands(*size)
        try:
            call(*given)
        except MetaschedError as error:
            outcomes.append(str(error).partition("C has no result: ")[2] or str(error))
        else:
            outcomes.append(given[2].tolist())
    assert outcomes[0] == outcomes[1]


def test_rows_of_which_none_is_asked_for_need_no_iteration():
    given = [np.ones((3, 0), "float32"), np.full(3, 7, "float32"), 0]
    run(repeated, *given)
    assert given[1].tolist() == [7, 7, 7]
    with pytest.raises(InterpretError, match="C has no result: the loop p has no iteration"):
        run(repeated, *given[:2], 1)


def test_the_message_names_the_loop():
    message = "product: assertion failed: C has no result: the loop p has no iteration; "
    with pytest.raises(KernelError, match=message):
        ms.build(product)(*operands(2, 3, 0))


@pytest.mark.parametrize(
    ("func", "conditions"),
    [
        (product, ["m <= 0 or n <= 0 or k >= 1"]),
        (squares, []),
        (inner, ["n - 2 >= 1"]),
        (chosen, ["n >= 1", "low + 0 < 5"]),
        (triangle, ["n >= 1"]),
        (whole, []),
        (rows, []),
        (repeated, ["times <= 0 or n >= 1"]),
    ],
)
def test_the_conditions_name_extents_and_scalars(func, conditions):
    made = [s for s in walk_stmts(assert_lengths(func).body) if isinstance(s, AssertStmt)]
    assert [show_expr(a.condition) for a in made] == conditions


def test_an_assertion_of_the_user_stops_no_step():
    @T.prim_func
    def checked(a: T.handle, c: T.Buffer((3,), "float32")):
        n = T.int32()
        A = T.match_buffer(a, (3, n), "float32")
        assert n % 4 == 0, "n is a multiple of 4"
        for i, p in T.grid(3, n):
            with T.block("C"):
                vi, vp = T.axis.remap("SR", [i, p])
                with T.init():
                    c[vi] = T.float32(0)
                c[vi] += A[vi, vp]

    sch = ms.Schedule(checked)
    block = sch.get_block("C")
    sch.rfactor(sch.split(sch.get_loops(block)[1], [None, 4])[0], 0)
    given = np.ones((3, 8), "float32"), np.zeros(3, "float32")
    run(sch.mod, *given)
    assert (given[1] == 8).all()


@T.prim_func
def delayed(var_A: T.handle, S: T.Buffer((3,), "float32")):
    m = T.int32()
    A = T.match_buffer(var_A, (3, m), "float32")
    for i, k in T.grid(3, m):
        with T.block("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + A[vi, vk]


def test_a_delayed_reduction_begins_after_its_first_iteration():
    sch = ms.Schedule(delayed)
    sch.delay(sch.get_loops("sum")[1], before=1, after=1)
    kernel = ms.build(sch)
    for length in (1, 5):
        assert kernel(np.ones((3, length), np.float32)).tolist() == [length] * 3
    with pytest.raises(KernelError, match="sum has no result: the iterator vk has no value"):
        kernel(np.ones((3, 0), np.float32))


def test_a_skewed_reduction_may_begin_late():
    """Each iteration of the outer loop sums the row again, from its own first iteration on."""

    @T.prim_func
    def func(a: T.handle, S: T.Buffer((3,), "int32")):
        m = T.int32()
        A = T.match_buffer(a, (3, m), "int32")
        for i, j, k in T.grid(3, m, m):
            with T.block("sum"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    S[vi] = 0
                S[vi] += A[vi, vk]

    sch = ms.Schedule(func)
    _, j, k = sch.get_loops("sum")
    sch.skew(j, k, -1)
    kernel = ms.build(sch)
    for length in (1, 4):
        found = np.zeros(3, "int32")
        kernel(np.ones((3, length), "int32"), found)
        assert found.tolist() == [length] * 3


@pytest.mark.parametrize(
    ("condition", "low"), [("p >= low", 4), ("p == low", 2), ("p != low", 0), ("low < p * 2", 7)]
)
def test_a_reduction_may_leave_its_first_iteration_out(condition, low):
    text = f"""
@T.prim_func
def func(A: T.Buffer((5,), "int32"), S: T.Buffer((1,), "int32"), low: T.int32):
    for i, p in T.grid(1, 5):
        with T.block("S"):
            vi, vp = T.axis.remap("SR", [i, p])
            T.where({condition})
            with T.init():
                S[vi] = 0
            S[vi] += A[vp]
"""
    kernel, found = ms.build(parse(text)), np.zeros(1, "int32")
    given = np.arange(1, 6, dtype="int32")
    kernel(given, found, low)
    assert found[0] == sum(given[p] for p in range(5) if eval(condition, {"p": p, "low": low}))
    if condition != "p != low":
        with pytest.raises(KernelError, match="S has no result: no iteration meets"):
            kernel(given, found, 9)

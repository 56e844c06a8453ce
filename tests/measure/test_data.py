"""Test data: when comparisons are exact, which inputs are drawn, what counts as equal."""

from __future__ import annotations

import dataclasses
import os
import resource
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure.programs import accumulate, elementwise, matmul, scale, under_root

from metasched.codegen.compile import compile_func
from metasched.ir.buffer import Buffer
from metasched.ir.expr import Cast, FloatImm, Max, Select, Var, as_expr
from metasched.ir.func import PrimFunc
from metasched.ir.op import call
from metasched.ir.stmt import BufferStore, For
from metasched.measure.data import Array, compare, fill, nudged
from metasched.measure.jobs import _resize
from metasched.measure.task import inexact_reason, make_task
from metasched.runtime.build import build
from metasched.script import parse
from metasched.target import Target
from metasched.workloads import get


def task_of(func, **given):
    compiled = compile_func(func, Target.native(), parallel=False)
    return make_task(func, compiled.signature, key="k", **given)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (lambda x: x + x * 3 - 2, ""),
        (lambda x: Max(x, FloatImm("float32", 0.0)), ""),
        (lambda x: Select(x > 0.0, x, -x), ""),
        (lambda x: call("abs", x), ""),
        (lambda x: Cast("float32", Cast("int32", x)), ""),
        (lambda x: call("exp", x), "exp"),
        (lambda x: x / 2, "division"),
        (lambda x: x * 0.1, "the constant 0.1"),
        (lambda x: call("call_extern", as_expr("f"), x, dtype="float32"), "call_extern"),
    ],
)
def test_inexact_programs_are_recognised(expression, reason):
    assert inexact_reason(elementwise(expression)) == reason


def test_narrow_floats_are_inexact_where_they_calculate():
    assert inexact_reason(matmul(4, "float16")) == "float16 arithmetic"
    wide = elementwise(lambda x: Cast("float16", Cast("float32", x) * 2), "float16")
    assert inexact_reason(wide) == ""


def test_initial_contents_and_poison():
    assert [a.initial for a in task_of(matmul(4)).arrays] == [True, True, False]
    assert [a.initial for a in task_of(accumulate()).arrays] == [True, True]
    assert [a.initial for a in task_of(scale()).arrays] == [True, False]


def test_domains_of_the_inputs():
    root = task_of(elementwise(lambda x: call("sqrt", x))).arrays[0]
    assert (root.low, root.high) == (1, 4)
    plain = task_of(scale()).arrays[0]
    assert (plain.low, plain.high) == (-4, 4)
    unsigned = task_of(elementwise(lambda x: x + x, "uint8")).arrays[0]
    assert (unsigned.low, unsigned.high) == (0, 4)
    boolean = task_of(elementwise(lambda x: x, "bool")).arrays[0]
    assert (boolean.low, boolean.high) == (0, 1)


def test_long_sums_of_products_stay_exact():
    """A serial float32 sum of 4096 x 1024 squares up to 16 stops growing right at 2^24."""
    for shape, most in (((1, 1024, 1024), 4), ((1, 4096, 1024), 2), ((1, 4096, 1025), 1)):
        assert task_of(get("nrm").func(shape)).arrays[0].high == most
    assert task_of(get("gmm").func((1, 8, 8, 1024))).arrays[0].low == -4


def test_bytes_whose_sums_are_integers_take_all_values():
    """A sum of products in 16 bits that saturates differs on large factors alone."""
    x, w, z = task_of(get("gmm_u8s8s32").func((1, 8, 8, 64))).arrays
    assert (x.low, x.high, w.low, w.high) == (0, 255, -128, 127) and x.halvings is None
    mean = elementwise(lambda v: v + 1, "uint8")  # no sum of integers
    assert task_of(mean).arrays[0].high == 4
    drawn = fill(x, task_of(get("gmm_u8s8s32").func((1, 8, 8, 64))), 0)
    assert drawn.dtype == np.uint8 and drawn.min() < 5 and drawn.max() > 250


@pytest.mark.parametrize("normal", [False, True])
@pytest.mark.parametrize(
    ("name", "shape"), [("qgmm", (1, 8, 64, 256)), ("qc2d_s8", (1, 8, 8, 64, 64, 3, 1, 1))]
)
def test_results_of_quantized_operators_do_not_all_saturate(name, shape, normal):
    work = get(name)
    task = task_of(work.func(shape))
    task = task.with_normal_data() if normal else task
    *inputs, s = [fill(a, task, n) for n, a in enumerate(task.arrays[:-1])]
    assert s.dtype == np.float32 and (normal or set(np.unique(np.log2(np.abs(s)) % 1)) == {0})
    found = work.reference(shape, *inputs, s)
    low, high = np.iinfo(found.dtype).min, np.iinfo(found.dtype).max
    between = (found > low) & (found < high)
    assert 0.2 < between.mean() and np.unique(found[between]).size > 50


def test_rounded_integers_may_differ_by_one_where_floats_differ():
    rounded = elementwise(lambda x: Cast("int32", call("nearbyint", call("exp", x))))
    assert task_of(rounded).arrays[1].rounded is False  # a float again
    array = Array("Y", "uint8", (3,), (1,), True, False, 0, 4, 2.0**-23, rounded=True)
    a, b = np.array([1, 2, 255], np.uint8), np.array([2, 1, 255], np.uint8)
    assert compare(array, a, b, exact=False)[0] == ""
    assert "Y[0] is 1, expected 2; 2 of 3" in compare(array, a, b, exact=True)[0]
    assert "by up to 2 (1 is allowed)" in compare(array, a, b + np.uint8([1, 0, 0]), False)[0]
    assert compare(dataclasses.replace(array, rounded=False), a, b, exact=False)[0]


def test_a_serial_sum_of_normal_data_is_within_its_tolerance():
    task = task_of(get("nrm").func((1, 4096, 1024))).with_normal_data()
    x = fill(task.arrays[0], task, 0).ravel()
    assert 60_000 < np.count_nonzero(x > 0.5) < 70_000 and x.min() > 0
    serial, exact = np.add.accumulate(x * x)[-1], np.square(x, dtype=np.float64).sum()
    assert abs(serial / exact - 1) < 64 * task.arrays[1].eps < 1e-4


@pytest.mark.parametrize("columns", [40_000, 128_256])
def test_a_serial_sum_of_exponentials_is_within_its_tolerance(columns):
    """Softmax over a vocabulary: the serial sum of equal terms was off by 1.7e-4, so every faster
    schedule counted as wrong."""
    task = task_of(get("sfm").func((2, columns)))
    assert not task.exact and task.rounded_terms == columns
    normal = task.with_normal_data()
    assert normal.arrays[1].eps == task.arrays[1].eps and normal.why == task.why
    for each in (task, normal):
        x = np.exp(fill(task.arrays[0], each, 0)[0])
        serial, exact = np.add.accumulate(x)[-1], x.sum(dtype=np.float64)
        allowed = 64 * task.arrays[1].eps
        assert abs(serial / exact - 1) < allowed / 2 and allowed < 1e-4


def test_sums_of_integers_stay_exact_beside_a_square_root():
    task = task_of(get("nrm").func((1, 256, 256)))
    assert not task.exact and (task.terms, task.rounded_terms) == (65536, 1)
    assert not (fill(task.arrays[0], task, 0) % 1).any()


SUMS = """
@T.prim_func
def f(x: T.handle, s: T.handle):
    n = T.int64()
    X = T.match_buffer(x, (n, 200))
    S = T.match_buffer(s, (n,))
    for i in range(n):
        S[i] = 0.0
        for j in range({low}, {high}):
            S[i] = S[i] + {term}
"""


@pytest.mark.parametrize(
    ("low", "high", "term", "expected"),
    [
        ("0", "200", "X[i, j]", (200, 1)),
        ("0", "200", "T.exp(X[i, j])", (200, 200)),
        ("0", "T.min(i, 199) + 1", "X[i, j]", (70, 1)),
        ("3", "n + 3", "X[i, j]", (70, 1)),
    ],
)
def test_the_length_of_a_sum_in_plain_loops_is_counted(low, high, term, expected):
    func = parse(SUMS.format(low=low, high=high, term=term))
    task = task_of(func, extents={"n": 70})
    assert (task.terms, task.rounded_terms) == expected


def test_division_by_loaded_integers_never_meets_zero():
    a = Buffer.of("A", (8,), "int32")
    b = Buffer.of("B", (8,), "int32")
    i = Var("i")
    body = For.serial(i, 8, BufferStore(b, as_expr(100) // a[i], (i,)))
    task = task_of(PrimFunc((a, b), under_root(body)))
    assert task.arrays[0].low == 1 and task.exact


def test_values_used_as_indices_stay_inside():
    a, b = Buffer.of("A", (3,)), Buffer.of("B", (8,))
    index = Buffer.of("I", (8,), "int32")
    i = Var("i")
    body = For.serial(i, 8, BufferStore(b, a[index[i]], (i,)))
    arrays = task_of(PrimFunc((a, index, b), under_root(body))).arrays
    assert (arrays[1].low, arrays[1].high) == (0, 2)


ROWS = """
@T.prim_func
def f(P: T.Buffer((31,), "int32"), I: T.Buffer((240,), "int32"), E: T.Buffer((100, 8)),
      L: T.Buffer((30,), "int32"), O: T.Buffer((30, 8))):
    for b in range(30):
        for {loop}:
            with T.block("O"):
                vb, vk = T.axis.spatial(30, b), T.axis.reduce(240, {value})
                O[vb, {column}] += E[I[vk], 0]
"""


@pytest.mark.parametrize(
    ("loop", "value", "column"),
    [
        ("k in range(P[b], P[b + 1])", "k", "0"),
        ("k in range(P[b + 1] - P[b])", "P[b] + k", "0"),
        ("k in range(L[b])", "k", "0"),
        ("k in range(P[b], P[b + 1])", "k", "I[vk] % 8"),
    ],
)
def test_bounds_of_rows_stay_inside(loop, value, column):
    func = parse(ROWS.format(loop=loop, value=value, column=column))
    task = task_of(func)
    ends, places, _, lengths, _ = [fill(array, task, n) for n, array in enumerate(task.arrays)]
    if "P" in loop:
        assert (np.diff(ends) >= 0).all() and ends.min() >= 0 and 200 < ends.max() <= 240
    else:
        assert lengths.min() >= 0 and 200 < lengths.max() <= 240
    assert places.min() >= 0 and places.max() == (99 if column == "0" else 4)
    build(func, check_bounds=True)(*[fill(array, task, n) for n, array in enumerate(task.arrays)])


ATTENDED = parse("""
@T.prim_func
def attended(
    n: T.int32, row: T.int64, steps: T.int32, scale: T.float32,
    x: T.Buffer((100,)), y: T.Buffer((7, 50)), o: T.Buffer((1,)),
):
    o[0] = 0.0
    for t in range(n):
        o[0] += x[t + 3] * scale
    for s in range(steps):
        o[0] = o[0] * 2.0
    o[0] = o[0] / T.float32(n) + y[row, 5]
""")


def test_a_scalar_that_bounds_loops_takes_the_largest_value_that_stays_inside():
    """With 2, the time of a short loop would decide between schedules."""
    values = dict(task_of(ATTENDED).values)
    assert values == {"n": 97, "row": 6, "steps": 2, "scale": 2}
    assert dict(task_of(ATTENDED, scalars={"n": 5}).values)["n"] == 5


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("if i < n:\n    S[i] = 1", 64),
        ("if n >= i + 3:\n    S[i] = 1", 66),
        ("if not (i * 2 >= n):\n    S[i] = 1", 127),
        ("if i >= n:\n    continue\nS[i] = 1", 64),
        ("S[i] = 1 if i >= n and i < 60 else 0", 0),
        ("S[i] = i % n if i >= n else 0", 2),  # a divisor
        ("if i + n < 70 or i < n:\n    S[i] = 1", 64),
        ("if n > 5:\n    S[i] = n", 6),
        ("if n < S[i]:\n    S[i] = n", 2),  # memory says how often
        ("if i < n:\n    S[n] = 1", 63),  # an index
        ("for j in range(n):\n    S[i] = j if j < n + 5 else 0", 2),
    ],
)
def test_a_scalar_in_a_condition_takes_the_value_of_the_most_work(body, value):
    func = parse(f"""
@T.prim_func
def f(S: T.Buffer((64,), "int32"), n: T.int32):
    for i in range(64):
{textwrap.indent(body, " " * 8)}
""")
    assert dict(task_of(func).values)["n"] == value


def test_a_large_scalar_that_floats_are_computed_with_makes_sums_inexact():
    func = parse(
        """
@T.prim_func
def scaled(n: T.int32, x: T.Buffer((99999,)), o: T.Buffer((1,))):
    o[0] = 0.0
    for t in range(n):
        o[0] += x[t] * FACTOR
""".replace("FACTOR", "T.float32(n)")
    )
    task = task_of(func)
    assert dict(task.values) == {"n": 99999}
    assert not task.exact and task.why == "the value of n"
    assert task_of(func, scalars={"n": 2}).exact
    summed = parse(func.script().replace(' * T.Cast("float32", n)', ""))
    assert task_of(summed).exact and dict(task_of(summed).values) == {"n": 99999}


def test_indices_take_all_values_unless_something_is_added():
    text = """
@T.prim_func
def f(H: T.Buffer((500,), "int32"), A: T.Buffer((500,), "uint8"), B: T.Buffer((500,), "int32"),
      C: T.Buffer((500,), "int32"), O: T.Buffer((256,), "int32")):
    for i in range(500):
        with T.block("O"):
            O[T.cast(A[i], "int32")] += C[i] + O[B[i] + 3] + H[C[i]]
"""
    arrays = task_of(parse(text)).arrays
    assert [a.high for a in arrays[1:4]] == [255, 252, 4]


NEIGHBOURS = """
@T.prim_func
def f(P: T.Buffer((65,), "int32"), Q: T.Buffer((64,), "int32"), J: T.Buffer((512,), "int32"),
      A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for i in range(64):
        B[i] = 0.0
        {body}
"""
LOOP = "for j in range({bounds}):\n            q = J[j]\n            B[i] += A[q]"
WHILE = """j = P[i]
        while j < P[i + 1]:
            B[i] += A[J[j]]
            j += 1"""


@pytest.mark.parametrize("body, high, rising", [
    (LOOP.format(bounds="P[i], P[i + 1]"), {"P": 512, "J": 63}, True),
    ("lo = P[i]\n        hi = P[i + 1]\n        " + LOOP.format(bounds="lo, hi"),
     {"P": 512, "J": 63}, True),
    (LOOP.format(bounds="P[i], Q[i]"), {"P": 512, "Q": 512, "J": 63}, False),
    (LOOP.format(bounds="P[i], P[i] + Q[i]"), {"P": 256, "Q": 256, "J": 63}, False),
    ("for j in range(Q[i]):\n            B[i] += A[J[P[i] + j]]",
     {"P": 256, "Q": 256, "J": 63}, False),
    (WHILE, {"P": 511, "J": 63}, False),
    ("B[i] = A[P[i + 1] - P[i]]", {"P": 63}, True),
    ("B[i] = A[Q[i] * 4 + 3 - P[i]]", {"P": 0, "Q": 15}, False),
    ("B[i] = A[Q[i] - 1]", {"Q": 64}, False),
    ("B[i] = A[J[i] + J[i + 1] + J[511]]", {"J": 21}, False),
])  # fmt: skip
def test_sums_of_loads_and_variables_stay_inside(body, high, rising):
    func = parse(NEIGHBOURS.format(body=body))
    for seed in range(3):
        task = task_of(func, seed=seed)
        assert {a.name: a.high for a in task.arrays if a.name in high} == high
        assert task.arrays[0].ascending == rising
        data = [fill(array, task, n) for n, array in enumerate(task.arrays)]
        build(func, check_bounds=True)(*data)


PLACES = """
@T.prim_func
def f(X: T.Buffer((64,), "float32"), A: T.Buffer((64,), "float32"),
      B: T.Buffer((64,), "float32")):
    for i in range(64):
        {body}
"""
LINEAR = """p = X[i] * T.float32(30)
        r = T.int32(p)
        B[i] = A[r] + (p - T.float32(r)) * (A[r + 1] - A[r])"""


@pytest.mark.parametrize("body, low, high", [
    ("B[i] = A[T.int32(X[i] * T.float32(15.99)) + 3]", 0, 3),
    ("B[i] = A[T.int32(X[i] * T.float32(2) - T.float32(0.5))]", 1, 31),
    ("B[i] = A[T.int32(T.floor(T.float32(0.5) + X[i] / T.float32(4)))]", 0, 251),
    ("B[i] = A[T.int32(T.float32(2) / X[i])]", 0, 4),  # unknown: small values
    (LINEAR, 0, 2),
])  # fmt: skip
def test_floats_that_are_scaled_and_cut_to_an_index_stay_inside(body, low, high):
    func = parse(PLACES.format(body=body))
    for seed in range(3):
        task = task_of(func, seed=seed)
        assert (task.arrays[0].low, task.arrays[0].high) == (low, high)
        if "/ X" in body:
            continue
        for each in (task, task.with_normal_data()):
            data = [fill(array, each, n) for n, array in enumerate(each.arrays)]
            build(func, check_bounds=True)(*data)


@pytest.mark.parametrize(
    ("kind", "index", "given", "high"),
    [
        ("float32", "T.int32(x[i] * c)", {}, 1),
        ("float32", "T.int32(x[i] * c)", {"c": 0.5}, 5),
        ("int32", "T.int32(x[i]) * c", {}, 1),
        ("int32", "T.int32(x[i]) // c", {"c": 3}, 2),
    ],
)
def test_an_index_made_with_a_scalar_stays_inside_for_the_value_of_the_scalar(
    kind, index, given, high
):
    """A histogram of three bins got indices up to 4."""
    func = parse(f"""
@T.prim_func
def f(x: T.Buffer((9,), "float32"), c: T.{kind}, h: T.Buffer((3,), "int32")):
    for i in range(9):
        h[{index}] += 1
""")
    task = task_of(func, scalars=given)
    assert task.arrays[0].high == high
    x, h = (fill(array, task, n) for n, array in enumerate(task.arrays))
    build(func, check_bounds=True)(x, dict(task.values)["c"], h)


def test_filling_is_reproducible_and_differs_by_position():
    task = task_of(matmul(16), seed=3)
    x = fill(task.arrays[0], task, 0)
    assert np.array_equal(x, fill(task.arrays[0], task, 0))
    assert not np.array_equal(x, fill(task.arrays[0], task, 1))
    assert x.dtype == np.float32 and set(np.unique(x)) <= set(range(-4, 5))
    normal = fill(task.arrays[0], task.with_normal_data(), 0)
    assert np.unique(normal).size > 200


ARRAY = Array("X", "float32", (4,), (1,), True, False, -4, 4, 2.0**-23)


def test_comparison():
    a = np.array([1, 2, np.nan, np.inf], np.float32)
    assert compare(ARRAY, a, a.copy(), True) == ("", 0.0)
    zero = np.array([0.0, 1, 1, 1], np.float32)
    assert compare(ARRAY, -zero * [1, -1, -1, -1], zero, True)[0] == ""  # -0 equals 0
    b = np.array([1, 2.5, 0, -np.inf], np.float32)
    text, largest = compare(ARRAY, b, a, True)
    assert text.startswith("X[1] is 2.5, expected 2.0; 3 of 4 elements differ")
    assert "they must be equal" in text and largest >= 0.5


def test_tolerance_scales_with_the_largest_magnitude():
    reference = np.array([1000, 1, 0, 0], np.float32)
    allowed = 64 * 2.0**-23 * 1000
    near = reference + np.float32(0.9 * allowed)
    assert compare(ARRAY, near, reference, False)[0] == ""
    assert compare(ARRAY, near, reference, True)[0] != ""
    far = reference + np.float32(1.5 * allowed)
    assert "is allowed" in compare(ARRAY, far, reference, False)[0]
    shaky = dataclasses.replace(ARRAY, noise=1.6 * allowed / 64)
    assert compare(shaky, far, reference, False)[0] == ""
    chaotic = dataclasses.replace(ARRAY, noise=1e6)  # measured, but no licence for anything
    assert compare(chaotic, reference + np.float32(60 * allowed), reference, False)[0] == ""
    assert compare(chaotic, reference + np.float32(70 * allowed), reference, False)[0] != ""


def test_inputs_are_nudged_by_one_rounding_and_the_same_way_each_time():
    task = task_of(scale()).with_normal_data()
    plain, moved = fill(task.arrays[0], task, 0), nudged(task.arrays[0], task, 0)
    ratios = np.abs(moved / plain - 1) / 2.0**-23
    assert 0.4 < ratios.min() and ratios.max() < 2.1 and len(set(np.sign(moved - plain))) == 2
    assert (moved == nudged(task.arrays[0], task, 0)).all()
    whole = dataclasses.replace(task.arrays[0], dtype="int32")
    assert (nudged(whole, task, 0) == fill(whole, task, 0)).all()


@given(st.sampled_from(["int8", "uint8", "int64", "float16", "bfloat16", "float8_e5m2", "float64",
                        "bool"]))  # fmt: skip
def test_every_type_can_be_filled_and_compared(dtype):
    array = dataclasses.replace(ARRAY, dtype=dtype, shape=(3, 5), strides=(5, 1), low=0, high=1)
    task = dataclasses.replace(task_of(scale()), arrays=(array,))
    x = fill(array, task, 0)
    assert compare(array, x, x.copy(), True)[0] == ""
    y = x.copy()
    y[1, 2] = not y[1, 2]
    assert compare(array, y, x, True)[0].startswith("X[1, 2] is")


def test_the_tolerance_of_a_serial_sum_grows_with_its_length():
    """A right norm of a million elements was refused: the reference itself was off by more."""
    from metasched.codegen.compile import compile_func
    from metasched.target import Target
    from metasched.workloads import get

    def eps(shape):
        func = get("nrm").func(shape)
        task = make_task(func, compile_func(func, Target.native()).signature, key="k")
        normal = task.with_normal_data()
        return normal.terms, normal.arrays[-1].eps / task.arrays[-1].eps

    assert eps((1, 1024, 1024)) == (1 << 20, 4.0)  # of 65536 terms: the others are nothing
    assert eps((1, 64, 64)) == (4096, 1.0)
    assert eps((1, 16, 16)) == (256, 1.0)


def test_shared_memory_may_be_larger_than_the_files_a_worker_writes():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    memory = os.memfd_create("test")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        _resize(memory, 1 << 21)
        assert os.fstat(memory).st_size == 1 << 21
        with pytest.raises(OSError, match="too large"):
            os.ftruncate(memory, 1 << 22)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        os.close(memory)

"""scatter: histograms get copies, scatter-adds columns; other blocks are left alone."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import check_numbers
from space.candidates import TARGET, draw

from metasched.autoschedule import autoschedule
from metasched.ir.expr import as_int
from metasched.ir.stmt import For, ForKind
from metasched.ir.visit import walk_stmts
from metasched.kinds import default_modules, default_trace
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.generate import SpaceGenerator

HISTOGRAM = """
@T.prim_func
def f(A: T.Buffer((20000,), "uint8"), H: T.Buffer((256,), "int32")):
    for i in range(20000):
        with T.block("H"):
            vi = T.axis.reduce(20000, i)
            H[T.int32(A[vi])] = H[T.int32(A[vi])] + 1
"""
ADD = """
@T.prim_func
def f(N: T.Buffer((300,), "int32"), X: T.Buffer((300, 40), "float32"),
      O: T.Buffer((100, 40), "float32")):
    for i, j in T.grid(300, 40):
        with T.block("O"):
            vi, vj = T.axis.{kind}(300, i), T.axis.spatial(40, j)
            O[N[vi], vj] = O[N[vi], vj] + X[vi, vj]
"""


GUARD = "            if 0 <= N[vi] and N[vi] < 100:\n    "
NAMED = """            at: T.let = N[vi]
            if 0 <= at and at < 100:
                O[at, vj] = O[at, vj] + X[vi, vj]
"""
LAST = ADD.splitlines(keepends=True)[-1]
FORMS = {
    "bare": ADD,
    "guarded": ADD.replace(LAST, GUARD + LAST),
    "named": ADD.replace(LAST, NAMED),
    "predicate": ADD.replace(LAST, "            T.where(0 <= N[i] and N[i] < 100)\n" + LAST),
}


def spaces(text):
    generator = SpaceGenerator(default_modules(TARGET))
    func = parse(text)
    found = generator.generate(func, TARGET)
    assert not generator.failures
    return func, found


def steps(space):
    return [entry.kind.name for entry in space.entries]


def parallel(sch):
    loops = [s for s in walk_stmts(sch.func.body) if isinstance(s, For)]
    return any(loop.kind is ForKind.PARALLEL for loop in loops)


def test_a_histogram_is_counted_in_copies():
    func, found = spaces(HISTOGRAM)
    space = next(s for s in found if "privatize_update" in steps(s))
    a = np.random.default_rng(0).integers(0, 256, 20000).astype("uint8")
    spread = False
    for seed in range(4):
        sch, out = draw(func, space, seed), np.ones(256, "int32")
        build(sch, target="native")(a, out)
        np.testing.assert_array_equal(out, np.bincount(a, minlength=256) + 1)
        spread |= parallel(sch)
    assert spread


@pytest.mark.parametrize("kind", ["reduce", "opaque", "spatial"])
@pytest.mark.parametrize("form", ["bare", "guarded", "named"])
def test_columns_of_a_scatter_add_run_beside_each_other(form, kind):
    func, found = spaces(FORMS[form].format(kind=kind))
    space = next(s for s in found if "vectorize" in steps(s) and "reorder" in steps(s))
    check_sums(func, space, form)


@pytest.mark.parametrize("form", FORMS)
def test_a_scatter_add_into_few_elements_gets_copies(form):
    few = FORMS[form].replace("100", "10").replace("40", "5").format(kind="spatial")
    func, found = spaces(few)
    check_sums(func, next(s for s in found if "privatize_update" in steps(s)), form)


def check_sums(func, space, form):
    """A space adds as NumPy does; rows that a condition leaves out are -7 and 5 beyond the end."""
    n_rows, columns = (as_int(size) for size in func.buffers[2].shape)
    rng = np.random.default_rng(0)
    n = rng.integers(0, n_rows, 300).astype("int32")
    if form != "bare":
        n[::7], n[1::7] = -7, n_rows + 5
    x, want = rng.integers(-4, 5, (300, columns)), np.zeros((n_rows, columns), "float32")
    kept = (n >= 0) & (n < n_rows)
    np.add.at(want, n[kept], x[kept])
    for seed in range(3):
        sch, out = draw(func, space, seed), np.zeros((n_rows, columns), "float32")
        build(sch, target="native")(n, x.astype("float32"), out)
        np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize(
    ("dtype", "words", "copied"),
    [("int32", "", True), ("float32", "reassoc", True), ("float32", "", False)],
)
def test_plain_loops_keep_the_order_of_sums_of_floats(dtype, words, copied):
    _, found = spaces(
        f'@T.prim_func\ndef f(N: T.Buffer((3000,), "int32"), X: T.Buffer((3000,), "{dtype}"),\n'
        f'      S: T.Buffer((10,), "{dtype}")):\n'
        f'    T.func_attr({{"tir.fast_math": "{words}"}})\n'
        "    for i in range(3000):\n        S[N[i]] += X[i]\n"
    )
    assert any("privatize_update" in steps(space) for space in found) == copied


def test_other_updates_are_left_alone():
    plain = ADD.format(kind="reduce").replace("O[N[vi], vj]", "O[vi % 100, vj]")
    _, found = spaces(plain)
    assert not any("privatize_update" in steps(space) for space in found)
    few = HISTOGRAM.replace("20000", "300")
    _, found = spaces(few)
    assert not any("privatize_update" in steps(space) for space in found)


def test_copies_of_a_plain_histogram_are_counted_apart_or_side_by_side():
    """Side by side gains where the same element comes again at once, and takes vectors away from
    what computes the indices."""
    text = """
@T.prim_func
def f(X: T.Buffer((20000,), "float32"), H: T.Buffer((256,), "int32")):
    for i in range(20000):
        b = T.int32(X[i])
        if b >= 0 and b < 256:
            H[b] += 1
"""
    _, found = spaces(text)
    copied = [s.as_python() for s in found if "privatize_update" in steps(s)]
    assert sorted("interleave" in text for text in copied) == [False, True]


def test_sums_of_groups_get_no_tiles():
    """The row changes at each step, so no register holds a sum, and a core's share of a row is
    short: the cores would wait for lines that they share."""
    func = parse("""
@T.prim_func
def f(K: T.Buffer((3000,), "int32"), V: T.Buffer((3000, 64)), S: T.Buffer((50, 64))):
    for i in range(3000):
        for c in range(64):
            S[K[i], c] = S[K[i], c] + V[i, c]
""")
    found = SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)
    assert found and not any("SSRRS" in str(t) or "SSRSRS" in str(t) for t in found)
    rng = np.random.default_rng(0)
    rows, values = rng.integers(0, 50, 3000, np.int32), rng.standard_normal((3000, 64), np.float32)
    sch = autoschedule(func, TARGET)
    loops = [s for s in walk_stmts(sch.mod["main"].body) if isinstance(s, For)]
    assert any(loop.kind is ForKind.VECTORIZED for loop in loops)
    assert not any(loop.kind is ForKind.PARALLEL for loop in loops)
    got, expected = np.zeros((2, 50, 64), np.float32)
    build(sch.mod)(rows, values, got)
    np.add.at(expected, rows, values)
    assert np.allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize(("few", "vectors"), [(2, False), (4, False), (16, True)])
def test_few_lanes_of_updates_under_a_condition_are_no_vector(few: int, vectors: bool) -> None:
    """A load would wait for the masked store of the iteration before."""
    func = parse(f"""
@T.prim_func
def f(P: T.Buffer((100,), "float32"), V: T.Buffer((100, {few}), "float32"),
      S: T.Buffer((90,), "float32")):
    for i in range(100):
        at = T.int32(T.floor(P[i] * T.float32(100)))
        for a in range({few}):
            if at + a >= 0 and at + a < 90:
                S[at + a] += V[i, a] * P[i]
""")
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    kinds = {s.kind for s in walk_stmts(sch.func.body) if isinstance(s, For)}
    assert (ForKind.VECTORIZED in kinds) == vectors
    check_numbers(func, sch.mod, compiled=True)


def test_few_lanes_of_whole_iterations_wait_in_the_same_way() -> None:
    func = parse("""
@T.prim_func
def f(P: T.Buffer((50, 2), "float32"), V: T.Buffer((4, 50), "float32"),
      S: T.Buffer((4, 9, 9), "float32")):
    for c, i in T.grid(4, 50):
        y = T.int32(T.floor(P[i, 0] * T.float32(9)))
        x = T.int32(T.floor(P[i, 1] * T.float32(9)))
        u = P[i, 0] * T.float32(9) - T.floor(P[i, 0] * T.float32(9))
        for a, b in T.grid(2, 2):
            if y + a >= 0 and y + a < 9 and x + b >= 0 and x + b < 9:
                S[c, y + a, x + b] += V[c, i] * T.if_then_else(a == 1, u, T.float32(1) - u)
""")
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    loops = [s for s in walk_stmts(sch.func.body) if isinstance(s, For)]
    assert ForKind.VECTORIZED not in {loop.kind for loop in loops}
    check_numbers(func, sch.mod, compiled=True)


ROWS = """
@T.prim_func
def f(K: T.Buffer((300,), "int32"), W: T.Buffer((300, 40), "int32"),
      O: T.Buffer((40, 64), "int32")):
    for n, a in T.grid(300, 40):
        O[a, K[n] {also}] = O[a, K[n] {also}] + {value}
"""


@pytest.mark.parametrize(
    ("also", "value", "whole"),
    [("", "1", True), ("", "K[n] * a", True), ("+ a % 2", "K[n]", True),
     ("", "W[n, a]", False), ("* 0 + a % 16", "K[n]", False)],
)  # fmt: skip
def test_rows_of_own_are_updated_one_after_another(also, value, whole):
    """Each row is a line of the cache or more; nothing else is read along the rows' loop."""
    func = parse(ROWS.format(also=also, value=value))
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    extents = [as_int(sch.get(loop).extent) for loop in sch.get_loops("O")]
    assert extents == [40, 300] if whole else extents[1:2] == [300]
    rng = np.random.default_rng(3)
    given = rng.integers(0, 62, 300, "int32"), rng.integers(-9, 9, (300, 40), "int32")
    found = [np.zeros((40, 64), "int32") for _ in range(2)]
    for kernel, out in zip((build(func), build(sch)), found, strict=True):
        kernel(*given, out)
    assert np.array_equal(*found)

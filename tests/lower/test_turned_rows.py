"""Lanes along rows work on copies of the rows; no other element is read or written."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, build, call, integers
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.ir.stmt import Allocate
from metasched.ir.visit import walk_stmts
from metasched.lower.pipeline import lower
from metasched.measure.data import Array
from metasched.runtime.guarded_memory import AT_END, AT_START, GuardedMemory
from metasched.script import parse

ROWS = """
@T.prim_func
def main(A: T.Buffer((48, {n}), "{dtype}"), X: T.Buffer((48, {n}), "{dtype}"),
         p: T.Buffer(({n},), "int32"), m: T.int32):
    for b in {outer}(3):
        for s in T.vectorized({lanes}):
            {body}
"""
RECURRENCE = """
            for i in range(1, {n}):
                X[b * 16 + s, i] = T.max(X[b * 16 + s, i - 1] - A[b * 16 + s, i], {two})"""
TURNED = {
    "a recurrence": RECURRENCE,
    "backwards": """
            X[b * 16 + s, {n} - 1] = A[b * 16 + s, {n} - 1]
            for i in range({n} - 1):
                X[b * 16 + s, {n} - 2 - i] = X[b * 16 + s, {n} - 1 - i] - A[b * 16 + s, i]""",
    "a part of the row": """
            for i in range(3, 20):
                X[b * 16 + s, i] = X[b * 16 + s, i - 2] * {two}""",
    "a triangle": """
            for i in range(1, 20):
                for j in range(i):
                    X[b * 16 + s, i] = T.min(X[b * 16 + s, i], A[b * 16 + s, j] + X[b * 16 + s, j])
            for i in range(20):
                X[b * 16 + s, i] = X[b * 16 + s, i] + {two}""",
    "a condition": """
            for i in range(1, {n}):
                if A[b * 16 + s, i] > X[b * 16 + s, i - 1]:
                    X[b * 16 + s, i] = X[b * 16 + s, i - 1]""",
    "a variable": """
            for i in range(1, {n}):
                t: T.{dtype} = T.max(X[b * 16 + s, i - 1], A[b * 16 + s, i])
                X[b * 16 + s, i] = t - {two}""",
    "beside other memory": """
            for i in range(1, {n}):
                X[b * 16 + s, i] = T.max(X[b * 16 + s, i - 1], A[p[i], 0]) + A[0, i]""",
    "a run-time number of steps": """
            for i in range(m):
                for j in range(1, 20):
                    X[b * 16 + s, j] = T.max(X[b * 16 + s, j - 1], A[b * 16 + s, j])""",
}
KEPT = {
    "a column from memory": """
            for i in range(1, {n}):
                X[b * 16 + s, p[i]] = X[b * 16 + s, 0] + {two}""",
    "rows that overlap": """
            for i in range(1, {n}):
                X[b * 8 + s // 2, i] = X[b * 8 + s // 2, i - 1]""",
    "run-time columns": """
            for i in range(m):
                X[b * 16 + s, i] = A[b * 16 + s, i] + {two}""",
    "columns alone": """
            X[b * 16 + s, 0] = A[b * 16 + s, 3] + A[b * 16 + s, 4]""",
}


def text(body: str, n: int = 37, dtype: str = "float32", lanes: int = 16,
         outer: str = "T.parallel") -> str:  # fmt: skip
    names = {"n": n, "dtype": dtype, "two": f"T.{dtype}(2)"}
    return ROWS.format(body=body.strip().format(**names), lanes=lanes, outer=outer, **names)


def copies(source: str) -> list[str]:
    """The buffers whose rows are copied."""
    made = (s.buffer.name for s in walk_stmts(lower(parse(source), NATIVE).body)
            if isinstance(s, Allocate))  # fmt: skip
    return sorted(name.removesuffix("_rows") for name in made)


def arrays(n: int = 37, dtype: str = "float32") -> list[np.ndarray]:
    p = np.random.default_rng(0).permutation(n).astype("int32")
    return [integers((48, n), dtype), integers((48, n), dtype, 1), p]


@pytest.mark.parametrize("outer", ["range", "T.parallel"])
@pytest.mark.parametrize("body", TURNED.values(), ids=TURNED)
def test_rows_are_copied(body, outer):
    source = text(body, outer=outer)
    assert "X" in copies(source)
    agree(source, *arrays(), 5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint32"])
@pytest.mark.parametrize("n", [17, 32, 35])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_types_and_lengths(dtype, n, lanes):
    source = text(RECURRENCE, n, dtype, lanes)
    assert copies(source) == ["A", "X"]
    agree(source, *arrays(n, dtype), 5)


PAIRS = """
            for k in range(5):
                for i in range({count} + (k + 1) % 2):
                    t: T.float32 = X[b * 16 + s, 2 * i + k % 2]
                    X[b * 16 + s, 2 * i + k % 2] = T.min(t, X[b * 16 + s, 2 * i + 1 + k % 2])
                    X[b * 16 + s, 2 * i + 1 + k % 2] = T.max(t, A[b * 16 + s, 2 * i])"""


@pytest.mark.parametrize("outer", ["range", "T.parallel"])
def test_rows_whose_ends_depend_on_two_loops(outer):
    """Intervals say that the odd steps reach beyond the row, as the even steps are longer."""
    source = text(PAIRS.replace("{count}", "18"), 38, outer=outer)
    assert copies(source) == ["A", "X"]
    agree(source, *arrays(38), 5)


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT)
def test_what_is_no_row_stays(body):
    source = text(body, outer="range")
    assert not copies(source)
    agree(source, *arrays(), 5)


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_narrow_elements_stay(dtype):
    assert not copies(text(RECURRENCE, dtype=dtype))


def test_a_lane_that_a_condition_masks():
    """Rows behind the last one are not touched: the last vector holds 8 rows of 40."""
    source = text("""
            if b * 16 + s < 40:
                for i in range(1, {n}):
                    X[b * 16 + s, i] = T.max(X[b * 16 + s, i - 1] - A[b * 16 + s, i], {two})
    """).replace("((48,", "((40,")
    assert copies(source) == ["A", "X"]
    agree(source, *(a[:40].copy() if a.ndim == 2 else a for a in arrays()), 5)


GAPS = """
            for i in range(18):
                X[b * {rows} + s, 2 * i + {odd}] = T.max(A[b * {rows} + s, i], {two})"""


def test_elements_of_another_thread_are_not_written_back():
    """Each thread stores to the even or the odd elements of all rows."""
    body = GAPS.replace("{rows}", "0").replace("{odd}", "(b % 2)")
    assert "X" not in copies(text(body.replace("{two}", "{two} + b // 2")))
    body = GAPS.replace("{rows}", "16").replace("{odd}", "1")
    assert "X" not in copies(text(body))
    assert "X" in copies(text(body, outer="range"))
    agree(text(body, outer="range"), *arrays(), 5)


def test_threads_with_columns_of_their_own():
    body = """
            for i in range(12):
                X[s, b * 12 + i] = T.max(X[s, b * 12 + i] - A[s, 0], A[s, b * 12 + i])"""
    assert copies(text(body)) == ["X"]
    agree(text(body), *arrays(), 5)
    other = body.replace("b * 12 + i] = ", "b * 10 + i] = ")
    assert "X" not in copies(text(other))


PARTLY = {
    "a triangle": """
            for i in range(1, 7 + 6 * b):
                X[b * 16 + s, i] = X[b * 16 + s, i - 1] - A[0, i]
        for s in range(16):
            for i in range(7 + 6 * (2 - b), 20):
                X[(2 - b) * 16 + s, i] = A[b * 16 + s, i]""",
    "a condition": """
            for i in range(1, 20):
                if p[i] > 12 * b:
                    X[b * 16 + s, i] = X[b * 16 + s, i] - A[0, i]
        for s in range(16):
            for i in range(1, 20):
                if p[i] <= 12 * (2 - b):
                    X[(2 - b) * 16 + s, i] = A[b * 16 + s, i]""",
}


@pytest.mark.parametrize("body", PARTLY.values(), ids=PARTLY)
def test_what_another_thread_stores_beside_is_not_written_back(body):
    """A statement behind stores to the rest of the rows of another thread."""
    assert "X" in copies(text(body, outer="range"))
    assert "X" not in copies(text(body))
    own = body.replace("(2 - b)", "b")
    assert "X" in copies(text(own))
    for source in (text(body), text(own)):
        agree(source, *arrays(), 5)


@pytest.mark.parametrize("place", [AT_START, AT_END])
@pytest.mark.parametrize("body", [TURNED["a recurrence"], TURNED["backwards"]])
def test_nothing_outside_of_the_arrays_is_touched(body, place):
    source = text(body, 19)
    given_data = arrays(19)
    layout = [
        Array(name, str(a.dtype), a.shape, (a.shape[1], 1) if a.ndim > 1 else (1,), True, False, 0,
              1, 0.0)
        for name, a in zip("AXp", given_data, strict=True)
    ]  # fmt: skip
    memory = GuardedMemory(layout, place)
    for position, a in enumerate(given_data):
        memory.write(position, a)
    assert call(build(source), *memory.views, 5) == 0
    agree(source, *given_data, 5)


OPERAND = st.tuples(st.sampled_from("AX"), st.integers(-2, 2), st.integers(8, 11))
STATEMENT = st.tuples(OPERAND, OPERAND, OPERAND, st.integers(1, 9))


@settings(max_examples=25, deadline=None)
@given(st.lists(STATEMENT, min_size=1, max_size=3), st.sampled_from([4, 8, 16]))
def test_random_recurrences(statements, lanes):
    """Columns move forwards, backwards, by two, or stay."""

    def at(operand: tuple[str, int, int]) -> str:
        name, by, start = operand
        return f"{name}[b * 16 + s, {start + (16 if by < 0 else 0)} + i * {by}]"

    body = "\n".join(
        f"            for i in range({n}):\n"
        f"                {at(('X', *to[1:]))} = T.max({at(a)} - {{two}}, {at(b)})"
        for to, a, b, n in statements
    )
    source = text(body, 40, lanes=lanes)
    agree(source, *arrays(40), 5)


UPDATES = """
@T.prim_func
def main(A: T.Buffer((48, {row}), "{dtype}"), X: T.Buffer((48, {row}), "{dtype}"),
         p: T.Buffer((37,), "int32"), m: T.int32):
    for b in {outer}(3):
        for j in range({count}):
            {more}for s in T.vectorized(16):
                t: T.{dtype} = A[j, 0] - A[b * 16 + s, 1]
                X[b * 16 + s, 0] = X[b * 16 + s, 0] + t
                X[b * 16 + s, 1] = T.max(X[b * 16 + s, 0] - t, A[b * 16 + s, 0])
                {rest}
"""


def updates(row: int = 3, dtype: str = "float32", outer: str = "T.parallel", count: str = "37",
            more: str = "", rest: str = "") -> str:  # fmt: skip
    made = UPDATES.format(row=row, dtype=dtype, outer=outer, count=count, more=more, rest=rest)
    return made.replace("            for s", "                for s") if more else made


@pytest.mark.parametrize("outer", ["range", "T.parallel"])
@pytest.mark.parametrize("row", [2, 3, 4, 7])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_rows_that_an_outer_loop_updates(row, dtype, outer):
    source = updates(row, dtype, outer)
    assert copies(source) == ["X"]
    agree(source, *arrays(row, dtype)[:2], arrays()[2], 5)
    assert not copies(updates(row, "int8", outer))


@pytest.mark.parametrize(
    "rest", ["", "if t > T.float32(0):\n                    X[b * 16 + s, 2] = t"]
)
@pytest.mark.parametrize("count", ["37", "m", "p[b]"])
@pytest.mark.parametrize("m", [0, 5])
def test_updates_that_may_not_happen(count, rest, m):
    """Without an iteration, or where a condition fails, elements keep what they are."""
    for outer in ("range", "T.parallel"):
        source = updates(count=count, rest=rest, outer=outer)
        assert copies(source) == ["X"]
        p = (arrays()[2] * (m > 0)).astype("int32")
        agree(source, *arrays(3)[:2], p, m)


def test_updates_that_stay_in_memory():
    """Elements that depend on the outer loop, that other lanes update, or that more threads use."""
    for change in (("X[b * 16 + s, 0] + t", "X[b * 16 + s, j % 3] + t"),
                   ("X[b * 16 + s, 0] + t", "X[(b * 16 + s + 1) % 48, 0] + t"),
                   ("X[b * 16 + s, 0] + t", "X[p[j], 0] + t")):  # fmt: skip
        source = updates(outer="range").replace(*change)
        assert not copies(source)
        agree(source, *arrays(3)[:2], arrays()[2] % 48, 5)
    apart = "X[b * 16 + s, 3] = t"
    assert copies(updates(4, rest=apart, outer="range"))
    other = "\n        for s in range(16): X[(2 - b) * 16 + s, 2] = A[b * 16 + s, 2]\n"
    shared = updates(4, rest=apart).rstrip() + other  # another thread stores to the element between
    assert not copies(shared)
    agree(shared, *arrays(4)[:2], arrays()[2], 5)


@pytest.mark.parametrize("place", [AT_START, AT_END])
def test_updated_rows_touch_nothing_outside(place):
    source = updates(outer="range").replace("48", "47").replace(
        "t: T", "with T.block('lane'):\n                    T.where(b * 16 + s < 47)\n"
        "                    t: T")  # fmt: skip
    lines = source.splitlines()
    inside = next(n for n, line in enumerate(lines) if "T.where" in line)
    lines[inside + 2 :] = ["    " + line for line in lines[inside + 2 :]]
    source = "\n".join(lines)
    given_data = [a[:47].copy() for a in arrays(3)[:2]]
    layout = [
        Array(name, str(a.dtype), a.shape, (3, 1), True, False, 0, 1, 0.0)
        for name, a in zip("AX", given_data, strict=True)
    ]
    layout.append(Array("p", "int32", (37,), (1,), True, False, 0, 1, 0.0))
    memory = GuardedMemory(layout, place)
    for position, a in enumerate([*given_data, arrays()[2]]):
        memory.write(position, a)
    assert call(build(source), *memory.views, 5) == 0
    agree(source, *given_data, arrays()[2], 5)


PLACE = st.tuples(st.sampled_from("AX"), st.integers(0, 3))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(PLACE, PLACE, st.integers(0, 3)), min_size=1, max_size=4),
    st.sampled_from([4, 8, 16]), st.integers(0, 3), st.sampled_from(["3", "m", "p[b] % 3"]),
)  # fmt: skip
def test_random_updates(statements, lanes, gap, count):
    body = "\n".join(
        f"                X[b * 16 + s, {to}] = T.max({a}[b * 16 + s, {i}] - {{two}}, "
        f"{b}[b * 16 + s, {k}])" if n != gap else
        f"                if {a}[b * 16 + s, {i}] > {{two}}:\n"
        f"                    X[b * 16 + s, {to}] = {b}[b * 16 + s, {k}] + A[j, 0]"
        for n, ((a, i), (b, k), to) in enumerate(statements)
    )  # fmt: skip
    loops = f"        for j in range({count}):\n            for s"
    source = text("HERE", 4, lanes=lanes).replace("        for s", loops, 1)
    source = source.replace("            HERE", body.replace("{two}", "T.float32(2)"))
    agree(source, *arrays(4), 5)

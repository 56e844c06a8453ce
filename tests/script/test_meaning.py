"""Python's constructs have the same meaning in a script as in Python over NumPy."""

from __future__ import annotations

import functools
import linecache
import math
import re
from collections import defaultdict
from types import FunctionType, SimpleNamespace

import numpy as np
import pytest
from as_python import agree

from metasched.errors import ParseError
from metasched.ir.equal import assert_structural_equal
from metasched.ir.expr import Add, Div, FloatImm, IntImm, Mul, Var
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.ir.stmt import Evaluate
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script import parse, script
from metasched.script import tir as T

ZEROS = [0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan, 1e-45]


def elementwise(value: str, dtype: str, extent: int = 8, kind: str = "range") -> str:
    """A function whose second argument becomes `value` of the first, x."""
    return f"""
@T.prim_func
def f(A: T.Buffer(({extent},), "{dtype}"), B: T.Buffer(({extent},), "{dtype}")):
    for i in {kind}({extent}):
        x = A[i]
        B[i] = {value}
"""


@pytest.mark.parametrize("kind", ["range", "T.vectorized"])
@pytest.mark.parametrize("value", [
    "-x", "-(-x)", "-(x * x)", "-x + 0.0", "x + 0.0", "0.0 - x", "-0.0 - x", "-0.0", "x * 0.0",
    "-x * -1.0", "x - 0.0", "x if x > 0.0 else -x", "-(x + -0.0)", "+x",
])  # fmt: skip
def test_the_sign_of_zero(value, kind):
    for dtype in ("float32", "float64", "float16"):
        a = np.array(ZEROS, dtype)
        agree(elementwise(value, dtype, kind=kind), a, np.zeros_like(a))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32"])
def test_negated_integers(dtype):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    a = np.array([0, 1, 2, low, high, high - 1, 5, 100], dtype)
    agree(elementwise("-x", dtype), a, np.zeros_like(a))


def test_negation_outside_of_scripts():
    x, n = Var("x", "float32"), Var("n", "int32")
    assert -x is Mul(x, FloatImm("float32", -1.0))
    assert (0 - n) is -n
    func = parse("@T.prim_func(s_tir=False)\ndef f():\n    T.evaluate(-T.float32(0))")
    assert func.body.value is FloatImm("float32", -0.0)
    with pytest.raises(ParseError, match="bool has no sign"):
        parse("@T.prim_func(s_tir=False)\ndef f(c: T.bool):\n    T.evaluate(-c)")


HEAD = """
@T.prim_func
def f(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32"), N: T.Buffer((8,), "int32"), \\
      M: T.Buffer((8,), "int32"), U: T.Buffer((8,), "uint8"), F: T.Buffer((8,), "bool"), \\
      p: T.int32):
"""


def arguments():
    return [
        np.array([0.5, -1.5, 2.5, -0.0, 3.0, -3.5, 1e-3, 100], "float32"),
        np.array([1, 2, -3, 4, -5, 6, 7, 0.5], "float32"),
        np.array([-(2**31), -7, -4, 0, 1, 5, 8, 2**31 - 1], "int32"),
        np.arange(8, dtype="int32") - 3,
        np.array([0, 1, 2, 100, 200, 254, 255, 7], "uint8"),
        np.array([1, 0, 1, 0, 0, 1, 1, 0], bool),
        7,
    ]  # fmt: skip


STATEMENTS = """
M[i] = N[i] // 3; M[i] = N[i] % 3; M[i] = N[i] // -3; M[i] = N[i] % -3; M[i] = N[i] // p
B[i] = A[i] // 2.0; B[i] = A[i] % 2.0; B[i] = A[i] // -2.0; B[i] = A[i] % -2.0
B[i] = A[i] ** 2.0; M[i] = N[i] ** 2; M[i] = M[i] ** 3; M[i] **= 2; M[i] = N[i] ** 0
M[i] = abs(N[i]); B[i] = abs(A[i]); M[i] = min(N[i], 3); M[i] = max(N[i], 3, i)
F[i] = 0 <= N[i] < 4; F[i] = not F[i]; F[i] = ~F[i]; F[i] = F[i] & (N[i] > 2)
F[i] = F[i] == (N[i] > 2); M[i] = 1 if F[i] else 2; B[i] = A[i] if i > 3 else 2
M[i] = True + N[i]; M[i] = F[i] + N[i]; M[i] = F[i] * 3; M[i] = F[i]; B[i] = F[i]
M[i] = ~N[i]; M[i] = N[i] & 6; M[i] = N[i] | 6; M[i] = N[i] ^ 6; M[i] = N[i] << 2
M[i] = N[i] >> 1; M[i] = N[i] >> i; U[i] = ~U[i]; U[i] = U[i] + U[i]; U[i] = U[i] - 1
U[i] = U[i] >> 1; M[i] = U[i] + N[i]; U[i] = U[i] // 3; U[i] = (U[i] - 2) % 3
M[i] -= N[i]; M[i] *= N[i]; M[i] //= 3; M[i] %= 3; M[i] <<= 1; M[i] >>= 1; M[i] &= 5
M[i] |= 5; M[i] ^= 5; B[i] /= 2.0; B[i] /= 3; B[i] //= 2.0; B[i] **= 2.0
B[i] = -A[i] ** 2; M[i] = -N[i] // 2; M[i] = -7 // 2 + N[i]; B[i] = 7 / 2 + A[i]
B[i] = 1 / A[i]; B[i] = 16777217 + A[i]; B[i] = T.float32(0.1) + 0.1 + 0.2
F[i] = A[i] == 0.1; F[i] = N[i] + 1 > N[i]; U[i] = T.uint8(N[i]); M[i] = T.int32(T.int8(N[i]))
M[i] = T.int32(F[i]); F[i] = T.bool(N[i]); M[i] = 3 if i == 1 and N[i] == 2 or F[i] else 4
M[i] = (N[i] * 4 + 3) // 4; M[i] = N[i] - N[i] // 4 * 4 - N[i] % 4; M[i] = [1, 2, 3][1]
M[i] = 1 if i >= 8 and N[i + 1] > 0 else 2; M[i] = 1 if i < 8 or N[i + 1] > 0 else 2
"""


def test_operators_mean_what_they_mean_in_numpy():
    for line in STATEMENTS.strip().splitlines():
        for statement in line.split("; "):
            agree(
                f"{HEAD}    for i in range(8):\n        {statement}\n", *arguments(), compiled=False
            )
        body = "".join(f"    for i in range(8):\n        {s}\n" for s in line.split("; "))
        agree(HEAD + body, *arguments())


@pytest.mark.parametrize(
    "loop",
    ["2, 2", "5, 5, 2", "5, 3", "5, 3, 2", "6, -3", "p, 2", "2, p, 3", "p - 9", "p, p - 2, 3",
     "N[4], N[5]", "0", "N[3]", "1, 7, M[5]", "M[5] - 2, p, M[4]", "p, 0, M[1]",
     "7, M[4], -M[6] + 1", "p, 2, M[5]", "2, p, M[0]", "7, -1, -1", "7, 0, -2",
     "p, -1, -1", "2, p, -1", "p, 0, -3", "T.int64(6), -1, -2"],
)  # fmt: skip
def test_ranges(loop):
    agree(f"{HEAD}    for i in range({loop}):\n        M[i] = 99", *arguments())


def test_a_break_leaves_the_innermost_loop_after_a_round_trip():
    """The printer writes nested loops as T.grid, which is one loop in Python."""
    text = f"""{HEAD}    for i in range(3):
        for j in range(4):
            for k in range(2):
                if N[j] > k:
                    break
                M[i + j] += k + 1
"""
    agree(text, *arguments())
    printed = script(parse(text))
    assert "for i, j in T.grid(3, 4):" in printed and "for k in range(2):" in printed
    agree(f"{HEAD}    for i, j in T.grid(3, 4):\n        if N[j] > 1:\n            continue\n"
          "        M[i + j] += 1", *arguments())  # fmt: skip


def test_a_step_that_is_known_at_run_time_only():
    """The step may be negative, and the program may be scheduled."""
    func = parse("""
@T.prim_func
def f(S: T.Buffer((1,), "int32"), A: T.Buffer((16,), "int32")):
    for j in range(12, 3, S[0]):
        A[j] = j
""")
    for step in (1, -1, -2, -9):
        expected = np.zeros(16, np.int32)
        expected[range(12, 3, step)] = range(12, 3, step)
        for kernel in (build(func), build(Schedule(func))):
            found = np.zeros(16, np.int32)
            kernel(np.array([step], np.int32), found)
            assert found.tolist() == expected.tolist()


def test_a_loop_that_counts_down_is_scheduled():
    """Back substitution, as it is written in Python."""
    func = parse("""
@T.prim_func
def f(A: T.Buffer((9, 9), "int32"), B: T.Buffer((9,), "int32")):
    for i in range(8, -1, -1):
        for j in range(8, i, -1):
            B[i] = B[i] - A[i, j] * B[j]
""")
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (9, 9)).astype(np.int32), np.arange(9, dtype=np.int32)
    expected = b.copy()
    for i in range(8, -1, -1):
        expected[i] -= a[i, i + 1 :] @ expected[i + 1 :]
    sch = Schedule(func)
    sch.enclose("root")
    for kernel in (build(func), build(sch)):
        found = b.copy()
        kernel(a, found)
        assert found.tolist() == expected.tolist()


def test_the_right_operand_of_and_is_evaluated_lazily():
    for text in ("p > 100 and N[1 + p] > 1", "p < 100 or N[1 + p] > 1",
                 "p < 100 or N[1 + p] > 1 or N[2 + p] > 0"):  # fmt: skip
        agree(f"{HEAD}    if {text}:\n        M[0] = 44", *arguments())
    chain = " and ".join(["p > 0"] * 50 + ["p < 0", "N[p + 1] > 0"])
    agree(f"{HEAD}    M[0] = 1 if {chain} else 2", *arguments())


@pytest.mark.parametrize("statement, message, hint", [
    ("for i in T.serial(5, 3):\n        M[0] = 1", "-2 iterations", "`for i in range(start"),
    ("for i in range(-2):\n        M[0] = 1", "-2 iterations", "which is empty then"),
    ("M[0] = N[0] / 3", "/ of int32 is a fraction in Python", "a // b to round down"),
    ("M[0] = 2 ** N[0]", "the power of an integer is a number from 0 to 16", "T.float32(x) ** y"),
    ("M[0] = N[0] ** -1", "the power of an integer is a number from 0 to 16", ""),
    ("M[0] = 1 if N[0] else 2", "a condition is needed, not int32", "compare with != 0"),
    ("M[0] = T.if_then_else(N[0], 1, 2)", "if_then_else needs a condition, not int32", ""),
    ("M[0] = F[0] + F[1]", "+ of two bools", "T.int32(a)"),
    ("F[0] = F[0] * F[1]", "* of two bools", "&, | and ^"),
    ("M[0] = abs(F[0])", "abs takes numbers, not bool; write T.int32(x)", ""),
    ("M[0] = N[0] << 32", "int32 is shifted by 0 to 31 bits, not by 32", ""),
    ("M[0] = N[0] >> -1", "int32 is shifted by 0 to 31 bits, not by -1", ""),
    ("A[0] = A[0] << 2", "shift_left needs integers, not float32", "convert, as T.int32(x)"),
    ("A[0] = A[0] | 1", "bitwise_or needs integers, not float32", "convert, as T.int32(x)"),
    ("A[0] = ~A[0]", "bitwise_not needs integers, not float32", "convert, as T.int32(x)"),
    ("F[0] = N[0] is N[1]", "`is` tells Python objects apart", "write =="),
    ("F[0] = (p, 2) == (1, 2)", "sequences are compared while the script is read", "a[0] == b[0]"),
    ("F[0] = (p, 2) < (1, 2)", "sequences are compared while the script is read", ""),
    ("F[0] = p in (1, 2)", "`in` compares while the script is read", ""),
    ("B[0] = T.exp(N[0])", "exp takes floating-point numbers, not int32", ""),
    ("for i in range(7, 0, 0):\n        M[i] = 1", "a step is not 0", "would never end"),
    ("for i in T.serial(5, 2):\n        M[i] = 1", "-3 iterations", "swap its bounds"),
    ("M[0] = M[1] = 3", "assign to one target at a time", "write b = value, then a = b"),
    ("del A", "Delete has no meaning in a script", "memory ends with its scope"),
    ("global q", "Global has no meaning", "pass a buffer"),
    ("raise ValueError", "Raise has no meaning", "assert condition"),
    ("M[0] = N[0][1]", "an element of a buffer cannot be indexed", "write N[0, 1]"),
    ("return B", "a function returns a scalar or nothing", "B is filled in place"),
    ("M[0] = np.exp(N[0])", "'np' is not defined", ""),
    ("M[0] = te.compute(N)", "'te' is not defined", "metasched.te.create_prim_func"),
    ("M[0] = sum(N)", "sum takes Python values only", ""),
    ("M[0] = divmod(p, 2)", "'divmod' is not defined", "x // y and x % y"),
    ("B[0] = exp(A[0])", "'exp' is not defined", "write T.exp"),
])  # fmt: skip
def test_refusals_give_a_replacement(statement, message, hint):
    with pytest.raises(ParseError) as caught:
        parse(f"{HEAD}    {statement}\n")
    assert message in str(caught.value), caught.value
    assert hint in str(caught.value).split("hint: ")[-1], caught.value


def test_functions_of_numpy_and_math_in_decorated_functions():
    def read(fn):
        @T.prim_func
        def f(A: T.Buffer((4,), "float32")):
            A[0] = fn(A[1])

    for fn, word in ((np.exp, "exp"), (math.exp, "exp"), (np.maximum, "max"), (math.sqrt, "sqrt")):
        with pytest.raises(ParseError) as caught:
            read(fn)
        assert "fn computes with Python's numbers" in str(caught.value)
        assert f"hint: write T.{word}" in str(caught.value)

    @T.prim_func
    def g(A: T.Buffer((4,), "float32")):
        A[0] = math.sqrt(4.0) + np.sqrt(2.0)


CALLED = [
    lambda n, a: 1 if n is a else T.if_then_else(n == 3, 5, 7),
    lambda n, a: T.if_then_else(n != 3, 5, 7) + T.if_then_else(2 == n, 1, 0),
    lambda n, a: T.if_then_else(T.int64(3) == T.int32(3), n, 0),
    lambda n, a: T.if_then_else((n < 2) | ~(n == 5) & (n != a), n << 2, n >> 1),
    lambda n, a: ((n & 6) | 1) ^ (~n % 5) + (2 << (n & 3)) + abs(n - 4) + n**2,
    lambda n, a: T.int32(n * 2.5 + 0.75 * n) + T.int32(T.float32(n) / 2),
]


@pytest.mark.parametrize("function", CALLED)
def test_operators_in_functions_that_a_script_calls(function):
    """`n == 3` compares values in a function that the script calls, as in the script itself."""

    @T.prim_func
    def called(N: T.Buffer((8,), "int32"), M: T.Buffer((8,), "int32")):
        for i in range(8):
            M[i] = function(N[i], i)

    numbers = np.arange(8, dtype=np.int32)
    found = np.zeros(8, np.int32)
    run(called, numbers, found)
    words = {"if_then_else": lambda c, a, b: a if c else b, "int32": int, "int64": int,
             "float32": float}  # fmt: skip
    plain = FunctionType(function.__code__, {"T": SimpleNamespace(**words)})
    assert found.tolist() == [plain(np.int32(n), i) for i, n in enumerate(numbers)]


def test_conditions_count_as_numbers_in_functions_that_a_script_calls():
    """As in the script itself; they were sums of bools, which no code was made for."""

    def count(n, p):
        return sum([n == 2, n > 1, p]) + (n > 3) * 10 - 1

    @T.prim_func
    def f(N: T.Buffer((8,), "int32"), M: T.Buffer((8,), "int32")):
        for i in T.serial(8):
            M[i] = count(N[i], i == 0)

    n = np.arange(8, dtype=np.int32)
    want = [count(int(x), i == 0) for i, x in enumerate(n)]
    for call in (build(f), lambda *args: run(f, *args)):
        found = np.zeros(8, np.int32)
        call(n, found)
        assert found.tolist() == want


def test_sums_of_expressions():
    @T.prim_func
    def f(A: T.Buffer((4,), "float32"), B: T.Buffer((2,), "float32")):
        B[0] = sum([A[k] for k in range(4)])
        B[1] = sum([A[k] for k in range(4)], A[0])

    found = np.zeros(2, np.float32)
    run(f, np.arange(1, 5, dtype=np.float32), found)
    assert found.tolist() == [10.0, 11.0]


@pytest.mark.parametrize("function, message", [
    (lambda n: 1 if n == 3 else 2, "EQ has no truth value"),
    (lambda n: 1 if n in (2, 3) else 2, "EQ has no truth value"),
    (lambda n: (n == 2) + (n > 1), "Add of two bools; write T.int32(a) for a number, or &"),
    (lambda n: n / 2, "/ of int32 is a fraction in Python"),
    (lambda n: n**n, "the power of an integer is a number from 0 to 16"),
    (lambda n: n << 32, "int32 is shifted by 0 to 31 bits, not by 32"),
    (lambda n: {0: 1}.get(n, 2), "the value of an expression is unknown while the program is"),
    (lambda n: 1 if n in {2, 3} else 2, "it is no key of a dict, a set or a cached function"),
    (lambda n: len({n, n + 0, n * 2}), "it is no key of a dict, a set or a cached function"),
])  # fmt: skip
def test_refused_operators_in_functions_that_a_script_calls(function, message):
    with pytest.raises(ParseError, match=re.escape(message)):

        @T.prim_func
        def called(N: T.Buffer((8,), "int32")):
            N[0] = function(N[1])


@pytest.mark.parametrize("value", [
    "table.get(i, 2)", "table.get(N[i], 2)", "len({i, 1})", "len({i: 1, 0: 2})", "len({**{i: 1}})",
    "len({k for k in [i, 1]})", "len({k: 1 for k in [i, 1]})", "len(set([i, 1]))", "default[i, 0]",
])  # fmt: skip
def test_an_expression_is_no_key(value):
    """A lookup would miss silently: an expression equals no number while the program is read."""
    source = f"def f(N: T.Buffer((8,), 'int32')):\n    for i in range(8):\n        N[i] = {value}\n"
    outside = {"T": T, "table": {0: 1}, "default": defaultdict(int)}
    linecache.cache["<keys>"] = (len(source), None, source.splitlines(True), "<keys>")
    exec(compile(source, "<keys>", "exec"), outside)
    with pytest.raises(ParseError, match="it is no key of a dict, a set or a cached function"):
        T.prim_func(outside["f"])
    assert Var.__hash__ is IntImm.__hash__ is object.__hash__


def test_a_constant_has_the_precision_of_its_own_type():
    agree(
        """
        @T.prim_func
        def f(O: T.Buffer((4,), "float64"), H: T.Buffer((1,), "float16")):
            O[0] = T.float32(0.1)
            O[1] = T.float32(16777217)
            O[2] = T.float16(0.1)
            O[3] = T.float32(0.5)
            H[0] = T.float32(0.5)
        """,
        np.zeros(4), np.zeros(1, np.float16),
    )  # fmt: skip


def test_a_cached_function_takes_expressions():
    @functools.lru_cache
    def weighted(x, by=2):
        return x * by + 1

    @T.prim_func
    def f(A: T.Buffer((4,), "int32")):
        for i in range(4):
            A[i] = weighted(i) + weighted(3, by=A[i]) + weighted(7)

    found = np.arange(4, dtype=np.int32)
    run(f, found)
    assert found.tolist() == [17, 22, 27, 32]
    assert weighted.cache_info().currsize == 1  # of the number


def test_constants_of_shapes_are_numbers_in_functions_that_a_script_calls():
    def chosen(A):
        n, m = A.shape
        small = 1 if n < m or not n % 3 else 2
        return {8: 5, 4: 6}[n] * 100 + (n in {8, 9}) * 10 + (small if n != m else 3) + max(n, m)

    @T.prim_func
    def f(A: T.Buffer((8, 4), "int32")):
        A[0, 0] = chosen(A)

    found = np.zeros((8, 4), np.int32)
    run(f, found)
    assert found[0, 0] == 520


def test_index_of_an_index():
    with pytest.raises(ParseError, match=r"A has 2 dimensions, 1 given[^$]*not A\[i\]\[j\]"):
        parse('@T.prim_func\ndef f(A: T.Buffer((4, 4), "float32")):\n    A[1][2] = 1.0')


def test_operators_that_differ_from_python_print_as_functions():
    i = Var("i")
    for node, text in (
        (Div(i, i), "T.truncdiv(i, i)"),
        (Add(Div(i, i), i), "T.truncdiv(i, i) + i"),
    ):
        assert script(node) == text
        func = PrimFunc((i,), Evaluate(node))
        assert_structural_equal(func, parse(script(func)))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "uint32"])
def test_loops_between_narrow_numbers_count_as_python_does(dtype):
    """Of `uint8`, 3 - 5 is 254; a loop from 5 to 3 has no iteration."""
    func = agree(
        f"""
        @T.prim_func
        def f(b: T.Buffer((4,), "{dtype}"), o: T.Buffer((128,), "int32")):
            for i in range(3):
                for p in range(b[i], b[i + 1]):
                    o[p] = o[p] + i + 1
        """,
        np.array([5, 3, 120, 1], dtype), np.zeros(128, "int32"),
    )  # fmt: skip
    sch = Schedule(func)
    sch.enclose("root")
    sch.split(sch.get_loops("o")[1], [None, 16])
    build(sch)(np.array([0, 127, 127, 127], dtype), got := np.zeros(128, "int32"))
    assert got.tolist() == [1] * 127 + [0]

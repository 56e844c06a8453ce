"""enclose: loops without continue, and conditional updates as updates in any order."""

from __future__ import annotations

import random

import numpy as np
import pytest
from oracle import check_numbers, check_refused, check_transform

from metasched.analysis.continues import without_continue
from metasched.analysis.updates import as_update
from metasched.autoschedule import autoschedule
from metasched.ir.interp import run
from metasched.ir.stmt import BufferStore, Continue, IfThenElse, IterKind
from metasched.ir.visit import walk_stmts
from metasched.runtime.build import build
from metasched.schedule.primitives.enclose import stores_outside
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T
from metasched.space.default_schedule import vectors_and_threads
from metasched.target import Target


def program(body: str, dtype: str = "int32", words: str = "") -> T.PrimFunc:
    """A function of two loops around statements."""
    note = f'    T.func_attr({{"tir.fast_math": "{words}"}})\n' if words else ""
    lines = "".join(f"            {line}\n" for line in body.splitlines())
    return parse(
        f'@T.prim_func\ndef f(A: T.Buffer((6, 8), "{dtype}"), B: T.Buffer((6, 8), "{dtype}"),\n'
        f'      S: T.Buffer((6,), "{dtype}"), Q: T.Buffer((6,), "{dtype}")):\n{note}'
        f"    for i in range(6):\n        for k in range(8):\n{lines}"
    )


def kinds(func: T.PrimFunc) -> list[str]:
    """The kinds of the last iterators of the blocks that `enclose` makes."""
    sch = Schedule(func)
    return [sch.get(block).iter_vars[-1].kind.value for block in sch.enclose("root")]


@T.prim_func
def skipping(
    A: T.Buffer((6, 8), "int32"), B: T.Buffer((6, 8), "int32"), C: T.Buffer((6,), "int32")
):
    for i in range(6):
        if A[i, 0] < 0:
            C[i] = -1
            continue
        n = 0
        for k in range(8):
            if A[i, k] < 1:
                continue
            B[i, k] = A[i, k] * 2
            n += 1
        C[i] = n


def test_continue_becomes_a_condition() -> None:
    sch = Schedule(skipping)
    sch.enclose("root")
    assert "continue" not in sch.script()
    assert sch.get(sch.get_block("n_1")).iter_vars[-1].kind is IterKind.REDUCE
    check_transform(skipping, sch, "enclose_continue")


def test_a_loop_that_always_continues_has_no_store() -> None:
    func = program("if i < 9:\n    continue\nelse:\n    continue\nS[i] = 1")
    sch = Schedule(func)
    message = "all stores of root stand in blocks, use pointers"
    check_refused(sch, lambda: sch.enclose("root"), "nothing-outside", message)
    assert not vectors_and_threads(func, Target.native()).entries
    check_numbers(func, autoschedule(func).mod, compiled=True)


JUMPS = {
    "both branches": "if A[i, k] > 0:\n    S[i] = 1\n    continue\nelse:\n    Q[i] = 2\nS[i] = 3",
    "nested": "if A[i, k] > 0:\n    if A[i, k] > 2:\n        continue\nS[i] = A[i, k]",
    "last": "S[i] = A[i, k]\nif A[i, k] > 0:\n    continue",
    "in the other branch": "if A[i, k] > 0:\n    S[i] = 1\nelse:\n    continue\nQ[i] = A[i, k]",
    "always": "S[i] = A[i, k]\ncontinue",
    "under a variable": "x = A[i, k]\nif x > 1:\n    continue\ny = x + 1\nS[i] = y\nif y > 0:\n"
    "    Q[i] = y\n    continue\nB[i, k] = y",
}
KEPT = {
    "two uses of the rest": "if A[i, k] > 0:\n    if A[i, k] > 2:\n        continue\n    S[i] = 1\n"
    "Q[i] = 3",
    "a break beside it": "if A[i, k] > 4:\n    break\nif A[i, k] > 2:\n    continue\nS[i] = 3",
}


@pytest.mark.parametrize("case", [*JUMPS, *KEPT])
def test_which_loops_lose_their_continue(case: str) -> None:
    func = program((JUMPS | KEPT)[case])
    left = [s for s in walk_stmts(without_continue(func.body)) if isinstance(s, Continue)]
    assert len(left) == (case in KEPT)
    sch = Schedule(func)
    sch.enclose("root")
    check_numbers(func, sch.mod, compiled=True)


def test_the_condition_of_a_continue_is_evaluated_before_the_stores() -> None:
    func = program("if S[i] > 2:\n    S[i] = 0\n    continue\nS[i] = S[i] + A[i, k]")
    sch = Schedule(func)
    sch.enclose("root")
    assert "else:" in sch.script()
    check_numbers(func, sch.mod, compiled=True)


REDUCED = {
    "sum": "if A[i, k] > 1:\n    S[i] += B[i, k]",
    "count": "if A[i, k] > 1 and k != 3:\n    S[i] += 1",
    "either": "if A[i, k] > 1:\n    S[i] += B[i, k]\nelse:\n    S[i] += 3",
    "product": "if A[i, k] > 1:\n    S[i] *= 2",
    "difference": "if k > 2:\n    S[i] -= A[i, k - 3]",
    "minimum": "if A[i, k] > 1:\n    S[i] = T.min(S[i], B[i, k])",
    "largest": "if A[i, k] > S[i]:\n    S[i] = A[i, k]",
    "smallest": "if S[i] >= A[i, k] + k:\n    S[i] = A[i, k] + k",
    "variable": "x = A[i, k] * 2\nif x > 1:\n    y = x + B[i, k]\n    S[i] += y * y",
    "chain": "S[i] = S[i] + A[i, k] - B[i, k]",
    "cascade": "if A[i, k] > 2:\n    S[i] += 4\nelif A[i, k] > 0:\n    S[i] += 2\n"
    "else:\n    S[i] += 1",
}
FLOATS = {
    "chain": ("reassoc", "S[i] = S[i] + A[i, k] - B[i, k]"),
    "sum": ("reassoc", "if A[i, k] > 1:\n    S[i] += B[i, k]"),
    "minimum": ("", "if A[i, k] > 1:\n    S[i] = T.min(S[i], B[i, k])"),
    "largest": ("reassoc", "if A[i, k] > S[i]:\n    S[i] = A[i, k]"),
    "smallest": ("reassoc nnan", "if A[i, k] < S[i]:\n    S[i] = A[i, k]"),
}
IN_ORDER = {
    "float sum": ("float32", "", "if A[i, k] > 1:\n    S[i] += B[i, k]"),
    "sign of zero": ("float32", "nnan", "if A[i, k] > S[i]:\n    S[i] = A[i, k]"),
    "two kinds": ("int32", "", "if A[i, k] > 1:\n    S[i] += 1\nelse:\n    S[i] *= 2"),
    "own condition": ("int32", "", "if S[i] < 5:\n    S[i] += A[i, k]"),
    "outside": ("int32", "", "if i > 0:\n    S[i - 1] += A[i, k]"),
    "other maximum": ("int32", "", "if A[i, k] > S[i]:\n    S[i] = A[i, k] + 1"),
}


@pytest.mark.parametrize("case", REDUCED)
def test_conditional_updates_run_in_any_order(case: str) -> None:
    func = program(REDUCED[case])
    assert kinds(func) == ["reduce"]
    sch = Schedule(func)
    (made,) = sch.enclose("root")
    check_transform(func, sch)
    sch.reorder(*reversed(sch.get_loops(made)))
    check_numbers(func, sch.mod, compiled=True)


@pytest.mark.parametrize("case", FLOATS)
def test_conditional_updates_of_floats_run_in_any_order(case: str) -> None:
    words, body = FLOATS[case]
    func = program(body, "float32", words)
    assert kinds(func) == ["reduce"]
    sch = Schedule(func)
    sch.enclose("root")
    check_numbers(func, sch.mod, compiled=True)


@pytest.mark.parametrize("case", IN_ORDER)
def test_other_conditional_updates_keep_their_order(case: str) -> None:
    dtype, words, body = IN_ORDER[case]
    assert "reduce" not in kinds(program(body, dtype, words))


APART = {
    "two sums": ("if A[i, k] > 1:\n    S[i] += A[i, k]\n    Q[i] += 1", ["reduce"] * 2),
    "one variable": ("x = A[i, k] * 2\nS[i] += x\nQ[i] += x * x", ["reduce"] * 2),
    "by sign": ("if A[i, k] > 1:\n    S[i] += 1\nelse:\n    Q[i] += 1", ["reduce"] * 2),
    "beside a store": ("x = A[i, k] * 2\nB[i, k] = x\nS[i] += x", ["spatial", "reduce"]),
    "after stores": (
        "x = A[i, k] * 2\nB[i, k] = x + 1\nQ[k % 6] = 2\nS[i] += x",
        ["opaque", "reduce"],
    ),
    "after its condition": (
        "x = A[i, k] * 2\nif B[i, k] > 1:\n    S[i] += x\nB[i, k] = x",
        ["reduce", "spatial"],
    ),
    "written variable": ("x = B[i, k]\nB[i, k] = 0\nS[i] += x", ["opaque"]),
    "written condition": ("if B[i, k] > 1:\n    B[i, k] = 0\n    S[i] += 1", ["opaque"]),
    "argmax": ("if A[i, k] > S[i]:\n    S[i] = A[i, k]\n    Q[i] = k", ["opaque"]),
}


@pytest.mark.parametrize("case", APART)
def test_updates_beside_other_statements(case: str) -> None:
    body, found = APART[case]
    func = program(body)
    assert kinds(func) == found
    sch = Schedule(func)
    sch.enclose("root")
    check_transform(func, sch)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", ["-=", "+=", "max", "largest"])
def test_an_update_with_the_identity_changes_no_bit(dtype: str, case: str) -> None:
    """Zeros keep their sign and NaN stays where the condition fails."""
    update = f"S[i] {case} A[i, k]" if "=" in case else f"S[i] = T.{case}(S[i], A[i, k])"
    if case == "largest":
        body, words = "if A[i, k] > S[i]:\n    S[i] = A[i, k]", "reassoc"
    else:
        body, words = f"if B[i, k] > 0:\n    {update}", ""
    func = program(body, dtype, words)
    (branch,) = [s for s in walk_stmts(func.body) if isinstance(s, IfThenElse)]
    store = as_update(branch, func.liberties)
    assert isinstance(store, BufferStore)
    rewritten = func.with_body(_replaced(func.body, branch, store))
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5], dtype)
    rng = np.random.default_rng(0)
    for _ in range(4):
        args = [rng.choice(odd, (6, 8)), rng.choice([-1, 1], (6, 8)).astype(dtype), odd, odd]
        if case == "largest":  # zeros of one sign
            args = [a + 0.0 for a in args]
        results = []
        for which in (func, rewritten):
            given = [np.array(a, dtype) for a in args]
            run(which, *given)
            results.append(given[2])
        assert np.array_equal(*results, equal_nan=True)
        assert np.array_equal(*(np.signbit(r) | np.isnan(r) for r in results))


def _replaced(stmt, old, new):
    if stmt is old:
        return new
    return stmt.rebuild([_replaced(s, old, new) for s in stmt.stmts], stmt.exprs)


class Drawn:
    """Random statements of conditions, jumps, variables and updates."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.names: list[str] = []
        self.count = 0

    def value(self) -> str:
        pick = self.rng.choice
        atoms = ["A[i, k]", "B[i, k]", "A[k % 6, i]", "T.cast(k, dt)", "2", "S[5 - i]", *self.names]
        return f"{pick(atoms)} {pick('+-*')} {pick(atoms)}" if pick([0, 1]) else pick(atoms)

    def test(self) -> str:
        pick = self.rng.choice
        return pick([f"{self.value()} {pick(['<', '>', '>=', '==', '!='])} {self.value()}",
                     "k > i", "k != 3 and A[i, k] > 0", "S[i] < 4"])  # fmt: skip

    def block(self, depth: int) -> list[str]:
        lines, known = [], list(self.names)
        for _ in range(self.rng.randint(1, 3)):
            lines += self.statement(depth)
        self.names = known
        return lines

    def statement(self, depth: int) -> list[str]:
        pick = self.rng.choice
        kind = pick(["if", "if", "let", "sum", "sum", "extreme", "store", "jump", "best"])
        own = pick(["S[i]", "Q[i]", "B[i, k]", "Q[k % 6]"])
        if kind == "if" and depth:
            lines = [f"if {self.test()}:", *indented(self.block(depth - 1))]
            if pick([0, 1]):
                lines += ["else:", *indented(self.block(depth - 1))]
            return lines
        if kind == "let":
            value, self.count = self.value(), self.count + 1
            self.names.append(f"x{self.count}")
            return [f"x{self.count} = T.cast({value}, dt)"]
        if kind == "jump":
            return [f"if {self.test()}:", "    continue"]
        if kind == "best":
            value = self.value()
            return [f"if {value} > {own}:", f"    {own} = T.cast({value}, dt)"]
        if kind == "extreme":
            return [f"{own} = T.{pick(['min', 'max'])}({own}, T.cast({self.value()}, dt))"]
        if kind == "store":
            return [f"{own} = T.cast({self.value()}, dt)"]
        return [f"{own} {pick(['+=', '-=', '+='])} {self.value()}"]


def indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32"])
def test_random_statements(dtype: str) -> None:
    rewritten = 0
    for seed in range(40):
        body = "\n".join(Drawn(seed).block(2)).replace("dt)", f'"{dtype}")')
        func = program(body, dtype)
        if not stores_outside(func.root.body):
            continue
        sch = Schedule(func)
        made = sch.enclose("root")
        rewritten += any(v.is_reduce for block in made for v in sch.get(block).iter_vars)
        check_numbers(func, sch.mod, compiled=True)
        sch = Schedule(func)
        vectors_and_threads(func, Target.native()).apply(sch)
        check_numbers(func, sch.mod, compiled=True)
    assert rewritten > 1


def test_foreign_code_runs_once_for_all_updates_in_its_order() -> None:
    func = program('x = T.call_extern("int32", "rand")\nS[i] += x\nQ[i] += x')
    sch = Schedule(func)
    assert len(sch.enclose("root")) == 2 and sch.script().count("call_extern") == 1
    loop = sch.get_loops("S")[0]
    message = "loop i holds a statement of unknown effect"
    check_refused(sch, lambda: sch.parallel(loop), "unknown-effect", message)
    alone = Schedule(program('B[i, k] = T.call_extern("int32", "rand")'))
    message = "all stores of root stand in blocks, use pointers or foreign code"
    check_refused(alone, lambda: alone.enclose("root"), "nothing-outside", message)
    pure = Schedule(program('B[i, k] = T.call_pure_extern("int32", "abs", A[i, k])'))
    assert len(pure.enclose("root")) == 1


def test_what_an_iteration_hands_on_is_read_as_the_neighbour_where_nothing_else_needs_it() -> None:
    @T.prim_func
    def words(D: T.Buffer((50000,), "uint8"), out: T.Buffer((2,), "int64")):
        lines = T.int64(0)
        starts = T.int64(0)
        gap = T.bool(True)
        for i in range(50000):
            space = D[i] == T.uint8(32) or D[i] == T.uint8(10)
            if D[i] == T.uint8(10):
                lines += 1
            if gap and not space:
                starts += 1
            gap = space
        out[0] = lines
        out[1] = starts

    sch = autoschedule(words, target="cpu -num-cores=2")
    assert sch.script().count("T.parallel") == 2 and "gap" not in sch.script()
    data, found = (
        np.frombuffer(b"a few words\nin two lines " * 2000, np.uint8),
        np.zeros(2, "int64"),
    )
    build(sch)(data, found)
    assert list(found) == [2000, 2000 * 6]


def test_counts_and_sums_run_on_all_cores_in_vectors() -> None:
    @T.prim_func
    def above(X: T.Buffer((100000,), "int32"), out: T.Buffer((2,), "int32")):
        s = T.int32(0)
        c = T.int32(0)
        for i in range(100000):
            if X[i] < 50:
                continue
            s += X[i]
            c += 1
        out[0] = s
        out[1] = c

    sch = autoschedule(above, target="cpu -num-cores=2")
    assert sch.script().count("T.parallel") == 2
    data, found = np.random.default_rng(0).integers(0, 100, 100000, "int32"), np.zeros(2, "int32")
    build(sch)(data, found)
    assert list(found) == [data[data >= 50].sum(), (data >= 50).sum()]


SEARCH = "n = 0\nwhile n < k and A[i, n] > {limit}:\n    n += 1\n"
BEHIND = {
    "sum": "S[i] += n",
    "count": "if n > 2:\n    S[i] += B[i, n - 1]",
    "two results": "S[i] = T.max(S[i], n)\nQ[i] += A[i, n]",
    "two elements": "S[0] += n\nif n == k:\n    S[1] += 1",
}
TOGETHER = {
    "no update": "S[i] = n",
    "an element of each iteration": "B[i, k] += n",
    "a place that the loop finds": "S[n % 6] += 1",
    "an update that another one reads": "Q[i] += S[i]\nS[i] += n",
    "an element that the statements before read": "B[i, k] = S[i]\nS[i] += n",
    "no update behind it": "S[i] += n\nB[i, k] = 2",
}


@pytest.mark.parametrize("case", [*BEHIND, *TOGETHER])
def test_updates_behind_a_loop_that_data_end(case: str) -> None:
    """They get blocks of their own; then lanes may run the loop."""
    func = program(SEARCH.format(limit="B[i, k]") + (BEHIND | TOGETHER)[case])
    sch = Schedule(func)
    made = sch.enclose("root")
    updates = (BEHIND | TOGETHER)[case].count("= T.max") + (BEHIND | TOGETHER)[case].count("+=")
    assert len(made) == (1 + updates if case in BEHIND else 1)
    check_numbers(func, sch.mod, compiled=True)
    vectors_and_threads(func, Target.native()).apply(fast := Schedule(func))
    check_numbers(func, fast.mod, compiled=True)


def test_a_loop_that_reads_the_result_keeps_it() -> None:
    func = program(SEARCH.format(limit="S[i]") + "S[i] += n")
    assert len(Schedule(func).enclose("root")) == 1


def test_a_sum_of_floats_behind_a_loop_keeps_its_order() -> None:
    body = "n = 0\nwhile n < k and A[i, n] > B[i, k]:\n    n += 1\nS[i] += A[i, n]"
    assert len(Schedule(program(body, "float32")).enclose("root")) == 1
    assert len(Schedule(program(body, "float32", "reassoc")).enclose("root")) == 2

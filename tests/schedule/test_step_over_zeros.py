"""step_over_zeros: what a remainder makes zero, and every refusal."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform

from metasched.errors import ScheduleError
from metasched.ir.func import PrimFunc
from metasched.schedule.schedule import Schedule
from metasched.script import parse

PROGRAM = """
@T.prim_func
def f(A: T.Buffer((24, 24), "{dtype}"), I: T.Buffer((12,), "int32"),
      W: T.Buffer((6, 6), "{dtype}"), C: T.Buffer((9, 5), "{dtype}")):
    T.func_attr({{"tir.finite": {finite}}})
    for y, x, i, j in T.grid(9, 5, 6, 4):
        with T.block("C"):
            vy, vx, vi, vj = T.axis.remap("SSRR", [y, x, i, j])
            with T.init():
                C[vy, vx] = {start}
            C[vy, vx] = {update}
"""
EVEN = "(vy + 5 - vi) % 2 == 0"
GUARDED = "T.if_then_else({}, A[vy + vi, vx + vj], {}(0))"


def program(
    value: str, dtype: str = "int32", start: str = "0", update: str = "C[vy, vx] + {}",
    finite: bool = True,
):  # fmt: skip
    update = update.format(value)
    return parse(PROGRAM.format(dtype=dtype, start=start, update=update, finite=finite))


def guarded(condition: str, dtype: str = "int32") -> str:
    return GUARDED.format(condition, f"T.{dtype}")


STEPPED = {
    "term": program(guarded(EVEN)),
    "sum of both": program(guarded("(vy + vi) % 2 == 0")),
    "third": program(guarded("(vy * 2 - vi + vx) % 3 == 1")),
    "coprime": program(guarded("(vi * 5 + vy * 7 + 3) % 6 == 4")),
    "far": program(guarded("(vi * -7 + 40) % 3 == 2")),
    "other tests": program(guarded(f"vy + vi < 9 and {EVEN} and vx <= vj")),
    "nested": program(
        "T.if_then_else(vy + vi < 9, T.if_then_else((vy + vi) % 3 == 0, A[vy, vi], 0), 0)"
    ),
    "choice": program(f"T.Select({EVEN}, A[vy + vi, vx], 0) * W[vi, vj]"),
    "factor": program(guarded(EVEN) + " * W[vi, vj]"),
    "float factor": program(guarded(EVEN, "float32") + " * W[vi, vj]", "float32"),
    "float term": program(guarded(EVEN, "float32"), "float32", "T.float32(0)", finite=False),
    "backwards": program(guarded(EVEN), update="{} + C[vy, vx]"),
    "quotients": program(f"T.if_then_else({EVEN}, A[(vy + 5 - vi) // 2, vj], 0) * W[vi, vj]"),
}


@pytest.mark.parametrize("name", STEPPED)
def test_the_results_are_the_same(name: str) -> None:
    func = STEPPED[name]
    sch = Schedule(func, check=True)
    i = sch.get_loops("C")[2]
    sch.step_over_zeros(i)
    assert sch.get(i).extent.value < 6
    check_transform(func, sch)


def test_the_condition_is_gone() -> None:
    sch = Schedule(STEPPED["term"])
    sch.step_over_zeros(sch.get_loops("C")[2])
    assert "if_then_else" not in sch.mod.script()


STAGE = """
@T.prim_func
def f(X: T.Buffer((6, 5), "{dtype}"), W: T.Buffer((4, 6), "{dtype}"),
      C: T.Buffer((8, 10), "{dtype}")):
    T.func_attr({{"tir.finite": {finite}}})
    Z = T.alloc_buffer((12, 16), "{dtype}")
    for i, j in T.grid(12, 16):
        with T.block("Z"):
            vi, vj = T.axis.remap("SS", [i, j])
            Z[vi, vj] = {value}
    for y, x, i, j in T.grid(8, 10, 4, 6):
        with T.block("C"):
            vy, vx, vi, vj = T.axis.remap("SSRR", [y, x, i, j])
            with T.init():
                C[vy, vx] = 0
            C[vy, vx] = C[vy, vx] + Z[vy + vi, vx + vj] * W[3 - vi, 5 - vj]
"""
APART = "T.if_then_else(vi % 2 == 0 and (vj - 1) % 3 == 0, X[vi // 2, (vj - 1) // 3], {}(0))"


def staged(dtype: str, finite: bool = True, value: str = APART):
    value = value.format(f"T.{dtype}")
    return parse(STAGE.format(dtype=dtype, finite=finite, value=value))


@pytest.mark.parametrize(("dtype", "finite"), [("int32", False), ("float32", True)])
def test_zeros_between_the_elements_of_a_stage(dtype: str, finite: bool) -> None:
    func = staged(dtype, finite)
    sch = Schedule(func, check=True)
    _, _, i, j = sch.get_loops("C")
    sch.step_over_zeros(i)
    sch.step_over_zeros(j)
    assert [sch.get(n).extent.value for n in (i, j)] == [2, 2]
    check_transform(func, sch)


NO_ZEROS = "no remainder of vi makes what C adds zero"
PLAIN = STEPPED["term"]
REFUSED = {
    "spatial": (PLAIN, 0, "not-the-iterator", "vy is no reduce iterator of C"),
    "no test": (program("A[vy, vi]"), 2, "no-zeros", NO_ZEROS),
    "no remainder": (program(guarded("vi <= vy")), 2, "no-zeros", NO_ZEROS),
    "unequal": (program(guarded("(vy + vi) % 3 != 0")), 2, "no-zeros", NO_ZEROS),
    "not coprime": (program(guarded("(vy + vi * 2) % 4 == 0")), 2, "no-zeros", NO_ZEROS),
    "never": (program(guarded("(vy + vi) % 2 == 3")), 2, "no-zeros", NO_ZEROS),
    "memory": (program(guarded("(I[vy] + vi) % 2 == 0")), 2, "no-zeros", NO_ZEROS),
    "inside": (program(guarded("(vy + vi // 2) % 2 == 0")), 2, "no-zeros", NO_ZEROS),
    "else": (
        program(f"T.if_then_else({EVEN}, A[vy, vi], 1)"), 2, "no-zeros", NO_ZEROS
    ),
    "minus zero": (
        program(f"T.if_then_else({EVEN}, A[vy, vi], T.float32(-0.0))", "float32"),
        2, "no-zeros", NO_ZEROS,
    ),
    "infinite": (
        program(guarded(EVEN, "float32") + " * W[vi, vj]", "float32", finite=False),
        2, "no-zeros", NO_ZEROS,
    ),
    "computed": (
        program(guarded(EVEN, "float32") + " * T.exp(W[vi, vj])", "float32"),
        2, "no-zeros", NO_ZEROS,
    ),
    "three factors": (
        program(guarded(EVEN, "float32") + " * W[vi, vj] * W[vj, vi]", "float32"),
        2, "no-zeros", NO_ZEROS,
    ),
    "sum of terms": (program(guarded(EVEN) + " + W[vi, vj]"), 2, "no-zeros", NO_ZEROS),
    "stage of infinite": (staged("float32", False), 2, "no-zeros", NO_ZEROS),
    "stage of ones": (
        staged("int32", value="T.if_then_else(vi % 2 == 0, X[vi // 2, vj // 4], 1)"),
        2, "no-zeros", NO_ZEROS,
    ),
    "part": (program(guarded("(vy + vi) % 4 == 0")), 2, "no-whole-steps", "4 does not divide 6"),
    "maximum": (
        program(guarded(EVEN), start="0", update="T.max(C[vy, vx], {})"),
        2, "no-sum", "C is no single sum that starts from zero",
    ),
    "start": (program(guarded(EVEN), start="5"), 2, "no-sum", "no single sum"),
    "start from minus zero": (
        program(guarded(EVEN, "float32"), "float32", "T.float32(-0.0)"), 2, "no-sum", "no single",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    func, at, reason, text = REFUSED[name]
    sch = Schedule(func)
    loop = sch.get_loops("C")[at]
    check_refused(sch, lambda: sch.step_over_zeros(loop), reason, text)


def test_refusals_of_shape() -> None:
    sch = Schedule(PLAIN)
    i = sch.get_loops("C")[2]
    outer, inner = sch.split(i, [None, 2])
    check_refused(sch, lambda: sch.step_over_zeros(outer), "not-the-iterator", "i_0 is not alone")
    sch = Schedule(PLAIN)
    i = sch.get_loops("C")[2]
    sch.unroll(i)
    check_refused(sch, lambda: sch.step_over_zeros(i), "loop-has-kind", "unroll")
    sch = Schedule(PLAIN)
    i = sch.get_loops("C")[2]
    sch.annotate(i, "note", 1)
    check_refused(sch, lambda: sch.step_over_zeros(i), "annotated-loop", "note")
    sch = Schedule(PLAIN)
    y, x, i, j = sch.get_loops("C")
    sch.decompose_reduction("C", i)
    check_refused(sch, lambda: sch.step_over_zeros(i), "no-init", "C")


def test_an_extent_that_is_no_constant() -> None:
    func = parse("""
@T.prim_func
def f(a: T.handle, C: T.Buffer((8,), "int32")):
    n = T.int32()
    A = T.match_buffer(a, (n,), "int32")
    for y, i in T.grid(8, n):
        with T.block("C"):
            vy, vi = T.axis.remap("SR", [y, i])
            with T.init():
                C[vy] = 0
            C[vy] = C[vy] + T.if_then_else((vy + vi) % 2 == 0, A[vi], 0)
""")
    sch = Schedule(func)
    i = sch.get_loops("C")[1]
    check_refused(
        sch, lambda: sch.step_over_zeros(i), "no-limit", "vi of C does not run over a constant"
    )


def test_a_reduce_iterator_that_starts_elsewhere() -> None:
    func = parse("""
@T.prim_func
def f(A: T.Buffer((16,), "int32"), C: T.Buffer((8,), "int32")):
    for y in range(8):
        for i in range(2, 8):
            with T.block("C"):
                vy = T.axis.spatial(8, y)
                vi = T.axis.reduce((2, 8), i)
                with T.init():
                    C[vy] = 0
                C[vy] = C[vy] + T.if_then_else((vy + vi) % 2 == 0, A[vy + vi], 0)
""")
    sch = Schedule(func)
    i = sch.get_loops("C")[1]
    message = "vi of C does not run from zero to a constant"
    check_refused(sch, lambda: sch.step_over_zeros(i), "no-limit", message)


def test_a_loop_inside_that_ends_at_the_iterator() -> None:
    func = parse("""
@T.prim_func
def f(A: T.Buffer((8, 8), "int32"), C: T.Buffer((8,), "int32")):
    for y in range(8):
        for i in range(8):
            for j in range(i + 1):
                with T.block("C"):
                    vy, vi = T.axis.remap("SR", [y, i])
                    vj = T.axis.reduce(8, j)
                    with T.init():
                        C[vy] = 0
                    C[vy] = C[vy] + T.if_then_else((vy + vi) % 2 == 0, A[vi, vj], 0)
""")
    sch = Schedule(func)
    i = sch.get_loops("C")[1]
    check_refused(sch, lambda: sch.step_over_zeros(i), "not-the-iterator", "i is not alone")


SWEEP = """
@T.prim_func
def f(A: T.Buffer((14, 19), "int32"), I: T.Buffer((2,), "int32"), U: T.Buffer((14, 19), "int32")):
    for i, j in T.grid(14, 19):
        with T.block("U"):
            vi, vj = T.axis.remap("SS", [i, j])
            U[vi, vj] = A[vi, vj]
    for t, c in T.grid(3, 2):
        for i in range(1, 13):
            for j in range(1, 18):
                with T.block("S"):
                    vc = T.axis.opaque(2, c)
                    vi = T.axis.opaque((1, 13), i)
                    vj = T.axis.opaque((1, 18), j)
                    if {}:
                        U[vi, vj] = U[vi - 1, vj] + U[vi + 1, vj] + U[vi, vj - 1] * vj
                    {}
"""


def sweep(condition: str, other: str = ""):
    return parse(SWEEP.format(condition, other))


TESTED = {
    "rows": sweep("(vi + vc) % 5 == 3"),
    "colour": sweep("(vi + vj) % 2 == vc"),
    "factors": sweep("(vi * 3 + vj * 2 + vc) % 5 == 3"),
    "other side": sweep("vc == (vi + vj) % 2"),
    "unequal": sweep("(vi + vj) % 2 != vc"),
    "two remainders": sweep("(vj + vc) % 2 == (vi + 1) % 2"),
    "backwards": sweep("(vi * 7 - vj * 5) % 6 == 1"),
    "two tests": sweep("A[vi, vj] > 0 and (vi - vj) % 4 == vc + 1"),
}


@pytest.mark.parametrize("name", TESTED)
def test_a_statement_under_a_test(name: str) -> None:
    func, at = TESTED[name], 2 if name == "rows" else 3
    sch = Schedule(func, check=True)
    loop = sch.get_loops("S")[at]
    size = sch.get(loop).extent.value
    sch.step_over_zeros(loop)
    assert sch.get(loop).min.value == 0
    assert sch.get(loop).extent.value < size
    check_transform(func, sch)


def test_whole_steps_leave_no_test() -> None:
    sch = Schedule(sweep("(vi + vc) % 2 == 1"))
    sch.step_over_zeros(sch.get_loops("S")[2])
    assert "if " not in sch.mod.script()
    sch = Schedule(sweep("(vi + vj) % 2 == vc"))
    sch.step_over_zeros(sch.get_loops("S")[3])
    assert "if " in sch.mod.script()


@pytest.mark.parametrize(
    "func",
    [
        sweep("(vi + vj) % 2 == I[vc]"),
        sweep("(vi + vj) % 2 == vc * 2"),
        sweep("vj % 3 == 0 or (vi + vj) % 2 == 1"),
        sweep("(vi + vj * 2) % 4 == 1"),
        sweep("(vi + vj) % 3 != 1"),
    ],
)
def test_tests_that_no_remainder_decides(func: PrimFunc) -> None:
    sch = Schedule(func)
    loop = sch.get_loops("S")[3]
    check_refused(
        sch, lambda: sch.step_over_zeros(loop), "no-zeros", "no remainder of vj decides whether S"
    )


@pytest.mark.parametrize("at", [1, 2])
def test_a_rest_that_inner_loops_decide_changes_the_order(at: int) -> None:
    """Stepping over colours ran the sweeps of both colours as one."""
    sch = Schedule(sweep("(vi + vj) % 2 == vc"))
    loop = sch.get_loops("S")[at]
    check_refused(sch, lambda: sch.step_over_zeros(loop), "no-zeros", "no remainder of v. decides")


def test_a_test_with_another_branch() -> None:
    sch = Schedule(sweep("(vi + vj) % 2 == vc", "else: U[vi, vj] = 0"))
    loop = sch.get_loops("S")[3]
    with pytest.raises(ScheduleError):
        sch.step_over_zeros(loop)

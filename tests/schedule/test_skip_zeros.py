"""skip_zeros: choices that add nothing become conditions, bit by bit; every refusal."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import check_refused, check_transform

from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script import parse

SUM = """
@T.prim_func
def f(A: T.Buffer((6, 7), "{dtype}"), C: T.Buffer((6,), "{dtype}")):
    for i in range(6):
        with T.block("start"):
            vi = T.axis.spatial(6, i)
            {start}
    for i, k in T.grid(6, 7):
        with T.block("C"):
            vi = T.axis.spatial(6, i)
            vk = T.axis.opaque(7, k)
            {update}
"""
CHOICE = "T.if_then_else(vk <= vi, A[vi, vk], {zero})"


def program(
    update: str, zero: str = "0.0", start: str = "C[vi] = 1.0", dtype: str = "float32"
) -> Schedule:
    update = update.replace("?", CHOICE.format(zero=f"T.{dtype}({zero})"))
    return Schedule(parse(SUM.format(update=update, start=start, dtype=dtype)), check=True)


@pytest.mark.parametrize(
    ("sch", "printed"),
    [
        (program("C[vi] = C[vi] + ?"), "C[vi] = C[vi] + A[vi, vk]"),
        (program("C[vi] = ? + C[vi]"), "C[vi] = A[vi, vk] + C[vi]"),
        (program("C[vi] = C[vi] - ?", start="pass"), "C[vi] = C[vi] - A[vi, vk]"),
        (program("C[vi] = C[vi] + ?", zero="-0.0", start="pass"), "C[vi] = C[vi] + A[vi, vk]"),
        (program("C[vi] = C[vi] - ?", zero="-0.0"), "C[vi] = C[vi] - A[vi, vk]"),
        (program("C[vi] = C[vi] * ?", zero="1.0", start="pass"), "C[vi] = C[vi] * A[vi, vk]"),
        (program("C[vi] = C[vi] + ?", zero="0", start="pass", dtype="int32"), "C[vi] + A[vi, vk]"),
        (program("if A[vi, vk] > 0.0: C[vi] = C[vi] + ?"), "C[vi] = C[vi] + A[vi, vk]"),
        (program("C[vi] = C[vi] + ?", start="C[vi] = 0.0"), "C[vi] = C[vi] + A[vi, vk]"),
    ],
)
def test_a_choice_becomes_a_condition(sch: Schedule, printed: str) -> None:
    before = sch.mod["main"]
    sch.skip_zeros("C")
    text = sch.script()
    assert "if vk <= vi:" in text and printed in text and "if_then_else" not in text
    check_transform(before, sch)


@pytest.mark.parametrize("choice", ["T.if_then_else", "T.Select"])
@pytest.mark.parametrize("test", ["vk == vi", "vk > vi or vk < vi - 2"])
def test_the_other_branch(choice: str, test: str) -> None:
    sch = program(f"C[vi] = C[vi] + {choice}({test}, T.float32(0), A[vi, vk])")
    before = sch.mod["main"]
    sch.skip_zeros("C")
    assert "not" not in sch.script() and "if vk" in sch.script()
    check_transform(before, sch)


def test_an_init_is_the_start() -> None:
    func = parse("""
@T.prim_func
def f(A: T.Buffer((6, 7), "float32"), C: T.Buffer((6,), "float32")):
    for i, k in T.grid(6, 7):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + T.if_then_else(vk <= vi, A[vi, vk], 0.0)
""")
    sch = Schedule(func)
    sch.skip_zeros("C")
    assert "if vk <= vi:" in sch.script()
    check_transform(func, sch)


@pytest.mark.parametrize(
    ("init", "other"),
    [
        ("if vi > 2: C[vi] = 0.0", ""),
        ("C[vi] = -0.0", ""),
        ("C[vi] = 0.0", """
            with T.block("D"):
                vi = T.axis.spatial(6, i)
                C[vi] = C[vi] * -1.0"""),
    ],
)  # fmt: skip
def test_an_init_that_is_no_start(init: str, other: str) -> None:
    """The condition of the init may leave an element, and another block may store -0.0."""
    text = """
@T.prim_func
def f(A: T.Buffer((6, 7), "float32"), C: T.Buffer((6,), "float32")):
    for i in range(6):
        for k in range(7):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    {}
                C[vi] = C[vi] + T.if_then_else(vk <= vi, A[vi, vk], 0.0){}
"""
    sch = Schedule(parse(text.format(init, other)))
    check_refused(sch, lambda: sch.skip_zeros("C"), "other-start", "C adds 0.0, which changes")


ANY_START = "C[vi] = A[vi, 0]"


@pytest.mark.parametrize(
    ("sch", "reason", "message"),
    [
        (program("C[vi] = C[vi] + ?", start="pass"), "other-start", "C adds 0.0, which changes"),
        (program("C[vi] = C[vi] + ?", start=ANY_START), "other-start", "store under an `if`"),
        (program("C[vi] = C[vi] + ?", start="C[vi] = -0.0"), "other-start", "C adds 0.0"),
        (program("C[vi] = C[vi] + ?", start="if vi > 2: C[vi] = 1.0"), "other-start", "C adds 0.0"),
        (program("C[vi] = C[vi] - ?", zero="-0.0", start="pass"), "other-start", "C adds 0.0"),
        (program("C[vi] = C[vi] + ? * A[0, 0]"), "no-choice", "combines no element with"),
        (program("C[vi] = C[vi] + ?", zero="1.0"), "no-choice", "must store C"),
        (program("C[vi] = C[vi] * ?"), "no-choice", "or a product with 1"),
        (program("C[vi] = ? - C[vi]"), "no-choice", "C combines no element"),
        (program("C[vi] = C[vi] + A[vi, vk]"), "no-choice", "C combines no element"),
        (program("C[vi] = T.max(C[vi], ?)"), "no-choice", "C combines no element"),
        (
            program("C[vi] = C[vi] + T.if_then_else(T.call_extern('bool', 'g', vi), "
                    "A[vi, vk], T.float32(0))"),
            "has-effects", "a condition of C has effects",
        ),
    ],
)  # fmt: skip
def test_refusals(sch: Schedule, reason: str, message: str) -> None:
    check_refused(sch, lambda: sch.skip_zeros("C"), reason, message)


def test_a_block_that_stores_other_values_between_is_no_start() -> None:
    text = SUM.replace("    for i, k in", """    for i in range(6):
        with T.block("between"):
            vi = T.axis.spatial(6, i)
            C[vi] = C[vi] * -1.0
    for i, k in""")  # fmt: skip
    update = "C[vi] = C[vi] + " + CHOICE.format(zero="T.float32(0)")
    sch = Schedule(parse(text.format(update=update, start="C[vi] = 0.0", dtype="float32")))
    check_refused(sch, lambda: sch.skip_zeros("C"), "other-start", "no block is proved to set all")


def test_minus_zero_is_changed_by_adding_zero_alone() -> None:
    """The reason for the condition on the start."""
    data = np.zeros((6, 7), "float32"), np.full(6, -0.0, "float32")
    for zero, sign in (("0.0", False), ("-0.0", True)):
        result = data[1].copy()
        build(program("C[vi] = C[vi] + ?", zero=zero, start="pass").mod)(-data[0], result)
        assert bool(np.signbit(result[5])) == sign or zero == "0.0"
        assert bool(np.signbit(result).all()) == sign

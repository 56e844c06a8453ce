"""chain_sum: the terms of what a reduction adds, one after another, and every refusal."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_trace, check_transform

from metasched.schedule.schedule import Schedule
from metasched.script import parse

PROGRAM = """
@T.prim_func
def f(A: T.Buffer((4, 6), "float64"), B: T.Buffer((4, 6), "float64"),
      C: T.Buffer((4,), "float64")):
    for i, k in T.grid(4, 6):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float64({start})
            C[vi] = {value}
"""


def program(value: str, start: int = 0):
    a, b = (f"{name}[vi, vk]" for name in "AB")
    return parse(PROGRAM.format(value=value.format(a=a, b=b, c="C[vi]"), start=start))


@pytest.mark.parametrize(
    ("value", "chained"),
    [
        ("{c} + ({a} * {b} + {b} * {b})", "{c} + {a} * {b} + {b} * {b}"),
        ("{c} + ({a} * {b} - {b} * {b})", "{c} + {a} * {b} - {b} * {b}"),
        ("({a} - ({b} - {a} * {b})) + {c}", "{c} + {a} - {b} + {a} * {b}"),
        ("{c} - ({a} + {b})", "{c} - {a} - {b}"),
        ("{c} + {a} * ({a} + {b}) + ({a} + {b})", "{c} + {a} * ({a} + {b}) + {a} + {b}"),
    ],
)
def test_the_terms_follow_each_other(value: str, chained: str) -> None:
    func = program(value)
    sch = Schedule(func, check=True)
    sch.chain_sum("C")
    want = Schedule(program(chained)).script()
    assert sch.script() == want
    check_transform(func, sch)
    check_trace(func, sch)


@pytest.mark.parametrize("value", ["{c} + {a} * {b}", "{c} + {a} * {b} - {b}", "{c} - {a}"])
def test_terms_that_follow_each_other_are_refused(value: str) -> None:
    sch = Schedule(program(value))
    check_refused(sch, lambda: sch.chain_sum("C"), "one-term", "adds its terms one after another")


@pytest.mark.parametrize(
    ("value", "start"), [("T.max({c}, {a} + {b})", -9), ("{c} * ({a} + {b})", 1)]
)
def test_other_reductions_are_refused(value: str, start: int) -> None:
    sch = Schedule(program(value, start))
    check_refused(sch, lambda: sch.chain_sum("C"), "no-sum", "not one store that adds to a sum")

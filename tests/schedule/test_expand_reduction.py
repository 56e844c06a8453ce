"""expand_reduction: zero points, factors taken out, casts that may wrap, and every refusal."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import check_refused, check_trace, check_transform

from metasched.ir.visit import blocks_of
from metasched.schedule.schedule import Schedule
from metasched.script import parse

PROGRAM = """
@T.prim_func
def f(A: T.Buffer((6, 5), "{a}"), B: T.Buffer((5, 7), "{b}"), X: T.Buffer((6,), "int32"),
      Z: T.Buffer((7,), "int32"), C: T.Buffer((6, 7), "{c}")):
    for i, j, k in T.grid(6, 7, 5):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = {start}
            C[vi, vj] = {update}
"""
A, B = 'T.cast(A[vi, vk], "int32")', 'T.cast(B[vk, vj], "int32")'


def program(value: str, a: str = "uint8", b: str = "int8", c: str = "int32", **more: str):
    update = more.get("update", f"C[vi, vj] + {value}")
    return parse(PROGRAM.format(a=a, b=b, c=c, start=more.get("start", 0), update=update))


def sums(value: str, **more: str) -> list[str]:
    """What the blocks add after the step, which is checked to compute the same."""
    func = program(value, **more)
    sch = Schedule(func, check=True)
    made = sch.expand_reduction("C")
    assert [r.block.name for r in blocks_of(sch.func.body) if r.block.name != "root"] == [
        *(sch.get(block).name for block in made), "C"
    ]  # fmt: skip
    assert all(v.is_spatial for v in sch.get(sch.get_block("C")).iter_vars)
    check_transform(func, sch)
    check_trace(func, sch)
    lines = [line.strip() for line in sch.script().splitlines() if "] = " in line]
    return [line.partition(" = ")[2] for line in lines if not line.endswith(" = 0")]


def test_zero_points_leave_a_plain_product() -> None:
    rows, columns, product, last = sums(f"({A} - 121) * ({B} - Z[vj])")
    assert product.endswith('T.Cast("int32", A[vi, vk]) * T.Cast("int32", B[vk, vj])')
    assert rows.endswith('+ T.Cast("int32", A[vi, vk])')
    assert columns.endswith('+ T.Cast("int32", B[vk, vj])')
    assert "605 * Z[vj]" in last and "121 * C_sum_1[vj]" in last and "Z[vj] * C_sum[vi]" in last


def test_terms_with_the_same_factors_share_a_sum() -> None:
    assert len(sums(f"{A} * X[vi] - {A} * 3 + {A}")) == 2
    assert len(sums(f"{A} * {A} + {A}")) == 3


def test_a_factor_without_steps_is_taken_out_of_the_sum() -> None:
    added, last = sums(f"{A} * X[vi] * {B}")
    assert "X" not in added and "X[vi]" in last
    assert sums("X[vi] - 7")[-1] == "5 * X[vi] - 35"


@pytest.mark.parametrize(
    ("kind", "point", "sums_made"),
    [("int16", "3", 3), ("int16", "-32767", 2), ("int8", "3", 2), ("uint16", "3", 2)],
)
def test_a_sum_below_a_cast_is_multiplied_out_where_it_cannot_wrap(kind, point, sums_made) -> None:
    """A - 3 in int16 gives three sums with B + 1, and two as one factor that may wrap."""
    value = f'T.cast(T.cast(A[vi, vk], "{kind}") - T.{kind}({point}), "int32") * ({B} + 1)'
    assert len(sums(value)) == sums_made + 1


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_random_sums_of_products_stay_the_same(data) -> None:
    def value(depth: int) -> str:
        if not depth or data.draw(st.integers(0, 3)) == 0:
            return data.draw(st.sampled_from([A, B, "X[vi]", "Z[vj]", "7", "(0 - 3)", "vk"]))
        op = data.draw(st.sampled_from("+-*"))
        return f"({value(depth - 1)} {op} {value(depth - 1)})"

    func = program(f"({value(2)}) * {A} + ({value(2)}) * {B}")
    sch = Schedule(func, check=True)
    sch.expand_reduction("C")
    check_transform(func, sch, compiled=False)


@pytest.mark.parametrize(
    ("reason", "message", "func"),
    [
        ("no-sum", "C is no single sum", program("", update="C[vi, vj] * 2 + X[vi]")),
        ("no-sum", "C is no single sum", program("X[vi]", start="1")),
        ("no-sum", "C is no single sum", program("", update="T.max(C[vi, vj], X[vi])",
                                                 start="T.min_value('int32')")),
        ("rounded-sum", "C computes float32, whose sums round", program(
            "(A[vi, vk] - B[vk, vj]) * A[vi, vk]", "float32", "float32", "float32",
            start="T.float32(0)")),
        ("one-term", "C adds one product", program(f"{A} * {B}")),
        ("one-term", "C adds one product", program(A)),
    ],
)  # fmt: skip
def test_refusals(reason, message, func) -> None:
    sch = Schedule(func)
    check_refused(sch, lambda: sch.expand_reduction("C"), reason, message)


def test_a_block_with_other_loops_is_refused() -> None:
    sch = Schedule(program(f"{A} * ({B} - 1)"))
    sch.split(sch.get_loops("C")[2], [None, 5])
    check_refused(sch, lambda: sch.expand_reduction("C"), "not-trivial-binding", "C")

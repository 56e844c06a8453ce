"""expand_running_value: what an iteration hands to the next one, and every refusal."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform

from metasched.ir.stmt import IterKind
from metasched.schedule.schedule import Schedule
from metasched.script import parse

SUMS = """
@T.prim_func
def main(A: T.Buffer((4, 6), "int32"), B: T.Buffer((4, 6), "int32"), C: T.Buffer((4, 6), "int32")):
    s = T.alloc_buffer((3,), "int32")
    with T.block("first"):
        s[1] = 5
    for i in range(4):
        {between}
        for j in range({steps}):
            with T.block("early"):
                B[i, j] = s[1] * 2
            with T.block("sum"):
                s[1] = s[1] + A[i, j]
            with T.block("late"):
                C[i, j] = s[1] - j
    {after}
"""
RESET = 'with T.block("reset"): s[1] = i'
LAST = 'with T.block("last"): B[0, 0] = s[1]'


def sums(between: str = "T.evaluate(0)", after: str = "T.evaluate(0)", steps: str = "6"):
    return Schedule(parse(SUMS.format(between=between, after=after, steps=steps)))


@pytest.mark.parametrize("between", ["T.evaluate(0)", RESET])
@pytest.mark.parametrize("after", ["T.evaluate(0)", LAST])
def test_each_value_has_a_place(between, after):
    sch = sums(between, after)
    before = sch.func
    loop = sch.get_loops("sum")[1]
    sch.expand_running_value("sum", 0, loop)
    wide = sch.get(sch.get_block("sum")).writes[0].buffer
    assert wide.constant_shape() == (3, 6)
    assert wide.name == "s_j"
    kept = [b for b in sch.state.index.by_name if b == "s_last"]
    assert bool(kept) == (between != RESET or after == LAST)
    check_transform(before, sch)
    if not kept:
        parts = sch.fission(loop, [[1], [0], [2]])
        assert len(parts) == 3
        check_transform(before, sch)


def test_a_value_of_its_own_for_each_row_is_not_stored_again():
    sch = Schedule(
        parse("""
@T.prim_func
def main(A: T.Buffer((4, 6), "int32"), C: T.Buffer((4, 6), "int32")):
    s = T.alloc_buffer((4, 1), "int32")
    for i in range(4):
        with T.block("first"):
            s[i, 0] = 0
    for i, j in T.grid(4, 6):
        with T.block("sum"):
            vi, vj = T.axis.remap("SR", [i, j])
            s[vi, 0] = s[vi, 0] + A[vi, vj]
        with T.block("late"):
            C[i, j] = s[i, 0]
""")
    )
    before, (_, j) = sch.func, sch.get_loops("sum")
    sch.expand_running_value("sum", 0, j)
    kinds = [v.kind for v in sch.get(sch.get_block("sum")).iter_vars]
    assert kinds == [IterKind.SPATIAL, IterKind.SCAN]
    assert list(sch.state.index.by_name) == ["root", "first", "sum", "late"]
    check_transform(before, sch)


def test_sums_of_floats_in_plain_loops_keep_their_order():
    text = """
@T.prim_func
def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
    {free}
    s = T.float32(0)
    for i in range(64):
        s = s + A[i]
        C[i] = s
"""
    free = 'T.func_attr({"tir.fast_math": "reassoc"})'
    for attrs, kind in (("T.evaluate(0)", IterKind.OPAQUE), (free, IterKind.SCAN)):
        sch = Schedule(parse(text.format(free=attrs)))
        sch.enclose("root")
        (i,) = sch.get_loops("s_1")
        sch.expand_running_value("s_1", 0, i)
        assert [v.kind for v in sch.get(sch.get_block("s_1")).iter_vars] == [kind]
        one, _ = sch.fission(i)
        chunks, _ = sch.split(one, [None, 8])
        if kind is IterKind.SCAN:
            sch.decompose_scan(chunks)
        else:
            message = "block s_1 sums or multiplies floats, in the order of the loop"
            check_refused(sch, lambda s=sch, c=chunks: s.decompose_scan(c), "fixed-order", message)


@pytest.mark.parametrize(
    ("old", "new", "reason", "message"),
    [
        ("range(6)", "T.parallel(6)", "loop-has-kind", "the loop j is parallel already"),
        ("range(6)", "range(1, 6)", "not-from-zero", "the loop j does not count 0, 1, 2"),
        ("range(6)", "range(i)", "no-limit", "the extent of j, or the shape of s, is no constant"),
        ("C[i, j] = s[1]", "C[i, j] = s[2]", "several-elements", "block late uses another element"),
        ("s[1] = s[1]", "s[j % 3] = s[1]", "several-elements", "block early uses another element"),
        ("C[i, j] = s[1] - j", "s[1] = 2", "other-writer", "block late writes s, too"),
        ("s[1] = s[1] + A", "if j > 1: s[1] = A", "no-store", "nothing but store one element"),
        ('with T.block("sum")', 'if j > 1:\n              with T.block("sum")', "not-in-body",
         "sum is no direct part of the body of the loop j"),
        ('with T.block("early")', 'if s[1] > 9: T.call_extern("void", "f")\n'
         '            with T.block("early")', "outside-blocks", "outside of any block, uses s"),
        ("C[i, j] = s[1] - j", "C[i, j] = s[1]\n            if j == 3: break", "left-by-jump",
         "a break leaves the loop j"),
    ],
)  # fmt: skip
def test_refusals(old, new, reason, message):
    text = SUMS.format(between="T.evaluate(0)", after="T.evaluate(0)", steps="6")
    assert old in text
    sch = Schedule(parse(text.replace(old, new)))
    j = sch.get_loops("sum")[1]
    check_refused(sch, lambda: sch.expand_running_value("sum", 0, j), reason, message)


def test_what_is_no_temporary_buffer_or_no_loop_of_the_block():
    sch = sums()
    i, j = sch.get_loops("late")
    message = "C is a parameter or view"
    check_refused(sch, lambda: sch.expand_running_value("late", 0, j), "not-allocated", message)
    message = "sum is no direct part of the body of the loop i"
    check_refused(sch, lambda: sch.expand_running_value("sum", 0, i), "not-in-body", message)


def test_a_loop_that_a_while_runs_again_stores_the_last_value():
    sch = Schedule(
        parse("""
@T.prim_func
def main(A: T.Buffer((6,), "int32"), C: T.Buffer((6,), "int32"), n: T.Buffer((1,), "int32")):
    s = T.alloc_buffer((1,), "int32")
    with T.block("first"):
        s[0] = 0
    n[0] = 3
    while n[0] > 0:
        n[0] = n[0] - 1
        for i in range(6):
            with T.block("sum"):
                s[0] = s[0] + A[i]
            with T.block("late"):
                C[i] = s[0]
""")
    )
    before = sch.func
    sch.expand_running_value("sum", 0, sch.get_loops("sum")[0])
    assert "s_last" in sch.state.index.by_name
    check_transform(before, sch)


@pytest.mark.parametrize("element", ["s[j % 3]", "s[B[i, 0] % 3]"])
def test_an_element_that_changes_with_the_loop(element):
    text = SUMS.format(between="T.evaluate(0)", after="T.evaluate(0)", steps="6")
    sch = Schedule(parse(text.replace("s[1]", element).replace(f"{element} = 5", "s[1] = 5")))
    j = sch.get_loops("sum")[1]
    message = "the element of s changes with j, or with memory"
    check_refused(sch, lambda: sch.expand_running_value("sum", 0, j), "several-elements", message)


def test_a_buffer_of_another_block():
    sch = Schedule(
        parse("""
@T.prim_func
def main(A: T.Buffer((4, 2), "int32")):
    t = T.alloc_buffer((1,), "int32")
    for i in range(4):
        with T.block("outer"):
            vi = T.axis.opaque(4, i)
            for j in range(2):
                with T.block("inner"):
                    t[0] = t[0] + A[vi, j]
""")
    )
    (j,) = sch.get_loops("inner")
    message = "t is not allocated by the block around inner"
    check_refused(sch, lambda: sch.expand_running_value("inner", 0, j), "not-allocated", message)

"""A short run of the fuzz of the space; METASCHED_FUZZ_CASES asks for a longer one."""

from __future__ import annotations

import importlib
import os
from dataclasses import replace

import numpy as np
import pytest
from space.fuzz import KINDS, RANDOM, Broken, Case, Tally, case_of, check, fits, play, report
from space.hard_data import HardData
from space.kept_bits import keeps_bits

from metasched.measure.task import make_task
from metasched.runtime.build import build
from metasched.script import parse, script

CASES = int(os.environ.get("METASCHED_FUZZ_CASES", "0"))
WRONG = """
@T.prim_func
def main(A: T.Buffer((5,), "float32"), C: T.Buffer((5,), "float32")):
    for i in range(5):
        C[i] = A[i]
        if i == 3:
            {more}
"""


def test_candidates_of_odd_programs_compute_the_same() -> None:
    tally = Tally()
    for number in range(CASES) if CASES else (0, 7, 12):
        case = case_of(number)
        try:
            play(case, tally, 2 if not CASES else 4)
        except Broken as error:
            pytest.fail(report(case, error), pytrace=False)
    assert tally.ran.total() >= max(6, 3 * CASES) and not tally.modules


@pytest.mark.parametrize(
    "kind",
    ["several_outputs", "triangles", "stencil_chains", "indexed", "plain_loops", "plain_idioms",
     "ordered_sums", "centred_rows", "ordered_triangles", "row_machines",
     "scattered_windows", "gathered_windows", "few_iterations", "own_memory",
     "memory_loops", "named_rows"],
)  # fmt: skip
def test_candidates_of_random_kinds_of_programs_compute_the_same(kind: str) -> None:
    tally = Tally()
    case = Case(1, kind, (5, 9), "native")
    try:
        play(case, tally, 1)
    except Broken as error:
        pytest.fail(report(case, error), pytrace=False)
    assert tally.ran[kind] == 1 and not tally.modules


@pytest.mark.parametrize("kind", ["plain_idioms", "several_outputs", "gmm", "random"])
def test_hard_data_give_the_same_results(kind: str) -> None:
    tally, case = Tally(), replace(case_of(5, [kind]), hard=True)
    try:
        play(case, tally, 1)
    except Broken as error:
        pytest.fail(report(case, error), pytrace=False)
    assert tally.ran[kind] == 1


@pytest.mark.parametrize("hard", [False, True])
def test_a_sum_in_another_order_is_seen(monkeypatch: pytest.MonkeyPatch, hard: bool) -> None:
    """With `reassoc` taken for granted, sums of plain loops run in vectors: other last digits."""
    enclose = importlib.import_module("metasched.schedule.primitives.enclose")
    real = enclose._with_reductions
    monkeypatch.setattr(enclose, "_with_reductions", lambda *given: real(*given[:2], True))
    seen = 0
    for number in (0, 5, 8):
        case = Case(number, "ordered_sums", (number, 33), "native", hard=hard)
        assert keeps_bits(case.func())
        try:
            play(case, Tally(), 2)
        except Broken as error:
            seen += "they must be equal" in str(error)
    assert seen


def test_hard_data_hold_what_test_data_leave_out() -> None:
    case = Case(3, "plain_idioms", (12, 33), "native")
    func = case.func()
    task = make_task(func, build(func).signature, key="hard")
    drawn = HardData(func)
    arrays = [drawn(array, task, n) for n, array in enumerate(task.arrays)]
    floats = [a.astype(float) for a in arrays if a.dtype.kind not in "iu" and a.size > 200]
    assert floats and all(np.isnan(a).any() and np.isinf(a).any() for a in floats)
    (index,) = (a for b, a in zip(func.buffers, arrays, strict=True) if b.name == "P")
    assert 0 <= index.min() <= index.max() < len(index)


def test_all_kinds_of_programs_are_read() -> None:
    made = [Case(0, kind, (n, 9), "native").func() for kind in KINDS for n in range(2)]
    assert all(b.constant_shape() is not None for func in made for b in func.buffers)
    assert len({script(func) for func in made}) > len(KINDS)


def test_shapes_that_make_no_program_are_no_cases() -> None:
    shapes = [
        ("poly.heat-3d", (2, 1)), ("poly.gramschmidt", (2, 3)), ("gmm", (1, 999, 999, 9)),
        ("c2d", (1, 2, 2, 3, 3, 5, 1, 0)),
    ]  # fmt: skip
    assert not any(fits(Case(0, name, shape, "native")) for name, shape in shapes)
    assert fits(Case(0, "poly.heat-3d", (2, 4), "native"))


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ("C[i] = A[i] + T.float32(1)", "compiled result"),
        ("C[i - 4 * T.Cast('int32', A[1])] = A[i]", "fence"),
    ],
)
def test_a_program_that_is_wrong_is_seen(more: str, kind: str) -> None:
    func = parse(WRONG.format(more=more))
    task = make_task(func, build(func).signature, key="wrong")
    a = np.arange(5, dtype="float32")
    with pytest.raises(Broken) as caught:
        check(Case(0, RANDOM, (0,), "native"), func, (task, [a, a * 0], [a, a]))
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("kind", "kept"),
    [("scan", False), ("spatial", False), ("", True)],
)
def test_a_block_that_is_a_scan_may_sum_in_another_order(kind: str, kept: bool) -> None:
    block = f"""
        with T.block("B"):
            vi, vk = T.axis.spatial(3, i), T.axis.{kind}(9, k)
            B[vi, vk] = T.if_then_else(vk == 0, A[vi, vk], B[vi, vk - 1] + A[vi, vk])
    """
    plain = "\n        B[i, k] = T.if_then_else(k == 0, A[i, k], B[i, k - 1] + A[i, k])\n"
    func = parse(f"""
@T.prim_func
def f(A: T.Buffer((3, 9), "float32"), B: T.Buffer((3, 9), "float32")):
    for i, k in T.grid(3, 9):{block if kind else plain}""")
    assert keeps_bits(func) is kept

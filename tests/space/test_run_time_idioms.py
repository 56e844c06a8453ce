"""A short run of `space.run_time`: plain idioms at extents known at run time only."""

from __future__ import annotations

import numpy as np
import pytest
from space.fuzz import Broken, Case, Tally, built, check_kernel, report
from space.run_time import data_of, play

from metasched.analysis.sizes import run_time_extents
from metasched.schedule.schedule import Schedule
from metasched.script import parse

SHORT = """
@T.prim_func
def main(a: T.handle, b: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (n,), "float32")
    for i in range({end}):
        B[i] = A[i]
"""


@pytest.mark.parametrize(
    ("kind", "number"), [("idioms", 1), ("idioms", 6), ("wild", 3), ("rows", 2)]
)
def test_plain_loops_compute_the_same_at_every_size(kind: str, number: int) -> None:
    tally = Tally()
    try:
        play(number, tally, 1, kind)
    except Broken as error:
        pytest.fail(report(Case(number, "plain_idioms", (number, 1), ""), error), pytrace=False)
    assert tally.ran["run time"] == 1 and not tally.modules


def test_a_program_that_is_wrong_at_one_size_is_seen() -> None:
    right, wrong = (parse(SHORT.format(end=end)) for end in ("n", "T.min(n, 16)"))
    assert [v.name for v in run_time_extents(wrong)] == ["n"]
    case = Case(0, "plain_idioms", (0, 1), "native")
    sch = Schedule(wrong)
    kernel = built(case, sch)
    for size, good in ((0, True), (16, True), (17, False)):
        found = data_of(right, {"n": size}, 1)
        assert found is not None
        task, given, after = found
        assert np.array_equal(given[0], after[1])
        if good:
            check_kernel(case, sch, kernel, (task, given, after))
        else:
            with pytest.raises(Broken, match="compiled result"):
                check_kernel(case, sch, kernel, (task, given, after))

"""A short run of the loops over time whose values grow, and what the comparison sees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from space.fuzz import Broken, Case, Tally
from space.growing_loops import check, drawn, limits, play

from metasched.schedule.schedule import Schedule
from metasched.script import parse


def test_loops_over_time_stay_within_the_bound_of_their_roundings() -> None:
    tally = Tally()
    bit_by_bit = [play(number, tally, 1, 9) for number in (1, 4, 6)]
    assert tally.ran.total() == 3 and any(bit_by_bit) and not all(bit_by_bit)


@pytest.mark.parametrize("number", range(590_000_100, 590_000_110))
def test_a_wrong_factor_and_a_step_too_few_are_seen(number: int) -> None:
    p, dtype = drawn(number, 17)
    rng = np.random.default_rng(number)
    given = [rng.standard_normal(s).astype(dtype) for s in p.arrays.values()]
    expected, most = limits(p, dtype, given)
    case = Case(number, "time_loops", (number, 1), "native")
    *before, last = p.sweeps
    (factor, place), *others = last.terms
    terms = [(str(float(factor) * 1.25), place), *others]
    wrong = [
        replace(p, sweeps=[*before, replace(last, terms=terms)]),
        replace(p, times=p.times - 1),
    ]
    for changed in wrong:
        with pytest.raises(Broken, match="growth"):
            check(Schedule(parse(changed.text(dtype, False))), case, given, expected, most)

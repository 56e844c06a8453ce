"""The random machine, briefly; METASCHED_FUZZ_STEPS asks for more accepted steps."""

from __future__ import annotations

import os

import numpy as np
import oracle
import pytest
from schedule.machine import (
    OPS,
    Broken,
    Tally,
    aimed,
    failure_of,
    operations,
    play,
    program,
    recipe,
    report,
    require_all_used,
    shrink,
)

from metasched.schedule.instruction import PRIMITIVES
from metasched.schedule.schedule import Schedule

STEPS = int(os.environ.get("METASCHED_FUZZ_STEPS", "700"))


def test_random_sequences_keep_the_meaning() -> None:
    """Run the given number of steps, then at most twice as many on programs made for the
    primitives that were not used."""
    tally, number = Tally(), 0
    every, most = {*PRIMITIVES.names()}, 3 * STEPS
    while (done := tally.accepted.total()) < STEPS or (not every <= {*tally.kinds} and done < most):
        if done >= STEPS:  # short recipes, as most steps are for other primitives
            number = aimed(number, every.difference(tally.kinds))
        steps = recipe(number, 12 if done < STEPS else 4, ops=operations())
        try:
            play(number, steps, tally)
        except Broken as error:
            small = shrink(number, steps, error.kind)
            pytest.fail(report(number, small), pytrace=False)
        number += 1
    assert tally.refused.total() > 0
    assert set(tally.accepted) >= set(OPS), "every operation was accepted at least once"
    require_all_used(tally)


def test_infinities_and_whole_integers_keep_the_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "HARD", True)
    tally, special = Tally(), 0
    for number in range(200_000, 200_040):
        steps = recipe(number, ops=operations())
        _, want = oracle.expected(program(number), True)
        special += any(a.dtype.kind not in "iub" and not np.isfinite(a).all() for a in want)
        try:
            play(number, steps, tally)
        except Broken:
            pytest.fail(report(number, steps), pytrace=False)
    assert tally.accepted.total() > 40 and special >= 5


def test_the_machine_sees_a_wrong_primitive_and_shrinks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An `unroll` that skips iterations is found, and the recipe shrinks to this step."""
    from metasched.ir.expr import as_expr
    from metasched.ir.stmt import evolve
    from metasched.schedule import edit

    real = Schedule.unroll

    def short(self: Schedule, loop: object) -> None:
        real(self, loop)
        node = self.state.loop(loop)
        self.state.commit(edit.replace(node, evolve(node, extent=as_expr(1, node.var.dtype))))

    monkeypatch.setattr(Schedule, "unroll", short)
    for number in range(60):
        steps = recipe(number)
        error = failure_of(number, steps)
        if error is not None:
            small = shrink(number, steps, error.kind)
            assert [name for name, _ in small] == ["unroll"]
            assert "def apply_trace(sch):" in report(number, small)
            return
    raise AssertionError("not found")

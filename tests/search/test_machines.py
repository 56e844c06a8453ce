"""A store that several machines fill: each run compares times of its own machine only."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from search.tasks import TARGET, made_up_seconds, matmul

import metasched as ms
from metasched.database.store import Store
from metasched.measure.replay import ReplayRunner
from metasched.tune import STORE

FUNC = matmul(32)
OLD, NEW, TWIN = "a Slow 4", "b Fast 8", "c Fast 8"


class Machine(ReplayRunner):
    """The made-up machine under names, which take turns."""

    def __init__(self, *names, factor=1.0):
        super().__init__(cost=lambda candidate: factor * made_up_seconds(candidate))
        self.names, self.measured = names, []

    def machine(self):
        return self.names[0]

    def measure(self, candidates, on_outcome=None):
        found = []
        for candidate, outcome in zip(candidates, super().measure(candidates), strict=True):
            name = self.names[len(self.measured) % len(self.names)]
            self.measured.append(candidate.key)
            found.append(replace(outcome, machine=name))
            if on_outcome is not None:
                on_outcome(candidate, found[-1])
        return found


def run(folder, runner, trials):
    return ms.tune(
        FUNC, target=TARGET, trials=trials, work_dir=folder, seed=1, strategy="random",
        model="random", runner=lambda func, target: runner,
    )  # fmt: skip


def machines(folder):
    """How many records each machine has."""
    with Store(folder / STORE) as store:
        return Counter(r.machine for r in store.all())


def test_a_run_on_another_machine_measures_the_fastest_programs_again(tmp_path):
    """The other machine's times are ten times lower: none of them is taken for a time of here."""
    run(tmp_path, Machine(OLD, factor=0.1), 24)
    with Store(tmp_path / STORE) as store:
        fastest = sorted(store.all(), key=lambda r: r.seconds)[:8]
    here = Machine(NEW)
    result = run(tmp_path, here, 12)
    assert result.trials == 12 and machines(tmp_path) == {OLD: 24, NEW: 12}
    assert {r.candidate_key for r in fastest} <= set(here.measured[:12])
    stored = ms.TraceFile.load(result.best.path)
    assert stored.machine == NEW
    assert result.best.seconds > 5 * fastest[0].seconds
    assert run(tmp_path, Machine(TWIN), 14).trials == 14  # continues the run on NEW
    assert machines(tmp_path) == {OLD: 24, NEW: 12, TWIN: 2}


def test_times_of_machines_that_do_not_compare_are_warned_of(tmp_path):
    with pytest.warns(UserWarning, match="measures on a Slow 4 and on b Fast 8, whose times do"):
        run(tmp_path, Machine(OLD, NEW), 6)

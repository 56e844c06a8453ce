"""How many trials until a run is within 5 % of the best of 1,000: GMM, C2D, DEP and SFM, 5 seeds.

    pytest tests/benchmarks/test_convergence.py                  # on this machine, half an hour
    pytest tests/benchmarks/test_convergence.py --recorded WORK  # against what a store recorded
    pytest tests/benchmarks/test_convergence.py --keep DIR       # in pieces: what is done is kept
    pytest tests/benchmarks/test_convergence.py --quick          # only to see that it works

The aim: at most 200. Each seed runs with the prior and without it, and a prior that knew this very
task would prove nothing: with `--recorded` it is trained on the other tasks of the store.
Against a store, a program that was recorded takes the time it took, and any other what a regression
on the records of its task says, a little slower for being a guess: nothing is built or run.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from pathlib import Path

import lightgbm
import numpy as np
import pytest

from metasched.cost.features import features
from metasched.cost.lightgbm import train_prior
from metasched.database.store import Store
from metasched.ir.equal import structural_hash
from metasched.measure.candidate import Candidate, Outcome, Status
from metasched.measure.replay import ReplayRunner
from metasched.search.learning import samples_of
from metasched.target import Target
from metasched.tune import STORE, tune
from metasched.workloads import get

OPERATORS = ("gmm", "c2d", "dep", "sfm")
QUICK = {"gmm": "1,32,32,32", "c2d": "1,7,7,8,16,3,1,1", "dep": "1,8,8,8,3,1,1", "sfm": "32,64"}
LONG, SHORT, SEEDS, NEAR = 1000, 200, 5, 1.05
TUNE = sys.modules[tune.__module__]  # `metasched.tune` is the function


def trials_until(history, best):
    """The first trial that came within 5 % of the best; None when none did."""
    return next((n for n, seconds in enumerate(history, 1) if seconds <= NEAR * best), None)


class Kept:
    """Histories of the runs of an operator, in a file where they are to be kept."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "histories.json"
        self.known = json.loads(self.path.read_text()) if self.path.exists() else {}

    def get(self, name, run):
        """What a run gave, from its start; one that was interrupted is run again."""
        if name not in self.known:
            folder = self.path.parent / name
            shutil.rmtree(folder, ignore_errors=True)
            self.known[name] = run(folder).history
            self.path.write_text(json.dumps(self.known))
        return self.known[name]

    def least(self, history):
        """The best time of a run that may have begun earlier."""
        seconds = min([*history[-1:], *self.known.get("least", [])])
        self.known["least"] = [seconds]
        self.path.write_text(json.dumps(self.known))
        return seconds


class Recorded:
    """A machine made of the records of one task."""

    def __init__(self, folder: Path, func) -> None:
        self.target = Target.native()
        with Store(folder / STORE, read_only=True) as store:
            records = [r for r in store.all(structural_hash(func)) if r.ok]
            assert len(records) >= 64, f"{folder} has {len(records)} records of this operator"
            samples, _ = samples_of(store)
        own = next(s for s in samples if s.task.startswith(structural_hash(func)))
        self.others = [s for s in samples if not s.task.startswith(structural_hash(func))]
        self.table = {r.candidate_key: Outcome(Status.OK, (r.seconds,)) for r in records}
        settings = {"num_leaves": 15, "min_data_in_leaf": 3, "learning_rate": 0.05, "verbosity": -1}
        good = np.isfinite(own.seconds)
        data = lightgbm.Dataset(own.vectors[good], np.log(own.seconds[good]))
        self.guess = lightgbm.train({**settings, "num_threads": 1}, data, 300)

    def seconds(self, candidate: Candidate) -> float:
        vector = features(candidate.module, self.target)
        return 1.02 * float(np.exp(self.guess.predict(vector[None], num_threads=1)[0]))

    def runner(self, func, target) -> ReplayRunner:
        return ReplayRunner(self.table, self.seconds)


@pytest.mark.parametrize("op", OPERATORS)
def test_trials_until_within_five_percent(op, tmp_path, tell, quick, pytestconfig, monkeypatch):
    shape = tuple(int(v) for v in QUICK[op].split(",")) if quick else get(op).shapes[0]
    long, short, seeds = (12, 6, 2) if quick else (LONG, SHORT, SEEDS)
    func = get(op).func(shape)
    given = pytestconfig.getoption("--recorded")
    machine = Recorded(Path(given), func) if given else None
    runner = machine.runner if machine else None
    if machine and len(machine.others) > 1:
        train_prior(machine.others).save(tmp_path / "prior.txt")
        monkeypatch.setattr(TUNE, "shipped", lambda: tmp_path / "prior.txt")
    folder = Path(pytestconfig.getoption("--keep") or tmp_path) / op
    folder.mkdir(parents=True, exist_ok=True)
    kept, found = Kept(folder), {}
    for prior in (True, False):
        for seed in range(seeds):
            found[prior, seed] = kept.get(
                f"{prior}{seed}",
                lambda place, prior=prior, seed=seed: tune(
                    func, trials=short, seed=seed, work_dir=place, prior=prior, runner=runner
                ),
            )
    place = folder / "True0"
    last = tune(func, trials=long, seed=0, work_dir=place, prior=True, runner=runner)
    best = min(kept.least(last.history), *(h[-1] for h in found.values()))
    for prior in (True, False):
        counts = [trials_until(found[prior, seed], best) for seed in range(seeds)]
        reached = [n for n in counts if n is not None]
        share = statistics.median(best / found[prior, seed][-1] for seed in range(seeds))
        first = statistics.median(best / found[prior, seed][:16][-1] for seed in range(seeds))
        tell(
            f"{op:4} {'with the prior' if prior else 'without it':14} within 5 % of the best of "
            f"{long} after {counts} trials ({len(reached)} of {seeds} seeds); median of the best "
            f"after 16: {first:.2f}, after {short}: {share:.2f}"
        )
        assert all(len(found[prior, seed]) for seed in range(seeds))

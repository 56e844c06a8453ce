"""What each source of proposals is worth: searches with one row of `PROPOSALS` left out.

    pytest tests/benchmarks/test_ablation.py --keep DIR --seeds 5            # simulated machines
    pytest tests/benchmarks/test_ablation.py --keep DIR --seeds 5 --real     # on this machine
    pytest tests/benchmarks/test_ablation.py --quick                         # to see that it works

Each run of 64 trials is stored in DIR as it ends; a run that is stored there is not done again, and
with `--minutes` the command stops about then, to go on later. With `--write` the table is stored in
`traces/figures/ablation_*.json`; `render_figures.py` makes the pages and the table in README of it.

A simulated machine takes the seconds that the regression trees of its prior predict. Each program
has a deviation of its own from them, which the features do not explain, and each reading has noise.
The search starts without a prior, because the prior of the machine would know the answers. The
result of a run is the simulated time of its winner without noise, beside the best time that any run
on the same operator and machine has met. Neither needs a quiet machine.

On a real machine the winners of an operator are timed in turns at the end, twice. The first time
says which winner is the best, the second what the others are beside it.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import statistics
import subprocess
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
from benchmarks.render_figures import ROOT, SOURCES, markdown
from benchmarks.test_convergence import QUICK, program, timed_twice

from metasched.cost.features import features, work
from metasched.cost.prior import Prior
from metasched.ir.equal import structural_hash
from metasched.measure.candidate import Candidate
from metasched.measure.replay import ReplayRunner
from metasched.registry import taken_back
from metasched.search.evolution import PROPOSALS, EvolutionarySearch
from metasched.search.strategy import STRATEGIES
from metasched.target import Target
from metasched.tune import tune
from metasched.workloads import get

MAIN = ("gmm", "c2d", "dep", "sfm")
OTHERS = ("tbg", "c1d", "c3d", "dil", "grp", "t2d", "cap", "cbr", "nrm")
TRIALS = 64
ALL = "all sources"
TABLES = {ALL: PROPOSALS} | {
    f"without {row.source.name}": tuple(r for r in PROPOSALS if r is not row) for row in PROPOSALS
}
UNEXPLAINED = 0.03  # standard deviation of what the features do not explain, of log seconds
READING = 0.05  # the same of one reading; readings of fast programs scatter by 3 to 10 %
THIS = "this machine"
BASE = 1e-3  # seconds of a program in the middle of its task
MACHINES = {
    "Emerald Rapids": ("prior.emeraldrapids.txt", {"mcpu": "emeraldrapids", "l1_bytes": 49152,
                                                    "l2_bytes": 2 << 20, "l3_bytes": 260 << 20}),
    "Zen 4": ("prior.znver4.txt", {"mcpu": "znver4", "l1_bytes": 32768, "l2_bytes": 1 << 20,
                                   "l3_bytes": 32 << 20}),
}  # fmt: skip


class Simulated(ReplayRunner):
    """A made-up machine: seconds by the trees of a prior, with noise; it times programs again."""

    def __init__(self, machine: str, func: Any, seed: int) -> None:
        super().__init__(cost=self.reading)
        file, about = MACHINES[machine]
        self.target = Target.of({"kind": "cpu", "num_cores": 2, **about})
        prior = Prior.load(ROOT / "traces" / file)
        self.trees = lightgbm.Booster(model_str=prior.members[1])  # regression on log seconds
        self.machine, self.seed, self.work = machine, seed, work(func, self.target)
        self.seconds: dict[str, float] = {}  # without noise, by the keys of programs
        self.readings = 0

    def true(self, candidate: Candidate) -> float:
        """Seconds without noise."""
        if candidate.key not in self.seconds:
            vector = features(candidate.module, self.target, self.work)
            speed = float(self.trees.predict(vector[None], num_threads=1)[0])
            own = UNEXPLAINED * normal(self.machine, candidate.key)
            self.seconds[candidate.key] = BASE * math.exp(own - speed)
        return self.seconds[candidate.key]

    def reading(self, candidate: Candidate) -> float:
        """One reading."""
        self.readings += 1
        return self.true(candidate) * math.exp(READING * normal(self.seed, self.readings))

    def read_again(self, candidates: Any) -> dict[str, float]:
        """One more reading of each."""
        return {c.key: self.reading(c) for c in candidates}


def normal(*key: Any) -> float:
    """A normally distributed number that depends on the key alone."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return float(np.random.default_rng(int.from_bytes(digest)).standard_normal())


def function(op: str, quick: bool) -> Any:
    """The program of an operator in its first shape."""
    text = QUICK.get(op) if quick else None
    return get(op).func(tuple(map(int, text.split(","))) if text else get(op).shapes[0])


class Runs:
    """The runs of the ablation, stored as they end.

    Attributes:
        found: by machine, operator, table and seed, what came of a run.
    """

    def __init__(self, folder: Path, real: bool, quick: bool, deadline: float) -> None:
        self.path = folder / f"ablation_{'real' if real else 'simulated'}.json"
        self.real, self.quick, self.deadline = real, quick, deadline
        folder.mkdir(parents=True, exist_ok=True)
        self.found: dict[str, Any] = {}
        if self.path.exists():
            self.found = json.loads(self.path.read_text())

    def key(self, machine: str, op: str, table: str, seed: int) -> str:
        return f"{machine}, {op}, {table}, {seed}"

    def run(self, machine: str, op: str, table: str, seed: int, folder: Path) -> None:
        """Tune once, unless that was done or time is up."""
        key = self.key(machine, op, table, seed)
        if key in self.found or time.monotonic() >= self.deadline:
            return
        func = function(op, self.quick)
        trials = 40 if self.quick else TRIALS
        settings = {"seed": seed, "strategy": table, "work_dir": folder / key.replace(" ", "_")}
        if self.real:
            done = tune(func, trials=trials, **settings)
            self.found[key] = {"trace": done.best.trace.to_json(), "trials": done.trials}
        else:
            runner = Simulated(machine, func, seed)
            done = tune(
                func, trials=trials, target=runner.target, prior=False,
                runner=lambda *_: runner, **settings,
            )  # fmt: skip
            winner = runner.seconds[structural_hash(done.best.mod)]
            self.found[key] = {"winner": winner, "met": min(runner.seconds.values())}
        self.path.write_text(json.dumps(self.found))

    def compare(self, machine: str, op: str, seeds: int) -> None:
        """Time the winners of a real machine in turns, twice."""
        every = [self.key(machine, op, table, n) for n in range(seeds) for table in TABLES]
        runs = [self.found[key] for key in every if key in self.found]
        if not self.real or all("winner" in run for run in runs):
            return
        func, traces = function(op, self.quick), list(dict.fromkeys(r["trace"] for r in runs))
        modules = [program(func, trace) for trace in traces]
        first, second = timed_twice(func, modules, None, 4 if self.quick else 10)
        best = second[min(range(len(first)), key=first.__getitem__)]
        for run in runs:
            run |= {"winner": second[traces.index(run["trace"])], "met": best}
        self.path.write_text(json.dumps(self.found))

    def rates(self, machine: str, op: str, seeds: int) -> dict[str, list[float]]:
        """The best time of an operator over that of each run, by tables; of the seeds that all
        tables have run."""
        keys = [[self.key(machine, op, table, n) for table in TABLES] for n in range(seeds)]
        rows = [[self.found[k] for k in row] for row in keys if all(k in self.found for k in row)]
        best = min((run["met"] for row in rows for run in row), default=math.nan)
        return {t: [best / row[n]["winner"] for row in rows] for n, t in enumerate(TABLES)}


def mean(rates: list[float]) -> float | None:
    """Geometric mean; None of nothing."""
    return statistics.geometric_mean(rates) if rates else None


def beside(rates: list[float], others: list[float]) -> str:
    """How much slower or faster the winners are than those of the whole table, in per cent, with
    the standard error of the mean over the pairs."""
    logs = [100 * math.log(a / b) for a, b in zip(rates, others, strict=True)]
    if len(logs) < 2:
        return "-"
    return f"{statistics.fmean(logs):+.1f} ± {statistics.stdev(logs) / math.sqrt(len(logs)):.1f} %"


def table_of(runs: Runs, machines: list[str], seeds: int) -> dict[str, Any]:
    """The table of all runs, in the form of `render_figures`."""
    ops = MAIN if runs.real else (*MAIN, *OTHERS)
    rates = {(m, op): runs.rates(m, op, seeds) for m in machines for op in ops}

    def all_of(table: str, some: tuple[str, ...]) -> list[float]:
        return [r for (_, op), found in rates.items() if op in some for r in found[table]]

    groups = {op.upper(): (op,) for op in MAIN} | ({} if runs.real else {"nine others": OTHERS})
    counts = ", ".join(f"{group} {len(all_of(ALL, some))}" for group, some in groups.items())
    head = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(head, cwd=ROOT, capture_output=True, text=True, check=True)
    return {
        "title": "On a real machine" if runs.real else "On simulated machines",
        "date": datetime.date.today().isoformat(),
        "commit": done.stdout.strip(),
        "command": f"pytest tests/benchmarks/test_ablation.py --keep DIR --seeds {seeds} --write"
        + (" --real" if runs.real else ""),
        "notes": [
            f"Winners of {TRIALS} trials: the best time that any run has met over the winner's, "
            f"geometric mean. Runs a row: {counts}.",
            "The last column is paired by operator, machine and seed: how much faster the winners "
            "are than those of all sources, with the standard error.",
            *([] if runs.real else [f"Machines: {', '.join(machines)}; without a prior."]),
        ],
        "columns": [["sources", "text"], *([g, "share"] for g in groups), ["all", "share"],
                    ["beside all sources", "text"]],
        "rows": [
            [table, *(mean(all_of(table, some)) for some in groups.values()),
             mean(all_of(table, ops)), beside(all_of(table, ops), all_of(ALL, ops))]
            for table in TABLES
        ],
    }  # fmt: skip


def test_each_source_left_out(tmp_path, tell, quick, deadline, pytestconfig, monkeypatch):
    option = pytestconfig.getoption
    real, seeds = option("--real"), 1 if quick else option("--seeds")
    machines = [THIS] if real else list(MACHINES)
    ops = (("gmm", "sfm") if quick else MAIN) if real or quick else (*MAIN, *OTHERS)
    if not real:
        monkeypatch.setenv("METASCHED_SEARCH_WORKERS", "1")
    runs = Runs(Path(option("--keep") or tmp_path), real, quick, deadline)
    with taken_back(always=True):
        for name, table in TABLES.items():
            STRATEGIES.register(name, partial(EvolutionarySearch, proposals=table))
        for seed in range(seeds):
            for machine, op, table in product(machines, ops, TABLES):
                runs.run(machine, op, table, seed, tmp_path)
    for machine, op in product(machines, ops):
        runs.compare(machine, op, seeds)
    found = table_of(runs, machines, seeds)
    tell(found["notes"][0])
    for line in markdown(found).splitlines():
        tell(line)
    if option("--write"):
        write(runs, found)
    assert all(0 < rate < 2 for row in found["rows"] for rate in row[1:-1] if rate is not None)


def write(runs: Runs, table: dict[str, Any]) -> None:
    """Store a table among the figures."""
    cpu = next(x for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x)
    machine = cpu.partition(":")[2].strip() if runs.real else f"simulated {' and '.join(MACHINES)}"
    data = {
        "title": "Ablation of the sources of proposals",
        "machine": machine, "tables": [table],
    }  # fmt: skip
    (SOURCES / runs.path.name).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

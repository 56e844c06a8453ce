"""The autoscheduled program beside the winner of 64 trials and beside the default schedule.

    pytest tests/benchmarks/test_autoschedule.py                 # on this machine, half an hour
    pytest tests/benchmarks/test_autoschedule.py -k odd --trials 16
    pytest tests/benchmarks/test_autoschedule.py -k dep --prior FILE  # trained without the operator
    pytest tests/benchmarks/test_autoschedule.py --keep DIR      # go on with the runs of DIR
    pytest tests/benchmarks/test_autoschedule.py --quick         # only to see that it works

The aim: at least 0.90 of the winner's rate in the geometric mean, none below 0.70; none below 0.8
of the default schedule's rate, 3 times its rate in the mean of PolyBench; at most 1 s, 0.4 s in the
median. Usual shapes are those of the prior's training data, odd shapes are not, and programs under
"new" and "polybench" are of operators without any training data. The three programs take turns in
one process.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest

import metasched as ms
from metasched import te
from metasched.kinds import default_trace
from metasched.measure.local import LocalRunner
from metasched.runtime.timing import beside_each_other
from metasched.search import parts
from metasched.workloads import POLYBENCH, SUITE

ODD = (
    ("gmm", (1, 1009, 1013, 1019)), ("gmm", (1, 127, 131, 257)), ("gmm", (1, 17, 333, 511)),
    ("gmm", (3, 97, 101, 103)), ("gmm", (1, 300, 500, 700)),
    ("c2d", (1, 28, 28, 128, 128, 3, 1, 1)),
    ("c2d", (1, 29, 31, 37, 41, 3, 1, 1)), ("c2d", (1, 17, 17, 48, 64, 5, 1, 2)),
    ("dep", (1, 55, 55, 72, 5, 1, 2)), ("dep", (1, 33, 35, 39, 3, 2, 1)),
    ("cap", (1, 10, 10, 12, 20, 3, 1, 1)), ("c1d", (1, 251, 61, 127, 3, 1, 1)),
    ("grp", (1, 15, 15, 96, 96, 3, 1, 1, 1, 3)), ("t2d", (1, 7, 9, 60, 50, 4, 2, 1)),
    ("nrm", (1, 777, 1001)), ("sfm", (333, 777)), ("sfm", (8, 40000)),
    ("cbr", (1, 27, 27, 60, 90, 3, 1, 1)), ("tbg", (1, 100, 12, 50)),
)  # fmt: skip


def row_sums():
    a, k = te.placeholder((1000, 1200), "float32", "A"), te.reduce_axis((0, 1200), "k")
    return te.create_prim_func([a, te.compute((1000,), lambda i: te.sum(a[i, k], axis=k))])


def column_sums():
    a, k = te.placeholder((1000, 1200), "float32", "A"), te.reduce_axis((0, 1000), "k")
    return te.create_prim_func([a, te.compute((1200,), lambda j: te.sum(a[k, j], axis=k))])


def transposition():
    a = te.placeholder((1000, 1200), "float32", "A")
    return te.create_prim_func([a, te.compute((1200, 1000), lambda i, j: a[j, i])])


def stencil():
    a = te.placeholder((700, 700), "float32", "A")

    def mean(i, j):
        sides = a[i, j + 1] + a[i + 2, j + 1] + a[i + 1, j] + a[i + 1, j + 2]
        return (a[i + 1, j + 1] + sides) * 0.2

    return te.create_prim_func([a, te.compute((698, 698), mean)])


def log_softmax():
    a = te.placeholder((300, 1000), "float32", "A")
    k, m = te.reduce_axis((0, 1000), "k"), te.reduce_axis((0, 1000), "m")
    top = te.compute((300,), lambda i: te.max(a[i, k], axis=k))
    total = te.compute((300,), lambda i: te.sum(te.exp(a[i, m] - top[i]), axis=m))
    result = te.compute((300, 1000), lambda i, j: a[i, j] - top[i] - te.log(total[i]))
    return te.create_prim_func([a, result])


def max_pooling():
    a = te.placeholder((1, 64, 58, 58), "float32", "A")
    r, s = te.reduce_axis((0, 3), "r"), te.reduce_axis((0, 3), "s")
    pooled = te.compute(
        (1, 64, 28, 28), lambda n, c, i, j: te.max(a[n, c, 2 * i + r, 2 * j + s], axis=[r, s])
    )
    return te.create_prim_func([a, pooled])


def float64_product():
    return ms.einsum("ik,kj->ij", (250, 240), (240, 260), dtype="float64")


def transposed_product():
    return ms.einsum("ik,jk->ij", (256, 300), (200, 300))


NEW = (
    row_sums, column_sums, transposition, stencil, log_softmax, max_pooling, float64_product,
    transposed_product,
)  # fmt: skip
QUICK = (("gmm", (1, 17, 19, 23)), ("sfm", (9, 33)))


def cases(quick):
    usual = [(op, shape) for op in SUITE for shape in ms.workloads.get(op).shapes]
    loops = [(op, ms.workloads.get(op).shape_of()) for op in POLYBENCH]
    for group, some in (("usual", usual), ("odd", ODD), ("polybench", loops)):
        for op, shape in QUICK if quick else some:
            name = f"{group}-{op}-{'x'.join(map(str, shape))}"
            yield pytest.param(group, lambda op=op, shape=shape: (op, shape), id=name)
    for make in NEW[:1] if quick else NEW:
        yield pytest.param("new", make, id=f"new-{make.__name__}")


def pytest_generate_tests(metafunc):
    quick = metafunc.config.getoption("--quick")
    metafunc.parametrize(("group", "make"), list(cases(quick)))


@pytest.fixture(scope="module")
def results(tell):
    """Group -> (share of the winner's rate, of the default's rate, seconds) of each program."""
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    yield found
    for group, rows in found.items():
        of_best, of_default, seconds = zip(*rows, strict=True)
        mean = math.exp(sum(map(math.log, of_best)) / len(rows))
        gain = math.exp(sum(map(math.log, of_default)) / len(rows))
        tell(
            f"{group}: {len(rows)} programs, {mean:.2f} of the winner's rate (least "
            f"{min(of_best):.2f}), {gain:.1f} x default (least {min(of_default):.2f}), "
            f"{median(seconds):.2f} s (most {max(seconds):.2f})"
        )


@pytest.fixture
def prior(pytestconfig, monkeypatch):
    """`--prior FILE` stands in for all priors that ship."""
    given = pytestconfig.getoption("--prior")
    if given:
        path = Path(given)
        monkeypatch.setattr(parts, "shipped", lambda *_: [path])
        monkeypatch.setattr(parts, "every_shipped", lambda *_: [path])


@pytest.mark.filterwarnings("ignore:.*gave no results within")
def test_autoschedule(group, make, results, prior, pytestconfig, request, tell, quick, tmp_path):
    trials = 4 if quick else pytestconfig.getoption("--trials")
    made = make()
    func = ms.workloads.get(made[0]).func(made[1]) if isinstance(made, tuple) else made
    start = time.perf_counter()
    guess = ms.autoschedule(func)
    seconds = time.perf_counter() - start
    name = request.node.callspec.id
    folder = tmp_path if not pytestconfig.getoption("--keep") else pytestconfig.getoption("--keep")
    tuned = ms.tune(func, trials=trials, work_dir=f"{folder}/{name}", name=name, seed=0)
    target, default = ms.Target.native(), ms.Schedule(func)
    default_trace(func, target).apply(default)
    runner = LocalRunner(func, target, default_schedule=default.func)
    try:
        turns = runner.interleave([default.mod, guess.mod, tuned.best.mod], 12)
    finally:
        runner.close()
    by_default, guessed, best = beside_each_other(turns)
    results[group].append((best / guessed, by_default / guessed, seconds))
    tell(
        f"{name:38} {1e6 * guessed:9.1f} us, {best / guessed:.2f} of {trials} trials, "
        f"{by_default / guessed:6.2f} x default, in {seconds:.2f} s"
    )
    assert guessed > 0

"""PolyBench's thirty kernels beside the best of NumPy, SciPy, Numba and PyTorch.

    pytest tests/benchmarks/test_polybench.py --keep DIR                 # tune all, time all
    pytest tests/benchmarks/test_polybench.py --keep DIR -k "tune and syrk" --trials 24
    pytest tests/benchmarks/test_polybench.py --keep DIR -k "contest and syrk" --against scipy,numba
    python tests/benchmarks/render_figures.py polybench_zen5 DIR/rows.json   # after the contest

`tune` skips a kernel whose trace stands in DIR. `contest` times the traces of DIR and the peers in
turns, and puts the rows of the kernel into DIR/rows.json. The aims: the best peer's time is at
least 1.5 times ours in the geometric mean, and no ratio is below 0.8.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import metasched as ms
from metasched.codegen.peak import measured_peak
from metasched.report.compare import row, side_by_side, usable
from metasched.report.peers import OURS
from metasched.workloads import POLYBENCH

QUICK = {"poly.syrk": (8, 9), "poly.jacobi-1d": (2, 20)}


def pytest_generate_tests(metafunc):
    metafunc.parametrize("op", QUICK if metafunc.config.getoption("--quick") else POLYBENCH)


@pytest.fixture(scope="module")
def folder(pytestconfig, tmp_path_factory):
    kept = pytestconfig.getoption("--keep")
    return Path(kept) if kept else tmp_path_factory.mktemp("polybench")


@pytest.fixture(scope="module")
def ratios(tell):
    """The best peer's time over ours of each kernel."""
    found: list[float] = []
    yield found
    if found:
        mean = math.exp(sum(map(math.log, found)) / len(found))
        tell(f"{len(found)} kernels: geometric mean {mean:.2f}, least {min(found):.2f}")


def shape_of(op, quick):
    return QUICK[op] if quick else ms.workloads.get(op).shapes[0]


def trace_of(folder, op):
    return folder / op / f"{op}.trace.json"


def test_tune(op, folder, quick, pytestconfig, tell):
    if trace_of(folder, op).exists():
        return
    trials = 4 if quick else pytestconfig.getoption("--trials")
    func = ms.workloads.get(op).func(shape_of(op, quick))
    result = ms.tune(func, trials=trials, work_dir=folder / op, name=op, seed=0)
    result.best.path.replace(trace_of(folder, op))
    tell(f"{op:20} {1e6 * result.best.seconds:10.1f} us while tuning")


def test_contest(op, folder, quick, ratios, pytestconfig, tell):
    work, shape = ms.workloads.get(op), shape_of(op, quick)
    peers, _ = usable(pytestconfig.getoption("--against").split(","), None)
    sides = side_by_side(op, shape, peers, trace_of(folder, op))
    ours = sides[OURS]
    assert ours.seconds is not None, ours.note
    best = min((s.ratio, p) for p, s in sides.items() if p != OURS and s.ratio is not None)
    ratios.append(best[0])
    times = ", ".join(f"{p} {s.ratio:.2f}" for p, s in sides.items() if p != OURS and s.ratio)
    tell(f"{op:20} {1e6 * ours.seconds:10.1f} us, best peer {best[0]:.2f} ({times})")
    kind = "float64" if work.dtype == "float64" else "float32"
    peak = measured_peak(ms.Target.native(), kind)
    rows = [row(op, shape, work.dtype, p, s, work.flops(shape), peak) for p, s in sides.items()]
    stored = folder / "rows.json"
    old = json.loads(stored.read_text()) if stored.exists() else []
    stored.write_text(json.dumps([each for each in old if each["op"] != op] + rows))

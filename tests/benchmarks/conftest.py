"""What the benchmarks share: budgets beside what was measured, results as ratios, a quick mode.

`pytest tests/benchmarks` runs everything (several minutes, on a quiet machine); with `--quick` the
tuning runs shrink to a few trials of tiny shapes, to see that the scripts work. No absolute time is
asserted: machines differ. The tables at the end say what was within its budget.
"""

from __future__ import annotations

import math
import time

import pytest

BUDGETS: list[tuple[str, float, float]] = []
LINES: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="tiny shapes and few trials")
    parser.addoption("--keep", help="folder in which finished runs are kept, to go on later")
    parser.addoption("--minutes", type=float, help="with --keep: stop about then, go on later")
    parser.addoption("--prior", help="file that stands in for the prior that is shipped")
    parser.addoption("--real", action="store_true", help="ablation: measure on this machine")
    parser.addoption("--seeds", type=int, default=3, help="ablation: runs of each operator")
    parser.addoption("--write", action="store_true", help="ablation: store the table of figures")
    parser.addoption("--trials", type=int, default=64, help="autoschedule, polybench: of each run")
    parser.addoption("--against", default="numpy,scipy,numba,torch", help="polybench: the peers")
    parser.addoption("--recorded", help="work folder whose records stand in for this machine")


@pytest.fixture(scope="session")
def quick(pytestconfig) -> bool:
    return bool(pytestconfig.getoption("--quick"))


@pytest.fixture(scope="session")
def deadline(pytestconfig) -> float:
    """When to stop, by the monotonic clock."""
    minutes = pytestconfig.getoption("--minutes")
    return time.monotonic() + 60 * minutes if minutes else math.inf


@pytest.fixture
def budget(benchmark):
    """`budget(what, seconds)`: the row of DESIGN.md's table that this benchmark measures.

    `each` divides the time where one call does several things.
    """
    asked: list[tuple[str, float, float]] = []

    def note(what: str, seconds: float, each: int = 1) -> None:
        asked.append((what, seconds, each))

    yield note
    if benchmark.stats is not None:
        for what, seconds, each in asked:
            BUDGETS.append((what, seconds, benchmark.stats.stats.median / each))


@pytest.fixture(scope="session")
def tell():
    """Prints a line among the results at the end of the run."""
    return LINES.append


def pytest_terminal_summary(terminalreporter) -> None:
    write = terminalreporter.write_line
    if BUDGETS:
        terminalreporter.section("budgets")
        for what, seconds, median in BUDGETS:
            met = "ok" if median <= seconds else "OVER"
            write(f"{what:52} {1e3 * median:10.3f} ms of {1e3 * seconds:8.1f} ms  {met}")
    if LINES:
        terminalreporter.section("measured")
        for line in LINES:
            write(line)

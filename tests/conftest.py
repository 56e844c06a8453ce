"""Settings shared by all tests: reproducible property tests, no deadline on a shared machine.

`pytest` alone, the whole suite, is run by two processes; tests that were chosen, by this one.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from metasched.registry import taken_back

settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("default")
SHARED = pytest.StashKey[bool]()


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """What a test registers is gone after it: the default space offers every known intrinsic."""
    with taken_back(always=True):
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Share the whole suite among two processes (`-n 0` does without).

    Not by `-n` in addopts: tests that were chosen start sooner in one process, -s and --pdb work
    there, and benchmarks measure. Two also where there are more cores: kernels and workers under
    test take theirs.
    """
    if is_shared(config):
        config.option.numprocesses, config.option.dist = 2, "worksteal"
        config.stash[SHARED] = True


def is_shared(config: pytest.Config) -> bool:
    """Whether this run is the whole suite, on a machine that can share it, and not yet shared."""
    asked = ("file_or_dir", "keyword", "markexpr", "lf", "usepdb", "collectonly", "update_golden")
    return (
        config.pluginmanager.hasplugin("xdist")
        and len(os.sched_getaffinity(0)) > 1
        and "PYTEST_XDIST_WORKER" not in os.environ  # each of the two comes here too
        and config.getoption("numprocesses") is None
        and config.getoption("capture") != "no"
        and not any(config.getoption(name, None) for name in asked)
    )


def pytest_configure(config: pytest.Config) -> None:
    # Otherwise each of the 100 processes that tests start compiles the package anew, for 0.6 s.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # Starting more processes takes longer than the few builds and replays of a test; the tests of
    # several ask for them, and the benchmarks need them.
    if not any("benchmarks" in str(argument) for argument in config.args):
        for setting in ("METASCHED_BUILD_WORKERS", "METASCHED_SEARCH_WORKERS"):
            os.environ.setdefault(setting, "1")
    # A shell ignores Ctrl-C for what it starts in the background; the tests of Ctrl-C need it.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--update-golden"):
        import oracle

        oracle.UPDATE = True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is asked of a whole run in one process comes last."""
    import places

    items.sort(key=lambda item: item.path.name == "test_places.py")
    tests, ran = Path(__file__).parent, {item.path for item in items}
    wanted = [p for d in ("analysis", "schedule") for p in (tests / d).glob("test_*.py")]
    part = any("::" in a for a in config.args) or hasattr(config, "workerinput")
    places.whole_run = not part and ran.issuperset(wanted)


def pytest_collection_finish() -> None:
    """Let the collector of cycles pass over what was collected, and run seldom: it took 7 %."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After a file, let the collector pass over what caches hold: a full collection took 1.3 s."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect(1)
        gc.freeze()


def pytest_deselected() -> None:
    import places

    places.whole_run = False


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A whole run that was shared is asked here, with what both processes reached."""
    import places

    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["reached"] = sorted(places.REACHED)
    elif SHARED in config.stash and exitstatus == pytest.ExitCode.OK:
        missing = places.unreached()
        for place in missing:
            reporter = config.pluginmanager.get_plugin("terminalreporter")
            reporter.write_line(f"\nFAILED no test matches the refusal at {place}", red=True)
        if missing:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_testnodedown(node: Any) -> None:
    import places

    places.REACHED.update(map(tuple, getattr(node, "workeroutput", {}).get("reached", ())))

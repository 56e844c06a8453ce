"""Settings shared by all tests: reproducible property tests, no deadline on a shared machine."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")


def pytest_configure(config: pytest.Config) -> None:
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


def pytest_deselected() -> None:
    import places

    places.whole_run = False

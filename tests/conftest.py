"""Settings shared by all tests: reproducible property tests, no deadline on a shared machine."""

from __future__ import annotations

import signal

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

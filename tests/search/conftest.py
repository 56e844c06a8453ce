"""Search tests replay in their own process: starting workers would take longer than the replays."""

import pytest


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    monkeypatch.setenv("METASCHED_SEARCH_WORKERS", "1")

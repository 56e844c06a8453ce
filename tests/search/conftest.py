"""Search tests replay in their own process: starting workers would take longer than the replays.

They start without the prior: it is for real machines, and theirs are made up.
"""

import pytest


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    monkeypatch.setenv("METASCHED_SEARCH_WORKERS", "1")
    monkeypatch.setenv("METASCHED_PRIOR", "0")

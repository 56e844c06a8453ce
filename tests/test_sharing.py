"""The whole suite is shared by two processes, once; chosen tests run in the one that was asked."""

from __future__ import annotations

import os
from types import SimpleNamespace

import conftest
import pytest


@pytest.fixture(autouse=True)
def two_cores_and_no_worker(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


def shared(xdist: bool = True, **options) -> bool:
    given = {"numprocesses": None, "capture": "fd", **options}
    plugins = SimpleNamespace(hasplugin=lambda name: xdist and name == "xdist")
    config = SimpleNamespace(pluginmanager=plugins, getoption=lambda n, d=None: given.get(n, d))
    return conftest.is_shared(config)


def test_the_whole_suite_is_shared():
    assert shared()


def test_neither_of_the_two_starts_two_more(monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    assert not shared()


def test_runs_with_a_selection_or_a_debugger_are_not_shared():
    assert not shared(file_or_dir=["tests/ir"])
    assert not shared(keyword="split")
    assert not shared(usepdb=True)
    assert not shared(capture="no")
    assert not shared(numprocesses=0)


def test_one_process_where_there_is_no_second_core_or_no_xdist(monkeypatch):
    assert not shared(xdist=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert not shared()

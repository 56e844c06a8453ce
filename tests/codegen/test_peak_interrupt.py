"""The measured peak under Ctrl-C: no thread is left waiting for one that never started."""

from __future__ import annotations

import threading

import pytest

from metasched.codegen import peak


def test_an_interrupt_between_two_starts_leaves_no_thread(monkeypatch):
    start, started = threading.Thread.start, []

    def interrupted(thread):
        if started:
            raise KeyboardInterrupt
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        peak.together([lambda: 0.0] * 2)
    started[0].join(10)
    assert not started[0].is_alive()

"""Measuring through an executor gives the same outcomes as measuring here."""

from __future__ import annotations

from concurrent.futures import Executor, Future, ThreadPoolExecutor

import pytest
from measure.programs import candidate, failing, scale

from metasched.errors import MeasureError
from metasched.measure import cluster
from metasched.measure.candidate import Outcome, Status
from metasched.measure.cluster import ExecutorRunner
from metasched.measure.local import LocalRunner
from metasched.measure.settings import MeasureOptions

OPTIONS = MeasureOptions(build_workers=1, sample_ms=0.1, samples=3)


@pytest.mark.parametrize("chunk", [1, 4])
def test_outcomes_come_in_order(chunk):
    seen = []
    with ThreadPoolExecutor(1) as pool:
        runner = ExecutorRunner(pool, scale(), options=OPTIONS, chunk=chunk)
        asked = [candidate(f, n) for n, f in enumerate([scale(), scale(3), scale(extra=failing())])]
        outcomes = runner.measure(asked, lambda c, o: seen.append(c.index))
        again = runner.measure(asked[:1])
        runner.close()
    wanted = [Status.OK, Status.WRONG_RESULT, Status.RUN_ERROR]
    assert [o.status for o in outcomes] == wanted and again[0].ok
    assert sorted(seen) == [0, 1, 2]


class Broken(Executor):
    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        future.set_exception(OSError("connection lost"))
        return future


def test_a_failing_executor_is_an_error():
    runner = ExecutorRunner(Broken(), scale(), options=OPTIONS)
    with pytest.raises(MeasureError, match="the executor failed: connection lost"):
        runner.measure([candidate(scale())])


def test_tasks_in_turns_keep_their_runners(monkeypatch):
    """Five tasks on one executor: a runner each is made once, for the last four it is kept."""
    made, closed = [], []

    class Counted(LocalRunner):
        def __init__(self, func, target, options):
            made.append(func)

        def measure(self, candidates, on_outcome=None):
            return [Outcome(Status.OK, (1e-6,)) for _ in candidates]

        def close(self):
            closed.append(self)

    monkeypatch.setattr(cluster, "LocalRunner", Counted)
    with ThreadPoolExecutor(1) as pool:
        tasks = [ExecutorRunner(pool, scale(n + 1), options=OPTIONS) for n in range(cluster.KEPT)]
        for _ in range(3):
            for task in tasks:
                task.measure([candidate(scale())])
        assert (len(made), len(closed)) == (cluster.KEPT, 0)
        ExecutorRunner(pool, scale(99), options=OPTIONS).measure([candidate(scale())])
        assert (len(made), len(closed)) == (cluster.KEPT + 1, 1)
        tasks[-1].measure([candidate(scale())])
        assert len(made) == cluster.KEPT + 1
        tasks[0].close()
    assert len(closed) == cluster.KEPT + 1

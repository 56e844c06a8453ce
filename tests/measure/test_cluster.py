"""Measuring through an executor gives the same outcomes as measuring here."""

from __future__ import annotations

from concurrent.futures import Executor, Future, ThreadPoolExecutor

import pytest
from measure.programs import candidate, failing, scale

from metasched.errors import MeasureError
from metasched.measure.candidate import Status
from metasched.measure.cluster import ExecutorRunner
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

"""Measuring through an executor gives the same outcomes as measuring here."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from measure.programs import candidate, crash, failing, scale

import metasched as ms
from metasched.errors import DefaultScheduleError, MeasureError, RegistryError
from metasched.hardware import machine_name
from metasched.measure import builder_slot, cluster, reference
from metasched.measure.candidate import (
    BUILDERS,
    RUNNERS,
    Built,
    Compares,
    Confirms,
    NamesMachine,
    Outcome,
    ReadsAgain,
    Recalls,
    Status,
)
from metasched.measure.cluster import ExecutorBuilder, ExecutorRunner
from metasched.measure.jobs import build
from metasched.measure.local import LocalRunner
from metasched.measure.settings import MeasureOptions
from metasched.registry import load_plugin, taken_back

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
        reference_confirmed = True

        def __init__(self, func, target, options, default_schedule):
            made.append(func)

        def recall(self, known):
            assert known == ()

        def measure_built(self, candidates, built, on_outcome=None):
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


@pytest.fixture
def pool():
    """An executor of one process, as a cluster's would be."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as made:
        yield made


def test_executor_runner_has_the_abilities_of_a_local_runner(pool):
    """In a process of an executor: the same outcomes, turns, checks and times of one machine."""
    runner = ExecutorRunner(pool, scale(), options=OPTIONS)
    with LocalRunner(scale(), options=OPTIONS) as here:
        for ability in (Confirms, Recalls, NamesMachine, ReadsAgain, Compares):
            assert isinstance(runner, ability) and isinstance(here, ability)
        both = [candidate(scale(), 0), candidate(scale(3), 1)]
        there, local = runner.measure(both), here.measure(both)
    assert [o.status for o in there] == [o.status for o in local]
    assert [o.check for o in there] == [o.check for o in local]
    assert there[0].machine == local[0].machine == runner.machine() == machine_name()
    assert runner.reference_confirmed and runner.unscheduled().ok
    assert len(runner.interleave(both[:1], rounds=3)[0]) == 3
    assert runner.interleave(both[:1], rounds=2, fresh=True)
    good, wrong = runner.verify(both[0]), runner.verify(both[1])
    assert "normally distributed" in good.check and wrong.status is Status.WRONG_RESULT
    assert set(runner.read_again(both[:1])) <= {both[0].key}
    with pytest.raises(MeasureError, match="comparing programs failed: .*SIGABRT"):
        runner.interleave([both[0], candidate(scale(extra=crash()))])
    runner.close()


def test_executor_runner_recalls_times_of_an_earlier_run():
    """Eight times the usual seconds; asked again where the machine pauses between two readings."""

    def slowdown() -> float:
        with ThreadPoolExecutor(1) as pool:
            runner = ExecutorRunner(pool, scale(), options=OPTIONS)
            usual = runner.measure([candidate(scale())])[0].median
            runner.close()
            again = ExecutorRunner(pool, scale(), options=OPTIONS)
            again.recall([(candidate(scale()), 8 * usual)])
            found = again.measure([candidate(scale())])[0].median
            again.close()
        return found / usual

    assert any(3 < slowdown() < 20 for _ in range(3))


def test_a_wrong_default_schedule_is_an_error_here_too(monkeypatch):
    monkeypatch.setattr(reference, "_LONG", 0.0)  # in threads the remote side is this process
    with ThreadPoolExecutor(1) as threads:
        runner = ExecutorRunner(threads, scale(), None, OPTIONS, scale(factor=3))
        with pytest.raises(DefaultScheduleError, match="default schedule gives other"):
            runner.measure([candidate(scale())])
        runner.close()


class Builder:
    """Compiles in this process and remembers what."""

    def __init__(self):
        self.built, self.closed = [], False

    def submit(self, func, target):
        self.built.append(func)
        future = Future()
        fault = func.attrs.get("fault")
        if fault == "raise":
            raise ValueError("no such builder")
        if fault == "refuse":
            future.set_result(Built(None, Status.BUILD_ERROR, "refused on purpose"))
        elif fault == "late":
            future.set_exception(OSError("lost"))
        else:
            future.set_result(Built(build(func, target), seconds=0.5))
        return future

    def close(self):
        self.closed = True


def test_a_builder_of_a_user_compiles_for_the_local_runner():
    builder = Builder()
    faults = ["refuse", "late", "raise"]
    asked = [scale(), *(scale(fault=fault) for fault in faults)]
    with LocalRunner(scale(), options=OPTIONS, builder=builder) as runner:
        with pytest.warns(UserWarning, match="the builder Builder raised"):
            good, *bad = runner.measure([candidate(f, n) for n, f in enumerate(asked)])
        assert len(runner.interleave([candidate(scale(2.0))], rounds=2)[0]) == 2
    assert good.ok and good.build_seconds == 0.5
    assert {o.status for o in bad} == {Status.BUILD_ERROR}
    assert "refused on purpose" in bad[0].message
    assert "lost" in bad[1].message and "no such builder" in bad[2].message
    assert len(builder.built) >= 4 and not builder.closed


def test_a_build_that_never_comes_is_a_timeout(monkeypatch):
    class Silent(Builder):
        def submit(self, func, target):
            return Future()

    monkeypatch.setattr(builder_slot, "_PATIENCE", -14.5)  # of 15 seconds
    with LocalRunner(scale(), options=OPTIONS, builder=Silent()) as runner:
        [found] = runner.measure([candidate(scale())])
    assert found.status is Status.BUILD_TIMEOUT and "no reply within" in found.message


def test_builds_and_runs_go_to_executors_of_their_own(pool):
    """Many build, few run: the programs travel between them."""
    seen = []
    with ThreadPoolExecutor(2) as many:
        builder = ExecutorBuilder(many, OPTIONS)
        runner = ExecutorRunner(pool, scale(), options=OPTIONS, builder=builder, chunk=2)
        funcs = [scale(), scale(3), scale(extra=failing())]
        asked = [candidate(f, n) for n, f in enumerate(funcs)]
        outcomes = runner.measure(asked, lambda c, o: seen.append(c.index))
        runner.close()
        builder.close()
    wanted = [Status.OK, Status.WRONG_RESULT, Status.RUN_ERROR]
    assert [o.status for o in outcomes] == wanted and sorted(seen) == [0, 1, 2]
    assert all(o.build_seconds > 0 for o in outcomes)


PLUGIN = """
import metasched as ms
from concurrent.futures import ThreadPoolExecutor

@ms.runner("my.cluster")
def cluster(func, target, builder=None):
    print("runner of", func.attrs.get("global_symbol", "main"), builder is not None)
    return ms.ExecutorRunner(ThreadPoolExecutor(1), func, target, builder=builder, owned=True)

@ms.builder("my.builders")
def builders():
    return ms.ExecutorBuilder(ThreadPoolExecutor(2), owned=True)
"""


def test_the_command_finds_runner_and_builder_by_name(tmp_path):
    (tmp_path / "plug.py").write_text(PLUGIN)
    command = [
        sys.executable, "-m", "metasched", "tune", "gmm", "--shape", "1,16,16,16", "--trials", "3",
        "--plugin", "plug.py", "--runner", "my.cluster", "--builder", "my.builders", "--model",
        "random", "--strategy", "random", "--no-peer",
    ]  # fmt: skip
    environment = {**os.environ, "METASCHED_SEARCH_WORKERS": "1"}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "runner of" in ran.stderr and "True" in ran.stderr
    assert "3, 0 failed" in ran.stdout


DOUBLE = """
import metasched as ms
from metasched.ir.op import HARDWARE, HardwareOp

NAME = "llvm.x86.avx.rsqrt.ps.256"
HARDWARE.register(NAME, HardwareOp(NAME, "float32x8", ("float32x8",), "avx", lambda a: a**-0.5))
"""

ROOTS = """
@T.prim_func
def roots(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    with T.block("B"):
        B[0:8] = T.call_llvm_pure_intrin(
            "llvm.x86.avx.rsqrt.ps.256", A[0:8] * T.broadcast(T.float32(0), 8)
            + T.broadcast(T.float32(4), 8), dtype="float32x8")
"""


@pytest.mark.skipif("avx" not in ms.Target.native().features, reason="needs AVX")
@pytest.mark.parametrize("there", [True, False])
def test_plugin_files_reach_the_remote_processes(pool, tmp_path, there):
    """Also where the file is not: the remote process runs a copy."""
    file = tmp_path / "mine.py"
    file.write_text(DOUBLE)
    with taken_back(always=True):
        load_plugin(file)
        func = ms.parse(ROOTS)
        if not there:
            file.unlink()
        builder = ExecutorBuilder(pool, OPTIONS)
        runner = ExecutorRunner(pool, func, options=OPTIONS)
        outcome = runner.measure([candidate(func)])[0]
        built = builder.submit(func, ms.Target.native()).result()
        runner.close()
        builder.close()
    assert outcome.ok, outcome.message
    assert built.status is Status.OK, built.message


def test_runners_and_builders_by_name_are_known_and_refused(tmp_path: Path):
    assert "process" in RUNNERS and "process" in BUILDERS
    func = ms.workloads.get("gmm").func((1, 8, 8, 8))
    for what in ("runner", "builder"):
        with pytest.raises(RegistryError, match=f"no {what} is called 'proces'; did you mean"):
            ms.tune(func, trials=1, work_dir=tmp_path, **{what: "proces"})

"""The local runner: every way a candidate can go wrong is one outcome and costs one trial."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
import warnings
from pathlib import Path

import pytest
from measure.programs import (
    N,
    accumulate,
    candidate,
    crash,
    elementwise,
    failing,
    forever,
    matmul,
    peeking,
    scale,
    slow,
    under_root,
)

import metasched.measure.anchor as anchor_module
import metasched.measure.local as local
import metasched.measure.reference as reference
import metasched.measure.sampling as sampling
import metasched.measure.workers as workers_module
from metasched.errors import DefaultScheduleError, MeasureError
from metasched.ir.buffer import Buffer
from metasched.ir.expr import EQ, Var, as_expr
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.op import call
from metasched.ir.stmt import AssertStmt, BufferStore, For, seq
from metasched.ir.visit import fresh_copy
from metasched.lower.packing import PREPROC
from metasched.measure.anchor import TimeReference
from metasched.measure.candidate import Status
from metasched.measure.flow import Flows
from metasched.measure.jobs import outcome_of
from metasched.measure.local import LocalRunner
from metasched.measure.priority import takes_every_core
from metasched.measure.process import Reply, wait
from metasched.measure.settings import MeasureOptions
from metasched.schedule.schedule import Schedule
from metasched.script.parser import parse
from metasched.script.printer import script
from metasched.workloads import get

OPTIONS = MeasureOptions(
    build_timeout=1.0, run_timeout=0.7, build_workers=1, sample_ms=0.1, samples=3
)


@pytest.fixture(scope="module")
def runner():
    """A runner for B = 2 A whose builds can be made to fail."""
    patch = pytest.MonkeyPatch()
    patch.setattr(local, "_JOBS", "measure.faulty_jobs")
    tests = str(Path(__file__).resolve().parents[1])
    patch.setenv("PYTHONPATH", os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")]))
    with LocalRunner(scale(), options=OPTIONS) as made:
        yield made
    patch.undo()


def accepted_vectors():
    """The workload of `scale` with its loop vectorized, as a default schedule might have it."""
    return parse(script(scale()).replace("in range(256)", "in T.vectorized(256)"))


def one(runner, func):
    [outcome] = runner.measure([candidate(func)])
    return outcome


def test_good_candidates_are_timed(runner):
    seen = []
    outcomes = runner.measure(
        [candidate(scale(), n) for n in range(3)], lambda c, o: seen.append((c.index, o))
    )
    assert [o.status for o in outcomes] == [Status.OK] * 3
    assert all(len(o.seconds) >= 1 and o.median > 0 and o.build_seconds > 0 for o in outcomes)
    assert outcomes[0].check == "exact" and sorted(n for n, _ in seen) == [0, 1, 2]
    assert runner.unscheduled().ok and len(runner.unscheduled().seconds) == 1
    assert runner.unscheduled().median < 1e-6  # of the program, not of the way there from Python


@pytest.mark.parametrize(
    ("func", "status", "words"),
    [
        (scale(factor=3), Status.WRONG_RESULT, ["B[", "is ", "expected", "elements differ"]),
        (scale(extent=100), Status.WRONG_RESULT, ["B[100] is nan", "156 of 256"]),
        (scale(shift=3), Status.OUT_OF_BOUNDS, ["wrote up to 3 elements past the end of B"]),
        (scale(shift=-2), Status.OUT_OF_BOUNDS, ["wrote up to 2 elements before the start of B"]),
        (scale(shift=1 << 29), Status.RUN_CRASH, ["SIGSEGV"]),
        (peeking(N), Status.RUN_CRASH, ["SIGSEGV", "one of its arrays (its result does"]),
        (peeking(-1), Status.RUN_CRASH, ["SIGSEGV", "one of its arrays (its result does"]),
        (scale(extra=crash()), Status.RUN_CRASH, ["SIGABRT"]),
        (scale(extra=forever()), Status.RUN_TIMEOUT, ["longer than"]),
        (scale(extra=failing()), Status.RUN_ERROR, ["assertion failed: never true"]),
        (scale(fault="abort"), Status.BUILD_CRASH, ["SIGABRT", "LLVM ERROR: Cannot select"]),
        (scale(fault="hang"), Status.BUILD_TIMEOUT, ["longer than 1 s"]),
        (scale(fault="raise"), Status.BUILD_ERROR, ["BuildError: refused on purpose"]),
        (scale(fault="noise"), Status.OK, []),
    ],
)  # fmt: skip
def test_each_failure_is_an_outcome_and_the_next_candidate_is_fine(runner, func, status, words):
    bad, good = runner.measure([candidate(func, 0), candidate(scale(), 1)])
    assert bad.status is status, bad
    for word in words:
        assert word in bad.message
    assert good.status is Status.OK
    assert (bad.seconds == ()) == (status is not Status.OK)


@pytest.mark.parametrize("place", [-1, N])
def test_a_slow_candidate_also_runs_between_guard_pages(runner, place):
    assert one(runner, scale()).ok and runner.best < 1e-3
    sound = one(runner, scale(extra=slow()))
    assert sound.ok and len(sound.seconds) == 1 and sound.median > 3 * runner.best
    bad = one(runner, peeking(place, slow()))
    assert bad.status is Status.RUN_CRASH
    assert "reads outside of one of its arrays" in bad.message


def test_a_read_outside_that_changes_the_result_is_named_with_the_result(runner):
    shifted = scale()
    a, b = shifted.params
    i = Var("i")
    loop = For.serial(i, N, BufferStore(b, a[i + 1] * as_expr(2.0, "float32"), (i,)))
    bad = one(runner, PrimFunc((a, b), under_root(loop)))
    assert bad.status is Status.WRONG_RESULT and "elements differ" in bad.message
    loop = For.serial(i, N, BufferStore(b, a[i - 1] * as_expr(2.0, "float32"), (i,)))
    bad = one(runner, PrimFunc((a, b), under_root(loop)))
    assert bad.status is Status.RUN_CRASH
    assert "reads outside of one of its arrays (B[0] is nan" in bad.message


def test_writing_an_input_is_wrong(runner):
    func = scale()
    a, b = func.params
    i = Var("i")
    spoil = For.serial(i, 1, BufferStore(a, as_expr(77.0, "float32"), (i,)))
    bad = one(runner, scale_with(func, a, b, spoil))
    assert bad.status is Status.WRONG_RESULT and "the input A was changed" in bad.message
    assert one(runner, scale()).ok


def scale_with(func, a, b, extra):

    body = func.body.block.body
    return PrimFunc((a, b), under_root(seq([body, extra])))


def test_a_module_of_two_functions_is_no_candidate(runner):
    two = IRModule.of({"f": scale(), "g": scale()})
    bad = runner.measure([local.Candidate(0, two, "k")])[0]
    assert bad.status is Status.BUILD_ERROR and "has 2" in bad.message


def test_runner_killed_once_from_outside_is_tried_again(runner):
    assert one(runner, scale()).ok

    def kill():
        end = time.monotonic() + 5
        while not (runner._workers.runner.busy and runner._workers.runner._job.started):
            if time.monotonic() > end:
                return
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(runner._workers.runner.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    bad = one(runner, scale(extra=forever()))
    thread.join()
    assert bad.status is Status.RUN_TIMEOUT  # the second attempt ran into the limit


def test_interrupt_leaves_a_usable_runner(runner):
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    done = []
    with pytest.raises(KeyboardInterrupt):
        runner.measure(
            [candidate(scale(), 0), candidate(scale(extra=forever()), 1)],
            lambda c, o: done.append(c.index),
        )
    assert one(runner, scale()).ok


def test_replies_that_come_together_go_to_their_own_candidates(runner, monkeypatch):
    assert one(runner, scale()).ok  # the expected results are there

    def together(workers, timeout=None):
        waiting, replies = {worker for worker in workers if not worker._held}, []
        while waiting:
            found = wait(list(waiting))
            replies += found
            waiting -= {worker for worker, _ in found}
        return sorted(replies, key=lambda pair: pair[0] is not runner._workers.runner)

    monkeypatch.setattr(workers_module, "wait", together)
    factors = [2, 3, 2, 2, 3, 3, 2, 3]  # `scale` is by 2
    found = runner.measure([candidate(scale(factor=f), n) for n, f in enumerate(factors)])
    expected = [Status.OK if f == 2 else Status.WRONG_RESULT for f in factors]
    assert [outcome.status for outcome in found] == expected


class Beside(TimeReference):
    """Takes the real turns for complete: on a busy machine a program may be dropped from them."""

    def replaced(self, program, turns):
        assert len(turns) == 2 and all(turns)
        return super().replaced(program, [samples * 3 for samples in turns])


def test_a_faster_program_becomes_the_anchor_and_is_timed_again(runner, monkeypatch):
    found, turns = [], []

    def known(reply, built):
        found.append(outcome_of(reply, built))
        return dataclasses.replace(found[-1], seconds=(next(seconds),))

    def beside(samples):
        turns.append(samples)
        return [4.0, 3.0]

    monkeypatch.setattr(local, "outcome_of", known)
    monkeypatch.setattr(anchor_module, "beside_each_other", beside)
    monkeypatch.setattr(runner, "time_reference", Beside())
    seconds = iter((1.0, 0.9, 0.5, 0.7, 0.1))
    taken, entered = [], []
    for _ in range(5):
        outcome = one(runner, scale())
        assert outcome.ok and found[-1].ok
        entered.append(outcome.seconds)
        taken.append(runner.time_reference.anchor[1])
    # 0.5 was luck: beside the anchor it takes 3/4 of it, and that is what counts as its time; an
    # anchor seven times slower is not asked
    assert taken == [1.0, 1.0, 0.75, 0.75, 0.1]
    assert entered == [(1.0,), (0.9,), (0.75,), (0.7,), (0.1,)]
    assert [len(samples) for samples in turns] == [2] and min(map(len, turns[0])) >= 3


def state(worker):
    """ "T" for a process that is held, as the kernel says."""
    with open(f"/proc/{worker.pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0]


def states(workers, patience=3.0):
    """The states of workers when all are held, or after so many seconds: a process that waits for
    a core is stopped when it gets one."""
    end = time.monotonic() + patience
    while (found := {*map(state, workers)}) != {"T"} and time.monotonic() < end:
        time.sleep(0.01)
    return found


def test_after_some_candidates_a_new_process_times_the_next(runner, monkeypatch):
    """Its arrays lie on other pages; the anchor, and with it the unit of the times, stays."""
    monkeypatch.setattr(runner, "_timed", 0)
    assert one(runner, scale()).ok
    first, anchor = runner._workers.runner.pid, runner.time_reference.anchor
    assert one(runner, scale()).ok and runner._workers.runner.pid == first
    monkeypatch.setattr(local, "_PROCESS", 2)
    assert one(runner, scale()).ok and runner._workers.runner.pid != first
    second = runner._workers.runner.pid
    assert one(runner, scale()).ok and runner._workers.runner.pid == second
    assert anchor is not None and runner.time_reference.anchor is not None


@pytest.fixture
def turns(runner, monkeypatch):
    """How many programs each comparison had, and the process that it ran in."""
    counts, inside = [], runner._workers.run

    def run(worker, limit, job, *given):
        reply = inside(worker, limit, job, *given)
        if job == "interleave":
            counts.append((len(given[2]), worker.pid))
        return reply

    monkeypatch.setattr(runner._workers, "run", run)
    return counts


def test_a_new_process_times_what_is_known_before_it_times_others(runner, turns, monkeypatch):
    """Where the anchor seems a tenth slower than the calibration set, the set gives the anchor."""
    monkeypatch.setattr(runner, "_timed", 0)  # no other new process in between
    monkeypatch.setattr(runner, "time_reference", TimeReference())
    monkeypatch.setattr(runner, "_kept", {})
    seconds = one(runner, scale()).median
    assert one(runner, scale()).ok and not turns
    [(read, _)] = runner._kept.values()
    monkeypatch.setattr(anchor_module, "HANDOVER", 1e9)  # a disturbed reading changes nothing here
    monkeypatch.setattr(anchor_module, "OLD", 1e9)
    monkeypatch.setattr(anchor_module, "beside_each_other", lambda turns: [1.1 * seconds, seconds])
    for number in range(1, 3):
        runner._workers.runner.close()
        assert one(runner, scale()).ok and one(runner, scale()).ok
        assert [count for count, _ in turns] == [2] * number
    [(program, known)] = runner.time_reference.calibration
    assert runner.time_reference.anchor == (program, pytest.approx(known))
    assert known == read and turns[0][1] != turns[1][1]


def test_a_resumed_run_measures_in_the_unit_of_the_run_before(runner, turns, monkeypatch):
    """That one read a program on a machine eight times as slow."""
    monkeypatch.setattr(runner, "time_reference", TimeReference())
    usual = one(runner, scale()).median
    monkeypatch.setattr(runner, "time_reference", TimeReference())
    monkeypatch.setattr(runner, "best", 0.0)
    broken = candidate(scale(fault="raise"))
    runner.recall([(candidate(scale()), 8 * usual), (broken, 9 * usual)])
    found = one(runner, scale())
    assert [count for count, _ in turns] == [2] and len(runner.time_reference.calibration) == 1
    assert 3 < found.median / usual < 20
    assert runner.best == pytest.approx(min(found.median, 8 * usual))


def test_a_calibration_set_that_fails_in_turns_is_done_without(runner, monkeypatch):
    monkeypatch.setattr(runner, "time_reference", TimeReference())
    runner.recall([(candidate(scale(extra=crash())), 1.0)])
    assert one(runner, scale()).ok and not runner.time_reference.calibration
    assert runner.time_reference.anchor[1] < 0.1


@pytest.fixture
def held_beside(runner, monkeypatch):
    """For each job of the runner by its name, the states of the builders when it is submitted."""
    found, inside = {}, runner._workers.submit

    def submit(worker, then, limit, job, *given):
        if worker is runner._workers.runner:
            patience = 0.05 if job == "trial" or not runner._workers.alone else 3.0
            found.setdefault(job, set()).update(states(runner._workers.builders, patience))
        inside(worker, then, limit, job, *given)

    monkeypatch.setattr(runner._workers, "submit", submit)
    return found


def handing_over(runner, program, seconds):
    """Begin to make a program the anchor; the list that its seconds are entered in."""
    entered = []
    flow = runner._hand_over(program, seconds)
    Flows(runner._workers, [flow], lambda: True, lambda _, took: entered.append(took))._feed()
    return entered


def test_no_build_runs_beside_what_is_timed(runner, held_beside, monkeypatch):
    """And builders go on afterwards, after an interrupt as well."""
    monkeypatch.setattr(runner, "time_reference", TimeReference())
    assert one(runner, scale()).ok
    assert held_beside["timed"] == {"T"} and "T" not in held_beside["trial"]
    program, seconds = runner.time_reference.anchor
    entered = handing_over(runner, program, seconds / 2)
    runner._workers.wait_idle(runner._workers.runner)
    assert held_beside["interleave"] == {"T"} and len(entered) == 1
    assert one(runner, scale(factor=2)).ok
    handing_over(runner, program, seconds / 4)
    runner._drop_candidates()
    assert "T" not in {state(builder) for builder in runner._workers.builders if builder.pid}
    assert one(runner, scale()).ok


def test_builds_go_on_beside_kernels_that_leave_cores_free(runner, held_beside, monkeypatch):
    monkeypatch.setattr(runner._workers, "alone", False)
    assert one(runner, scale()).ok
    assert "T" not in held_beside["timed"]
    every = len(os.sched_getaffinity(0))
    assert takes_every_core(0) and takes_every_core(every)
    assert every == 1 or not takes_every_core(every - 1)


def test_programs_of_other_tasks_pause_during_timing_and_resume(runner, held_beside):
    """Their programs as written are run for the first time while this one is timed."""
    with LocalRunner(scale(), options=OPTIONS) as other:
        [*workers] = *other._workers.builders, other._workers.runner
        seen = held_beside.setdefault("other", set())
        inside = runner._workers.submit

        def submit(worker, then, limit, job, *given):
            if job == "timed":
                seen.update(states(workers))
            inside(worker, then, limit, job, *given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runner._workers, "submit", submit)
            assert one(runner, scale()).ok
        assert seen == {"T"} and other.unscheduled().ok and one(other, scale()).ok


def test_two_searches_in_threads_do_not_wait_for_each_other(runner):
    with LocalRunner(scale(), options=OPTIONS) as other:
        found = []
        work = [
            threading.Thread(target=lambda r=r: found.extend(one(r, scale()) for _ in range(4)))
            for r in (runner, other)
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join(30)
        assert [outcome.ok for outcome in found] == [True] * 8


def test_a_program_that_fails_beside_the_anchor_does_not_become_it(runner, monkeypatch):
    monkeypatch.setattr(runner, "time_reference", TimeReference())
    assert one(runner, scale()).ok
    before = runner.time_reference.anchor
    program = runner._build_now(candidate(scale(extra=crash())))
    entered = handing_over(runner, program, before[1] / 2)
    runner._workers.wait_idle(runner._workers.runner)
    assert (
        runner.time_reference.anchor is before
        and entered == [before[1] / 2]
        and one(runner, scale()).ok
    )


@pytest.mark.parametrize("turns", [[(3e-3,), (1e-6,) * 5], [(1e-6,) * 5, (3e-3,)]])
def test_turns_that_a_program_gave_up_do_not_retime_the_anchor(
    runner, monkeypatch, turns
):  # fmt: skip
    """A scheduler's slice in the run that warms up read as one program being 50 times faster, and
    whatever was measured after that counted as hopeless."""
    monkeypatch.setattr(runner, "time_reference", TimeReference())
    assert one(runner, scale()).ok
    before = runner.time_reference.anchor
    reply = local.Reply("value", turns)
    monkeypatch.setattr(runner._workers, "submit", lambda worker, then, *job: then(reply))
    entered = handing_over(runner, before[0], before[1] / 2)
    assert runner.time_reference.anchor is before and entered == [before[1] / 2]


def test_interleaving_and_verification(runner):
    a, b = runner.interleave([candidate(scale()), candidate(scale())], rounds=4)
    assert len(a) == len(b) == 4 and min(a + b) > 0
    before = runner._workers.runner.pid
    assert len(runner.interleave([candidate(scale())], rounds=2)[0]) == 2
    assert runner._workers.runner.pid == before
    assert len(runner.interleave([candidate(scale())], rounds=2, fresh=True)[0]) == 2
    assert runner._workers.runner.pid != before and one(runner, scale()).ok
    with pytest.raises(MeasureError, match="build_error: BuildError: refused"):
        runner.interleave([candidate(scale()), candidate(scale(fault="raise"))])
    with pytest.raises(MeasureError, match="comparing programs failed: .*SIGABRT"):
        runner.interleave([candidate(scale()), candidate(scale(extra=crash()))])
    good = runner.verify(candidate(scale()))
    assert good.ok and "normally distributed" in good.check and good.seconds == ()
    assert runner.verify(candidate(scale(factor=2.01))).status is Status.WRONG_RESULT
    assert runner.verify(candidate(scale(fault="raise"))).status is Status.BUILD_ERROR
    assert one(runner, scale()).ok


def test_measured_programs_are_timed_again_without_a_build(runner, monkeypatch):
    monkeypatch.setattr(runner, "time_reference", TimeReference())
    monkeypatch.setattr(runner, "_kept", {})
    monkeypatch.setattr(anchor_module, "AGAIN_SECONDS", 2.0)  # calls on a busy machine take long
    both = [candidate(scale()), candidate(accepted_vectors())]
    assert runner.read_again(both) == {}
    assert all(outcome.ok for outcome in runner.measure(both))
    monkeypatch.setattr(runner, "_build_now", None)
    other = candidate(scale(factor=3))
    tries = (runner.read_again([other, *both]) for _ in range(10))
    read = next(filter(None, tries), {})  # a busy machine may leave a program out of its turns
    assert list(read) == [one.key for one in both] and min(read.values()) > 0
    monkeypatch.setattr(runner._workers, "run", lambda *_: Reply("crash", message="gone"))
    with pytest.raises(MeasureError, match="comparing programs failed: gone"):
        runner.read_again(both)
    monkeypatch.setattr(runner, "_closed", True)
    with pytest.raises(MeasureError, match="the runner is closed"):
        runner.read_again(both)


def test_more_programs_may_take_longer_in_turns(runner):
    """After 1,000 trials 250 programs were in the heat; it was ended after the time of a few."""
    assert one(runner, scale()).ok
    few, many = (runner._in_turns([runner.time_reference.anchor[0]] * n, 4).limit for n in (2, 250))
    assert many > 40 * few


SQUASHED = """
@T.prim_func
def squashed(A: T.Buffer((64, 512), "float32"), B: T.Buffer((512, 64), "float32"),
             C: T.Buffer((64, 64), "float32")):
    S = T.alloc_buffer((64, 64), "float32")
    for i, j, k in T.grid(64, 64, 512):
        with T.block("sum"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                S[vi, vj] = T.float32(0)
            S[vi, vj] = S[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(64, 64):
        with T.block("squash"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.tanh(S[vi, vj])
"""


def test_rounding_errors_of_cancelling_sums_are_accepted():
    """The gates of an LSTM: sums up to 90, results up to 1, and any other order of the sums differs
    by more than 64 eps of that. What lacks one term of 512 is wrong all the same."""
    func = parse(SQUASHED)
    sch = Schedule(func, seed=0)
    block = sch.get_block("sum")
    sch.rfactor(sch.split(sch.get_loops(block)[-1], [16, None])[0], 0)
    short = parse(SQUASHED.replace("(64, 64, 512)", "(64, 64, 511)"))
    with LocalRunner(func) as runner:
        good = runner.verify(sch.mod)
        assert good.ok and float(good.check.split("largest ")[1]) > 64 * 2.0**-23
        assert runner.verify(IRModule({"main": short})).status is Status.WRONG_RESULT


def test_the_fastest_programs_are_not_built_again(runner, monkeypatch):
    monkeypatch.setattr(local, "_KEPT", 1)
    monkeypatch.setattr(runner, "_kept", {})
    func = scale()
    again = For.serial(Var("n"), 2000, fresh_copy(func.root.body))
    quick, slow = candidate(func), candidate(scale_with(func, *func.params, again), 1)
    assert [o.status for o in runner.measure([quick, slow])] == [Status.OK] * 2
    assert list(runner._kept) == [quick.key]
    monkeypatch.setattr(runner._workers, "builders", [])
    assert len(runner.interleave([quick, quick], rounds=2)) == 2 and runner.verify(quick).ok


def test_verification_is_prepared_in_the_background(monkeypatch):
    monkeypatch.setattr(local, "_SLOW_BASELINE", 0.0)
    with LocalRunner(scale(), options=OPTIONS) as made:
        assert one(made, scale()).ok and made._workers.reference.busy
        assert made.verify(candidate(scale())).ok
        assert not made._workers.reference.busy


def test_default_schedule_gives_results_while_slow_program_runs(monkeypatch):
    monkeypatch.setattr(reference, "_LONG", 0.0)
    with LocalRunner(scale(), options=OPTIONS, default_schedule=accepted_vectors()) as made:
        good, wrong = made.measure([candidate(scale()), candidate(scale(factor=3), 1)])
        assert (good.status, wrong.status) == (Status.OK, Status.WRONG_RESULT)
        assert made.unscheduled().ok and made._references.by_default is not None
        assert made.verify(candidate(scale())).ok
        assert made.verify(candidate(scale(factor=2.01))).status is Status.WRONG_RESULT


def test_a_wrong_default_schedule_is_found_out(monkeypatch):
    monkeypatch.setattr(reference, "_LONG", 0.0)
    with LocalRunner(scale(), options=OPTIONS, default_schedule=scale(factor=3)) as made:
        with pytest.raises(
            DefaultScheduleError, match=r"default schedule gives other .*B\[0\] is "
        ):
            made.unscheduled()
        with pytest.raises(MeasureError, match="default schedule gives other"):
            one(made, scale(factor=3))


def test_a_default_schedule_that_fails_is_done_without(monkeypatch):
    monkeypatch.setattr(reference, "_LONG", 0.0)
    with LocalRunner(scale(), options=OPTIONS, default_schedule=scale(extra=failing())) as made:
        assert one(made, scale()).ok and made._references.by_default is None
        assert one(made, scale(factor=3)).status is Status.WRONG_RESULT
        assert made.verify(candidate(scale())).ok


def rows_of(monkeypatch):
    """`matmul` with a sampled reference: every third row."""
    monkeypatch.setattr(reference, "_LONG", 0.0)
    monkeypatch.setattr(sampling, "_ENOUGH", 2.0 * 64**3 / 3)
    func = get("gmm").func((1, 64, 64, 64))
    part = sampling.sampled(func)
    assert part is not None and part.axis == 1 and part.rows[:3] == (0, 5, 10)
    return func


def spoiled(func, row):
    """A program that is wrong in one row."""
    return parse(script(func).replace("T.float32(0)", f"T.Cast('float32', vn == {row})"))


def test_a_sample_of_the_program_as_written_confirms_the_default_schedule(monkeypatch):
    func = rows_of(monkeypatch)
    with LocalRunner(func, options=OPTIONS, default_schedule=func) as made:
        assert one(made, func).ok and made.unscheduled().ok
        assert made._references._sample is not None
        assert made.verify(candidate(func)).ok
        assert one(made, spoiled(func, 7)).status is Status.WRONG_RESULT
        assert made.unscheduled().ok and made._references._sample is None  # all of it has decided


def test_a_run_says_once_that_a_long_program_is_not_sampled(monkeypatch):
    monkeypatch.setattr(reference, "_LONG", 0.0)
    monkeypatch.setattr(sampling, "_ENOUGH", 1.0)
    chain = get("cbr").func((1, 6, 6, 4, 4, 3, 1, 1))
    warned = pytest.warns(UserWarning, match="as a whole to check results")
    with warned as said, LocalRunner(chain, options=OPTIONS, default_schedule=chain) as made:
        assert one(made, chain).ok and one(made, chain).ok
    (text,) = [str(w.message) for w in said if "as a whole" in str(w.message)]
    assert "not for some rows alone: block " in text and "intermediate buffer" in text
    with pytest.warns(UserWarning, match="no default schedule is there"):
        LocalRunner(matmul(64), options=OPTIONS).close()


def test_a_wait_for_the_program_as_written_is_said_once_at_the_line_that_waits(monkeypatch):
    monkeypatch.setattr(reference, "_PATIENCE", 0.0)
    func = matmul(64)
    with LocalRunner(func, options=OPTIONS) as made:
        with pytest.warns(UserWarning, match="gave no results within 0 s; the run waits") as said:
            assert one(made, func).ok
        assert [w.filename for w in said] == [__file__]
    monkeypatch.setattr(reference, "_PATIENCE", 60.0)
    with warnings.catch_warnings(), LocalRunner(func, options=OPTIONS) as made:
        warnings.simplefilter("error")
        assert one(made, func).ok and made._workers._until_reminder() is None


@pytest.mark.parametrize("wrong", [None, "1.01"])
def test_a_sample_confirms_rounded_results_within_the_tolerance(monkeypatch, wrong):
    monkeypatch.setattr(reference, "_LONG", 0.0)
    monkeypatch.setattr(sampling, "_ENOUGH", 3e4)
    func = get("attention").func((2, 32, 16))
    part = sampling.sampled(func)
    assert part is not None and part.share < 0.5
    by_default = func if wrong is None else parse(script(func).replace("0.25", f"0.25 * {wrong}"))
    made = LocalRunner(func, options=OPTIONS, default_schedule=by_default)
    with made:
        if wrong is None:
            assert one(made, func).ok and made.unscheduled().ok and made.verify(candidate(func)).ok
            assert made._references._sample is not None
        else:
            with pytest.raises(DefaultScheduleError, match="default schedule gives other results"):
                made.unscheduled()


def test_a_default_schedule_that_is_wrong_in_a_sampled_row_is_found_out(monkeypatch):
    func = rows_of(monkeypatch)
    said = pytest.raises(DefaultScheduleError, match=r"default schedule gives other results .*Z\[")
    with LocalRunner(func, options=OPTIONS, default_schedule=spoiled(func, 10)) as made, said:
        made.unscheduled()


def test_a_candidate_exposes_a_wrong_default_schedule(monkeypatch):
    """The candidate differs from it; the whole program as written decides."""
    func = rows_of(monkeypatch)
    with LocalRunner(func, options=OPTIONS, default_schedule=spoiled(func, 7)) as made:
        assert one(made, func).status is Status.WRONG_RESULT and not made.reference_confirmed
        with pytest.raises(DefaultScheduleError, match="default schedule gives other results"):
            made.unscheduled()


def test_a_sample_alone_is_not_enough_where_the_default_schedule_fails(monkeypatch):
    func = rows_of(monkeypatch)
    with LocalRunner(func, options=OPTIONS, default_schedule=scale(extra=failing())) as made:
        assert one(made, func).ok and made._references._sample is None
        assert one(made, spoiled(func, 7)).status is Status.WRONG_RESULT


def test_unscheduled_program_that_fails_on_normal_data():
    x, y = Buffer.of("A", (N,)), Buffer.of("B", (N,))
    i = Var("i")
    whole = AssertStmt(EQ(call("floor", x[0]), x[0]), "whole numbers only")
    func = PrimFunc((x, y), under_root(seq([whole, For.serial(i, N, BufferStore(y, x[i], (i,)))])))
    with LocalRunner(func, options=OPTIONS) as made:
        assert one(made, func).ok
        for _ in range(2):
            with pytest.raises(MeasureError, match="normal data: .*whole numbers only"):
                made.verify(candidate(func))
        assert one(made, func).ok


def test_in_out_buffers_start_from_the_same_values():
    with LocalRunner(accumulate(), options=OPTIONS) as made:
        outcomes = made.measure([candidate(accumulate(), n) for n in range(2)])
        assert [o.status for o in outcomes] == [Status.OK] * 2
        assert made.task.arrays[1].initial


def test_reduction_with_init_is_poisoned_and_exact():
    with LocalRunner(matmul(), options=OPTIONS) as made:
        assert one(made, matmul()).ok
        assert not made.task.arrays[2].initial and made.task.exact


def test_inexact_programs_are_compared_with_tolerance():
    func = elementwise(lambda x: call("exp", x))
    with LocalRunner(func, options=OPTIONS) as made:
        good = one(made, func)
        assert good.ok and good.check.startswith("64 roundings (exp)")
        close = elementwise(lambda x: call("exp", x) * as_expr(1.000001, "float32"))
        assert one(made, close).ok
        far = elementwise(lambda x: call("exp", x) * as_expr(1.001, "float32"))
        bad = one(made, far)
        assert bad.status is Status.WRONG_RESULT and "is allowed" in bad.message


def test_partly_written_output_counts_as_initialised():
    half = scale(extent=100)
    with LocalRunner(half, options=OPTIONS) as made:
        assert one(made, half).ok and made.task.arrays[1].initial
        assert one(made, scale()).status is Status.WRONG_RESULT


@pytest.mark.parametrize(
    ("func", "message"),
    [
        (scale(extra=crash()), "unscheduled program cannot be run: .*SIGABRT"),
        (scale(extra=failing()), "the unscheduled program failed: assertion failed"),
        (scale(shift=3), "unscheduled program wrote up to 3 elements past the end"),
    ],
)
def test_a_workload_that_fails_itself_is_an_error(func, message):
    with LocalRunner(func, options=OPTIONS) as made:
        for _ in range(2):  # asked again, it gives the same reason
            with pytest.raises(MeasureError, match=message):
                made.measure([candidate(scale())])


def test_a_crash_on_indices_without_known_limits_names_the_argument():
    """A square is no sum of loads, so no limit is known; 4 * 4 * 10 ** 8 elements are too many."""
    func = parse(
        "@T.prim_func\n"
        "def f(I: T.Buffer((64,), 'int32'), A: T.Buffer((64,)), B: T.Buffer((64,))):\n"
        "    for i in range(64):\n"
        "        B[i] = A[I[i] * I[i] * 100000000]\n"
    )
    message = "SIGSEGV .*; the limits of I as an index are not known, .* clamp the index with T.min"
    with LocalRunner(func, options=OPTIONS) as made, pytest.raises(MeasureError, match=message):
        made.unscheduled()


def test_symbolic_extents_need_values():
    n = Var("n")
    a, b = Buffer.of("A", (n,)), Buffer.of("B", (n,))
    i = Var("i")
    body = For.serial(i, n, BufferStore(b, a[i] + a[i], (i,)))
    func = PrimFunc((a, b), under_root(body))
    message = r"extent 'n' has no value, .*tune\(func, sizes={'n': 1024}\)"
    with LocalRunner(func, options=OPTIONS) as made, pytest.raises(MeasureError, match=message):
        made.unscheduled()
    options = MeasureOptions(build_workers=1, extents={"n": 100}, sample_ms=0.1, samples=3)
    with LocalRunner(func, options=options) as made:
        assert one(made, func).ok and made.task.arrays[0].shape == (100,)


def test_closed_runner_and_foreign_target():
    made = LocalRunner(scale(), options=OPTIONS)
    pids = [w.pid for w in (*made._workers.builders, made._workers.runner)]
    made.close()
    made.close()
    with pytest.raises(MeasureError, match="closed"):
        made.measure([])
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(MeasureError, match="cannot run here: it was made for kind 'cuda'"):
        LocalRunner(scale(), target="nvidia/nvidia-v100")


def test_constant_weights_are_packed_before_a_candidate_runs(monkeypatch):
    """The check is against the program on the weights as they are."""
    func = get("gmm").func((1, 8, 16, 8), constant_weights=True)
    sch = Schedule(func)
    copy = sch.reindex_cache_read("Z", 1, "global", lambda b, n, m, k: (m // 8, k, m % 8))
    sch.annotate(copy, PREPROC, True)
    good, store = script(sch.func), "Y_global[v1 // 8, v2, v1 % 8] = Y[v0, v2, v1]"
    assert store in good
    wrong = parse(good.replace(store, store.replace("Y[v0, v2, v1]", "Y[v0, 7 - v2, v1]")))
    monkeypatch.setattr("metasched.script.parser.first_outside", lambda body: None)
    outside = parse(good.replace(store, store.replace("v1 // 8", "v1 // 8 + 1")))
    with LocalRunner(func, options=OPTIONS) as made:
        outcome = one(made, sch.func)
        assert outcome.ok and outcome.check == "exact"
        assert made.verify(candidate(sch.func)).ok
        a, b = made.interleave([candidate(sch.func), candidate(func)], rounds=2)
        assert min(*a, *b) > 0
        assert one(made, wrong).status is Status.WRONG_RESULT
        found = one(made, outside)
        assert found.status is Status.OUT_OF_BOUNDS
        assert "elements past the end of Y_packed" in found.message
        assert one(made, sch.func).ok


def test_threads_of_a_timed_kernel_are_bound_to_separate_cores(monkeypatch):
    """Found by tuning C1D: rounds in which both threads stayed on one core, 24 us read as 150."""

    def bound(threads: int) -> str | None:
        with LocalRunner(scale(), options=dataclasses.replace(OPTIONS, threads=threads)) as made:
            return made._workers.runner._environment.get("OMP_PROC_BIND")

    monkeypatch.delenv("OMP_PLACES", raising=False)
    monkeypatch.delenv("OMP_PROC_BIND", raising=False)
    monkeypatch.delenv("GOMP_CPU_AFFINITY", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    assert bound(2) == "true" and bound(0) == "true"
    assert bound(1) is None  # beside another team of one, both would be on the first core
    monkeypatch.setenv("OMP_PLACES", "cores")
    assert bound(2) is None

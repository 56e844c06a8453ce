"""Replays in worker processes give the same candidates; a worker that fails is replaced."""

from __future__ import annotations

import copy
import subprocess
import sys
import types
from itertools import islice

import numpy as np
import pytest

from metasched.errors import ScheduleError, TuneError
from metasched.ir.equal import structural_equal
from metasched.kinds import default_space
from metasched.measure.process import Worker, wait
from metasched.schedule.domain import enumerated
from metasched.schedule.schedule import Schedule
from metasched.search.draft import Draft
from metasched.search.pool import ReplayPool
from metasched.search.population import CandidateFactory, Request
from metasched.search.replaying import Replayer, runs_of
from metasched.search.shared_queue import SharedQueue
from tests.search.tasks import TARGET, matmul


@pytest.fixture
def pool():
    made = ReplayPool(2)
    yield made
    made.close()


def wait_until_ready(pool: ReplayPool) -> None:
    """Wait until the workers have entered the task."""
    while any(worker.busy for worker in pool._workers):
        assert pool._went_well(wait(pool._workers))


def requests(factory: CandidateFactory, count: int) -> list[Request]:
    found = []
    for space in range(len(factory.spaces)):
        draft = Draft(factory.random_member(space, 1).trace, 0)
        rows = draft.draw(2000, np.random.default_rng(0))
        found += [Request(draft.decoded(rows, n), space, n) for n in range(count)]
    bad = found[0].trace.with_decision(found[0].trace.sampling()[0][0], [7, 7, 7])
    return [*found, Request(bad, 0, 5)]


def test_workers_and_this_process_make_the_same_candidates(pool):
    func, space = matmul(32), default_space(TARGET)
    here, there = (
        CandidateFactory(func, TARGET, space, 0),
        CandidateFactory(func, TARGET, space, 0, pool),
    )
    wanted = requests(here, 12)
    mine = here.replay_many(wanted)
    wait_until_ready(pool)
    other = [Request(_moved(r.trace, here, there, r.space), r.space, r.seed) for r in wanted]
    theirs = there.replay_many(other)
    assert [m.key for m in mine] == [t.key for t in theirs]
    for a, b in zip(mine, theirs, strict=True):
        assert np.array_equal(a.vector, b.vector)
        assert a.trace.decisions() == b.trace.decisions()
        assert b.shipped.to_json() == a.shipped.to_json()
    assert here.survival.repaired == there.survival.repaired > 0


def test_replays_that_share_steps_equal_full_replays(monkeypatch):
    taken, plain = [], Schedule.take_over
    monkeypatch.setattr(
        Schedule, "take_over", lambda self, *given: (taken.append(given), plain(self, *given))
    )
    shop = CandidateFactory(matmul(32), TARGET, default_space(TARGET), 0)
    draft = Draft(shop.random_member(0, 1).trace, 0)
    wanted = [Request(draft.decoded(draft.draw(8, np.random.default_rng(0)), 0), 0)]
    for position, entry in wanted[0].trace.sampling():  # one decision changed at a time
        other = next(d for d in enumerated(entry.domain, 99) if d != entry.decision)
        wanted.append(Request(wanted[0].trace.with_decision(position, other), 0))
    together = shop.replay_many(wanted)
    assert sum(len(steps) for steps, _ in taken) > len(wanted)
    for request, one in zip(wanted, together, strict=True):
        del taken[:]
        alone = CandidateFactory.replay(_afresh(shop), *request)
        assert not taken
        assert (one and one.key) == (alone and alone.key)
        assert one is None or np.array_equal(one.vector, alone.vector)


def _afresh(shop):
    """The same factory, with nothing kept of its replays."""
    other = copy.copy(shop)
    other._replayer = Replayer(shop.base, shop.spaces, shop.generator.postprocs, TARGET)
    return other


def _moved(trace, here, there, space):
    """The trace over the handles of another factory's spaces."""
    decisions = [e.decision for _, e in trace.sampling()]
    first = there.random_member(space, 1).trace
    for (position, _), decision in zip(first.sampling(), decisions, strict=True):
        first = first.with_decision(position, decision)
    return first


def test_a_worker_that_dies_is_named_and_its_work_done_here(pool):
    factory = CandidateFactory(matmul(32), TARGET, default_space(TARGET), 0, pool)
    wanted = requests(factory, 12)
    wait_until_ready(pool)
    pool._workers[0]._kill()
    with pytest.warns(UserWarning, match=r"a replay worker failed \(.*in process"):
        made = factory.replay_many(wanted)
    assert all(one is not None for one in made)
    assert factory.replay_many(wanted)[0].key == made[0].key


@pytest.mark.parametrize("plugins", [(), ("some_plugin.py",)])
def test_a_worker_that_never_starts_is_named_and_its_work_done_here(monkeypatch, plugins):
    def ended(worker, environment):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        command = [sys.executable, "-S", "-c", "import os; os.kill(os.getpid(), 9)"]
        return subprocess.Popen(command, bufsize=0, start_new_session=True, **pipes)

    monkeypatch.setattr(Worker, "_launched", ended)
    words = r"a replay worker failed \(replayer 0 does not start \(.*SIGKILL.*replaying in process"
    with pytest.warns(UserWarning, match=words) as told:
        pool = ReplayPool(2, plugins)
        factory = CandidateFactory(matmul(32), TARGET, default_space(TARGET), 0, pool)
        made = factory.replay_many(requests(factory, 12))
    assert len(told) == 1 and pool._workers[0].pid is None
    assert all(one is not None for one in made)
    pool.close()


def test_an_interrupted_round_leaves_nothing_to_the_next(pool):
    factory = CandidateFactory(matmul(32), TARGET, default_space(TARGET), 0, pool)
    wanted = requests(factory, 12)
    wait_until_ready(pool)
    plain, calls = factory._replayer.summary_of, iter(range(99))

    def interrupted(request):
        if next(calls) == 0:  # this process is sure to take one request, workers may take the rest
            raise KeyboardInterrupt
        return plain(request)

    factory._replayer.summary_of = interrupted
    with pytest.raises(KeyboardInterrupt):
        factory.replay_many(wanted)
    assert not pool._workers[0].busy and not [*pool._queue.take(0)]
    made = factory.replay_many(wanted[::-1])
    alone = CandidateFactory(matmul(32), TARGET, default_space(TARGET), 0)
    other = [Request(_moved(r.trace, factory, alone, r.space), r.space, r.seed) for r in wanted]
    assert [one.key for one in made] == [one.key for one in alone.replay_many(other[::-1])]


def test_work_begins_while_the_workers_are_starting(pool):
    factory = CandidateFactory(matmul(32), TARGET, default_space(TARGET), 0, pool)
    assert pool._workers[0].busy
    assert any(factory.replay_many(requests(factory, 1)))
    second = CandidateFactory(matmul(16), TARGET, default_space(TARGET), 0, pool)
    assert (factory._number, second._number) == (0, 1) and pool._workers[0].busy
    wait_until_ready(pool)


def test_a_replay_that_gives_another_program_is_an_error():
    factory = CandidateFactory(matmul(32), TARGET, default_space(TARGET), 0)
    one = factory.random_member(0, 1)
    with pytest.raises(TuneError, match="gave another program"):
        factory.remade(one.trace, "another key", one.space)


def test_a_process_takes_its_own_requests_before_those_of_the_longest_part():
    queue = SharedQueue(3)
    other = SharedQueue(3, queue.fd)
    queue.deal(40)  # 13, 13 and 14
    first, last = queue.take(0), other.take(2)
    assert list(islice(first, 13)) == list(range(13))
    assert next(last) == 26
    assert list(islice(first, 3)) == [25, 39, 24]  # the longest is the second, the third, ...
    rest = [*last, *first, *queue.take(1)]
    assert sorted(rest) == [*range(13, 24), *range(27, 39)]
    queue.deal(2)  # fewer than processes
    assert sorted([*queue.take(0), *other.take(1)]) == [0, 1]
    other.close()
    queue.close()


def test_a_request_taken_by_two_processes_has_one_result():
    queue = SharedQueue(2)
    queue.deal(10)
    took = [*islice(queue.take(0), 3)]
    queue._left[0] = 1  # as if another process had read the front before it was written
    assert sorted([*took, *queue.take(0)]) == [0, 1, 1, 2, 2, *range(3, 10)]
    queue.close()


def test_shared_runs_end_at_decisions_and_omit_the_steps_after_the_last():
    sch = Schedule(matmul(32), seed=0)
    block = sch.get_block("Z")
    _, i, j, _ = sch.get_loops(block)
    a, b = sch.sample_perfect_tile(i, n=2), sch.sample_perfect_tile(j, n=2)
    outer, inner = sch.split(i, a)
    sch.unroll(inner)
    sch.require(b[1] > 0)
    sch.annotate(block, "note", 1)
    sch.split(j, b)
    sch.parallel(outer)
    names = [
        (
            [entry.kind.name for entry in sch.trace.entries[run.first : run.end]],
            run.inputs is not None,
        )
        for run in runs_of(sch.trace)
    ]
    assert names == [
        (["get_block", "get_loops"], True),
        (["sample_perfect_tile"], False),
        (["sample_perfect_tile"], False),
        (["split", "unroll"], True),
        (["require"], False),
        (["annotate"], True),
        (["split"], True),
        (["parallel"], False),
    ]
    assert runs_of(sch.trace)[3].inputs == (i, *a)


def test_undo_stops_at_steps_taken_over_from_another_replay():
    sch = Schedule(matmul(32), seed=0)
    block = sch.get_block("Z")
    loops = sch.get_loops(block)
    sch.parallel(loops[0])
    other = Schedule(matmul(32), seed=0)
    other.take_over(sch.trace.entries, sch.state.snapshot(index=True))
    assert structural_equal(other.mod, sch.mod)
    other.unroll(loops[1])
    other.undo()
    assert structural_equal(other.mod, sch.mod) and other.trace.entries == sch.trace.entries
    with pytest.raises(ScheduleError, match="no step to undo"):
        other.undo()


@pytest.mark.parametrize("missing", ["module", "function"])
def test_functions_that_workers_cannot_import_are_a_matter_of_plugins(pool, monkeypatch, missing):
    """Functions of a module that only this process finds, or of `__main__`."""
    module = types.ModuleType("only_here") if missing == "module" else sys.modules["bisect"]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    made = types.FunctionType(wait_until_ready.__code__, {"__name__": module.__name__}, "own")
    made.__qualname__ = "own"
    monkeypatch.setattr(module, "own", made, raising=False)
    pool._workers[0].submit("operator:truth", made, limit=60)
    words = r"a replay worker failed \(error: (No module|Can't get).*in process. Workers import .*"
    with pytest.warns(UserWarning, match=words + r"plugins=FILE.*PYTHONPATH"):
        while pool._workers[0].busy:
            pool._went_well(wait(pool._workers))

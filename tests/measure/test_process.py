"""Workers: answers, errors, crashes, deadlines, restarts, huge messages, no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metasched.errors import MeasureError
from metasched.measure.pickled import dump
from metasched.measure.process import Worker, wait
from metasched.measure.worker import frame, unframe

ROOT = Path(__file__).resolve().parents[2]
JOBS = "metasched.measure.jobs"  # with a module to import, a worker is forked


@pytest.fixture(scope="module", params=["", JOBS], ids=["started", "forked"])
def worker(request):
    made = Worker("test worker", preload=request.param)
    yield made
    made.close()


def gone(pid: int, limit: float = 3.0) -> bool:
    end = time.monotonic() + limit
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rsplit(")", 1)[1].split()[0] in "ZX":
                    return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_values_and_errors(worker):
    assert worker.run("operator:add", 2, 3, limit=1).value == 5
    reply = worker.run("operator:truediv", 1, 0, limit=1)
    assert (reply.kind, reply.error, reply.message) == (
        "error", "ZeroDivisionError", "division by zero",
    )  # fmt: skip
    assert "Traceback" in reply.detail
    assert worker.run("no_such_module:f", limit=1).error == "ModuleNotFoundError"
    assert worker.run("operator:no_such", limit=1).error == "AttributeError"
    assert worker.starts == 1


def test_result_that_cannot_be_pickled_is_an_error(worker):
    assert "pickle" in worker.run("threading:Lock", limit=1).message
    assert worker.starts == 1


def test_huge_messages_both_ways(worker):
    data = bytes(range(256)) * (100 << 10)
    assert worker.run("operator:add", data, b"x", limit=20).value == data + b"x"


def test_deadline_kills_and_the_next_job_gets_a_new_process(worker):
    before = worker.run("os:getpid", limit=1).value
    reply = worker.run("time:sleep", 60, limit=0.2)
    assert reply.kind == "timeout" and reply.message == "longer than 0.2 s"
    assert 0.2 <= reply.seconds < 2 and gone(before)
    assert worker.run("os:getpid", limit=1).value != before


def test_busy_loop_in_python_is_killed_too(worker):
    reply = worker.run("timeit:timeit", "pass", "pass", time.perf_counter, 10**12, limit=0.2)
    assert reply.kind == "timeout"


def test_clock_starts_with_the_work_not_with_the_process():
    fresh = Worker()
    reply = fresh.run("time:sleep", 0.05, limit=0.15)  # starting Python takes about as long
    fresh.close()
    assert reply.kind == "value" and reply.seconds < 0.15


def test_crashes_are_named(worker):
    reply = worker.run("ctypes:string_at", 0, limit=2)
    assert (reply.kind, reply.signal) == ("crash", "SIGSEGV")
    assert "SIGSEGV (access outside" in reply.message
    reply = worker.run("os:abort", limit=2)
    assert (reply.kind, reply.signal) == ("crash", "SIGABRT")
    reply = worker.run("os:_exit", 3, limit=2)
    assert (reply.kind, reply.signal) == ("crash", "")
    assert "exited with code 3" in reply.message
    assert worker.run("operator:add", 1, 1, limit=1).value == 2


def test_last_words_on_stderr_are_kept(worker):
    reply = worker.run(
        "subprocess:call", [sys.executable, "-c", "print('LLVM ERROR: no')"], limit=5
    )
    assert reply.value == 0  # what a job prints does not reach the protocol
    reply = worker.run("os:abort", limit=2)
    assert "LLVM ERROR: no" in reply.detail


def test_killed_from_outside_while_idle_goes_unnoticed(worker):
    worker.run("os:getpid", limit=1)
    os.kill(worker.pid, signal.SIGKILL)
    assert worker.run("operator:add", 1, 1, limit=1).value == 2


def test_killed_from_outside_during_a_job(worker):
    worker.submit("time:sleep", 30, limit=30)
    while not wait([worker], 0.3) and time.monotonic() < worker.deadline - 29.9:
        pass
    os.kill(worker.pid, signal.SIGKILL)
    [(_, reply)] = wait([worker])
    assert (reply.kind, reply.signal) == ("crash", "SIGKILL")


def test_the_whole_group_is_killed(worker):
    command = "sleep 60 >/dev/null 2>&1 & echo $!"
    pid = int(worker.run("subprocess:getoutput", command, limit=5).value)
    assert not gone(pid, 0.05)
    assert worker.run("time:sleep", 60, limit=0.1).kind == "timeout"
    assert gone(pid)


def test_many_at_once_and_a_wait_that_times_out():
    pair = [Worker("a"), Worker("b", nice=19)]
    pair[0].submit("time:sleep", 0.2, limit=5)
    pair[1].submit("os:nice", 0, limit=5)
    ended = {}
    while len(ended) < 2:
        for one, reply in wait(pair, 5):
            ended[one.name] = reply
    assert ended["b"].value == 19 and ended["a"].kind == "value"
    assert wait(pair, 0.01) == []
    with pytest.raises(MeasureError, match="a is busy"):
        pair[0].submit("time:sleep", 1, limit=5)
        pair[0].submit("time:sleep", 1, limit=5)
    pids = [w.pid for w in pair]
    for one in pair:
        one.close()
        one.close()
    assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize("preload", ["", JOBS], ids=["started", "forked"])
def test_memory_limit(preload):
    small = Worker(memory=1 << 30, preload=preload)
    reply = small.run("builtins:bytearray", 2 << 30, limit=5)
    small.close()
    assert reply.kind == "error" and reply.error == "MemoryError"


@pytest.mark.parametrize("preload", ["", JOBS], ids=["started", "forked"])
def test_memory_limit_leaves_room_for_a_job(preload):
    """The gaps before a forked worker's memory, 512 MiB and more, do not count."""
    small = Worker(memory=1 << 30, preload=preload)
    reply = small.run("builtins:eval", "len(bytearray(600 << 20))", limit=5)
    small.close()
    assert reply.value == 600 << 20, reply.message


def test_worker_that_cannot_start(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(MeasureError, match="cannot be started"):
        Worker("w").run("os:getpid", limit=1)


def test_worker_that_dies_at_its_start():
    broken = Worker("w", environment={"PYTHONHOME": "/nonexistent"})
    with pytest.raises(MeasureError, match="w does not start"):
        broken.run("os:getpid", limit=1)
    broken.close()


def test_worker_that_is_never_ready():
    slow = Worker("w", start_limit=0.01)
    with pytest.raises(MeasureError, match=r"not ready within 0.01 s, in 2 attempts"):
        slow.run("os:getpid", limit=1)
    assert slow.starts == 2
    slow.close()


def test_a_job_of_a_worker_that_is_not_ready_goes_to_a_new_worker():
    late = Worker("w", start_limit=1.0)
    late.start()
    os.kill(late.pid, signal.SIGSTOP)
    assert late.run("operator:add", 1, 2, limit=1).value == 3 and late.starts == 2
    late.close()


def test_interrupt_is_ignored(worker):
    worker.run("os:getpid", limit=1)
    os.kill(worker.pid, signal.SIGINT)
    starts = worker.starts
    assert worker.run("operator:add", 1, 2, limit=1).value == 3 and worker.starts == starts


def test_a_held_worker_goes_on_when_let_and_ends_when_closed(worker):
    worker.run("os:getpid", limit=1)
    worker.pause()
    worker.submit("operator:add", 1, 2, limit=5)
    assert not any(reply for _, reply in wait([worker], 0.2)) and worker.busy
    worker.pause(False)
    assert ended(worker).value == 3
    worker.pause()
    pid = worker.pid
    worker.close()
    assert gone(pid)
    worker.pause()  # nothing is alive: nothing to hold


def test_time_in_which_a_worker_is_held_does_not_count(worker):
    worker.run("os:getpid", limit=1)
    starts = worker.starts
    worker.submit("time:sleep", 0.3, limit=0.4)
    assert wait([worker], 1) == []  # it has begun
    worker.pause()
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        assert wait([worker], 0.2) == [] and worker.busy
    worker.pause(False)
    assert ended(worker).kind == "value" and worker.starts == starts


def test_a_job_larger_than_the_pipe_reaches_a_paused_worker(worker):
    """Its parent, who alone can let it go on, does not wait for it to read."""
    worker.run("os:getpid", limit=1)
    worker.pause()
    begin = time.monotonic()
    worker.submit("builtins:len", b"x" * 5_000_000, limit=5)
    assert time.monotonic() - begin < 2 and wait([worker], 0.1) == []
    worker.pause(False)
    assert ended(worker).value == 5_000_000


def ended(worker):
    """The reply to the job of a worker."""
    while not (replies := wait([worker])):
        pass
    return replies[0][1]


PARENT = """
import sys, time
from metasched.measure.process import Worker, wait
busy, idle, held = (Worker(preload=sys.argv[1]) for _ in range(3))
idle.run("os:getpid", limit=5)
held.run("os:getpid", limit=5)
held.pause()
busy.submit("timeit:timeit", "pass", "pass", time.time, 10**12, limit=60)
wait([busy], 1); wait([busy], 0.3)
server = held._process._server.process.pid if sys.argv[1] else busy.pid
print(busy.pid, idle.pid, held.pid, server, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("preload", ["", JOBS], ids=["started", "forked"])
def test_no_orphans_after_the_parent_is_killed(preload):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, preload], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    pids = [int(word) for word in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert len(pids) == 4 and all(gone(pid) for pid in pids)


@pytest.mark.parametrize("preload", ["", JOBS], ids=["started", "forked"])
def test_forgotten_workers_end(preload):
    forgotten = Worker(preload=preload)
    pid = forgotten.run("os:getpid", limit=1).value
    del forgotten
    assert gone(pid)


def test_frames_survive_any_cutting():
    messages = [("a", 1), b"x" * 1000, None]
    data = b"".join(map(frame, messages))
    for step in (1, 7, 100, len(data)):
        buffer, out = bytearray(), []
        for start in range(0, len(data), step):
            buffer += data[start : start + step]
            out += unframe(buffer)
        assert out == messages and not buffer


def test_deep_values_can_be_sent(worker):
    deep: list = []
    for _ in range(20000):
        deep = [deep]
    assert worker.run("builtins:len", deep, limit=5).value == 1
    assert len(dump(deep)) > 20000


def test_dump_refuses_objects_that_cannot_be_pickled(worker):
    deep: list = [lambda: 0]
    for _ in range(20000):
        deep = [deep]
    with pytest.raises(MeasureError, match="cannot be sent to a worker"):
        dump(deep)

"""Forked workers: what they take over from this process, and what a dead server costs.

The tests of `test_process.py` run with forked workers, too.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from pathlib import Path

import pytest
from measure.test_process import JOBS, gone

from metasched.errors import MeasureError
from metasched.measure import worker_server
from metasched.measure.process import Worker
from metasched.measure.worker_server import Forked

ADDRESS = """
import ctypes, mmap
where.append(ctypes.addressof(ctypes.c_char.from_buffer(mmap.mmap(-1, SIZE))))
"""


@pytest.fixture
def forked():
    with closing(Worker("forked", preload=JOBS)) as made:
        made.run("os:getpid", limit=5)
        assert isinstance(made._process, Forked)
        yield made


def server_of(worker: Worker) -> int:
    return worker._process._server.process.pid


def test_workers_share_a_server_that_has_one_thread(forked):
    with closing(Worker("second", preload=JOBS)) as second:
        assert second.run("os:getppid", limit=5).value == server_of(forked) != os.getpid()
        threads = os.listdir(f"/proc/{server_of(forked)}/task")
        assert len(threads) == 1


def test_a_module_of_the_package_is_imported_before_the_fork_and_no_other(forked):
    with closing(Worker("other", preload="measure.faulty_jobs")) as other:
        other.run("os:getpid", limit=5)
    for module, known in ((JOBS, True), ("measure.faulty_jobs", False)):
        text = f"{module!r} in __import__('sys').modules"
        with closing(Worker("third", preload=JOBS)) as third:
            assert third.run("builtins:eval", text, limit=5).value is known


def test_a_worker_has_the_folder_the_variables_and_the_descriptors_of_this_process(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_VARIABLE", "new")
    monkeypatch.delenv("HOME", raising=False)
    fds = [os.memfd_create(f"file {n}") for n in range(4)]
    for fd in fds:
        os.write(fd, b"%d" % fd)
    settings = {"OMP_NUM_THREADS": "3"}
    with closing(Worker("w", preload=JOBS, fds=fds, environment=settings, nice=3)) as made:
        assert made.run("os:getcwd", limit=5).value == str(tmp_path)
        for name, value in (("MY_VARIABLE", "new"), ("OMP_NUM_THREADS", "3"), ("HOME", None)):
            assert made.run("os:getenv", name, limit=5).value == value
        for fd in fds:
            assert made.run("os:pread", fd, 9, 0, limit=5).value == b"%d" % fd
        assert made.run("os:nice", 0, limit=5).value == 3
        assert made.run("os:getsid", 0, limit=5).value == made.pid
        kept = made.run("os:listdir", "/proc/self/fd", limit=5).value
    for fd in fds:
        os.close(fd)
    others = set(map(int, kept)) - set(fds) - {0, 1, 2}
    assert len(others) == 4  # two pipes of the protocol, /dev/null, the folder that is listed


@pytest.mark.parametrize("name, value", [("PYTHONHASHSEED", "7"), ("MALLOC_ARENA_MAX", "1")])
def test_a_variable_that_python_or_a_library_has_read_needs_another_server(
    forked, monkeypatch, name, value
):
    monkeypatch.setenv(name, value)
    with closing(Worker("other", preload=JOBS)) as other:
        assert other.run("os:getenv", name, limit=5).value == value
        assert server_of(other) != server_of(forked)
        read = Path(f"/proc/{server_of(other)}/environ").read_bytes().split(b"\0")
        assert f"{name}={value}".encode() in read


@pytest.mark.parametrize("size, least", [(1 << 20, 5), (1 << 24, 3)])
def test_workers_map_memory_at_different_addresses(size, least):
    """Several of six may agree, because large maps begin at multiples of 2 MiB."""
    found = []
    for _ in range(6):
        with closing(Worker("w", preload=JOBS)) as made:
            where = "(lambda w: (exec(text, {'where': w}), w)[1])([])".replace(
                "text", repr(ADDRESS.replace("SIZE", str(size)))
            )
            found.append(made.run("builtins:eval", where, limit=5).value[0])
    assert len(set(found)) >= least


def test_a_dead_server_ends_idle_workers_and_costs_one_job(forked):
    server = server_of(forked)
    os.kill(server, signal.SIGKILL)
    assert gone(server)
    pid = forked.pid
    assert forked.run("operator:add", 1, 2, limit=5).value == 3  # the worker itself is alive
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    assert forked.run("operator:add", 1, 2, limit=5).value == 3
    assert server_of(forked) != server


def test_a_server_that_dies_before_the_fork_costs_a_new_server(monkeypatch):
    monkeypatch.setenv("LC_MESSAGES", "C")  # a server of its own, which still imports
    with closing(Worker("w", preload=JOBS)) as made:
        made.start()
        server = server_of(made)
        os.kill(server, signal.SIGKILL)
        assert made.run("operator:add", 1, 2, limit=5).value == 3
        assert server_of(made) != server


def test_a_second_server_that_dies_before_the_fork_is_a_worker_that_does_not_start(monkeypatch):
    def killed(*given):
        made = worker_server.fork(*given)
        os.kill(made._server.process.pid, signal.SIGKILL)
        return made

    monkeypatch.setenv("LC_MESSAGES", "C.UTF-8")  # a server of its own
    with closing(Worker("w", preload=JOBS)) as made:
        with monkeypatch.context() as patch:
            patch.setattr("metasched.measure.process.fork", killed)
            with pytest.raises(MeasureError, match="w does not start .*SIGKILL"):
                made.run("os:getpid", limit=5)
        assert made.run("operator:add", 1, 2, limit=5).value == 3


def test_a_worker_is_closed_before_it_is_forked(monkeypatch):
    monkeypatch.setenv("LC_MESSAGES", "POSIX")
    made = Worker("w", preload=JOBS)
    made.start()
    made.submit("time:sleep", 60, limit=60)
    process = made._process
    made.close(grace=0.0)
    assert process.returncode in (0, -signal.SIGKILL) and gone(process.pid)


def test_without_what_a_server_needs_a_worker_starts_by_itself(monkeypatch):
    def refused(pid: int) -> int:
        raise OSError("not here")

    monkeypatch.setattr(os, "pidfd_open", refused)
    worker_server._possible.cache_clear()
    try:
        with closing(Worker("w", preload=JOBS)) as made:
            assert made.run("os:getppid", limit=5).value == os.getpid()
            assert not isinstance(made._process, Forked)
    finally:
        worker_server._possible.cache_clear()


def test_a_server_that_cannot_start_leaves_the_reason_to_the_worker(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(MeasureError, match="w cannot be started: .*/nonexistent/python"):
        Worker("w", preload=JOBS).run("os:getpid", limit=1)


def test_workers_of_a_fork_of_this_process_have_a_server_of_their_own(forked):
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            with closing(Worker("w", preload=JOBS)) as made:
                parent = made.run("os:getppid", limit=20).value
            os.write(write, str(parent).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as file:
        other = int(file.read())
    os.waitpid(pid, 0)
    assert other != server_of(forked) and gone(other)
    assert forked.run("operator:add", 1, 2, limit=5).value == 3

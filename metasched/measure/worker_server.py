"""Forks worker processes from a process that has imported the package already.

A worker that is started by itself imports numpy, llvmlite and the package, for half a second. One
server, `python -m metasched.measure.worker_server`, imports them once and has one thread, so that
a fork of it is a worker within milliseconds. Libraries for threads are not loaded before the fork:
each worker's own environment holds for them.

A request is one message on the server's channel, of descriptors alone: the control socket, a file
with a `_Request`, stdin, stdout, stderr, and those that the worker keeps. On the control socket the
server writes the number of the forked process, and the way it ended once `Forked` has asked. Until
then the process is not reaped, so its number belongs to no other process. If a control socket
closes, the server kills the worker's group; if the channel closes, the server ends, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import importlib
import mmap
import os
import pickle
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
import weakref
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple, NoReturn

from metasched.measure import worker

_PREFIX = "metasched."  # modules that the server imports itself; workers import all others
_PATIENCE = 60.0  # seconds until the server must have answered
_NUMBER = struct.Struct("<q")
_MAX_FDS = 200  # Linux sends at most 253 in one message
_GAPS = range(16, -1, -1)  # powers of two, in pages
# What Python, the C library and the imported libraries read before a fork. A worker whose variables
# differ in one of them is forked from another server.
_READ_EARLY = (
    "PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "TZ",
    "OPENBLAS_", "MKL_", "NPY_", "NUMPY_", "LLVM",
)  # fmt: skip


class _Request(NamedTuple):
    """What a worker needs beside its descriptors."""

    arguments: list[str]
    preload: str
    environment: dict[str, str]
    folder: str
    fds: tuple[int, ...]  # the numbers that the descriptors after stdin, stdout and stderr get


# -- the side of the process that wants workers ----------------------------------------------------


class Forked:
    """A forked worker, with those attributes of `subprocess.Popen` that a `Worker` uses."""

    def __init__(
        self, server: _Server, control: socket.socket, stdin: IO[bytes], stdout: IO[bytes]
    ) -> None:
        """`control`: the socket on which the server tells of this process."""
        self.stdin, self.stdout = stdin, stdout
        self.returncode: int | None = None
        self._server, self._control = server, control
        self._pid, self._alive = 0, -1  # `_alive` can be read when the process has ended

    @property
    def pid(self) -> int:
        """Its number; waits for the fork. If the server fails, the number of the dead server."""
        return self._pid if self._forked(_PATIENCE) else self._server.process.pid

    def poll(self) -> int | None:
        """The exit code, or None while the process is alive."""
        if self.returncode is None and self._forked(0.0) and _readable(self._alive, 0.0):
            self._reap()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        if self.returncode is None and self._forked(_PATIENCE):
            if not _readable(self._alive, timeout):
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            self._reap()
        return self.returncode

    def _forked(self, timeout: float) -> bool:
        """Whether the server has forked the process; waits for the fork for so many seconds."""
        if self._pid or self.returncode is not None:
            return bool(self._pid)
        if _readable(self._control.fileno(), timeout):
            data = self._answer()
            with contextlib.suppress(OSError):
                if data is not None:
                    self._alive = os.pidfd_open(data)
                    self._pid = data
                    return True
        elif not timeout:
            return False
        self._server.process.kill()  # it has ended, or it does not answer
        self._ended(None)
        return False

    def _reap(self) -> None:
        """Learn how the process ended; its number may belong to another process from now on."""
        with contextlib.suppress(OSError):
            self._control.send(b"r")
        self._ended(self._answer())

    def _ended(self, code: int | None) -> None:
        # No answer: the server was killed from outside, most probably with its workers.
        self.returncode = -signal.SIGKILL if code is None else code
        self._control.close()
        if self._alive >= 0:
            os.close(self._alive)

    def _answer(self) -> int | None:
        with contextlib.suppress(OSError):
            data = self._control.recv(_NUMBER.size)
            return int(_NUMBER.unpack(data)[0]) if data else None
        return None


class _Server:
    """The server of this process for one environment; it ends when nothing refers to it."""

    def __init__(self, environment: Mapping[str, str], cpus: Sequence[int]) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", "-m", __name__, *map(str, (theirs.fileno(), *cpus))]
        null = subprocess.DEVNULL
        with contextlib.ExitStack() as failed, theirs:
            failed.enter_context(self.channel)
            self.process = subprocess.Popen(
                command, stdin=null, stdout=null, stderr=null, pass_fds=(theirs.fileno(),),
                start_new_session=True, env=dict(environment),
            )  # fmt: skip
            failed.pop_all()
        weakref.finalize(self, _end, self.process, self.channel, os.getpid())

    def fork(self, request: _Request, log: IO[bytes]) -> Forked:
        """Ask for a worker; returns before the server has forked it. Raises OSError."""
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        stdin, write = os.pipe()
        read, stdout = os.pipe()
        text = os.memfd_create("metasched-request", os.MFD_CLOEXEC)
        made = Forked(self, control, open(write, "wb", 0), open(read, "rb", 0))  # noqa: SIM115
        try:
            with open(text, "wb", closefd=False) as file:
                pickle.dump(request, file)
            sent = [theirs.fileno(), text, stdin, stdout, log.fileno(), *request.fds]
            socket.send_fds(self.channel, [b"f"], sent)
        except OSError:
            for end in (made.stdin, made.stdout, control):
                end.close()
            raise
        finally:
            theirs.close()
            for fd in (text, stdin, stdout):
                os.close(fd)
        return made


def fork(
    arguments: Sequence[str], preload: str, cpus: Sequence[int], environment: Mapping[str, str],
    fds: Sequence[int], log: IO[bytes],
) -> Forked | None:  # fmt: skip
    """A process that runs `worker.main`; returns before it is ready.

    None where workers cannot be forked: another way to start them must be taken.

    Args:
        arguments: see `worker.main`.
        preload: a module that the worker will import.
        cpus: the processors to run on, by number.
        environment: all variables of the process.
        fds: descriptors that the process gets under the same numbers.
        log: what the process writes to stdout and stderr.
    """
    if not _possible() or len(fds) > _MAX_FDS:
        return None
    early = tuple(sorted((k, v) for k, v in environment.items() if k.startswith(_READ_EARLY)))
    request = _Request(list(arguments), preload, dict(environment), os.getcwd(), tuple(fds))
    for _ in range(2):  # the first server may have been killed
        try:
            server = _server(os.getpid(), sys.executable, early, tuple(cpus))
            return server.fork(request, log)
        except OSError:
            _server.cache_clear()
    return None


@functools.lru_cache(maxsize=1)
def _server(
    owner: int, executable: str, early: tuple[tuple[str, str], ...], cpus: tuple[int, ...]
) -> _Server:
    """The server of this process; a fork of this process has another."""
    found = {k: v for k, v in os.environ.items() if not k.startswith(_READ_EARLY)}
    return _Server({**found, **dict(early)}, cpus)


@functools.cache
def _possible() -> bool:
    """Whether this system has what the server needs; otherwise workers start by themselves."""
    try:
        os.close(os.pidfd_open(os.getpid()))
        return hasattr(os, "memfd_create")
    except (AttributeError, OSError):
        return False


def _readable(fd: int, timeout: float | None) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(None if timeout is None else timeout * 1000))


def _end(process: subprocess.Popen[bytes], channel: socket.socket, owner: int) -> None:
    """Close the channel, by which the server ends, unless this is a fork of its owner."""
    channel.close()
    if os.getpid() == owner:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        process.kill()
        process.wait()


# -- the server ------------------------------------------------------------------------------------


def serve(channel: socket.socket, cpus: Sequence[int]) -> NoReturn:
    """Fork workers until the channel closes; they run on these processors."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, cpus)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prepare("metasched.measure.jobs")
    children: dict[int, tuple[socket.socket, int]] = {}
    while True:
        poll = select.poll()
        for fd in (channel.fileno(), *children):
            poll.register(fd, select.POLLIN | select.POLLHUP)
        for fd in [fd for fd, _ in poll.poll()]:
            if fd in children:
                _release(*children.pop(fd))
                continue
            _, fds, *_ = socket.recv_fds(channel, 1, _MAX_FDS + 5)
            if not fds:
                for child in children.values():
                    _release(*child)
                os._exit(0)
            others = [channel, *(control for control, _ in children.values())]
            made = _forked(fds, others)
            children[made[0].fileno()] = made


def _prepare(module: str) -> None:
    """Import a module, unless that fails: then the worker will report the error."""
    if module.startswith(_PREFIX) and module not in sys.modules:
        with contextlib.suppress(Exception):
            importlib.import_module(module)
        gc.collect()
        gc.freeze()  # a collection in a worker would copy every page otherwise


def _forked(fds: list[int], others: list[socket.socket]) -> tuple[socket.socket, int]:
    """Fork a worker; its control socket and its number."""
    control = socket.socket(fileno=fds[0])
    with open(fds[1], "rb") as file:
        file.seek(0)
        request: _Request = pickle.load(file)
    _prepare(request.preload)
    pid = os.fork()
    if not pid:
        _become(request, fds[2:], [control, *others])
    for fd in fds[2:]:
        os.close(fd)
    with contextlib.suppress(OSError):
        control.send(_NUMBER.pack(pid))
    return control, pid


def _become(request: _Request, fds: list[int], others: list[socket.socket]) -> NoReturn:
    """Turn this fork into a worker, which never returns to the server."""
    try:
        os.setsid()
        for one in others:
            one.close()
        targets = (0, 1, 2, *request.fds)
        above = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(targets) + 1) for fd in fds]
        for fd in set(fds) - set(targets):
            os.close(fd)
        for fd, target in zip(above, targets, strict=True):
            os.dup2(fd, target, inheritable=True)
            os.close(fd)
        os.environ.clear()
        os.environ.update(request.environment)
        os.chdir(request.folder)
        gaps = _gaps()
        worker.main(request.arguments, sum(map(len, gaps)))
        gaps.clear()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _gaps() -> list[mmap.mmap]:
    """Maps of random size, behind which a worker maps its memory and code.

    Each worker then has other addresses, as a process of its own has: otherwise all processes of a
    run would be fast or slow for the same programs. A map may fit into a hole that a larger gap
    leaves free, so there is a gap of each size. Gaps are never touched, so they take no memory.
    """
    draw, kind = random.SystemRandom().randrange, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    gaps = []
    for n in _GAPS:
        with contextlib.suppress(OSError):  # a limit on addresses: fewer gaps do
            gaps.append(mmap.mmap(-1, draw(1 << n, 2 << n) * mmap.PAGESIZE, kind, mmap.PROT_READ))
    return gaps


def _release(control: socket.socket, pid: int) -> None:
    """Reap a worker whose owner asks for its exit code; kill the group if the owner is gone."""
    with contextlib.suppress(OSError), control:
        asked = control.recv(1)
        if not asked:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if asked:
            control.send(_NUMBER.pack(code))


if __name__ == "__main__":
    sys.modules["metasched.measure.worker_server"] = sys.modules["__main__"]
    serve(socket.socket(fileno=int(sys.argv[1])), [int(number) for number in sys.argv[2:]])

"""The parent's side of a worker: start it, give it one job at a time, clean up when it fails.

A worker has its own process session, so that a deadline kills the whole group. Nothing here
blocks longer than the caller allows: `wait` watches any number of workers at once.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from metasched.errors import MeasureError, clipped
from metasched.hardware import usable_cpus
from metasched.measure.pickled import dump
from metasched.measure.priority import waited
from metasched.measure.worker import frame, unframe
from metasched.measure.worker_server import Forked, fork

# Thread pools that a worker does not use and that would only cost start-up time and memory.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
_PATIENCE = 9  # a job, or a start, may wait for a core for this many times its limit
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True, slots=True)
class Reply:
    """How a job ended.

    Attributes:
        kind: `value`, `error` (the job raised), `timeout` or `crash` (the process died).
        value: the result, for `value`.
        message: the reason, otherwise.
        detail: a traceback or the last lines the worker wrote to stderr.
        seconds: from the start of the work to its end.
        error: name of the exception's type, for `error`.
        signal: name of the signal that ended the process, for `crash`; empty for a plain exit.
    """

    kind: str
    value: Any = None
    message: str = ""
    detail: str = ""
    seconds: float = 0.0
    error: str = ""
    signal: str = ""

    @property
    def reason(self) -> str:
        """Why a job failed, in one line, with the last line of the worker's stderr if useful."""
        text = f"{self.error}: {self.message}" if self.error else self.message
        last = self.detail.strip().splitlines()[-1:] if self.kind == "crash" else []
        return f"{text}; last words: {clipped(last[0])}" if last else text


@dataclass(slots=True)
class _Job:
    number: int
    data: bytes
    limit: float
    sent: int = 0
    started: float = 0.0
    waited: float = 0.0
    attempts: int = 0


class Worker:
    """One child process that runs jobs one after another and is restarted when it dies."""

    def __init__(
        self,
        name: str = "worker",
        *,
        nice: int = 0,
        memory: int = 0,
        preload: str = "",
        plugins: Sequence[str] = (),
        fds: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        whole_environment: Mapping[str, str] | None = None,
        start_limit: float = 60.0,
    ) -> None:
        """Nothing starts before `start` or `submit`.

        Args:
            name: the worker's name in messages.
            nice: see `priority.prioritise`; LAST for processes that must not disturb a timing.
            memory: limit of the address space in bytes; 0 for none.
            preload: module that the process imports as soon as it is ready. With it, the process
                is forked from a server that has imported the package, where the system can.
            plugins: files that the process loads next; if a file fails, each job ends with an error
                that says so.
            fds: file descriptors that the process gets under the same numbers.
            environment: variables added to this process's variables and to `_ENVIRONMENT`.
            whole_environment: all variables, instead of this process's, `_ENVIRONMENT` and
                `environment`.
            start_limit: seconds until the process must be ready.
        """
        self.name = name
        self.starts = 0
        self._arguments = ["--nice", str(nice), "--memory", str(memory)]
        self._preload, self._forks = preload, bool(preload) and whole_environment is None
        if preload:
            self._arguments += ["--preload", preload]
        for file in plugins:
            self._arguments += ["--plugin", file]
        self._fds = tuple(fds)
        self._environment = whole_environment or {
            **os.environ, **_ENVIRONMENT, **(environment or {})
        }  # fmt: skip
        self._start_limit = start_limit
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._buffer = bytearray()
        self._job: _Job | None = None
        self._deadline = self._begun = self._waited = 0.0
        self._ready = False
        self._held = 0.0  # when the process was stopped; 0 while it runs
        self._number = 0
        self._finalizer: weakref.finalize[Any, Any] | None = None

    @property
    def busy(self) -> bool:
        """Whether a job was submitted and has not ended."""
        return self._job is not None

    @property
    def pid(self) -> int | None:
        """Process id, None when no process is alive."""
        return self._process.pid if self._alive() and self._process else None

    def start(self) -> None:
        """Start the process if it is not alive; returns before the process is ready."""
        if self._alive():
            return
        self._bury()
        paths = [_PACKAGE_PARENT, *filter(None, [self._environment.get("PYTHONPATH")])]
        environment = {**self._environment, "PYTHONPATH": os.pathsep.join(paths)}
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = self._launched(environment)
        except OSError as error:
            self._log.close()
            raise MeasureError(f"{self.name} cannot be started: {error}") from None
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._finalizer = weakref.finalize(self, _forgotten, self._process, self._log, os.getpid())
        self._ready, self._held, self._buffer = False, 0.0, bytearray()
        self._begin(0.0)
        self.starts += 1

    def submit(self, function: str, *arguments: Any, limit: float) -> None:
        """Give a job to an idle worker.

        Args:
            function: "module:function", importable in the worker.
            arguments: any picklable values.
            limit: seconds the work itself may take; waiting and importing do not count.
        """
        if self._job is not None:
            raise MeasureError(f"{self.name} is busy")
        self._number += 1
        data = frame((self._number, function, dump(arguments)))
        self._job = _Job(self._number, data, limit)
        self._deliver()

    def run(self, function: str, *arguments: Any, limit: float) -> Reply:
        """Submit and wait for the end."""
        self.submit(function, *arguments, limit=limit)
        while True:
            for _, reply in wait([self]):
                return reply

    def pause(self, held: bool = True) -> None:
        """Stop the process, or let it continue; its limits do not count the time in between."""
        if not self._alive() or held == bool(self._held):
            return
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP if held else signal.SIGCONT)
        now, job = time.monotonic(), self._job
        if not held and job is not None:
            job.waited -= now - self._held
        self._held = now if held else 0.0
        if not held and job is not None and job.sent < len(job.data):
            self._send()

    def close(self, grace: float = 0.3) -> None:
        """End the process: close its stdin, then kill the group if it lingers."""
        self._job = None
        if self._process is not None:
            _end(self._process, grace)
        self._bury()

    # -- used by wait ----------------------------------------------------------------------------

    @property
    def deadline(self) -> float:
        """When (monotonic clock) the present job, or the start of the process, is overdue."""
        return self._deadline

    def fileno(self) -> int:
        """The descriptor on which answers arrive."""
        assert self._process is not None and self._process.stdout is not None
        return self._process.stdout.fileno()

    def receive(self) -> Reply | None:
        """Read what has arrived; the reply when the job has ended."""
        assert self._process is not None and self._process.stdout is not None
        chunk = self._process.stdout.read(1 << 20)
        if not chunk:
            return self._died()
        self._buffer += chunk
        for message in unframe(self._buffer):
            kind = message[0]
            if kind == "ready":
                self._ready = True
                if self._job is not None:
                    self._send()
            elif self._job is not None and message[1] == self._job.number:
                if kind == "start":
                    self._job.started = time.monotonic()
                    self._job.waited = waited(self._process.pid)
                    self._deadline = self._job.started + self._job.limit
                else:
                    return self._finished(message)
        return None

    def expire(self) -> Reply | None:
        """The deadline has passed: kill the group; the reply when a job was running.

        Time in which the process was stopped does not count. Time without a core does not count
        either, up to `_PATIENCE` limits: on a busy machine a builder may wait for seconds.
        """
        job = self._job
        if job is not None and job.started and self._process is not None:
            held = time.monotonic() - self._held if self._held else 0.0
            lost = min(waited(self._process.pid) - job.waited + held, _PATIENCE * job.limit)
            deadline = job.started + job.limit + lost
            if deadline > self._deadline + 0.1 * job.limit:
                self._deadline = deadline
                return None
        if job is not None and not job.started and self._delayed():
            return None
        detail = self._tail()
        self._kill()
        if job is None or not job.started:
            self._start_again(detail)
            return None
        self._job = None
        spent = time.monotonic() - job.started
        return Reply("timeout", None, f"longer than {job.limit:g} s", detail, spent)

    # -- inside ----------------------------------------------------------------------------------

    def _launched(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes] | Forked:
        """A new process, which is not ready yet. Raises OSError."""
        cpus = sorted(usable_cpus())  # this process may be bound to one of them
        arguments = [*self._arguments, "--cpus", *map(str, cpus)]
        if self._forks:
            given = arguments, self._preload, cpus, environment, self._fds, self._log
            if (made := fork(*given)) is not None:
                return made
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "metasched.measure.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
            pass_fds=self._fds,
            start_new_session=True,
            env=environment,
        )

    def _begin(self, waited: float) -> None:
        """The process has the limit of a start from now on, to become ready or to read a job.

        `waited`: the seconds that it has waited for a core so far.
        """
        self._begun, self._waited = time.monotonic(), waited
        self._deadline = self._begun + self._start_limit

    def _delayed(self) -> bool:
        """Whether a process that is not ready lacked a core; if so, it gets this time in addition.

        It gets at most `_PATIENCE` times the limit.
        """
        assert self._process is not None
        held = time.monotonic() - self._held if self._held else 0.0
        lost = waited(self._process.pid) - self._waited + held
        deadline = self._begun + self._start_limit + min(lost, _PATIENCE * self._start_limit)
        if deadline <= self._deadline + 0.1 * self._start_limit:
            return False
        self._deadline = deadline
        return True

    def _start_again(self, detail: str) -> None:
        """Give the job to a new process, because the process was not ready in time.

        Raises MeasureError for the second process of a job: then the machine is not the reason.
        """
        job = self._job
        if job is not None and not job.attempts:
            job.attempts += 1
            self._deliver()
            return
        self._job = None
        raise MeasureError(
            f"{self.name} was not ready within {self._start_limit:g} s, in 2 attempts; time "
            f"without a core does not count{_after(detail)}"
        )

    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _deliver(self) -> None:
        """Start the process if needed, and write as much of the job as the pipe takes.

        So the process begins the job as soon as it is ready, even before the parent waits for the
        reply.
        """
        self.start()
        assert self._job is not None
        self._job.sent = 0
        self._send()

    def _send(self) -> None:
        """Write the rest of the job; a worker that does not read in time counts as not ready.

        A worker that is not ready yet, or is stopped, gets only as much as the pipe takes.
        """
        assert self._job is not None and self._process is not None
        assert self._process.stdin is not None
        if self._ready:
            self._begin(waited(self._process.pid))
        patient = self._ready and not self._held
        pipe, data = self._process.stdin.fileno(), memoryview(self._job.data)
        while self._job.sent < len(data):
            try:
                self._job.sent += os.write(pipe, data[self._job.sent :])
            except BlockingIOError:
                left = self._deadline - time.monotonic() if patient else 0.0
                if left <= 0 or not select.select([], [pipe], [], left)[1]:
                    return  # `wait` finds the deadline passed
            except BrokenPipeError:
                return  # `wait` finds the pipe at its end

    def _finished(self, message: tuple[Any, ...]) -> Reply:
        assert self._job is not None
        spent = time.monotonic() - self._job.started
        self._job = None
        if message[0] == "value":
            return Reply("value", pickle.loads(message[2]), seconds=spent)
        _, _, error, text, trace = message
        return Reply("error", None, text, trace, spent, error=error)

    def _died(self) -> Reply | None:
        """The process is gone. A job that had not begun is given to a new process once, if the
        process was ready, or was killed from outside, perhaps with the server that forks it."""
        assert self._process is not None
        detail, job = self._tail(), self._job
        self._kill()
        code = self._process.returncode or 0
        if job is None:
            return None
        if not job.started:
            job.attempts += 1
            if job.attempts > 1 or not (self._ready or code == -signal.SIGKILL):
                self._job = None
                raise MeasureError(f"{self.name} does not start ({_ending(code)}){_after(detail)}")
            self._deliver()
            return None
        self._job = None
        spent = time.monotonic() - job.started
        name = signal.Signals(-code).name if code < 0 else ""
        return Reply("crash", None, _ending(code), detail, spent, signal=name)

    def _kill(self) -> None:
        if self._process is not None:
            _end(self._process, 0.0)

    def _bury(self) -> None:
        if self._process is None or self._finalizer is None:
            return
        self._finalizer.detach()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process = None

    def _tail(self, size: int = 2000) -> str:
        """The last lines the worker wrote to stderr."""
        try:
            end = self._log.seek(0, os.SEEK_END)
            self._log.seek(max(0, end - size))
            return self._log.read().decode(errors="replace").strip()
        except (OSError, ValueError):
            return ""


def wait(workers: Iterable[Worker], timeout: float | None = None) -> list[tuple[Worker, Reply]]:
    """Wait for a job to end, for a deadline, or for `timeout` seconds; returns the ended jobs.

    May return an empty list earlier, when a process has started for example; call again then.
    Raises MeasureError when a worker cannot be started.
    """
    busy = [w for w in workers if w.busy]
    if not busy:
        return []
    now = time.monotonic()
    left = min(w.deadline for w in busy) - now
    if timeout is not None:
        left = min(left, timeout)
    poll = select.poll()
    by_fd = {w.fileno(): w for w in busy}
    for fd in by_fd:
        poll.register(fd, select.POLLIN | select.POLLHUP)
    ready = {fd for fd, _ in poll.poll(left * 1000 + 1 if left > 0 else 0)}
    ended = []
    for fd, worker in by_fd.items():
        reply = None
        if fd in ready:
            reply = worker.receive()
        elif time.monotonic() >= worker.deadline:
            reply = worker.expire()
        if reply is not None:
            ended.append((worker, reply))
    return ended


def _end(process: subprocess.Popen[bytes] | Forked, grace: float) -> None:
    """Close stdin, wait a little, then kill the whole group and reap the process."""
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    if grace:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    if process.returncode is None:
        # Not reaped yet, so the number is still this group's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _forgotten(process: subprocess.Popen[bytes] | Forked, log: IO[bytes], owner: int) -> None:
    """End a worker that nobody closed, unless this is a fork of the process that started it."""
    if os.getpid() == owner:
        _end(process, 0.0)
    for pipe in (process.stdout, log):
        if pipe is not None:
            pipe.close()


def _ending(code: int) -> str:
    """A process's end in words: the signal's name or the exit code."""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        meaning = {"SIGSEGV": " (access outside of mapped memory)", "SIGABRT": " (abort)",
                   "SIGFPE": " (integer division by zero)", "SIGILL": " (illegal instruction)",
                   "SIGKILL": " (killed from outside, or out of memory)"}  # fmt: skip
        return f"the process died of {name}{meaning.get(name, '')}"
    return f"the process exited with code {code}"


def _after(detail: str) -> str:
    return f": {detail.splitlines()[-1]}" if detail else ""

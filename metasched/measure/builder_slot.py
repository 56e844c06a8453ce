"""BuilderSlot: one build of a `Builder` at a time, with the interface of a worker process."""

from __future__ import annotations

import contextlib
import socket
import time
from concurrent.futures import Future
from typing import Any

from metasched.errors import warn
from metasched.foreign import ANYTHING, failure
from metasched.measure.candidate import BUILDERS, Builder, Built
from metasched.measure.process import Reply, Worker
from metasched.watch import called

_PATIENCE = 600.0  # seconds that a build may wait in the builder's own queue


class BuilderSlot(Worker):
    """Passes builds to a builder, which handles limits and crashes."""

    def __init__(self, name: str, builder: Builder) -> None:
        """Nothing is submitted yet."""
        super().__init__(name)
        self._builder, self._title = builder, BUILDERS.title(builder)
        self._future: Future[Built] | None = None
        self._began = 0.0

    @property
    def busy(self) -> bool:
        """Whether a build was submitted and has not ended."""
        return self._future is not None

    @property
    def pid(self) -> int | None:
        """None: a slot has no process of its own."""
        return None

    def start(self) -> None:
        """Nothing to start."""

    def submit(self, function: str, *arguments: Any, limit: float) -> None:
        """Submit a build, `(function to compile, target)`, to the builder."""
        self._began = time.monotonic()
        self._deadline = self._began + limit + _PATIENCE
        self._woken, waking = socket.socketpair()
        func, target = arguments
        try:
            with called(self._title):
                self._future = self._builder.submit(func, target)
            if not isinstance(self._future, Future):
                raise TypeError(f"submit must return a future, not {type(self._future).__name__}")
        except ANYTHING as error:  # a user's builder: any exception is a failed build
            self._future = Future()
            self._future.set_exception(error)
        self._future.add_done_callback(lambda _: _wake(waking))

    def pause(self, held: bool = True) -> None:
        """Do nothing: builds of a builder do not disturb a timing here."""

    def close(self, grace: float = 0.3) -> None:
        """Forget the build."""
        if self._future is not None:
            self._future.cancel()
            self._future = None
            self._woken.close()

    def fileno(self) -> int:
        """The descriptor that can be read when the build has ended."""
        return self._woken.fileno()

    def receive(self) -> Reply | None:
        """The reply of the build that has ended."""
        assert self._future is not None
        seconds = time.monotonic() - self._began
        try:
            built = self._future.result(0.0)
            if not isinstance(built, Built):
                raise TypeError(f"its future must give a Built, not {type(built).__name__}")
        except ANYTHING as error:  # as above
            text = f"{self._title} raised {failure(error)}"
            warn(text)
            return self._ended(Reply("error", message=text, seconds=seconds))
        if built.program is not None:
            return self._ended(Reply("value", built.program, seconds=built.seconds or seconds))
        kind = built.status.value.removeprefix("build_")
        return self._ended(Reply(kind, message=built.message, seconds=built.seconds))

    def expire(self) -> Reply | None:
        """End the build if it has waited longer than `_PATIENCE` allows."""
        waited = time.monotonic() - self._began
        return self._ended(Reply("timeout", message=f"no reply within {waited:.0f} s"))

    def _ended(self, reply: Reply) -> Reply:
        self.close()
        return reply


def _wake(waking: socket.socket) -> None:
    """Make the other end readable."""
    with contextlib.suppress(OSError):  # the slot was closed
        waking.send(b"x")
    waking.close()

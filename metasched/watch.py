"""Watch calls of users' functions: warn of a long call, stop a longer one, and turn an exit into an
error.

A thread watches the running calls. It cannot stop native code or a function that waits. To find the
function when a whole process is stopped, the name of the last call lies in memory that outlives the
process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from types import TracebackType
from typing import NoReturn

from metasched.errors import PluginError, warn

NAMED = 10.0  # seconds after which a call that still runs is named
STOPPED = 20.0  # and after which one that is made for each candidate is stopped
NOTE = 240  # bytes of the name of a call, for other processes
_LOOK = 0.25  # seconds between two looks
_LATE = 4 * _LOOK  # a look counts for no more: before it, this process was stopped or suspended


class Endless(PluginError):
    """Raised inside a user's function that has run too long, and on each later call of the
    function."""

    def __init__(self, text: str = "") -> None:  # nobody can give it one in another thread
        super().__init__(text or f"it did not end within {STOPPED:.0f} s")


class called:
    """Watch a user's function that runs in the `with` body.

    It is named by a warning after NAMED seconds, unless it is `patient`. With `stop` it is ended by
    an exception after STOPPED seconds, and calling the same `who` once more is an error at once.
    `os._exit` in it raises SystemExit. Calls may be nested: the innermost one counts.
    """

    __slots__ = ("what", "who", "stop", "named", "ended", "thread", "spent", "outer", "exit")

    def __init__(
        self, what: str, who: object = None, *, stop: bool = False, patient: bool = False
    ) -> None:
        self.what, self.who, self.stop = what, who, stop
        self.named, self.ended = patient, False

    def __enter__(self) -> None:
        if self.stop and any(self.who is one for one in _STOPPED):
            raise Endless(f"it has run for {STOPPED:.0f} s before and is not called any more")
        self.thread, self.spent = threading.get_ident(), 0.0
        self.exit, os._exit = os._exit, self._exits
        self.outer = _RUNNING.get(self.thread)
        _RUNNING[self.thread] = self
        _NOTES.write(self.what)
        _LOOKER.wake()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        while True:
            try:
                self._leave()
                return
            except Endless:  # it came between the end of the call and here
                continue

    def _leave(self) -> None:
        with _LOCK:
            if self.outer is None:
                _RUNNING.pop(self.thread, None)
            else:
                _RUNNING[self.thread] = self.outer
            os._exit = self.exit
            _NOTES.write("" if self.outer is None else self.outer.what)
        if self.ended:
            time.sleep(0.01)  # what was raised for this call reaches this thread now, or has

    def _exits(self, status: int) -> NoReturn:
        if threading.get_ident() != self.thread or self.thread not in _RUNNING:
            self.exit(status)
        if os.getpid() != _LOOKER.owner:  # a child that was forked in the call
            self.exit(status)
        raise SystemExit(f"os._exit({status})")

    def look(self, passed: float) -> None:
        """Name or stop the call if it is time, `passed` seconds after the look before."""
        self.spent += passed
        if self.spent > NAMED and not self.named:
            self.named = True
            then = f"it is stopped after {STOPPED:.0f} s" if self.stop else "Ctrl-C ends it"
            warn(f"{self.what} still runs after {NAMED:.0f} s; {then}")
        if self.stop and self.spent > STOPPED and not self.ended:
            with _LOCK:
                if _RUNNING.get(self.thread) is self:
                    self.ended = True
                    _STOPPED.append(self.who)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(self.thread), ctypes.py_object(Endless)
                    )


class _Looker:
    """The thread that watches the calls; it starts with the first call."""

    def __init__(self) -> None:
        self.owner = 0

    def wake(self) -> None:
        if self.owner != os.getpid():
            self.owner = os.getpid()
            threading.Thread(target=self._work, daemon=True, name="metasched-watch").start()

    def _work(self) -> None:
        before = time.monotonic()
        while True:
            time.sleep(_LOOK)
            now = time.monotonic()
            passed, before = min(now - before, _LATE), now
            for call in list(_RUNNING.values()):
                with contextlib.suppress(UserWarning):  # made an error: nobody hears it here
                    call.look(passed)


class _Notes:
    """Where the name of the running call is written for other processes; nowhere at first."""

    def __init__(self) -> None:
        self.memory: memoryview | None = None

    def write(self, what: str) -> None:
        if self.memory is not None:
            raw = what.encode(errors="replace")[: NOTE - 1]
            self.memory[: len(raw) + 1] = raw + b"\0"


def is_built_in(function: object) -> bool:
    """Whether a function, or what holds it as `fn`, is metasched's own."""
    inner = getattr(function, "fn", function)
    module = getattr(inner, "__module__", None) or type(inner).__module__
    return str(module).startswith("metasched.")


def note_calls(memory: memoryview | None) -> None:
    """Write the name of each running call to `memory`, which has NOTE bytes; None stops writing."""
    _NOTES.memory = memory


_LOCK = threading.Lock()
_RUNNING: dict[int, called] = {}  # the innermost call of each thread
_STOPPED: list[object] = []  # whose calls did not end
_NOTES = _Notes()
_LOOKER = _Looker()

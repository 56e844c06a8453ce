"""The command `metasched`, as a script and as `python -m metasched`.

Modules load for some tenths of a second. Ctrl-C meanwhile ends the process at once, without a
traceback: nothing has begun. Hence this file imports nothing of metasched at its top.
"""

import _thread
import faulthandler
import importlib
import os
import signal
import sys
import time
from types import FrameType
from typing import Any

INTERRUPTED = 130
_IMPORTS = 2.0  # seconds for which an interrupted import may continue


class Interrupts:
    """The handler of Ctrl-C.

    Before and after the command, Ctrl-C ends the process. While the command runs, Ctrl-C raises
    KeyboardInterrupt. Other code may lose the exception: an import of C code turns it into
    ImportError, and `__del__` and callbacks of C drop it. So a running import ends first, and a
    dropped exception is raised again. The destructor of an object whose constructor was interrupted
    may miss an attribute, which is no message for users. Whatever ends the command after an
    interrupt, the exit code is 130.

    Attributes:
        running: whether the command runs.
        seen: whether it was interrupted.
    """

    def __init__(self) -> None:
        self.running = self.seen = False
        self._first = 0.0
        self._exit = os._exit  # ours: while a plug-in runs, the name means another function
        self._before = sys.unraisablehook

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The handler of SIGINT."""
        if not self.running:
            self._exit(INTERRUPTED)
        if not self.seen:
            self.seen, self._first = True, time.monotonic()
        if _importing(frame) and time.monotonic() < self._first + _IMPORTS:
            _thread.start_new_thread(_again, ())
            return
        raise KeyboardInterrupt

    def unraisable(self, lost: Any) -> None:
        """The hook for an exception that Python cannot raise where it happened."""
        if lost.exc_type is not None and issubclass(lost.exc_type, KeyboardInterrupt):
            _thread.start_new_thread(_again, ())
        elif not (self.seen and lost.exc_type is AttributeError):
            self._before(lost)


def main() -> int:
    """Run the command line; its exit code."""
    interrupts = Interrupts()
    signal.signal(signal.SIGINT, interrupts)
    if sys.stderr is not None:
        faulthandler.enable()  # a crash of native code names the file that was running: a plug-in
    cli = importlib.import_module("metasched.cli")
    arguments = cli.parsed()
    sys.unraisablehook = interrupts.unraisable
    try:
        interrupts.running = True
        code = int(cli.run(arguments))
        interrupts.running = False
    except BaseException:
        interrupts.running = False
        if not interrupts.seen:
            raise
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    return INTERRUPTED if code and interrupts.seen else code


def _importing(frame: FrameType | None) -> bool:
    """Whether a frame of the program's stack is inside an import."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _again() -> None:
    """Interrupt the main thread a little later."""
    time.sleep(0.02)
    _thread.interrupt_main()


if __name__ == "__main__":
    sys.exit(main())

"""The command `metasched`, as a script and as `python -m metasched`.

Modules load for some tenths of a second. Ctrl-C meanwhile ends the process at once, without a
traceback: nothing has begun. Hence this file imports nothing of ours at its top.
"""

import faulthandler
import importlib
import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def main() -> int:
    """Run the command line; its exit code."""
    signal.signal(signal.SIGINT, _leave)
    if sys.stderr is not None:
        faulthandler.enable()  # a crash of native code names the file that was running: a plug-in
    cli = importlib.import_module("metasched.cli")
    arguments = cli.parsed()
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return int(cli.run(arguments))
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, _leave)  # while the interpreter ends


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())

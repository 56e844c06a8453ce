"""The command line: parse arguments, call the library, print text or JSON."""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from metasched import __version__
from metasched.commands.names import HELP, MODULES
from metasched.errors import (
    BuildError,
    DatabaseError,
    ExportError,
    LowerError,
    MeasureError,
    MetaschedError,
    readable,
)

CODES = (  # not in a docstring: python -OO drops these
    "Exit codes: 0 done; 1 the work failed (no right candidate, a machine, disk or database that "
    "does not do its part); 2 wrong usage or input; 3 the trace is for something else, with "
    "--strict; 130 interrupted."
)
EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
FAILURES = (BuildError, DatabaseError, ExportError, LowerError, MeasureError)
"""Errors of the work itself; all others say what is wrong with the input."""


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports wrong arguments in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {readable(message)}; see {self.prog} --help\n")


def parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """Make the parser, with the arguments of the command that `argv` names only; other commands are
    not imported."""
    top = _Parser(
        prog="metasched", description="Tune, check, save, replay and ship tensor kernels.",
        epilog=CODES,
    )  # fmt: skip
    top.add_argument("--version", action="version", version=f"metasched {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    called = next((MODULES[word] for word in argv if word in MODULES), None)
    for name, file in MODULES.items():
        if file != called:
            commands.add_parser(name, help=HELP[name])
    if called is not None:
        importlib.import_module(f"metasched.commands.{called}").add_to(commands)
    for each in commands.choices.values():
        each.epilog = CODES
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; wrong usage ends in SystemExit(2)."""
    return run(parsed(argv))


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the arguments of one command, after loading the command's module."""
    _open_outputs()
    argv = sys.argv[1:] if argv is None else argv
    return parser(argv).parse_args(argv)


def run(arguments: argparse.Namespace) -> int:
    """Run the command that was named; its exit code."""
    command: Callable[[argparse.Namespace], int] = arguments.run
    try:
        with _plain_warnings():
            code = command(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has gone; nothing must be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except MetaschedError as error:
        return _failed(arguments, error, EXIT_FAILED if isinstance(error, FAILURES) else EXIT_USAGE)
    except OSError as error:
        return _failed(arguments, error, EXIT_FAILED)


def _open_outputs() -> None:
    """Make standard output and error safe to write. A closed stream drops its text; a character
    that the encoding lacks is written as an escape."""
    sys.stdout = sys.stdout or io.StringIO()
    sys.stderr = sys.stderr or io.StringIO()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _failed(arguments: argparse.Namespace, error: Exception, code: int) -> int:
    text = readable(str(error))
    if getattr(arguments, "json", False):
        print(json.dumps({"error": text, "kind": type(error).__name__}))
    print(f"metasched {arguments.command}: {text}", file=sys.stderr)
    return code


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print each warning once, as one line on standard error, without a file and line of
    metasched."""
    printed = set[str]()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in printed:
            printed.add(str(message))
            print(f"metasched: warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = show
        yield


if __name__ == "__main__":
    sys.exit(main())

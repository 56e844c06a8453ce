"""The command line: arguments in, text or JSON out. Everything it does is a call of the library.

Exit codes: 0 done, 1 the work failed (no right candidate, a miss with --strict, a broken machine),
2 wrong usage or input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from metasched import __version__
from metasched.commands import bench, database, doctor, replay, show, tune
from metasched.errors import MetaschedError

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
COMMANDS: tuple[Any, ...] = (tune, replay, bench, show, database, doctor)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="metasched", description="Tune, check, save, replay and ship tensor kernels.",
        epilog=__doc__.split("\n\n")[1],
    )  # fmt: skip
    top.add_argument("--version", action="version", version=f"metasched {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.add_to(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_FAILED
    except MetaschedError as error:
        if getattr(arguments, "json", False):
            print(json.dumps({"error": str(error), "kind": type(error).__name__}))
        print(f"metasched {arguments.command}: {error}", file=sys.stderr)
        return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())

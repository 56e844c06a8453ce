"""Run users' files and functions, and name the file or function in every error.

Such code may raise anything, end the process, never end, or print where data are expected.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb

from metasched.errors import MetaschedError, PluginError, clipped, warn
from metasched.watch import called

ANYTHING = (Exception, SystemExit)
"""What user code may raise; Ctrl-C is not its doing."""


def failure(error: BaseException) -> str:
    """An exception in one line."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # its own words are code of the user's too
        text = ""
    return clipped(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def cause(error: OSError | ValueError) -> str:
    """Why a file cannot be opened, in words; a ValueError means a name that no file can have."""
    return str(getattr(error, "strerror", None) or error)


@contextlib.contextmanager
def apart(what: str, *, patient: bool = False) -> Iterator[None]:
    """Run user code in a `with` body: its output goes to standard error, and a warning names a call
    that takes long, unless it is `patient`."""
    with called(what, patient=patient), printing_to_stderr():
        yield


@contextlib.contextmanager
def warned(text: str) -> Iterator[None]:
    """Turn an error of user code in a `with` body into a warning that begins with `text`."""
    try:
        yield
    except ANYTHING as error:
        warn(f"{text}: {failure(error)}")


@contextlib.contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Send all output of the `with` body to standard error, also the output of C libraries and
    child processes."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # one of the two is closed: nothing can be printed there
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def run_file(path: str | Path, name: str, what: str) -> types.ModuleType:
    """Run a Python file as the module `name`.

    Raises PluginError that names the file as `what` and says what went wrong; the exception of the
    file itself is its cause.
    """
    file = Path(path)
    try:
        with file.open("rb"):
            pass
    except (OSError, ValueError) as error:
        raise PluginError(f"{what} {file} cannot be read: {cause(error)}") from None
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise PluginError(f"{what} {file} is no Python file: its name does not end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look their module up there
    try:
        with apart(f"{what} {file}"):
            spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        sys.modules.pop(name, None)
        if isinstance(error, MetaschedError) and str(file) in str(error):
            raise  # it points into the file itself
        lines = [n for f, n in walk_tb(error.__traceback__) if f.f_code.co_filename == str(file)]
        where = f", in line {lines[-1]}" if lines else ""
        raise PluginError(f"{what} {file} raised {failure(error)}{where}") from error
    return module

"""Read untrusted JSON as plain data, and replace files atomically: a temporary file, then a
rename."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from metasched.errors import MetaschedError, brief

DEEPEST = 100
"""Levels of lists and objects in a file: whoever walks the data may do so by recursion."""


def path_of(given: object, what: str, error: type[MetaschedError]) -> Path:
    """Convert a value to a path; raise `error` if the value is no path."""
    if isinstance(given, str | os.PathLike):
        if "\0" in str(given):
            raise error(f"{what} has a path with a null byte: {brief(str(given))}")
        return Path(given)
    raise error(f"{what} is a path, not {type(given).__name__}")


def read_json(text: str | bytes) -> Any:
    """Read plain data from untrusted JSON text.

    Raises ValueError, which is a json.JSONDecodeError where it knows the place, for what is no
    JSON, NaN and infinities among it, has integers of thousands of digits or too many levels.
    """
    try:
        data = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError(f"it has more than {DEEPEST} levels") from None
    level = [data]
    for _ in range(DEEPEST + 1):
        for text in level:
            if isinstance(text, str) and not text.isascii():
                text.encode()  # half of a pair of surrogates is no text that could be written
        level = [
            item
            for outer in level
            if isinstance(outer, (dict, list))
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return data
    raise ValueError(f"it has more than {DEEPEST} levels")


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def atomic_write(path: str | Path, data: bytes | str, *, mode: int | None = None) -> None:
    """Replace `path` with `data`; on any failure the old file stays as it was.

    Args:
        path: the file; its folder must exist.
        data: bytes, or text written as UTF-8.
        mode: permission bits; None gives what the process's umask leaves of 0o666.

    Raises:
        OSError: full disk, missing folder, no permission. Nothing is left behind.
    """
    target = Path(path)
    raw = data.encode() if isinstance(data, str) else data
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(raw)
            out.flush()
            os.fsync(out.fileno())
        if mode is None:
            mask = os.umask(0)
            os.umask(mask)
            mode = 0o666 & ~mask
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise

"""Writing files so that nothing half-written is ever seen: a temporary file, then a rename."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from metasched.errors import MetaschedError


def path_of(given: object, what: str, error: type[MetaschedError]) -> Path:
    """What was given as a path; `error` where it is none."""
    if isinstance(given, str | os.PathLike):
        return Path(given)
    raise error(f"{what} is a path, not {type(given).__name__}")


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

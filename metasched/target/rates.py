"""Rates that were measured on this machine, in a file of the user's cache that may be deleted."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from metasched.files import atomic_write, read_json
from metasched.hardware import machine_name


def remembered(what: str, now: float, best: Callable[[float, float], float]) -> float:
    """Store the better of a value just measured and the stored value, and return it.

    Args:
        what: was measured: the key.
        now: the value.
        best: of two values: `max` for rates, `min` for times.
    """
    known = _known()
    key = f"{machine_name()} {what}"
    value = best(now, known.get(key, now))
    if known.get(key) != value:
        with contextlib.suppress(OSError):  # a home that cannot be written forgets
            _file().parent.mkdir(parents=True, exist_ok=True)
            atomic_write(_file(), json.dumps({**known, key: value}, indent=1))
    return value


def measured_costs(key: str) -> dict[str, float]:
    """What instructions cost on this machine, by name: see `MachineModel.costs`.

    `key` is the key of the target whose code was measured. Empty before anything was.
    """
    start = f"{machine_name()} {key} {COST}"
    return {k.removeprefix(start): v for k, v in _known().items() if k.startswith(start)}


COST = "cost "
"""Begins the key of what an instruction costs."""


def _known() -> dict[str, float]:
    with contextlib.suppress(OSError, ValueError):
        found = read_json(_file().read_bytes())
        if type(found) is dict:
            return {k: v for k, v in found.items() if type(v) is float}
    return {}


def _file() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metasched"
    return folder / "peak.json"

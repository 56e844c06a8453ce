"""The table of devices: how a program for one kind of target becomes code that runs, and how fast.

A kind of target has one row, `DeviceOf`, registered under the kind's name by `DEVICES.register`.
What may be done to a program for a kind stands in the table of `kinds`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from metasched.errors import TargetError
from metasched.registry import Registry
from metasched.target import Target


@dataclass(frozen=True, slots=True)
class DeviceOf:
    """How code for the targets of one kind is made and judged in this process.

    Attributes:
        build: `(function, target, name, options) -> kernel`, something callable on arrays; the
            options are those of `metasched.build` beside the target and the name.
        usable: the target as this process can use it, fewer cores for example.
        peak: the measured rate of the target in GFLOP/s of float32 for so many threads; None
            where no rate bounds what kernels reach.
    """

    build: Callable[..., Any]
    usable: Callable[[Target], Target] = lambda target: target
    peak: Callable[[Target, int], float | None] = lambda target, threads: None


DEVICES: Registry[DeviceOf] = Registry("device", DeviceOf)


def device_of(target: Target) -> DeviceOf:
    """The row of a target's kind; TargetError when the kind has none."""
    if target.kind not in DEVICES:
        known = ", ".join(DEVICES.names())
        raise TargetError(
            f"no code is made for targets of kind {target.kind!r}; kinds with a device: {known}"
        )
    return DEVICES.get(target.kind)

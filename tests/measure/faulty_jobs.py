"""The jobs of `metasched.measure.jobs`, with a build that fails where the function says so."""

from __future__ import annotations

import os
import time

from metasched.errors import BuildError
from metasched.measure import jobs
from metasched.measure.jobs import (
    agree,
    baseline,
    expect,
    expected_at,
    interleave,
    timed,
    trial,
)

__all__ = ["agree", "baseline", "build", "expect", "expected_at", "interleave", "timed", "trial"]


def build(func, target, parallel=True):
    """Compile, or abort, hang, raise, or print for ever before."""
    fault = func.attrs.get("fault")
    if fault == "abort":
        os.write(2, b"LLVM ERROR: Cannot select: intrinsic %llvm.x86.none\n")
        os.abort()
    if fault == "hang":
        time.sleep(60)
    if fault == "raise":
        raise BuildError("refused on purpose")
    if fault == "noise":
        os.write(1, b"x" * 100_000)
    return jobs.build(func, target, parallel)

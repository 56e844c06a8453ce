"""Other libraries on the same operator, timed in a child process without their tuning variables.

`python -m metasched.report.peers PEER OP SHAPE` prints the median seconds of a call as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from metasched import workloads
from metasched.errors import MeasureError
from metasched.report.torch_ops import torch_call

_TUNING = ("OPENBLAS_", "OMP_", "MKL_", "GOTO_", "KMP_", "NUMEXPR_")
_BUDGET = 1.0  # seconds of timed calls
PEERS = ("numpy", "torch", "torch-compiled")


def clean_environment() -> dict[str, str]:
    """The environment without variables that tune or cripple numerical libraries."""
    return {k: v for k, v in os.environ.items() if not k.startswith(_TUNING)}


def peer_seconds(peer: str, op: str, shape: Sequence[int], timeout: float = 300.0) -> float | None:
    """Median seconds of one call of a peer, None when it is not installed or lacks the operator.

    Raises MeasureError when the child fails for another reason.
    """
    if peer not in PEERS:
        raise MeasureError(f"no peer is called {peer!r}; there are {', '.join(PEERS)}")
    command = [sys.executable, "-m", "metasched.report.peers", peer, op, ",".join(map(str, shape))]
    try:
        done = subprocess.run(
            command, env=clean_environment(), capture_output=True, text=True, timeout=timeout,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise MeasureError(f"{peer} took more than {timeout:.0f} s for {op}") from None
    if done.returncode:
        raise MeasureError(f"{peer} failed on {op}: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout.splitlines()[-1])["seconds"]  # type: ignore[no-any-return]


def what_is_missing(peer: str) -> str:
    """What has to be installed before a peer can be asked; empty when it is there."""
    if peer == "numpy" or importlib.util.find_spec("torch") is not None:
        return ""
    return "PyTorch is not installed"


def timed(call: Callable[[], Any]) -> float:
    """Median seconds of a call after a warm-up, within about a second."""
    start = time.perf_counter()
    call()
    once = max(time.perf_counter() - start, 1e-7)
    inner = max(1, int(0.002 / once))
    samples: list[float] = []
    end = time.perf_counter() + _BUDGET
    while len(samples) < 3 or (time.perf_counter() < end and len(samples) < 200):
        start = time.perf_counter()
        for _ in range(inner):
            call()
        samples.append((time.perf_counter() - start) / inner)
    return statistics.median(samples)


def _numpy_call(op: str, shape: tuple[int, ...]) -> Callable[[], Any]:
    work = workloads.get(op)
    arrays = work.inputs(shape, integers=False)
    if op == "gmm":
        out = np.empty(work.output(shape).shape, "float32")
        return lambda: np.matmul(arrays[0], arrays[1], out=out)
    return lambda: work.reference(shape, *arrays)


def main(argv: Sequence[str]) -> None:
    """The child process."""
    peer, op, text = argv
    shape = tuple(int(v) for v in text.split(","))
    seconds: float | None = None
    if peer == "numpy":
        seconds = timed(_numpy_call(op, shape))
    else:
        call = torch_call(op, shape, compiled=peer == "torch-compiled")
        seconds = None if call is None else timed(call)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1:])

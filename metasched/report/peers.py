"""What is compared: our tuned kernel and the same operator in other libraries, as bursts of calls.

`python -m metasched.report.peers NAME OP SHAPE [TRACE]` serves one of them: it says on standard
output when it is ready, then answers each line of standard input, the seconds that a burst may
take, with the median seconds of a call. `report.contest` is the other end.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from metasched import workloads
from metasched.codegen.peak import multiply_adds
from metasched.database.record import TraceFile
from metasched.database.replay import replay
from metasched.ir.equal import structural_hash
from metasched.measure.priority import FIRST, prioritise
from metasched.report.torch_ops import torch_call
from metasched.runtime.arrays import aligned_empty
from metasched.runtime.build import build
from metasched.target import Target

OURS = "metasched"
PEERS = ("numpy", "torch", "torch-compiled")
PEAK = "peak"
"""The contestant that does nothing but multiply and add: a call is a billion operations."""
Burst = Callable[[float], float]
_SAMPLE = 0.002  # seconds: a sample makes as many calls as fill it
_LEAST, _LONG = 5, 0.2  # samples of a burst at least, of calls that take less than so many seconds


def what_is_missing(peer: str) -> str:
    """What has to be installed before a peer can be asked; empty when it is there."""
    if not peer.startswith("torch") or importlib.util.find_spec("torch") is not None:
        return ""
    return "PyTorch is not installed"


def called(call: Callable[[], Any]) -> Burst:
    """Bursts of a Python call, warmed up by one."""
    start = time.perf_counter()
    call()
    once = max(time.perf_counter() - start, 1e-7)

    def burst(budget: float) -> float:
        nonlocal once
        inner = max(1, int(_SAMPLE / once))

        def sample() -> float:
            start = time.perf_counter()
            for _ in range(inner):
                call()
            return (time.perf_counter() - start) / inner

        once = statistics.median(_until(budget, sample, _LEAST if once < _LONG else 1))
        return once

    return burst


def _until(budget: float, sample: Callable[[], float], least: int = _LEAST) -> list[float]:
    """Samples for so many seconds, and at least so many."""
    samples: list[float] = []
    end = time.perf_counter() + budget
    while len(samples) < least or time.perf_counter() < end:
        samples.append(sample())
    return samples


def burst_of(name: str, op: str, shape: tuple[int, ...], trace: str | None = None) -> Burst | None:
    """Bursts of one contestant; None for an operator that it lacks.

    Args:
        name: one of PEERS, OURS for the kernel of a tuned trace, or PEAK.
        op: a workload of the suite.
        shape: its shape.
        trace: the trace file of our kernel.
    """
    if name == PEAK:
        run = multiply_adds(Target.of("native"))
        return lambda budget: statistics.median(_until(budget, run))
    if name == OURS:
        return _ours(op, shape, str(trace))
    if name == "numpy":
        return called(_numpy_call(op, shape))
    call = torch_call(op, shape, compiled=name == "torch-compiled")
    return None if call is None else called(call)


def _ours(op: str, shape: tuple[int, ...], trace: str) -> Burst:
    """The kernel, repeated natively as its user's own loop would call it."""
    work = workloads.get(op)
    constant = TraceFile.load(trace).workload_hash != structural_hash(work.func(shape))
    kernel = build(replay(trace, work.func(shape, constant and bool(work.weights))))
    result = work.output(shape)
    arrays = [*work.inputs(shape, integers=False), np.zeros(result.shape, result.dtype)]
    arrays = [aligned(each) for each in arrays]
    if constant:
        (position,) = work.weights
        arrays[position] = kernel.pack(arrays[position])

    def burst(budget: float) -> float:
        once = kernel.time(*arrays, repeats=2, min_repeat_ms=_SAMPLE * 1e3).median
        repeats = max(_LEAST if once < _LONG else 1, int(budget / max(once, _SAMPLE)))
        return float(kernel.time(*arrays, repeats=repeats, min_repeat_ms=_SAMPLE * 1e3).median)

    return burst


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that starts at a cache line, as the libraries' own allocators give it."""
    place = aligned_empty(array.shape, array.dtype)
    place[...] = array
    return place


def _numpy_call(op: str, shape: tuple[int, ...]) -> Callable[[], Any]:
    work = workloads.get(op)
    arrays = [aligned(each) for each in work.inputs(shape, integers=False)]
    if op == "gmm":
        out = aligned(np.zeros(work.output(shape).shape, "float32"))
        return lambda: np.matmul(arrays[0], arrays[1], out=out)
    return lambda: work.reference(shape, *arrays)


def main(argv: Sequence[str]) -> None:
    """The child process: answers go to the real standard output, a library's chatter does not."""
    name, op, text, *trace = argv
    prioritise(FIRST)  # as our own runner does, and each of the others here
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    shape = tuple(int(v) for v in text.split(","))
    burst = burst_of(name, op, shape, *trace)
    print(json.dumps({"ready": burst is not None}), file=answers)
    for line in sys.stdin if burst else ():
        print(json.dumps({"seconds": burst(float(line))}), file=answers)  # type: ignore[misc]


if __name__ == "__main__":
    main(sys.argv[1:])

"""The contestants: a tuned kernel and the same operator in other libraries, called in bursts.

Each contestant has a worker process. There, `report.contest` calls `prepare` once, and `burst` for
each round.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from metasched import workloads
from metasched.codegen.peak import multiply_adds
from metasched.database.record import TraceFile
from metasched.database.replay import replay
from metasched.ir.equal import structural_hash
from metasched.ir.op import HARDWARE, lacking, load_intrinsics
from metasched.report.numba_peer import numba_op
from metasched.report.onnx_ops import onnx_op
from metasched.report.polybench.scipy_ops import scipy_op
from metasched.report.torch_peer import torch_call
from metasched.runtime.arrays import aligned_empty
from metasched.runtime.build import build
from metasched.runtime.timing import Repeat, clocked, take
from metasched.target import Target

OURS = "metasched"
PEERS = ("numpy", "scipy", "numba", "torch", "torch-compiled", "onnxruntime")
PEAK = "peak"
"""The contestant that only multiplies and adds, with the fastest instruction for the types of an
operator: a call is a billion operations."""
Burst = Callable[[float], float]
_NEEDED = {
    "torch": {"torch": "PyTorch"},
    "scipy": {"scipy": "SciPy"},
    "numba": {"numba": "Numba"},
    "onnxruntime": {"onnxruntime": "ONNX Runtime", "onnx": "the package onnx"},
}
_SAMPLE = 0.002  # seconds of a sample, which makes as many calls as fill them
_LEAST, _LONG = 5, 0.2  # the fewest samples of a burst, if a call takes fewer seconds than _LONG


def what_is_missing(peer: str) -> str:
    """What must be installed to time a peer; empty if nothing is missing."""
    needed = next((row for start, row in _NEEDED.items() if peer.startswith(start)), {})
    missing = [name for package, name in needed.items() if not importlib.util.find_spec(package)]
    return f"{missing[0]} is not installed" if missing else ""


def bursts(repeat: Repeat) -> Burst:
    """Make a function that times bursts: the median of samples, each long enough to fill _SAMPLE
    seconds.

    The number of calls in a sample follows from the fastest sample so far. Beside other busy
    processes a call with several threads may take a hundred times as long.
    """
    fastest = max(repeat(1), 1e-9)
    if fastest < _LONG:
        fastest = min(fastest, *(max(repeat(1), 1e-9) for _ in range(_LEAST)))

    def burst(budget: float) -> float:
        nonlocal fastest
        calls, least = max(1, int(_SAMPLE / fastest)), _LEAST if fastest < _LONG else 1
        samples: list[float] = []
        end = time.perf_counter() + budget
        while len(samples) < least or time.perf_counter() < end:
            samples.append(max(take(repeat, calls), 1e-9))
        fastest = min(fastest, *samples)
        return statistics.median(samples)

    return burst


def called(call: Callable[[], Any]) -> Burst:
    """Make a function that times bursts of a Python call."""

    def run(calls: int) -> None:
        for _ in range(calls):
            call()

    return bursts(clocked(run))


def burst_of(name: str, op: str, shape: tuple[int, ...], trace: str | None = None) -> Burst | None:
    """Bursts of one contestant; None for an operator that the contestant lacks.

    Args:
        name: a name in PEERS, OURS for the kernel of a tuned trace, or PEAK.
        op: a workload of the suite.
        shape: its shape.
        trace: the trace file of the tuned kernel. Its target is the target of the kernel and of the
            peak.
    """
    if name == PEAK:
        target = Target.of("native" if trace is None else TraceFile.load(trace).target)
        runs = [multiply_adds(target, what) for what in ("float32", *products(op, target))]
        run = min(runs, key=lambda each: min(each() for _ in range(_LEAST)))
        return bursts(lambda calls: sum(run() for _ in range(calls)))
    if name == OURS:
        return _ours(op, shape, str(trace))
    if name == "numpy":
        return called(_numpy_call(op, shape))
    if name in ("scipy", "numba"):
        library = scipy_op if name == "scipy" else numba_op
        made = library(op, shape, _arrays(op, shape))
        return None if made is None else called(made.run)
    if name == "onnxruntime":
        made = onnx_op(op, shape)
        return None if made is None else called(made.run)
    call = torch_call(op, shape, compiled=name == "torch-compiled")
    return None if call is None else called(call)


def products(op: str, target: Target) -> list[str]:
    """The instructions of a target that multiply the types of a workload's first two inputs, and
    add the products to wider sums."""
    load_intrinsics()
    types = [buffer.dtype for buffer in workloads.get(op).func().buffers[:2]]
    every = [HARDWARE.get(name) for name in HARDWARE]
    return [
        each.name
        for each in every
        if not lacking(each.feature, target.features)
        and len(each.operands) == 3
        and [kind.scalar for kind in each.operands[1:]] == types
        and each.result.bits > types[0].bits
    ]


def _ours(op: str, shape: tuple[int, ...], trace: str) -> Burst:
    """Bursts of the tuned kernel, called from a native loop."""
    work = workloads.get(op)
    stored = TraceFile.load(trace)
    constant = stored.workload_hash != structural_hash(work.func(shape))
    func = work.func(shape, constant and bool(work.weights))
    target = stored.target_value
    kernel = build(replay(trace, func, target=target), target)
    inputs = work.inputs(shape, integers=False)
    arrays = [aligned(each) for each in work.arguments(inputs, shape)]
    if constant:
        (position,) = work.weights
        arrays[position] = kernel.pack(arrays[position])

    return bursts(kernel.repeat(*arrays))


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that starts at a cache line, like arrays of the libraries' own allocators."""
    place = aligned_empty(array.shape, array.dtype)
    place[...] = array
    return place


def _arrays(op: str, shape: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    return [aligned(each) for each in workloads.get(op).inputs(shape, integers=False)]


def _numpy_call(op: str, shape: tuple[int, ...]) -> Callable[[], Any]:
    work, arrays = workloads.get(op), _arrays(op, shape)
    if op == "gmm":
        out = aligned(np.zeros(work.output(shape).shape, "float32"))
        return lambda: np.matmul(arrays[0], arrays[1], out=out)
    return lambda: work.reference(shape, *arrays)


_BURSTS: list[Burst] = []  # the contestant of this process


def prepare(name: str, op: str, shape: tuple[int, ...], trace: str | None) -> bool:
    """Prepare a contestant in its process; False if it lacks the operator."""
    burst = burst_of(name, op, shape, trace)
    _BURSTS[:] = [] if burst is None else [burst]
    return bool(_BURSTS)


def burst(budget: float) -> float:
    """Median seconds of a call of the contestant, in a burst of `seconds`."""
    return _BURSTS[0](budget)

"""Measure the peak multiply-add rate of this machine, to which figures in GFLOP/s are compared."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from metasched.codegen.compile import compile_text
from metasched.codegen.load import link
from metasched.codegen.types import constant, register_type, type_suffix
from metasched.errors import BuildError
from metasched.files import atomic_write, read_json
from metasched.hardware import machine_name
from metasched.ir.dtype import DType
from metasched.target import Target, cpu_of

# Independent sums in flight: enough to hide a latency of 5 cycles on 2 pipes, few enough for 16
# registers.
_SUMS = 12
_STEPS = 1 << 19
_RUNS = 30


def measured_peak(target: Target, dtype: str = "float32", threads: int | None = None) -> float:
    """Measure the GFLOP/s of generated multiply-add loops in `threads` threads (default: the
    target's cores).

    The best of several short runs, now and whenever this machine was asked before: beside a busy
    neighbour a reading shows half of what there is. Takes about 0.2 s. Raises BuildError for a type
    without multiply-add, TargetError for a target that is not this machine.
    """
    run = multiply_adds(target, dtype, threads)
    now = 1.0 / min(run() for _ in range(_RUNS))
    return _best_known(f"{target.key} {dtype} {threads or target.num_cores}", now)


def _best_known(what: str, now: float) -> float:
    """The larger of a measured rate and the stored one. The result is stored in a file of the
    user's cache, which may be deleted."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metasched"
    file = folder / "peak.json"
    key = f"{machine_name()} {what}"
    known: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError):
        found = read_json(file.read_bytes())
        known = {k: v for k, v in found.items() if type(v) is float} if type(found) is dict else {}
    best = max(now, known.get(key, 0.0))
    if known.get(key) != best:
        with contextlib.suppress(OSError):  # a home that cannot be written forgets
            folder.mkdir(parents=True, exist_ok=True)
            atomic_write(file, json.dumps({**known, key: best}, indent=1))
    return best


def multiply_adds(
    target: Target, dtype: str = "float32", threads: int | None = None
) -> Callable[[], float]:
    """Run the loops behind `measured_peak` once, briefly; gives seconds for 10**9 operations."""
    target.require_here(timed=True)
    kind = DType(dtype)
    if kind not in ("float32", "float64"):
        raise BuildError(f"no multiply-add peak is defined for {dtype}")
    lanes = max(1, cpu_of(target).vector_bits // kind.bits)
    obj = compile_text(_loop(kind, lanes, "fma" in target.features), target)
    library = link(obj, ("peak",))
    run = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)(library["peak"])
    count = threads or target.num_cores
    run(_STEPS // 8)
    billions = 2e-9 * _SUMS * lanes * _STEPS * count

    def seconds() -> float:
        assert library  # whose code must not go before this does
        return together([lambda: run(_STEPS)] * count) / billions

    return seconds


def together(runs: Sequence[Callable[[], object]]) -> float:
    """Run functions at once in threads; gives seconds from the first start to the last end.

    Each thread is bound to its own core: the scheduler may put two short threads on one core.
    """
    count = len(runs)
    barrier = threading.Barrier(count)
    spans: list[tuple[float, float]] = []
    ended = [threading.Event() for _ in range(count)]
    cores = sorted(os.sched_getaffinity(0))

    def work(number: int) -> None:
        os.sched_setaffinity(0, {cores[number % len(cores)]})  # of this thread alone
        try:
            barrier.wait()
            begin = time.perf_counter()
            runs[number]()
            spans.append((begin, time.perf_counter()))
        except threading.BrokenBarrierError:
            pass
        finally:
            ended[number].set()

    workers = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    except BaseException:  # Ctrl-C: nobody may wait for a thread that never starts, and the
        barrier.abort()  # machine code must not go while it runs
        for worker, end in zip(workers, ended, strict=True):
            if worker.ident is not None:  # no join: once interrupted, Python 3.11 takes a thread
                end.wait()  # that still runs for one that has ended
        raise
    return max(end for _, end in spans) - min(begin for begin, _ in spans)


def _loop(dtype: DType, lanes: int, fused: bool) -> str:
    """`double peak(i64 n)`: n steps of independent x = x * c + d, summed so that none is dead."""
    kind = register_type(dtype, lanes)
    one = constant(1.0, dtype)
    start = f"splat ({register_type(dtype)} {one})" if lanes > 1 else one
    fma = f"@llvm.fma.{type_suffix(dtype, lanes)}"
    lines = [
        f"declare {kind} {fma}({kind}, {kind}, {kind})" if fused else "",
        f'define double @peak(i64 %n) "prefer-vector-width"="512" '
        f'"min-legal-vector-width"="{lanes * dtype.bits}" {{',
        "entry:",
        f"%c = load volatile {kind}, ptr @factor",
        f"%d = load volatile {kind}, ptr @factor",
        "br label %loop",
        "loop:",
        "%i = phi i64 [ 0, %entry ], [ %next, %loop ]",
    ]
    for s in range(_SUMS):
        lines.append(f"%x{s} = phi {kind} [ %c, %entry ], [ %y{s}, %loop ]")
    for s in range(_SUMS):
        if fused:
            lines.append(f"%y{s} = call {kind} {fma}({kind} %x{s}, {kind} %c, {kind} %d)")
        else:
            lines.append(f"%m{s} = fmul {kind} %x{s}, %c")
            lines.append(f"%y{s} = fadd {kind} %m{s}, %d")
    lines += [
        "%next = add i64 %i, 1",
        "%more = icmp slt i64 %next, %n",
        "br i1 %more, label %loop, label %done",
        "done:",
    ]
    total = "%y0"
    for s in range(1, _SUMS):
        lines.append(f"%t{s} = fadd {kind} {total}, %y{s}")
        total = f"%t{s}"
    lines += [f"store volatile {kind} {total}, ptr @sink", "ret double 0.0", "}"]
    lines[0] += f"\n@factor = private global {kind} {start}, align 64"
    lines[0] += f"\n@sink = private global {kind} {start}, align 64"
    return "\n".join(lines)

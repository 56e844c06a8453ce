"""The jobs of workers: build a program, compute expected results, check and time candidates.

Builders call `build`. The process that runs candidates holds one `LoadedTask` for each task.
"""

from __future__ import annotations

import mmap
import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metasched.errors import MeasureError, MetaschedError
from metasched.ir.dtype import DType
from metasched.ir.func import PrimFunc
from metasched.measure.candidate import Built, Outcome, Status
from metasched.measure.data import (
    TAMINGS,
    TOLERANCE,
    Array,
    Task,
    compare,
    fill,
    nudged,
    steady,
    with_lost,
)
from metasched.measure.given import Arrays
from metasched.measure.loaded_task import LoadedTask, SharedLayout, mapped, shared_size
from metasched.measure.padding import padded
from metasched.measure.priority import ordinary
from metasched.measure.samples import SHORT, TimingPlan, in_turns, samples_of, undisturbed
from metasched.measure.sampling import Sample
from metasched.measure.task import make_task
from metasched.runtime import rows as rows  # enters the devices by kind
from metasched.runtime.devices import Program, programs_of
from metasched.runtime.timing import take
from metasched.target import Target

if TYPE_CHECKING:
    from metasched.measure.process import Reply


CYCLE = 1.6e-10
"""Seconds of a clock cycle at 6 GHz: no call takes less."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The findings of a runner about one program; `call`: seconds of its fastest checked run."""

    status: Status
    seconds: tuple[float, ...] = ()
    message: str = ""
    run_seconds: float = 0.0
    check_seconds: float = 0.0
    check: str = ""
    call: float = 0.0


def build(func: PrimFunc, target: Target, parallel: bool = True) -> Program:
    """Compile a program for the device of a target."""
    return programs_of(target.kind).compile(func, target, parallel)


_LOADED: dict[str, LoadedTask] = {}
_TASKS = 9  # a runner has two kinds of data at the usual size, and at most seven other sizes


def _loaded_task(task: Task, fd: int, kind: str) -> LoadedTask:
    """A task set up for programs of a kind; the last `_TASKS` tasks are kept."""
    if task.key not in _LOADED:
        while len(_LOADED) >= _TASKS:
            _LOADED.pop(next(iter(_LOADED)))
        _LOADED[task.key] = LoadedTask(task, fd, kind)
    _LOADED[task.key].packed.clear()
    return _LOADED[task.key]


@dataclass(frozen=True, slots=True)
class Baseline:
    """The result of the unscheduled program: the task, the program and its time.

    The time of a sample is scaled to the operations of the whole program.
    """

    task: Task
    program: Program
    seconds: float


def baseline(
    func: PrimFunc,
    target: Target,
    fd: int,
    settings: Mapping[str, Any],
    default_schedule: PrimFunc | None = None,
    sample: Sample | None = None,
) -> Baseline:
    """Decide the test data and compute the expected results.

    This is one job, so that it continues while the parent searches. The shared memory `fd` gets its
    size when the program is built.

    Args:
        func: the unscheduled program, which runs serially with padded rows.
        target: the target that the program is compiled for.
        fd: the shared memory that takes the results.
        settings: arguments of `make_task`.
        default_schedule: runs instead of `func`, in parallel.
        sample: the part of `func` that runs instead of all of it.
    """
    written = padded(func if sample is None else sample.func)
    program = build(default_schedule or written, target, parallel=default_schedule is not None)
    task = make_task(func, program.signature, **settings)
    _resize(fd, shared_size(task))
    with ordinary():
        task, seconds = expect(task, fd, program, sample, settings.get("data"))
    if default_schedule is not None and task.tame:
        raise MeasureError("values grow from step to step: the program as written decides the data")
    return Baseline(task, program, seconds if sample is None else seconds / sample.share)


def _resize(fd: int, size: int) -> None:
    """Give shared memory its size; the worker's limit on the size of files does not apply."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    try:
        os.ftruncate(fd, size)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def expect(
    task: Task,
    fd: int,
    program: Program,
    sample: Sample | None = None,
    data: Arrays | None = None,
) -> tuple[Task, float]:
    """Compute the expected results with the unscheduled program, in arrays that have the program's
    layout, on the first kind of data on which results are steady (`data.steady`).

    Returns the task and the processor seconds of one call, without the time spent waiting for a
    core. In the task, an output counts as initialised unless the program overwrites it wholly.
    """
    loaded = LoadedTask(task, fd, program.kind, program.signature)
    found, seconds = _expected(loaded, task, program, sample, data)
    if sample is None and not steady(found, loaded.expected):
        for level in range(task.tame + 1, TAMINGS + 1):
            tame, spent = _expected(loaded, task.tamed(level), program, None, data)
            if steady(tame, loaded.expected):
                return tame, spent
        found, seconds = _expected(loaded, task, program, None, data)
        found = with_lost(found, loaded.expected)
    return found, seconds


def _expected(
    loaded: LoadedTask,
    task: Task,
    program: Program,
    sample: Sample | None,
    data: Arrays | None,
) -> tuple[Task, float]:
    """The same for one kind of data."""
    loaded.task, loaded.clean = task, False
    for number, array in enumerate(task.arrays):
        loaded.initial[number][...] = fill(array, task, number, data)
    seconds = _reference_run(loaded, program)
    partial = [n for n, a in enumerate(task.arrays) if a.written and not a.initial
               and _has_poison(a, _taken(sample, n, loaded.expected[n]))]  # fmt: skip
    if partial:
        arrays = (replace(a, initial=a.initial or n in partial) for n, a in enumerate(task.arrays))
        task = loaded.task = replace(task, arrays=tuple(arrays))
        loaded.clean = False
        seconds = _reference_run(loaded, program)
    if not task.exact and sample is None:  # a sample is compared within the whole task's tolerance
        task = replace(task, arrays=_with_noise(loaded, program, data))
    return task, seconds


def expected_at(
    func: PrimFunc, target: Target, functions: Sequence[PrimFunc],
    sizes: Sequence[Mapping[str, int]], settings: Mapping[str, Any], fds: Sequence[int],
) -> list[Task | None]:  # fmt: skip
    """Compute the expected results of a program with run-time extents at several sizes.

    Args:
        func: the program as written; it runs serially.
        functions: the program at each of `sizes`, which decides the test data.
        fds: the shared memory that takes the results of each size.

    Returns the task of each size, None where the program cannot run.
    """
    program, found = build(func, target, parallel=False), list[Task | None]()
    for part, one, fd in zip(functions, sizes, fds, strict=False):
        key = f"{settings['key']}/{dict(one)}"
        named = {**settings, "extents": one, "key": key, "data": {}}  # data have one size
        task = make_task(part, program.signature, **named)
        _resize(fd, shared_size(task))
        try:
            found.append(expect(task, fd, program)[0])
        except MetaschedError:
            found.append(None)
    return found


def _with_noise(loaded: LoadedTask, program: Program, data: Arrays | None) -> tuple[Array, ...]:
    """The arrays of a task with their `noise`, measured by rounding all inputs once more."""
    task, expected = loaded.task, [e.copy() for e in loaded.expected]
    for number, array in enumerate(task.arrays):
        loaded.initial[number][...] = nudged(array, task, number, data)
    loaded.clean = False
    _reference_run(loaded, program)
    out = []
    for number, array in enumerate(task.arrays):
        moved = compare(array, loaded.expected[number], expected[number], True)[1]
        out.append(replace(array, noise=moved if array.written else 0.0))
        loaded.expected[number][...] = expected[number]
        loaded.initial[number][...] = fill(array, task, number, data)
    return tuple(out)


def _reference_run(loaded: LoadedTask, program: Program) -> float:
    """Run the unscheduled program and keep its results; the seconds of a call."""
    loaded.restore()
    native, values = loaded.bind(program, serial=True)
    code, seconds = native.call(values)
    if seconds < SHORT and not any(a.written and a.initial for a in loaded.task.arrays):
        # A single call includes the overhead of Python: time several calls.
        seconds = take(native.repeat(values), int(SHORT / max(seconds, 1e-6)))
    if code:
        raise MetaschedError(f"the unscheduled program failed: {program.signature.failure(code)}")
    breach = loaded.breach()
    if breach:
        raise MetaschedError(f"the unscheduled program {breach}")
    for number, array in enumerate(loaded.task.arrays):
        if array.written:
            loaded.expected[number][...] = loaded.memory.read(number)
    return seconds


def _taken(sample: Sample | None, number: int, values: NDArray[np.generic]) -> NDArray[np.generic]:
    """The rows of an array that a sample computes."""
    if sample is None or number != sample.output:
        return values
    return np.take(values, sample.rows, axis=sample.axis)


def agree(task: Task, one: int, other: int, sample: Sample | None = None) -> str:
    """The difference of the expected results in two pieces of shared memory; empty if equal.

    With `sample`, only the rows of the sample are compared.
    """
    layout = SharedLayout(task.arrays)
    maps = [mmap.mmap(fd, layout.size, access=mmap.ACCESS_READ) for fd in (one, other)]
    for number, (array, place) in enumerate(zip(task.arrays, layout.expected, strict=True)):
        if array.written:
            a, b = (_taken(sample, number, mapped(m, array, place)) for m in maps)
            text, _ = compare(array, b, a, task.exact)
            if text:
                return text
    return ""


def _has_poison(array: Array, values: NDArray[np.generic]) -> bool:
    """Whether an element was never written, so still holds poison, or is NaN."""
    if DType(array.dtype).is_float:
        return bool(np.isnan(values.astype(np.float64)).any())
    raw = np.full(values.dtype.itemsize, 0x5B, np.uint8).view(values.dtype)[0]
    return bool((values == raw).any())


def trial(
    task: Task, fd: int, program: Program, where: str | None = None, passed: Trial | None = None
) -> Trial:
    """Run a candidate once on poisoned outputs and check everything.

    Args:
        where: the placement of the arrays, None for the usual placement. A guarding placement
            (`ProgramsOf.guarding`) ends the process at any access outside an array, even at a read
            that changes no result. The usual placement finds writes, and reads that change a
            result, and names the array.
        passed: the previous trial of the candidate; its times are added.
    """
    start = time.perf_counter()
    loaded = _loaded_task(task, fd, program.kind)
    loaded.restore(where)
    native, values = loaded.bind(program)
    code, call = native.call(values)
    if code:
        loaded.clean = False
        return Trial(Status.RUN_ERROR, message=program.signature.failure(code))
    status, message, largest = loaded.fault()
    how = "exact" if task.exact else f"{TOLERANCE} roundings ({task.why}), largest {largest:.3g}"
    before = passed or Trial(Status.OK, call=call)
    checked = before.check_seconds + max(0.0, time.perf_counter() - start - call)
    fastest, spent = min(call, before.call), before.run_seconds + call
    return Trial(status, (), message, spent, checked, how, fastest)


def blamed(crash: Reply, usual: Reply) -> Reply:
    """The crash of a candidate beside guard pages, explained by a run in the usual placement."""
    if usual.kind != "value":
        return crash
    if usual.value.status is Status.OUT_OF_BOUNDS:
        return usual
    found = usual.value.message or "its result does not depend on what it finds there"
    message = f"{crash.message}: it reads outside of one of its arrays ({found})"
    return replace(crash, message=message)


def timed(task: Task, fd: int, program: Program, plan: TimingPlan, passed: Trial) -> Trial:
    """Time a candidate that passed its trials."""
    loaded = _loaded_task(task, fd, program.kind)
    loaded.restore()
    repeat = loaded.repeat(program)
    begin = time.perf_counter()
    samples = samples_of(repeat, passed.call, plan, _pace(loaded, plan))
    spent = time.perf_counter() - begin + passed.run_seconds
    breach = loaded.breach()
    if breach:
        loaded.clean = False
        status, message = Status.OUT_OF_BOUNDS, f"{breach} when called again"
        return replace(passed, status=status, message=message, run_seconds=spent)
    if min(samples) < CYCLE:
        message = f"a call took {min(samples):.2g} s, less than a clock cycle: nothing was timed"
        return replace(passed, status=Status.RUN_ERROR, message=message, run_seconds=spent)
    return replace(passed, seconds=samples, run_seconds=spent)


def _pace(loaded: LoadedTask, plan: TimingPlan) -> Callable[[], float]:
    """A function that tells how many times slower than usual the plan's anchor runs now."""
    if plan.anchor is None:
        return lambda: 1.0
    program, usual = plan.anchor
    repeat, calls = loaded.repeat(program), max(1, int(plan.sample_ms * 1e-3 / usual))
    return lambda: undisturbed(repeat, calls) / usual


def interleave(
    task: Task, fd: int, programs: Sequence[Program], rounds: int, sample_ms: float
) -> list[tuple[float, ...]]:
    """Time programs in turns; samples in seconds for each program."""
    if not programs:
        return []
    loaded = _loaded_task(task, fd, programs[0].kind)
    loaded.restore()
    return in_turns([loaded.repeat(program) for program in programs], rounds, sample_ms)


def built_of(reply: Reply) -> Built:
    """A builder's reply as a Built."""
    if reply.kind == "value":
        return Built(reply.value, seconds=reply.seconds)
    return Built(None, Status(f"build_{reply.kind}"), reply.reason, reply.seconds)


def outcome_of(reply: Reply, built: float) -> Outcome:
    """A runner's reply as an outcome."""
    if reply.kind != "value":
        status = Status(f"run_{reply.kind}")
        return Outcome(status, (), reply.reason, built, run_seconds=reply.seconds)
    t: Trial = reply.value
    return Outcome(t.status, t.seconds, t.message, built, t.run_seconds, t.check_seconds, t.check)

"""What workers do: build a program, compute expected results, try a candidate, compare two.

Builders call `build`. A runner holds one `_Bench` for each task: the arrays between red zones,
their initial contents and the expected results. Those contents live in shared memory that the
parent owns, mapped read-only: a candidate cannot spoil them, and a runner restarted after a crash
maps them again instead of computing them again.
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

from metasched.codegen.compile import Compiled, compile_func
from metasched.codegen.signature import BufferArg, Signature, extent_value
from metasched.errors import MetaschedError
from metasched.ir.dtype import DType
from metasched.ir.func import PrimFunc
from metasched.measure.arena import APART, Arena
from metasched.measure.candidate import Outcome, Status
from metasched.measure.data import TOLERANCE, Array, Task, compare, fill, make_task, nudged
from metasched.measure.padding import padded
from metasched.measure.priority import ordinary
from metasched.measure.samples import SHORT, TimingPlan, in_turns, samples_of, undisturbed
from metasched.measure.sampling import Sample
from metasched.runtime.native import Native
from metasched.runtime.parallel import has_openmp
from metasched.runtime.timing import Repeat
from metasched.target import Target

if TYPE_CHECKING:
    from metasched.measure.process import Reply


CYCLE = 1.6e-10
"""Seconds of a clock cycle at 6 GHz: no call takes less."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What a runner found out about one program; `call`: seconds of its fastest checked run."""

    status: Status
    seconds: tuple[float, ...] = ()
    message: str = ""
    run_seconds: float = 0.0
    check_seconds: float = 0.0
    check: str = ""
    call: float = 0.0


def build(func: PrimFunc, target: Target, parallel: bool = True) -> Compiled:
    """Compile, serially where there is no OpenMP runtime; the LLVM text stays behind, a runner
    needs the object only."""
    parallel = parallel and has_openmp()
    return replace(compile_func(func, target, parallel=parallel), llvm_ir="")


class _Layout:
    """Where a task's initial contents and expected results lie in the shared memory."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.initial: list[int] = []
        self.expected: list[int] = []
        end = 0
        for places in (self.initial, self.expected):
            for array in arrays:
                places.append(end)
                end += (_compact_bytes(array) + 63) // 64 * 64
        self.size = max(end, 1)


def shared_size(task: Task) -> int:
    """Bytes of shared memory that a task needs."""
    return _Layout(task.arrays).size


def _packed_array(param: BufferArg, extents: Mapping[str, int]) -> Array:
    """A packed weight as an array between red zones."""
    shape, strides = (
        tuple(extent_value(e, extents) for e in which) for which in (param.shape, param.strides)
    )
    return Array(param.name, param.dtype, shape, strides, False, False, 0, 0, 0.0)


def _laid_out(task: Task, signature: Signature) -> list[Array]:
    """The arrays of a task with the strides that a program declares."""
    extents = {n: int(v) for n, v in task.values}
    return [
        a if p.compact else replace(a, strides=_packed_array(p, extents).strides)
        for a, p in zip(task.arrays, signature.buffers, strict=True)
    ]


def _compact_bytes(array: Array) -> int:
    count = int(np.prod(array.shape, dtype=np.int64))
    return count * DType(array.dtype).numpy.itemsize


class _Bench:
    """A task set up for running: arena, initial contents, expected results."""

    def __init__(self, task: Task, fd: int, reference: Signature | None = None) -> None:
        """`reference`: of the program that computes the expected results, whose rows may be padded;
        None for candidates, which find those results and must not change them."""
        self.task = task
        layout = _Layout(task.arrays)
        access = mmap.ACCESS_READ if reference is None else mmap.ACCESS_WRITE
        self._shared = mmap.mmap(fd, layout.size, access=access)
        self.initial, self.expected = (
            [_mapped(self._shared, a, p) for a, p in zip(task.arrays, places, strict=True)]
            for places in (layout.initial, layout.expected)
        )
        self.arena = Arena(task.arrays if reference is None else _laid_out(task, reference))
        self.packed: list[Arena] = []
        self.clean = False

    def restore(self, where: str = APART) -> None:
        """Bring every array to its state before a run: poisoned, or its initial contents; and to
        its place."""
        if where != self.arena.where:
            self.arena.place(where)
            self.clean = False
        for number, array in enumerate(self.task.arrays):
            if array.initial and (array.written or not self.clean):
                self.arena.views[number][...] = self.initial[number]
            elif not array.initial:
                self.arena.poison(number)
        if not self.clean:
            self.arena.reset_zones()
        self.clean = True

    def values(self, native: Native, signature: Signature) -> list[Any]:
        """The arguments of the C call; constant weights are packed now, into memory of their own.

        Raises MetaschedError when packing fails.
        """
        addresses = dict(zip((a.name for a in self.task.arrays), self.arena.addresses, strict=True))
        known = dict(self.task.values)
        buffers = iter(self.arena.addresses)
        names = {b.name for b in signature.buffers}
        assert len(names) == len(addresses)
        out: list[Any] = []
        for param in signature.params:
            if param.name in names:
                out.append(next(buffers))
            else:
                number = known[param.name]
                out.append(number if DType(param.dtype).is_float else int(number))
        symbols = [int(known[s]) for s in signature.symbols]
        if signature.pack is not None:
            self._pack(native, signature, out)
        return [*out, *symbols]

    def _pack(self, native: Native, signature: Signature, values: list[Any]) -> None:
        """Replace the constant weights among `values` by what the candidate packs them to."""
        pack, extents = signature.pack, {n: int(v) for n, v in self.task.values}
        assert pack is not None
        arrays = [_packed_array(b, extents) for _, _, b in signature.packed]
        room = Arena(arrays, self.arena.where)
        for number in range(len(arrays)):
            room.poison(number)
        given = [values[position] for position in signature.weights]
        code = native.pack(*given, *room.addresses, *(extents[s] for s in pack.symbols))
        if code:
            raise MetaschedError(f"packing the constant weights failed: {pack.failure(code)}")
        self.packed.append(room)
        for position, address in zip(signature.weights, room.addresses, strict=True):
            values[position] = address

    def breach(self) -> str:
        """Which red zone was written, that of a packed weight included; empty when none was."""
        return next(filter(None, (room.breach() for room in (self.arena, *self.packed))), "")

    def fault(self) -> tuple[Status, str, float]:
        """What the last run did wrong (OK when nothing), and the largest difference."""
        breach = self.breach()
        if breach:
            self.clean = False
            return Status.OUT_OF_BOUNDS, breach, 0.0
        largest = 0.0
        for number, array in enumerate(self.task.arrays):
            view = self.arena.views[number]
            if array.written:
                text, difference = compare(array, view, self.expected[number], self.task.exact)
                largest = max(largest, difference)
            else:
                text, _ = compare(array, view, self.initial[number], True)
                text = text and f"the input {array.name} was changed: {text}"
            if text:
                self.clean = False
                return Status.WRONG_RESULT, text, largest
        return Status.OK, "", largest


def _mapped(memory: mmap.mmap, array: Array, place: int) -> NDArray[np.generic]:
    """An array that lies in shared memory."""
    count = int(np.prod(array.shape, dtype=np.int64))
    flat = np.frombuffer(memory, DType(array.dtype).numpy, count, place)
    return flat.reshape(array.shape)


_BENCHES: dict[str, _Bench] = {}


def _bench(task: Task, fd: int) -> _Bench:
    """The bench of a task; only the last few are kept."""
    if task.key not in _BENCHES:
        while len(_BENCHES) >= 2:
            _BENCHES.pop(next(iter(_BENCHES)))
        _BENCHES[task.key] = _Bench(task, fd)
    _BENCHES[task.key].packed.clear()
    return _BENCHES[task.key]


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the unscheduled program gave: the task, the program and its time (by the operations of
    the part that was run, where it was a sample)."""

    task: Task
    program: Compiled
    seconds: float


def baseline(
    func: PrimFunc,
    target: Target,
    fd: int,
    settings: Mapping[str, Any],
    stand_in: PrimFunc | None = None,
    sample: Sample | None = None,
) -> Baseline:
    """Build the unscheduled program serially, its rows padded (or the one that stands in for it, in
    parallel, or the part of it that is a sample), decide the test data, compute the expected
    results.

    One job, so that it goes on while the parent searches. The shared memory `fd` has a size from
    the moment the program is built.
    """
    written = padded(func if sample is None else sample.func)
    compiled = build(stand_in or written, target, parallel=stand_in is not None)
    task = make_task(func, compiled.signature, **settings)
    _resize(fd, shared_size(task))
    with ordinary():
        task, seconds = expect(task, fd, compiled, sample)
    return Baseline(task, compiled, seconds if sample is None else seconds / sample.share)


def _resize(fd: int, size: int) -> None:
    """Give shared memory its size, which the worker's limit on files it writes does not concern."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    try:
        os.ftruncate(fd, size)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def expect(
    task: Task, fd: int, compiled: Compiled, sample: Sample | None = None
) -> tuple[Task, float]:
    """Compute the expected results with the unscheduled program, in memory as it lays it out.

    Returns the task (an output that the program turned out not to overwrite wholly counts as
    initialised from now on) and the processor seconds of one call: it is serial, and what it waits
    for a core that others hold is not its time.
    """
    bench = _Bench(task, fd, compiled.signature)
    for number, array in enumerate(task.arrays):
        bench.initial[number][...] = fill(array, task, number)
    native = Native.of(compiled)
    seconds = _reference_run(bench, native, compiled)
    partial = [n for n, a in enumerate(task.arrays) if a.written and not a.initial
               and _has_poison(a, _taken(sample, n, bench.expected[n]))]  # fmt: skip
    if partial:
        arrays = (replace(a, initial=a.initial or n in partial) for n, a in enumerate(task.arrays))
        task = bench.task = replace(task, arrays=tuple(arrays))
        bench.clean = False
        seconds = _reference_run(bench, native, compiled)
    if not task.exact:
        task = replace(task, arrays=_with_noise(bench, native, compiled))
    return task, seconds


def _with_noise(bench: _Bench, native: Native, compiled: Compiled) -> tuple[Array, ...]:
    """The arrays of a task, with how far results move when the inputs do."""
    task, expected = bench.task, [e.copy() for e in bench.expected]
    for number, array in enumerate(task.arrays):
        bench.initial[number][...] = nudged(array, task, number)
    bench.clean = False
    _reference_run(bench, native, compiled)
    out = []
    for number, array in enumerate(task.arrays):
        moved = compare(array, bench.expected[number], expected[number], True)[1]
        out.append(replace(array, noise=moved if array.written else 0.0))
        bench.expected[number][...] = expected[number]
        bench.initial[number][...] = fill(array, task, number)
    return tuple(out)


def _reference_run(bench: _Bench, native: Native, compiled: Compiled) -> float:
    bench.restore()
    values = bench.values(native, compiled.signature)
    start = time.thread_time()
    code = native.call(*values)
    seconds = time.thread_time() - start
    if seconds < SHORT and not any(a.written and a.initial for a in bench.task.arrays):
        calls = int(SHORT / max(seconds, 1e-6))  # the way there from Python is part of one
        start = time.thread_time()
        native.repeat(*values, calls)
        seconds = (time.thread_time() - start) / calls
    if code:
        raise MetaschedError(f"the unscheduled program failed: {compiled.signature.failure(code)}")
    breach = bench.breach()
    if breach:
        raise MetaschedError(f"the unscheduled program {breach}")
    for number, array in enumerate(bench.task.arrays):
        if array.written:
            bench.expected[number][...] = bench.arena.views[number]
    return seconds


def _taken(sample: Sample | None, number: int, values: NDArray[np.generic]) -> NDArray[np.generic]:
    """What a sample computes of an array."""
    if sample is None or number != sample.output:
        return values
    return np.take(values, sample.rows, axis=sample.axis)


def agree(task: Task, one: int, other: int, sample: Sample | None = None) -> str:
    """How the expected results in two pieces of shared memory differ, a sample of the first in its
    rows; empty where they do not."""
    layout = _Layout(task.arrays)
    maps = [mmap.mmap(fd, layout.size, access=mmap.ACCESS_READ) for fd in (one, other)]
    for number, (array, place) in enumerate(zip(task.arrays, layout.expected, strict=True)):
        if array.written:
            a, b = (_taken(sample, number, _mapped(m, array, place)) for m in maps)
            text, _ = compare(array, b, a, task.exact)
            if text:
                return text
    return ""


def _has_poison(array: Array, values: NDArray[np.generic]) -> bool:
    """Whether something was never written (or is NaN, which is worth a second look as well)."""
    if DType(array.dtype).is_float:
        return bool(np.isnan(values.astype(np.float64)).any())
    raw = np.full(values.dtype.itemsize, 0x5B, np.uint8).view(values.dtype)[0]
    return bool((values == raw).any())


def trial(
    task: Task, fd: int, compiled: Compiled, where: str = APART, passed: Trial | None = None
) -> Trial:
    """Run a candidate once on poisoned outputs and check everything.

    Args:
        where: AT_START or AT_END puts a forbidden page right beside each array: an access there
            ends the process, be it a read that changes no result. APART finds writes only, and
            reads that change a result, but says of which array.
        passed: the trial before this one, whose times are added.
    """
    start = time.perf_counter()
    bench = _bench(task, fd)
    native = Native.of(compiled)
    bench.restore(where)
    values = bench.values(native, compiled.signature)
    begin = time.perf_counter()
    code = native.call(*values)
    call = time.perf_counter() - begin
    if code:
        bench.clean = False
        return Trial(Status.RUN_ERROR, message=compiled.signature.failure(code))
    status, message, largest = bench.fault()
    how = "exact" if task.exact else f"{TOLERANCE} roundings ({task.why}), largest {largest:.3g}"
    before = passed or Trial(Status.OK, call=call)
    checked = before.check_seconds + time.perf_counter() - start - call
    fastest, spent = min(call, before.call), before.run_seconds + call
    return Trial(status, (), message, spent, checked, how, fastest)


def blamed(crash: Reply, apart: Reply) -> Reply:
    """A crash of a candidate beside forbidden pages, and what a run APART says of it."""
    if apart.kind != "value":
        return crash
    if apart.value.status is Status.OUT_OF_BOUNDS:
        return apart
    said = apart.value.message or "its result does not depend on what it finds there"
    message = f"{crash.message}: it reads outside of one of its arrays ({said})"
    return replace(crash, message=message)


def timed(task: Task, fd: int, compiled: Compiled, plan: TimingPlan, passed: Trial) -> Trial:
    """Time a candidate that passed its trials."""
    bench = _bench(task, fd)
    bench.restore()
    repeat = _repeat(bench, compiled)
    begin = time.perf_counter()
    samples = samples_of(repeat, passed.call, plan, _pace(bench, plan))
    spent = time.perf_counter() - begin + passed.run_seconds
    breach = bench.breach()
    if breach:
        bench.clean = False
        status, message = Status.OUT_OF_BOUNDS, f"{breach} when called again"
        return replace(passed, status=status, message=message, run_seconds=spent)
    if min(samples) < CYCLE:
        message = f"a call took {min(samples):.2g} s, less than a clock cycle: nothing was timed"
        return replace(passed, status=Status.RUN_ERROR, message=message, run_seconds=spent)
    return replace(passed, seconds=samples, run_seconds=spent)


def _repeat(bench: _Bench, compiled: Compiled) -> Repeat:
    """Calls of a program on the arrays of a task, as many as are asked for."""
    native = Native.of(compiled)
    values = bench.values(native, compiled.signature)
    return lambda count: native.repeat(*values, count)


def _pace(bench: _Bench, plan: TimingPlan) -> Callable[[], float]:
    """What tells how many times slower than usual this machine is now, by the plan's anchor."""
    if plan.anchor is None:
        return lambda: 1.0
    compiled, usual = plan.anchor
    repeat, calls = _repeat(bench, compiled), max(1, int(plan.sample_ms * 1e-3 / usual))
    return lambda: undisturbed(repeat, calls) / usual


def interleave(
    task: Task, fd: int, programs: Sequence[Compiled], rounds: int, sample_ms: float
) -> list[tuple[float, ...]]:
    """Time programs in turn."""
    bench = _bench(task, fd)
    bench.restore()
    return in_turns([_repeat(bench, program) for program in programs], rounds, sample_ms)


def outcome_of(reply: Reply, built: float) -> Outcome:
    """A runner's reply as an outcome."""
    if reply.kind != "value":
        status = Status(f"run_{reply.kind}")
        return Outcome(status, (), reply.reason, built, run_seconds=reply.seconds)
    t: Trial = reply.value
    return Outcome(t.status, t.seconds, t.message, built, t.run_seconds, t.check_seconds, t.check)

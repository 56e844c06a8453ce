"""The fuzz of the space: odd programs, random candidates, several processors, fenced memory.

A case is a number: it chooses an operator (of `metasched.workloads`, of `space.chains` or a random
program), an odd shape, the features of a processor, and 4 candidates of the default space, drawn at
random, mutated and crossed. Each candidate is compiled and run twice, on arrays that end and that
begin at a page that cannot be touched. Results are poisoned, temporary buffers fenced and poisoned.
Tiny candidates are interpreted too, with their regions checked. All must compute what NumPy does;
programs of `space.kept_bits`, what they compute as written, bit by bit.

    python -m tests.space.fuzz --cases 2000        a long run; failures are made smaller and printed
    python -m tests.space.fuzz --kind kinds        random programs of `space.random_kinds` instead

A random program as written, its default schedule and its autoschedule must compute the same as
well. Each candidate survives as a script and as the JSON of its trace.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import ml_dtypes
import numpy as np
import teams
from space.chains import CHAINS
from space.fences import Fenced, fenced_buffers, fenced_heap
from space.hard_data import HardData
from space.kept_bits import keeps_bits
from space.random_kinds import Draw
from space.random_kinds_more import KINDS
from strategies import random_func

from metasched.autoschedule import autoschedule
from metasched.errors import MetaschedError, ScheduleError
from metasched.frontend.workload import Workload
from metasched.ir.dtype import DType
from metasched.ir.equal import assert_structural_equal
from metasched.ir.expr import Var
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.kinds import (
    default_modules,
    default_mutators,
    default_postprocs,
    default_trace,
)
from metasched.measure.data import TAMINGS, Array, Task, compare, fill, nudged, steady
from metasched.measure.task import make_task
from metasched.mutate.base import mutate
from metasched.mutate.crossover import crossover
from metasched.postproc import run_postprocs
from metasched.runtime.build import build
from metasched.runtime.guarded_memory import poison
from metasched.runtime.kernel import Kernel
from metasched.schedule.rng import Rng, derive_seed
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.script import parse, script
from metasched.space.generate import SpaceGenerator
from metasched.target import Target
from metasched.workloads import get, names

CANDIDATES = 4  # of each case
MOST = 4e5  # operations of a program
TINY = 6000  # operations, and ten for each element, of a program that is interpreted too
EXTENTS = (1, 1, 2, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 19, 24, 31, 32, 33, 37, 48, 63, 64, 65,
           97, 127, 128, 130)  # fmt: skip
SMALL = {  # what parameters of these names are drawn from
    "kernel": (1, 2, 3, 3, 4, 5), "stride": (1, 1, 2, 3), "pad": (0, 1, 1, 2, 3),
    "dilation": (1, 2, 3), "groups": (1, 2, 3, 4), "pool": (1, 2, 3), "kind": tuple(range(7)),
    "batch": (1, 1, 2, 3), "heads": (1, 2, 3, 5),
}  # fmt: skip
RANDOM = "random"
MOST_SIZES = (9, 17, 33, 65)  # the largest extents of programs of `space.random_kinds`
INTERPRETED = 17  # such a program with larger extents is compared with its machine code as written
OPERATORS: dict[str, Workload | None] = {
    **{name: get(name) for name in names()}, **{w.name: w for w in CHAINS}, RANDOM: None,
    **dict.fromkeys(KINDS),
}  # fmt: skip


def targets() -> dict[str, Target]:
    """Processors whose code this machine runs: other features, cores, caches and vector widths."""
    native = Target.native()
    made = {"native": native}
    for mcpu in ("x86-64", "nehalem", "haswell", "skylake-avx512", "znver4", "sapphirerapids"):
        for cores in (1, 2, 6):
            target = Target.of({"kind": "cpu", "mcpu": mcpu, "num_cores": cores})
            if native.supports(target) is None:
                made[f"{mcpu}/{cores}"] = target
    made["narrow"] = replace(native, vector_bits=min(256, native.vector_bits))
    made["small caches"] = replace(native, l1_bytes=16 << 10, l2_bytes=64 << 10, num_cores=3)
    return made


TARGETS = targets()


Drawn = Callable[[Array, Task, int], Any]


class Broken(Exception):
    """A candidate breaks a promise; `kind` groups failures of one sort."""

    def __init__(self, kind: str, detail: str, sch: Schedule | None = None) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.sch = kind, sch


@dataclass(frozen=True)
class Case:
    """A program and a processor; `seed` draws the candidates and the data.

    The shape of a random program is its number and, for a program of `space.random_kinds`, the
    largest extent. `hard` data are those of `space.hard_data`.
    """

    seed: int
    operator: str
    shape: tuple[int, ...]
    target: str
    constant: bool = False
    hard: bool = False

    def func(self) -> PrimFunc:
        """The program; ValueError for a shape that makes none."""
        work = OPERATORS[self.operator]
        if self.operator in KINDS:
            number, most = self.shape
            made = parse(KINDS[self.operator](Draw(random.Random(number), most)))
            assert isinstance(made, PrimFunc)
            scalars = [p for p in made.params if isinstance(p, Var)]
            return made.specialize(dict.fromkeys(scalars, 1 + number % 4))
        if work is None:
            return random_func(random.Random(self.shape[0]))
        return work.func(self.shape, constant_weights=self.constant)

    def cost(self) -> float:
        """Operations, roughly."""
        work = OPERATORS[self.operator]
        return 1000.0 if work is None else work.flops(self.shape)


@dataclass
class Tally:
    """What a run did: candidates that ran and that were rejected, by operator."""

    ran: collections.Counter[str] = field(default_factory=collections.Counter)
    rejected: collections.Counter[str] = field(default_factory=collections.Counter)
    reasons: collections.Counter[str] = field(default_factory=collections.Counter)
    modules: collections.Counter[str] = field(default_factory=collections.Counter)

    def add(self, other: dict[str, dict[str, int]]) -> None:
        for name, counts in other.items():
            getattr(self, name).update(counts)


def case_of(number: int, kinds: Sequence[str] = (), hard: bool = False) -> Case:
    """Case n, of all operators or of the given ones."""
    rng = random.Random(number)
    operator = rng.choice(kinds or [n for n in OPERATORS if n not in KINDS])
    work, target = OPERATORS[operator], rng.choice(list(TARGETS))
    while True:
        if work is None:
            shape = (
                rng.randrange(1 << 30),
                *([rng.choice(MOST_SIZES)] if operator in KINDS else []),
            )
            case = Case(number, operator, shape, target, hard=hard)
            if all(b.constant_shape() is not None for b in case.func().buffers):
                return case
            continue
        words = work.parameters.split()
        shape = tuple(rng.choice(SMALL.get(w, EXTENTS)) for w in words)
        constant = bool(work.weights) and rng.random() < 0.2
        case = Case(number, operator, shape, target, constant, hard)
        if fits(case):
            return case


def fits(case: Case) -> bool:
    """Whether the shape makes a program, and one that is small enough."""
    try:
        if case.cost() > MOST:
            return False
        sizes = [math.prod(b.constant_shape() or ()) for b in case.func().buffers]
        return max(sizes) <= MOST / 4
    except (ValueError, MetaschedError):
        return False  # a kernel larger than its input, a stencil without inner points


def target_of(case: Case) -> Target:
    """The processor of a case, with cores for the threads of this run."""
    return teams.with_threads(TARGETS[case.target])


# -- candidates ------------------------------------------------------------------------------------


def candidates(case: Case, func: PrimFunc, tally: Tally, count: int) -> Iterator[Schedule]:
    """Candidates of the default space that survive their postprocs."""
    target, rng = target_of(case), Rng(derive_seed(case.seed, 0))
    generator = SpaceGenerator(default_modules(target))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spaces = generator.generate(func, target)
    for failure in generator.failures:
        tally.modules[f"{failure.module} on {failure.block}: {failure.message}"] += 1
        if not failure.refused:
            raise Broken("module", f"{failure.module} on {failure.block}: {failure.message}")
    base = Schedule(func, seed=0, check=False)
    made: list[Trace] = []
    for number in range(count):
        sch = base.copy()
        sch.state.rng.state = derive_seed(case.seed, 1, number)
        trace, how = rng.choice(spaces), "fresh"
        if number >= 2 and made:
            trace, how = _descendant(made, rng, target), "repair"
        try:
            trace.apply(sch, decisions=how)
            made.append(sch.trace)
            run_postprocs(sch, target, default_postprocs(target))
        except ScheduleError as error:
            tally.rejected[case.operator] += 1
            tally.reasons[f"{case.operator} {error.primitive}: {error.reason}"] += 1
            continue
        except Exception as error:
            raise Broken(f"space {type(error).__name__}", str(error), sch) from error
        yield sch


def _descendant(made: Sequence[Trace], rng: Rng, target: Target) -> Trace:
    """A mutant, or a cross of two."""
    found = crossover(made[0], made[-1], rng) if rng.random() < 0.4 else None
    for _ in range(0 if found else rng.choice(range(1, 6))):
        found = mutate(found or made[-1], default_mutators(target), rng, target) or found
    return found or made[-1]


# -- running ---------------------------------------------------------------------------------------


def expected(
    case: Case, func: PrimFunc, task: Task, drawn: Drawn = fill
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The arguments before a call, and those after it, by NumPy or the interpreter."""
    given = [
        drawn(a, task, n) if a.initial else _poisoned(a) for n, a in enumerate(task.arrays)
    ]  # fmt: skip
    after = [a.copy() for a in given]
    work = OPERATORS[case.operator]
    if case.shape[1] > INTERPRETED if case.operator in KINDS else case.hard:
        build(replace_weights(func))(*after)
    elif work is None or work.in_place:
        run(func, *after)
    else:
        inputs = given if task.arrays[-1].initial else given[:-1]
        with np.errstate(all="ignore"):
            found = work.reference(case.shape, *inputs)
        assert found.shape == given[-1].shape, (found.shape, given[-1].shape)
        after[-1] = found.astype(given[-1].dtype)
    return given, after


def settled(case: Case, func: PrimFunc, task: Task) -> tuple[Task, Any, Any]:
    """The task, on data that rounding errors do not ruin, with the arguments before and after."""
    for level in range(TAMINGS + 1):
        tried = task.tamed(level) if level else task
        given, after = expected(case, func, tried)
        if not tried.exact or not holds_exactly(after):
            tried = with_noise(case, func, tried, after)
        if steady(tried, after):
            break
    return tried, given, after


def hard(case: Case, func: PrimFunc, task: Task) -> tuple[Task, Any, Any]:
    """The task on data of `space.hard_data`, with the arguments before and after; on the usual data
    where rounding errors ruin the results."""
    drawn = HardData(func)
    given, after = expected(case, func, task, drawn)
    if task.exact and holds_exactly(after):
        return task, given, after
    noisy = with_noise(case, func, task, after, drawn.nudged)
    ruined = (a.noise > 1024 * a.eps * np.abs(finite(v)).max(initial=0.0)
              for a, v in zip(noisy.arrays, after, strict=True))  # fmt: skip
    return settled(case, func, task) if any(ruined) else (noisy, given, after)


def bit_by_bit(case: Case, func: PrimFunc, task: Task) -> tuple[Task, Any, Any]:
    """The task on numbers of which each sum is rounded, compared exactly, with the arguments before
    and after."""
    task = replace(task.with_normal_data(), exact=True)
    return task, *expected(case, func, task, HardData(func) if case.hard else fill)


def with_noise(
    case: Case, func: PrimFunc, task: Task, after: Sequence[np.ndarray], drawn: Drawn = nudged
) -> Task:
    """The task with what rounding all inputs once more changes: solvers magnify such errors."""
    _, moved = expected(case, func, task, drawn)
    return with_changes(task, moved, after)


def with_changes(task: Task, moved: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> Task:
    """The task with the changes of its results as noise."""
    changes = (compare(*three, True)[1] for three in zip(task.arrays, moved, after, strict=True))
    arrays = (replace(a, noise=c) for a, c in zip(task.arrays, changes, strict=True))
    return replace(task, exact=False, arrays=tuple(arrays))


def _poisoned(array: Array) -> np.ndarray:
    dtype = DType(array.dtype).numpy
    raw = np.full(dtype.itemsize, poison(array.dtype), np.uint8)
    return np.full(array.shape, raw.view(dtype)[0])


def check(case: Case, sch: Schedule, data: tuple[Task, Any, Any]) -> None:
    """Run a candidate; raises Broken when it is wrong."""
    check_kernel(case, sch, built(case, sch), data)


def built(case: Case, sch: Schedule) -> Kernel:
    """The compiled candidate, whose temporary buffers are fenced."""
    try:
        with fenced_heap():
            return build(sch, target_of(case))
    except Exception as error:
        raise Broken(f"build {type(error).__name__}", str(error), sch) from error


def check_kernel(case: Case, sch: Schedule, kernel: Kernel, data: tuple[Task, Any, Any]) -> None:
    """Run a compiled candidate on the data; raises Broken when it is wrong."""
    task, given, after = data
    for at_end in (True, False) * teams.RUNS:
        fences = [Fenced(a.nbytes, at_end) for a in given]
        arrays = [f.array(a) for f, a in zip(fences, given, strict=True)]
        for array, value in zip(arrays, given, strict=True):
            array[...] = value
        try:
            arguments = list(arrays)
            for position, _, _ in kernel.signature.packed:
                arguments[position] = None
            if kernel.signature.packed:
                weights = [arrays[p] for p, _, _ in kernel.signature.packed]
                packed = kernel.pack(*weights)
                packed = packed if isinstance(packed, tuple) else (packed,)
                for (position, _, _), array in zip(kernel.signature.packed, packed, strict=True):
                    arguments[position] = array
            kernel(*arguments)
        except Exception as error:
            raise Broken(f"call {type(error).__name__}", str(error), sch) from error
        _compare(task, arrays, after, sch, "compiled")
        for array, fence in zip(task.arrays, fences, strict=True):
            if fence.touched():
                raise Broken("fence", f"memory beside {array.name} was written", sch)
            fence.free()
        if fenced_buffers():
            raise Broken("leak", f"{fenced_buffers()} temporary buffers were not freed", sch)
    if case.cost() + 10 * sum(a.size for a in given) <= TINY and not kernel.signature.packed:
        got = [a.copy() for a in given]
        try:
            run(sch.mod, *got, seed=case.seed, check_regions=True)
        except Exception as error:
            raise Broken(f"interpreter {type(error).__name__}", str(error), sch) from error
        _compare(task, got, after, sch, "interpreted")


def _compare(task: Task, got: Any, after: Any, sch: Schedule, how: str) -> None:
    for array, a, b in zip(task.arrays, got, after, strict=True):
        wrong, _ = compare(array, a, b, task.exact)
        if wrong:
            raise Broken(f"{how} result", wrong, sch)


def play(case: Case, tally: Tally, count: int = CANDIDATES) -> None:
    """Check the candidates of a case; raises Broken."""
    func = case.func()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        signature = build(replace_weights(func)).signature
    task = make_task(func, signature, key="fuzz", seed=case.seed)
    if case.seed % 4 == 3:
        task = task.with_normal_data()
    if case.operator in KINDS and keeps_bits(func):
        data = bit_by_bit(case, func, task)
    else:
        data = hard(case, func, task) if case.hard else settled(case, func, task)
    for sch in candidates(case, func, tally, count):
        check_texts(func, sch)
        check(case, sch, data)
        tally.ran[case.operator] += 1
    if case.operator in KINDS:
        check(case, Schedule(func), data)
        check(case, by_default(case, func), data)
        check(case, autoscheduled(case, func), data)


def holds_exactly(results: Sequence[np.ndarray]) -> bool:
    """Whether the magnitudes leave integers exact in the types of arrays."""
    floats = (values for values in results if values.dtype.kind not in "iub")
    return all((np.abs(finite(v)) < 2 / ml_dtypes.finfo(v.dtype).eps).all() for v in floats)


def finite(values: np.ndarray) -> np.ndarray:
    """The finite elements of an array."""
    return values[np.isfinite(values)].astype(np.float64)


def by_default(case: Case, func: PrimFunc) -> Schedule:
    """The default schedule, candidate 0 of a search."""
    sch = Schedule(func)
    try:
        default_trace(func, target_of(case)).apply(sch)
    except Exception as error:
        raise Broken(f"default {type(error).__name__}", str(error), sch) from error
    return sch


def autoscheduled(case: Case, func: PrimFunc) -> Schedule:
    """What a user gets without measurements."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return autoschedule(func, target_of(case))
    except Exception as error:
        raise Broken(f"autoschedule {type(error).__name__}", str(error)) from error


def check_texts(func: PrimFunc, sch: Schedule) -> None:
    """The program survives as a script, and its trace as JSON; raises Broken."""
    try:
        assert_structural_equal(parse(script(sch.func)), sch.func)
        again = Schedule(func, seed=1, check=False)
        Trace.from_json(sch.trace.to_json()).apply(again)
        assert_structural_equal(again.mod, sch.mod)
    except Exception as error:
        raise Broken(f"text {type(error).__name__}", str(error), sch) from error


def replace_weights(func: PrimFunc) -> PrimFunc:
    """The function with all arguments as they are written."""
    return PrimFunc(func.params, func.body)


# -- a long run ------------------------------------------------------------------------------------


def failure_of(case: Case) -> Broken | None:
    """What a case breaks, None when it is fine or no program."""
    try:
        play(case, Tally())
    except Broken as error:
        return error
    except ValueError:
        pass
    return None


def shrink(case: Case, kind: str, limit: float = 60.0) -> Case:
    """A smaller shape, and another seed, that fails in the same way."""
    end = time.monotonic() + limit
    best, changed = case, len(case.shape) > 1
    while changed:
        changed = False
        for axis, size in enumerate(best.shape):
            for smaller in sorted({1, 2, 3, size // 2, size - 1} - {0}):
                shape = (*best.shape[:axis], smaller, *best.shape[axis + 1 :])
                for seed in (best.seed, 0, 1, 2):
                    if smaller >= size or time.monotonic() > end:
                        break
                    try:
                        found = failure_of(replace(best, shape=shape, seed=seed))
                    except ValueError:  # the operator has no such shape
                        found = None
                    if found is not None and found.kind == kind:
                        best, changed = replace(best, shape=shape, seed=seed), True
                        break
                if changed:
                    break
    return best


def report(case: Case, error: Broken) -> str:
    """A failing case for a person."""
    text = f"{case}\n{error}\n"
    if error.sch is not None:
        text += f"{error.sch.trace.simplified().as_python()}\n{script(error.sch.mod)}\n"
    return text


def inside(start: int, stop: int, seconds: float, kinds: Sequence[str], hard: bool) -> None:
    """Play cases and say so line by line; a case that takes 15 minutes is killed."""
    end = time.monotonic() + seconds
    for number in range(start, stop):
        if time.monotonic() > end:
            return
        case, tally = case_of(number, kinds, hard), Tally()
        print(json.dumps({"case": number, "what": str(case)}), flush=True)
        signal.alarm(900)
        try:
            play(case, tally)
        except Broken as error:
            print(json.dumps({"broken": f"case {number}\n{report(case, error)}"}), flush=True)
            signal.alarm(900)
            small = shrink(case, error.kind)
            found = failure_of(small) or error
            if small != case:
                print(json.dumps({"broken": f"smaller\n{report(small, found)}"}), flush=True)
        print(json.dumps({"tally": vars(tally)}), flush=True)


def main() -> int:
    """Play so many cases in child processes and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--seconds", type=float, default=1e9, help="time after which to stop")
    parser.add_argument("--kind", action="append", help="an operator, or kind of random programs; "
                        "'kinds' stands for all of space.random_kinds")  # fmt: skip
    parser.add_argument("--hard", action="store_true", help="data of space.hard_data")
    teams.add_options(parser)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    teams.use(options)
    given = options.kind or []
    if unknown := [k for k in given if k not in OPERATORS and k != "kinds"]:
        parser.error(f"no operator or kind {unknown[0]!r}")
    kinds = [k for k in OPERATORS if k in given or (k in KINDS and "kinds" in given)]
    if options.inside:
        inside(options.start, options.start + options.cases, options.seconds, kinds,
               options.hard)  # fmt: skip
        return 0
    tally, failed, number = Tally(), 0, options.start - 1
    stop, began = options.start + options.cases, time.monotonic()
    while number + 1 < stop:
        left = options.seconds - (time.monotonic() - began)
        if left <= 0:
            break
        words = [sys.executable, __file__, "--inside", "--start", str(number + 1)]
        words += [word for kind in given for word in ("--kind", kind)]
        words += ["--hard"] * options.hard
        words += ["--threads", str(options.threads), "--runs", str(options.runs)]
        words += ["--cases", str(stop - number - 1), "--seconds", str(left)]
        what = ""
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
            for line in child.stdout or ():
                said = json.loads(line)
                number, what = said.get("case", number), said.get("what", what)
                tally.add(said.get("tally", {}))
                if "broken" in said:
                    failed += 1
                    print(f"{'=' * 80}\n{said['broken']}", flush=True)
        if child.returncode:
            failed += 1
            print(f"{'=' * 80}\nended by {child.returncode}: {what}", flush=True)
        else:
            break
    cases = number + 1 - options.start
    print(f"{cases} cases, {tally.ran.total()} candidates ran, {failed} failures")
    for name in sorted(tally.ran | tally.rejected):
        ran, lost = tally.ran[name], tally.rejected[name]
        print(f"{name:22}{ran:7}{ran / max(1, ran + lost):8.1%}")
    for counts in (tally.reasons, tally.modules):
        for what, count in counts.most_common(20):
            print(f"{count:6} {what}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

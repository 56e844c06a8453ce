"""The types of measuring: Candidate, Built, Outcome, Builder, Runner and a runner's abilities."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from metasched.errors import MeasureError, MetaschedError
from metasched.foreign import ANYTHING, failure, warned
from metasched.ir.func import IRModule, PrimFunc
from metasched.measure.settings import MeasureOptions
from metasched.registry import Registry, complete
from metasched.runtime.devices import Program
from metasched.target import Target
from metasched.watch import called, is_built_in


class Status(enum.Enum):
    """How a candidate ended: OK, or a failure, which has a message."""

    OK = "ok"
    REPLAY_ERROR = "replay_error"  # the trace did not give a program
    BUILD_ERROR = "build_error"  # lowering or compiling refused it
    BUILD_TIMEOUT = "build_timeout"
    BUILD_CRASH = "build_crash"  # the compiler took its process down
    RUN_ERROR = "run_error"  # the kernel returned a failure, or could not be loaded
    RUN_TIMEOUT = "run_timeout"
    RUN_CRASH = "run_crash"  # the kernel took its process down
    WRONG_RESULT = "wrong_result"
    OUT_OF_BOUNDS = "out_of_bounds"  # it wrote outside its buffers
    NOT_RECORDED = "not_recorded"  # a replay runner's table has no entry


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program to measure.

    Attributes:
        index: position in the run; candidate 0 is the default schedule.
        module: the scheduled program, one function.
        key: structural hash of the module; equal programs have equal keys.
    """

    index: int
    module: IRModule = field(repr=False)
    key: str


def single_function(module: Mapping[str, PrimFunc]) -> PrimFunc:
    """The function of a candidate's module: "main", or the only one."""
    if "main" not in module and len(module) != 1:
        raise MeasureError(f"a candidate is one function, the module has {len(module)}")
    return module["main"] if "main" in module else next(iter(module.values()))


@dataclass(frozen=True, slots=True)
class Built:
    """The result of compiling one candidate; picklable.

    Attributes:
        program: the compiled program, None for a failure.
        status: OK, or how the build failed.
        message: the reason of a failure, else empty.
        seconds: the seconds of compiling.
    """

    program: Program | None
    status: Status = Status.OK
    message: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of measuring one candidate.

    Attributes:
        status: how the candidate ended.
        seconds: time of one call, one value a sample; empty unless status is OK. If an anchor was
            timed in turns (see `samples.TimingPlan`), the times are scaled to its usual speed.
        message: the reason of a failure, else empty.
        build_seconds, run_seconds, check_seconds: seconds of building, of running the kernel, and
            of setting up and comparing its data.
        check: how the result was compared (`exact`, `64 eps`), and the largest difference seen.
        machine: name of the machine that took the time (see `hardware.times_compare`).
    """

    status: Status
    seconds: tuple[float, ...] = ()
    message: str = ""
    build_seconds: float = 0.0
    run_seconds: float = 0.0
    check_seconds: float = 0.0
    check: str = ""
    machine: str = ""

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    @property
    def median(self) -> float:
        """Median of the samples in seconds; infinite for a failure."""
        return statistics.median(self.seconds) if self.ok and self.seconds else float("inf")


OnOutcome = Callable[[Candidate, Outcome], None]


class Runner(Protocol):
    """Anything that measures candidates.

    A runner with further abilities has the methods of `Confirms`, `Recalls`, `NamesMachine`,
    `ReadsAgain` or `Compares`; a search uses the abilities that a runner has.
    """

    def measure(
        self, candidates: Sequence[Candidate], on_outcome: OnOutcome | None = None
    ) -> list[Outcome]:
        """Build, run and check candidates; returns the outcomes in their order.

        `on_outcome` is called when a candidate ends (in any order), so that an interrupt loses
        nothing. Raises MeasureError when the runner itself fails, never because of a candidate.
        """
        ...

    def close(self) -> None:
        """End the workers; closing twice is allowed."""
        ...


class Builder(Protocol):
    """Anything that compiles programs for a runner, here or elsewhere."""

    def submit(self, func: PrimFunc, target: Target) -> Future[Built]:
        """Begin to compile a scheduled program for a target.

        The result of the future says how a build failed; the future raises only when the builder
        itself fails.
        """
        ...

    def close(self) -> None:
        """End the processes that compile; closing twice is allowed."""
        ...


MakeBuilder: TypeAlias = "Callable[[], Builder]"
MakeRunner: TypeAlias = "Callable[..., Runner]"
BUILDERS: Registry[MakeBuilder] = Registry("builder", Callable)
RUNNERS: Registry[MakeRunner] = Registry("runner", Callable)
_Factory = TypeVar("_Factory", bound="Callable[..., Any]")


def builder(name: str, *, override: bool = False) -> Callable[[_Factory], _Factory]:
    """Register a builder: a class or function `() -> Builder`.

    Args:
        name: what `ms.tune(builder=...)` and `metasched tune --builder` call it.
        override: replace a builder of that name.

    Raises RegistryError when the name is taken, TypeError when the object is not callable.
    """
    enter = BUILDERS.decorator(name, "() -> Builder", None, override)
    return cast("Callable[[_Factory], _Factory]", enter)


def runner(name: str, *, override: bool = False) -> Callable[[_Factory], _Factory]:
    """Register a runner: a class or function `(func, target) -> Runner`.

    If the user also chose a builder, it is passed as the argument `builder`.

    Args:
        name: what `ms.tune(runner=...)` and `metasched tune --runner` call it.
        override: replace a runner of that name.

    Raises RegistryError when the name is taken, TypeError when the object is not callable.
    """
    enter = RUNNERS.decorator(name, "(func, target) -> Runner", None, override)
    return cast("Callable[[_Factory], _Factory]", enter)


@contextmanager
def opened_builder(given: Builder | str | None) -> Iterator[Builder | None]:
    """The given builder, or the builder of a name, which is closed afterwards.

    Raises RegistryError for an unknown name, PluginError for a builder that cannot be made.
    """
    if not isinstance(given, str):
        yield given
        return
    what = f"the builder {given}"
    made = complete(what, BUILDERS.get(given), "submit", "close")
    try:
        yield made
    finally:
        with warned(f"{what} could not be closed"), called(what):
            made.close()


@contextmanager
def calling(runner: object) -> Iterator[None]:
    """Call a runner in a `with` body; an error of a user's runner is a MeasureError that names it.

    A call of a runner may take long, so no warning names it.
    """
    if is_built_in(runner):
        yield
        return
    what = RUNNERS.title(runner)
    try:
        with called(what, patient=True):
            yield
    except MetaschedError:
        raise
    except ANYTHING as error:
        raise MeasureError(f"{what} raised {failure(error)}") from error


def opened_runner(make: MakeRunner, *arguments: Any, **more: Any) -> Runner:
    """The runner that a factory makes.

    Raises PluginError if a user's factory fails, or its result lacks a method.
    """
    if is_built_in(make):
        return make(*arguments, **more)
    return complete(RUNNERS.title(make), lambda: make(*arguments, **more), "measure", "close")


def outcomes_of(
    runner: Runner, candidates: Sequence[Candidate], on_outcome: OnOutcome
) -> list[Outcome]:
    """Let a runner measure candidates; `on_outcome` gets each outcome once, as soon as it is known.

    Raises MeasureError if the runner fails, or does not return one outcome for each candidate.
    """
    told = set[int]()

    def first(candidate: Candidate, outcome: Outcome) -> None:
        if candidate.index not in told:
            told.add(candidate.index)
            on_outcome(candidate, outcome)

    with calling(runner):
        found = runner.measure(candidates, first)
    whole = isinstance(found, Sequence) and all(isinstance(each, Outcome) for each in found)
    if not whole or len(found) != len(candidates):
        count = f"{len(found)} values" if isinstance(found, Sequence) else type(found).__name__
        raise MeasureError(
            f"{RUNNERS.title(runner)} must return {len(candidates)} outcomes, one for each "
            f"candidate, not {count}"
        )
    for candidate, outcome in zip(candidates, found, strict=True):
        first(candidate, outcome)
    return list(found)


@runtime_checkable
class Confirms(Protocol):
    """A runner that may compare with expected results before they are confirmed."""

    @property
    def reference_confirmed(self) -> bool:
        """Whether the unscheduled program has confirmed the expected results; before, outcomes are
        not stored."""
        ...


@runtime_checkable
class Recalls(Protocol):
    """A runner that scales its times to the times of an earlier run."""

    def recall(self, known: Sequence[tuple[Candidate, float]]) -> None:
        """Take candidates that an earlier run measured, with their seconds."""
        ...


@runtime_checkable
class NamesMachine(Protocol):
    """A runner that knows the machine it measures on."""

    def machine(self) -> str:
        """The name of the machine, as `hardware.machine_name` gives it.

        Raises MeasureError when the machine cannot be reached.
        """
        ...


@runtime_checkable
class ReadsAgain(Protocol):
    """A runner that can time again the candidates that it has measured."""

    def read_again(self, candidates: Sequence[Candidate]) -> dict[str, float]:
        """Seconds of candidates by their keys; candidates may be left out.

        Raises MeasureError when a candidate does not run any more.
        """
        ...


@runtime_checkable
class Compares(Protocol):
    """A runner that compares finalists, and checks a finalist on further data.

    Attributes:
        options: limits and repetitions.
    """

    options: MeasureOptions

    def interleave(
        self, candidates: Sequence[Candidate], rounds: int = 10, fresh: bool = False
    ) -> list[tuple[float, ...]]:
        """Time candidates in turns, with `fresh` in a new process; samples in seconds.

        Raises MeasureError when a candidate cannot be built or run.
        """
        ...

    def verify(self, candidate: Candidate) -> Outcome:
        """Check a candidate on normally distributed data; nothing is timed."""
        ...

    def unscheduled(self) -> Outcome:
        """The time of the unscheduled program; MeasureError when it cannot be built or run."""
        ...

"""What a tuning run found and what it cost: Best, TuneResult."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from metasched.ir.func import IRModule
from metasched.runtime.devices import device_of
from metasched.schedule.trace import Trace
from metasched.search.population import Survival
from metasched.target import Target


@dataclass(frozen=True)
class Best:
    """The fastest schedule that was found.

    Attributes:
        trace: its steps, postprocs included; `Trace.apply` replays it.
        seconds: median time of one call, from the final comparison if there was one.
        mod: the scheduled module; `metasched.build(best)` compiles it.
        path: the trace file, or None if no file was written.
    """

    trace: Trace = field(repr=False)
    seconds: float
    mod: IRModule = field(repr=False)
    target: Target = field(repr=False)
    path: Path | None = None


@dataclass(frozen=True)
class TuneResult:
    """What a tuning run found and what it cost.

    Attributes:
        best: the fastest schedule; None when no candidate was right.
        default_seconds: the time of the default schedule (candidate 0), in turns with the best.
        unscheduled_seconds: the time of the program as written, run serially on padded rows (see
            `measure.padding`); None if the runner does not measure it.
        trials, failed: candidates measured and failed, in this and in earlier runs on the store.
        failures: status -> (count, one message), of this run.
        phases: seconds spent in search, build, run, check and model; builds run at the same time as
            other phases.
        flops: floating-point operations of one call, counted in the program.
        survival: how many replays gave a program.
        ended: budget, time, exhausted or interrupted.
        history: the best seconds after each trial of this run.
        notes: messages of the cost model: it started from a prior, or dropped the prior.
        refusals: the schedule modules that gave up some or all of their alternatives on a block
            because a step was refused: module, block, how many, and the first refusal.
    """

    workload: str
    target: Target = field(repr=False)
    seed: int
    best: Best | None
    default_seconds: float | None
    unscheduled_seconds: float | None
    trials: int
    failed: int
    failures: Mapping[str, tuple[int, str]]
    wall_seconds: float
    phases: Mapping[str, float] = field(repr=False)
    flops: float
    threads: int
    survival: Survival = field(repr=False)
    ended: str
    history: tuple[float, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False)
    refusals: tuple[str, ...] = field(default=(), repr=False)

    @property
    def speedup_over_default(self) -> float | None:
        if self.best is None or self.default_seconds is None:
            return None
        return self.default_seconds / self.best.seconds

    @property
    def gflops(self) -> float | None:
        """Rate of the best schedule in GFLOP/s."""
        return None if self.best is None else self.flops / self.best.seconds / 1e9

    def peak_gflops(self) -> float | None:
        """The measured peak of the target in GFLOP/s (float32, all threads).

        None for a kind without one, and for a machine that is not this one.
        """
        if self.target.here() is not None or self.target.timed_here() is not None:
            return None
        return device_of(self.target).peak(self.target, self.threads)

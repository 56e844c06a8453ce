"""MeasureOptions: the limits and repetitions of a runner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from metasched import config


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """The limits and repetitions of a runner.

    Limits are seconds of work; waiting in a queue and starting processes do not count.

    Attributes:
        build_timeout, run_timeout: limits of building and of running one candidate.
        baseline_timeout: the limit of building and running the unscheduled program.
        build_workers: build processes; stopped, or at low priority, while a kernel is timed.
        threads: threads of a kernel; 0 means every core.
        memory: address space of a worker in bytes; 0 for no limit.
        sample_ms, samples, budget_ms: see `samples.TimingPlan`.
        seed: the seed of the test data.
        extents: a value for each symbolic extent; the representative sizes of the function
            (`analysis.sizes`) count where a name is absent.
        scalars: values of scalar parameters.
        data: given contents of buffer parameters, by their positions (`measure.given`).
    """

    build_timeout: float = 15.0
    run_timeout: float = 10.0
    baseline_timeout: float = 600.0
    build_workers: int = 2
    threads: int = 0
    memory: int = 0
    sample_ms: float = 2.5
    samples: int = 9
    budget_ms: float = 30.0
    seed: int = 0
    extents: Mapping[str, int] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    data: Mapping[int, NDArray[Any]] = field(default_factory=dict)

    @staticmethod
    def of(
        settings: config.Config | None = None, *, cores: int = 2, **given: Any
    ) -> MeasureOptions:
        """The options from the settings; values in `given` take precedence."""
        c = settings if settings is not None else config.load()
        values: dict[str, Any] = {
            "build_timeout": c.build_timeout, "run_timeout": c.run_timeout,
            "baseline_timeout": c.baseline_timeout,
            "build_workers": c.build_workers or max(1, min(cores, 4)), "threads": c.threads,
            "sample_ms": c.repeat_ms, "samples": c.samples, "seed": c.seed,
        }  # fmt: skip
        return MeasureOptions(**{**values, **given})

"""Time a kernel: warm-up runs, then samples of several calls each, and robust statistics."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call, one value a sample.

    Attributes:
        samples: in the order they were taken, none left out.
        calls: calls averaged in each sample.
    """

    samples: tuple[float, ...]
    calls: int = 1

    @property
    def min(self) -> float:
        return min(self.samples)

    @property
    def median(self) -> float:
        """The median of the samples: a single slow sample does not change it much."""
        return statistics.median(self.samples)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.samples)

    @property
    def iqr(self) -> float:
        """The interquartile range of the samples; 0 for fewer than two."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return high - low

    def __str__(self) -> str:
        return (
            f"{self.median * 1e3:.4g} ms (median of {len(self.samples)} x {self.calls} calls, "
            f"min {self.min * 1e3:.4g}, iqr {self.iqr * 1e3:.2g})"
        )


Repeat = Callable[[int], float]
"""Calls a program the given number of times; gives the total seconds by its device's clock."""


def clocked(run: Callable[[int], object], clock: Callable[[], float] = time.perf_counter) -> Repeat:
    """Make a function that times runs by a clock of this process."""

    def repeat(calls: int) -> float:
        start = clock()
        run(calls)
        return clock() - start

    return repeat


def take(repeat: Repeat, calls: int) -> float:
    """Take one sample: the seconds of one call, averaged over `calls` calls."""
    return repeat(calls) / calls


def measure(
    repeat: Repeat,
    *,
    warmup: int = 1,
    repeats: int = 10,
    min_repeat_ms: float = 1.0,
    before: Callable[[], None] | None = None,
) -> Timing:
    """Time a kernel.

    Args:
        repeat: calls the kernel n times and gives the total seconds.
        warmup: calls before the first sample.
        repeats: number of samples.
        min_repeat_ms: a sample makes as many calls as fill this time.
        before: run before each sample, untimed, to flush the cache for example. A sample is then a
            single call, since only the first call would see the effect of `before`.
    """
    if warmup:
        repeat(warmup)
    calls = 1
    if before is None and min_repeat_ms > 0:
        estimate = take(repeat, 1)
        while estimate * calls < min_repeat_ms * 1e-3 and calls < 1 << 24:
            # The first single call may be slow by chance: measure again at each size.
            calls = min(
                max(2 * calls, int(min_repeat_ms * 1e-3 / max(estimate, 1e-9)) + 1), 1 << 24
            )
            estimate = take(repeat, calls)
    samples = []
    for _ in range(max(1, repeats)):
        if before is not None:
            before()
        samples.append(take(repeat, calls))
    return Timing(tuple(samples), calls)


def beside_each_other(turns: Sequence[Sequence[float]]) -> list[float]:
    """Compare programs by samples that were taken in turns; gives the seconds of each program.

    Each sample is divided by the speed of its round, so a slow round (a lower clock, another
    process) does not count. A program's time is the median of its scaled samples. The programs with
    the most samples define the rounds; a program that was given up early has fewer samples.
    """
    most = max(map(len, turns))
    rounds = list(zip(*(samples for samples in turns if len(samples) == most), strict=True))
    speeds = [math.exp(statistics.fmean(map(math.log, times))) for times in rounds]
    scales = [statistics.median(speeds) / speed for speed in speeds]
    return [
        statistics.median(time * scale for time, scale in zip(samples, scales, strict=False))
        for samples in turns
    ]

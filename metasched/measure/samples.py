"""Timing of a program: samples of several calls each, alone or in turns with other programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from metasched.measure.priority import waited
from metasched.runtime.devices import Program
from metasched.runtime.timing import Repeat, take

_DISTURBED = 0.02  # a sample is taken again if it spent this share of its time waiting for a core
_RETAKES = 6  # tries for an undisturbed sample
_PATIENCE = 0.1  # seconds after which the tries end
SHORT = 1e-3  # one call of at least these seconds is a sample by itself
# A program this many times slower than another is dropped from the turns: after the warm-up run,
# after one sample, after two, and after more.
BEHIND = 10.0, 5.0, 5.0, 1.5
_WAKING = 4e-3  # in a call of at least these seconds the time to wake threads does not matter
_WARM = 0.02  # after a first run of these seconds caches and threads are warm


@dataclass(frozen=True, slots=True)
class TimingPlan:
    """How long a candidate is timed.

    Attributes:
        sample_ms: a sample makes as many calls as fill this time.
        samples: the most samples. Nine short samples beat three long samples of the same total
            time: the median ignores a disturbance of a few samples.
        budget_ms: about the total time of the samples. If a sample takes less than three budgets,
            at least three are taken; if it takes more than ten, only the warm-up run counts. A
            program that would be the best gets twice as many: the lowest of few times is biased.
        best: seconds of the best candidate so far, 0 for none yet.
        slower: sets the share of the samples that a candidate gets, by r, its fastest sample over
            the best: 1/5 for r > slower², 2/5 for r > slower, 3/5 for r > 1, else all.
        hopeless: a candidate this many times slower than the best gets only the warm-up run.
        anchor: a right program about as fast as the best, and its seconds. Candidates that are not
            hopeless are timed in turns with the anchor, and each sample is divided by the slowdown
            of the anchor. The speed of the machine drifts by more than candidates differ.
    """

    sample_ms: float = 2.5
    samples: int = 9
    budget_ms: float = 30.0
    best: float = 0.0
    slower: float = 1.2
    hopeless: float = 3.0
    anchor: tuple[Program, float] | None = None


def samples_of(
    repeat: Repeat,
    first: float,
    plan: TimingPlan,
    pace: Callable[[], float] = lambda: 1.0,
) -> tuple[float, ...]:
    """Time a program; the samples in seconds a call.

    The plan gives the number of samples: fewer for slow programs, one for hopeless programs.

    Args:
        repeat: calls the program a given number of times.
        first: seconds of its first run.
        pace: tells how many times slower than usual the machine is.
    """
    begun = first > _WARM
    warm_up = first if begun else _warmed(repeat)
    if plan.best and warm_up > plan.hopeless * plan.best:
        return (min(first, warm_up),)
    calls = max(1, int(plan.sample_ms * 1e-3 / max(warm_up, 1e-9)))
    estimate = warm_up * calls
    budget = plan.budget_ms * 1e-3
    if estimate > 10 * budget or (begun and not plan.best and estimate > 3 * budget):
        return (min(first, warm_up),)
    if 2 * warm_up < plan.best:  # twice as fast: turns with the slow anchor would take long
        pace = lambda: 1.0  # noqa: E731
    count = max(3 if estimate < 3 * budget else 1, min(plan.samples, int(budget / estimate)))
    twice = min(plan.samples, 2 * count)
    samples = [] if begun or calls > 1 else [warm_up / pace()]
    while len(samples) < count or (len(samples) < twice and median(samples) < plan.best):
        limit = plan.slower ** max(0.0, 3 - len(samples) * min(1.0, 5 / count)) * plan.best
        if samples and plan.best and min(samples) > limit:
            break
        samples.append(undisturbed(repeat, calls) / pace())
    return tuple(samples)


def _warmed(repeat: Repeat) -> float:
    """Seconds of a call when caches and threads are warm.

    The first call may take a millisecond to wake threads, and the time of a single short call is
    mostly overhead.
    """
    once = undisturbed(repeat, 1)
    if once >= _WAKING:
        return once
    single = undisturbed(repeat, 1)
    return single if single >= SHORT else undisturbed(repeat, int(SHORT / single) + 1)


def undisturbed(repeat: Repeat, calls: int) -> float:
    """A sample during which no thread waited for a core, if `_RETAKES` tries give one.

    The threads of a kernel meet at barriers, so a thread that waits for its core delays all others,
    and the sample is too long. Such a sample is taken again; if all are disturbed, the fastest
    counts.
    """
    best = math.inf
    spent = 0.0
    for _ in range(_RETAKES):
        before = waited()
        seconds = take(repeat, calls)
        lost, whole = waited() - before, seconds * calls
        if lost <= _DISTURBED * whole:
            return seconds
        best = min(best, seconds)
        spent += whole
        if spent > _PATIENCE:
            break
    return best


def in_turns(repeats: Sequence[Repeat], rounds: int, sample_ms: float) -> list[tuple[float, ...]]:
    """Samples of programs in turns, so that a disturbance affects all programs alike.

    A program behind the fastest by the factors of BEHIND gets fewer samples, at least one. Its
    warm-up run must show the distance twice: one slow run may be the machine's.
    """
    warm = [_warmed(repeat) for repeat in repeats]
    limit = min(warm, default=0.0) * BEHIND[0]
    for i, repeat in enumerate(repeats):
        if warm[i] > limit:
            warm[i] = min(warm[i], _warmed(repeat))
    runs = [
        (repeat, max(1, int(sample_ms * 1e-3 / max(once, 1e-9))), [once])
        for repeat, once in zip(repeats, warm, strict=True)
    ]
    out = [samples for _, _, samples in runs]
    for number in range(rounds):
        limit = min(map(max, out)) * BEHIND[min(number, 3)]
        for repeat, calls, samples in runs:
            if min(samples) <= limit:
                samples.append(undisturbed(repeat, calls))
    return [tuple(samples[1:] or samples) for samples in out]

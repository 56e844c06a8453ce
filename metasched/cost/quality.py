"""Rank quality: how well scores order programs by measured time, on tasks that were held out.

Three numbers, as in the papers on learnt cost models (Ansor, TenSet, TLP). The first is the share
of the pairs of programs of one task whose order is right. The other two are ratios: the best time
of a task over the best time among the programs with the highest score, or the five highest scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

# Two times with a smaller relative difference say nothing about the order.
NOISE = 0.03


@dataclass(frozen=True, slots=True)
class Sample:
    """The measured programs of one task.

    Attributes:
        task: key of the workload.
        group: tasks of one group are held out together (the name of the operator, say).
        vectors: the features of the programs, one row each.
        seconds: the times of the programs, infinity for failures.
    """

    task: str
    group: str
    vectors: np.ndarray
    seconds: np.ndarray


@dataclass(frozen=True, slots=True)
class Quality:
    """Rank quality: 1 is perfect; pairs at random are 0.5.

    Attributes:
        pairs: share of the pairs in the right order, without pairs whose times differ by less than
            NOISE.
        top1, top5: the best time divided by the best time among the first one (five) by score.
    """

    pairs: float
    top1: float
    top5: float

    @staticmethod
    def mean(of: Sequence[Quality]) -> Quality:
        """Over tasks, each counted once."""
        table = np.array([(q.pairs, q.top1, q.top5) for q in of])
        return Quality(*(float(v) for v in table.mean(axis=0)))


def agreement(scores: np.ndarray, seconds: np.ndarray, noise: float = NOISE) -> float:
    """The share of pairs that scores (higher is faster) order as the times do; equal scores count
    half. Times that differ by at most `noise` are no pair; without pairs the result is NaN.
    Failures count as slowest."""
    times = np.where(np.isfinite(seconds), seconds, 1e9)
    first, second = np.triu_indices(len(times), 1)
    slower = np.log(times[first] / times[second])
    distinct = np.abs(slower) > np.log1p(noise)
    if not distinct.any():
        return float("nan")
    gap = (scores[first] - scores[second])[distinct]
    right = np.where(gap == 0, 0.5, gap * slower[distinct] < 0)
    return float(right.mean())


def rank_quality(scores: np.ndarray, seconds: np.ndarray, noise: float = NOISE) -> Quality:
    """The quality of the scores of one task's programs."""
    order = np.argsort(-scores, kind="stable")
    best = seconds.min()
    pairs = agreement(scores, seconds, noise)
    return Quality(pairs, float(best / seconds[order[0]]), float(best / seconds[order[:5]].min()))


Scores = Callable[[np.ndarray], np.ndarray]


def held_out(
    samples: Sequence[Sample],
    train: Callable[[Sequence[Sample]], Scores],
    *,
    by_group: bool = False,
    folds: int = 8,
) -> list[Quality]:
    """The quality on each task of a model trained without the task, in the order of `samples`.

    Args:
        samples: all tasks; a task without two different times is left out.
        train: a function that learns from tasks and returns a function that scores vectors.
        by_group: hold out whole groups, so that no other shape of the operator is learnt from;
            otherwise hold out one fold of the tasks after another.
        folds: the number of folds, when not by group; the division is always the same.
    """
    useful = [s for s in samples if not np.isnan(agreement(np.zeros(len(s.seconds)), s.seconds))]
    found: dict[str, Quality] = {}
    for out in _folds(useful, by_group, folds):
        names = {s.task for s in out}
        scores = train([s for s in useful if s.task not in names])
        for sample in out:
            found[sample.task] = rank_quality(scores(sample.vectors), sample.seconds)
    return [found[s.task] for s in useful]


def _folds(samples: Sequence[Sample], by_group: bool, folds: int) -> Iterator[list[Sample]]:
    if by_group:
        for group in sorted({s.group for s in samples}):
            yield [s for s in samples if s.group == group]
        return
    order = np.random.default_rng(0).permutation(len(samples))
    for start in range(min(folds, len(samples))):
        yield [samples[int(n)] for n in order[start::folds]]

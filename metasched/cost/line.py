"""LineModel: a line fitted to the measured programs, over the scores of a prior.

The line needs NumPy alone, and replaces the trees where LightGBM cannot be loaded. The model of
trees derives from this class: both keep the data of a run, test a prior and are stored in the same
way.

A model may start from a prior: the line is fitted to the differences between the measured speeds
and the prior's scores. Once JUDGED programs of a task were measured, the prior is tested on them. A
prior that orders them no better than chance is dropped for the rest of the run.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from metasched.cost.features import CPU_FEATURE_SET, FeatureSet
from metasched.cost.model import Vectors
from metasched.cost.prior import Prior
from metasched.cost.quality import agreement
from metasched.cost.ridge import Ridge
from metasched.cost.trees import trees_of
from metasched.errors import DatabaseError, words

Scorer: TypeAlias = "Callable[[np.ndarray], np.ndarray]"

# Measured candidates below which scores are random, unless there is a prior.
WARM_UP = 8

# The line: the penalty of its weights, and the deviation of its scores, to which the trees add
# theirs. Distance from the optimum of the best in the top 14 of 100 programs of a depthwise
# convolution: after 32 measured programs 2 % with the line (7 % at a deviation of 1, the same from
# 2 to 5), 16 % with trees alone; after 128 programs 0.4 % and 2.7 %. On a convolution the two are
# alike from 64 programs on.
RIDGE, _STEEP = 0.5, 3.0

# The penalty of a line without trees, fitted to logarithms of time. On a simulated machine it puts
# 0.87 of the pairs right after 16 programs and 0.89 after 128. Fitted to speeds, like the line that
# trees begin from, it puts 0.81 and 0.87 right; the trees 0.83 and 0.88.
_ALONE = 2.0

_FAR = 4.0  # programs count as equally bad beyond this logarithm of the ratio of times

# A prior is dropped when it puts at most POOR of the pairs of a task in the right order (chance is
# 0.5). The first JUDGED programs of the task decide, by the pairs whose times differ by more than
# CLEAR. Chosen on 52 searches, each with a prior trained without its task. Priors dropped: 3 with
# these values; 7 with 8 programs and all pairs; 6 with 32 programs, since later programs are chosen
# to be alike and their pairs are hard for every model.
POOR, JUDGED, CLEAR = 0.5, 16, 0.05


class LineModel:
    """Ranks by a line; the same seed and the same data give the same scores.

    Args:
        seed: the seed of the random scores before the warm-up.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._rng = np.random.default_rng(seed)
        self._rows: list[np.ndarray] = []
        self._seconds: list[np.ndarray] = []
        self._tasks: list[str] = []
        self._line: Ridge | None = None
        self._trust = 1.0  # the weight of a prior's score beside the line
        self._fitted = 0
        self._prior: list[tuple[Scorer, float]] = []
        self._news = ""
        self._features = CPU_FEATURE_SET

    def take_features(self, features: FeatureSet) -> None:
        """Remember which feature set the vectors belong to, for the file that is saved."""
        self._features = features

    def start_from(self, prior: Prior) -> None:
        """Score by a prior until data of this run contradict it."""
        self._prior = [
            (self._scorer(text), scale)
            for text, scale in zip(prior.members, prior.scales, strict=True)
        ]
        origin = ", ".join(
            f"{prior.about[k]} {k}" for k in ("records", "tasks") if k in prior.about
        )
        self._news = f"started from a prior{f' ({origin})' if origin else ''}"
        self._judge()

    @property
    def ready(self) -> bool:
        """Whether scores are better than random: there is a prior, or enough was measured."""
        return bool(self._prior or self._line is not None)

    def news(self) -> str:
        """A message about the prior, given once; empty if there is none."""
        text, self._news = self._news, ""
        return text

    @property
    def size(self) -> int:
        """How many measured candidates the model knows."""
        return sum(len(s) for s in self._seconds)

    def update(self, task: str, vectors: Vectors, seconds: Sequence[float]) -> None:
        """Add one round of a task and fit again, unless the data grew by less than a sixteenth."""
        if len(vectors) != len(seconds):
            raise ValueError(f"{len(vectors)} vectors, {len(seconds)} times")
        if not len(vectors):
            return
        self._rows.append(np.asarray(vectors, np.float32))
        self._seconds.append(np.asarray(seconds, np.float64))
        self._tasks.append(task)
        self._judge()
        if self.size - self._fitted >= self._fitted / 16:
            self._fit()

    def knows(self, task: str) -> bool:
        """Whether the model has learnt from candidates of this task."""
        return task in self._tasks

    def predict(self, vectors: Vectors) -> np.ndarray:
        """A score for each candidate, higher is faster; random before the warm-up."""
        if not len(vectors) or not self.ready:
            return self._rng.random(len(vectors))
        rows = np.asarray(vectors, np.float32)
        scores = np.zeros(len(rows)) if self._line is None else self._line.predict(rows)
        found: np.ndarray = scores + self._trust * self._prior_scores(rows).mean(axis=0)
        return found

    def save(self, path: Path) -> None:
        """Write the data and the members; loading executes nothing."""
        with open(path, "wb") as file:
            none = np.zeros((0, len(self._features.names)), np.float32)
            np.savez_compressed(
                file,
                version=self._features.version,
                features=np.array(self._features.name, dtype=np.str_),
                rows=np.concatenate(self._rows or [none]),
                seconds=np.concatenate(self._seconds or [np.zeros(0)]),
                lengths=np.array([len(s) for s in self._seconds], np.int64),
                tasks=np.array(self._tasks, dtype=np.str_),
            )

    def load(self, path: Path) -> None:
        """Load saved data and fit.

        Raises:
            DatabaseError: the file is damaged, or of another version of the features.
        """
        try:
            with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
                data = {name: file[name] for name in file.files}
            version, lengths = int(data["version"]), data["lengths"]
            name = str(data.get("features", CPU_FEATURE_SET.name))  # older files have no name
            rows, seconds = data["rows"], data["seconds"]
            tasks = [str(t) for t in data["tasks"]]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise DatabaseError(f"cost model {path} cannot be read: {words(error)}") from error
        known = self._features
        if (name, version) != (known.name, known.version) or rows.shape[1:] != (len(known.names),):
            raise DatabaseError(
                f"cost model {path} holds features {name!r} of version {version}, not "
                f"{known.name!r} of version {known.version}"
            )
        if len(rows) != len(seconds) or lengths.sum() != len(rows) or len(tasks) != len(lengths):
            raise DatabaseError(f"cost model {path} is inconsistent")
        cuts = np.cumsum(lengths)[:-1]
        self._rows = np.split(rows, cuts) if len(rows) else []
        self._seconds = np.split(seconds, cuts) if len(rows) else []
        self._tasks = tasks
        self._judge()
        self._fit()

    def _scorer(self, text: str) -> Scorer:
        """Make a function that scores rows by one member of a prior."""
        return trees_of(text).predict

    def _prior_scores(self, rows: np.ndarray) -> np.ndarray:
        """The scores of the prior's members, zeros without one."""
        if not self._prior:
            return np.zeros((1, len(rows)))
        return np.stack([score(rows) * scale for score, scale in self._prior])

    def _measured(self) -> tuple[np.ndarray, list[np.ndarray]] | None:
        """The vectors of all tasks, one task after another, and the seconds of each task. None
        before the warm-up, or if no task has two different times."""
        if self.size < WARM_UP or all(len(set(s)) < 2 for s in self._seconds):
            return None
        queries = self._queries()
        rows = np.concatenate([self._rows[n] for query in queries for n in query])
        return rows, [np.concatenate([self._seconds[n] for n in query]) for query in queries]

    def _judge(self) -> None:
        """Drop the prior if it does not order the measured programs.

        Each task counts once, by its first JUDGED programs, which the prior was not trained on.
        """
        if not self._prior:
            return
        shares = []
        for query in self._queries():
            rows = np.concatenate([self._rows[n] for n in query])[:JUDGED]
            seconds = np.concatenate([self._seconds[n] for n in query])[:JUDGED]
            if len(rows) == JUDGED:
                shares.append(agreement(self._prior_scores(rows).mean(axis=0), seconds, CLEAR))
        known = [share for share in shares if not np.isnan(share)]
        if known and np.mean(known) <= POOR:
            self._prior = []
            self._forget()
            self._news = (
                f"dropped its prior, which put {100 * np.mean(known):.0f} % of the pairs of "
                f"measured programs in the right order, no more than chance"
            )

    def _queries(self) -> list[list[int]]:
        """The rounds of each task, in the order the tasks were met."""
        return [
            [n for n, other in enumerate(self._tasks) if other == task]
            for task in dict.fromkeys(self._tasks)
        ]

    def _forget(self) -> None:
        """Drop the fit to the scores of a prior which has been dropped."""
        self._line, self._fitted = None, 0

    def _fit(self) -> None:
        """Fit the line to the residual of the prior's scores, which are scaled to the measured
        speeds first."""
        measured = self._measured()
        if measured is None:
            return
        rows, times = measured
        targets = centred(np.concatenate([relative_logs(s) for s in times]), times)
        if self._prior:
            start = centred(self._prior_scores(rows).mean(axis=0), times)
            self._trust = max(float(start @ targets) / max(float(start @ start), 1e-12), 0.0)
            targets = targets - self._trust * start
        self._line = Ridge(rows, targets, _ALONE)
        self._fitted = self.size


class Regressor(Protocol):
    """Predicts a number for each row."""

    def predict(self, rows: np.ndarray) -> np.ndarray: ...


class LineRegression:
    """A regression on feature vectors by a line alone."""

    def __init__(self, rows: np.ndarray, targets: np.ndarray) -> None:
        self._line = Ridge(rows, targets, RIDGE / 5)

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """The predicted number for each row, relative to the mean of the targets."""
        return self._line.predict(rows)


def speeds(times: Sequence[np.ndarray]) -> np.ndarray:
    """The speed of each program relative to the fastest of its task, minus the task's mean.

    The result is scaled to the deviation of the line's scores; tasks follow one another.
    """
    shares = [(1.0 / s) / max(1.0 / s.min(), 1e-12) for s in times]
    joined = np.concatenate([s - s.mean() for s in shares])
    return joined * (_STEEP / max(float(joined.std()), 1e-12))


def relative_logs(seconds: np.ndarray) -> np.ndarray:
    """The logarithm of each program's speed relative to the median of its task; a failure counts as
    twice as slow as the slowest program."""
    right = seconds[np.isfinite(seconds)]
    if not len(right):
        return np.zeros(len(seconds))
    logs = np.log(np.where(np.isfinite(seconds), seconds, 2 * right.max()))
    found: np.ndarray = np.clip(np.log(np.median(right)) - logs, -_FAR, _FAR)
    return found


def centred(scores: np.ndarray, times: Sequence[np.ndarray]) -> np.ndarray:
    """Subtract from the scores of each task their mean; tasks follow one another."""
    parts = np.split(scores, np.cumsum([len(s) for s in times])[:-1])
    return np.concatenate([part - part.mean() for part in parts])

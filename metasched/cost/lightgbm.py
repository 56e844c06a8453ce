"""LightGBMModel: a small ensemble of gradient-boosted rankers over the candidates' vectors.

Times are ranked within one task (one query), so that the scales of different tasks do not matter.
(One query for each round as well, against noise between rounds, ranked worse: after 64 trials the
best of its top 16 reached 0.70 of the optimum against 0.79.) One thread: at these sizes a second
gains little, and an OpenMP team that spins between fits would disturb the kernels being timed.

Boosting begins from a line fitted to the same programs: trees say one thing of all that lies
beyond what was measured, where a line goes on (Friedman and Popescu join rules and lines). A model
may start from a prior instead: its scores are where boosting begins. As soon as the programs of a
task were measured it is judged by them, and when it orders them no better than chance it is
dropped, at once and for the rest of the run.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np

from metasched.cost.features import FEATURE_NAMES, FEATURE_VERSION
from metasched.cost.model import Vectors
from metasched.cost.prior import Prior
from metasched.cost.quality import Sample, Scores, agreement
from metasched.cost.ridge import Ridge
from metasched.errors import DatabaseError

# Distinct labels of a query: the fastest of them have the highest.
LEVELS = 31

# Measured candidates below which scores are random, unless there is a prior.
WARM_UP = 8

# The line: the penalty of its weights, and the deviation of its scores beside what the trees add.
# Of a hundred programs of a depthwise convolution the best of its top 14 was 2 % from the optimum
# after 32 measured ones (7 % at a deviation of 1, the same from 2 to 5), with trees alone 16 %;
# after 128 ones 0.4 and 2.7 %. On a convolution the two are alike from 64 on.
_RIDGE, _STEEP = 0.5, 3.0

# A prior that orders no more than this share of the pairs of a task rightly is dropped (chance is
# 0.5); so many first programs of the task decide, and of their pairs those whose times differ by
# more than that share. Of 52 searches three had dropped by this a prior trained without the task,
# by eight programs and pairs within the noise seven, by 32 programs six: later ones are chosen to
# be alike, and the pairs that were hard for the best model of all would be held against it.
POOR, JUDGED, CLEAR = 0.5, 16, 0.05


class LightGBMModel:
    """Ranks by LambdaMART; the same seed and the same data give the same scores.

    Args:
        seed: of the random scores before the warm-up and of the members' samples.
        members: models in the ensemble; their disagreement is `spread`.
        iterations: boosting rounds of a member.
    """

    def __init__(self, seed: int = 0, members: int = 2, iterations: int = 60) -> None:
        self.seed, self.members, self.iterations = seed, members, iterations
        self._rng = np.random.default_rng(seed)
        self._rows: list[np.ndarray] = []
        self._seconds: list[np.ndarray] = []
        self._tasks: list[str] = []
        self._boosters: list[Any] = []
        self._line: Ridge  # where there is no prior, once there are members
        self._fitted = 0
        self._prior: list[tuple[Any, float]] = []
        self._news = ""

    def start_from(self, prior: Prior) -> None:
        """Let a prior speak until data of this run say that it is wrong."""
        boosters = [lightgbm.Booster(model_str=text) for text in prior.members]
        self._prior = list(zip(boosters, prior.scales, strict=True))
        origin = ", ".join(
            f"{prior.about[k]} {k}" for k in ("records", "tasks") if k in prior.about
        )
        self._news = f"started from a prior{f' ({origin})' if origin else ''}"
        self._judge()

    @property
    def ready(self) -> bool:
        """Whether scores mean something: there is a prior, or enough was measured."""
        return bool(self._prior or self._boosters)

    def news(self) -> str:
        """What became of the prior, told once; empty when there is nothing to tell."""
        told, self._news = self._news, ""
        return told

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
        """Whether candidates of this task were learnt from."""
        return task in self._tasks

    def predict(self, vectors: Vectors) -> np.ndarray:
        """Mean score of the members, higher is faster; random before the warm-up."""
        return self.predict_with_spread(vectors)[0]

    def predict_with_spread(self, vectors: Vectors) -> tuple[np.ndarray, np.ndarray]:
        """Mean score and standard deviation over the members, for each candidate."""
        if not len(vectors):
            return np.zeros(0), np.zeros(0)
        if not self.ready:
            return self._rng.random(len(vectors)), np.ones(len(vectors))
        rows = np.asarray(vectors, np.float32)
        start = self._start(rows)
        if not self._boosters:
            return start.mean(axis=0), start.std(axis=0)
        scores = np.stack([b.predict(rows, num_threads=1) for b in self._boosters])
        return scores.mean(axis=0) + start.mean(axis=0), scores.std(axis=0)

    def save(self, path: Path) -> None:
        """Write the data and the members; loading executes nothing."""
        with open(path, "wb") as file:
            np.savez_compressed(
                file,
                version=FEATURE_VERSION,
                rows=np.concatenate(self._rows or [np.zeros((0, len(FEATURE_NAMES)), np.float32)]),
                seconds=np.concatenate(self._seconds or [np.zeros(0)]),
                lengths=np.array([len(s) for s in self._seconds], np.int64),
                tasks=np.array(self._tasks, dtype=np.str_),
            )

    def load(self, path: Path) -> None:
        """Take over saved data and fit.

        Raises:
            DatabaseError: the file is damaged, or of another version of the features.
        """
        try:
            with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
                data = {name: file[name] for name in file.files}
            version, lengths = int(data["version"]), data["lengths"]
            rows, seconds = data["rows"], data["seconds"]
            tasks = [str(t) for t in data["tasks"]]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise DatabaseError(f"cost model {path} cannot be read: {error}") from error
        if version != FEATURE_VERSION or rows.shape[1:] != (len(FEATURE_NAMES),):
            raise DatabaseError(
                f"cost model {path} holds features of version {version}, not {FEATURE_VERSION}"
            )
        if len(rows) != len(seconds) or lengths.sum() != len(rows) or len(tasks) != len(lengths):
            raise DatabaseError(f"cost model {path} is inconsistent")
        cuts = np.cumsum(lengths)[:-1]
        self._rows = np.split(rows, cuts) if len(rows) else []
        self._seconds = np.split(seconds, cuts) if len(rows) else []
        self._tasks = tasks
        self._judge()
        self._fit()

    def _start(self, rows: np.ndarray) -> np.ndarray:
        """What boosting begins from: the scores of the prior's members, or those of the line."""
        if not self._prior:
            return self._line.predict(rows)[None]
        return np.stack([b.predict(rows, num_threads=1) * scale for b, scale in self._prior])

    def _judge(self) -> None:
        """Drop the prior when it does not order what was measured.

        Each task counts once, by its first JUDGED programs; all are new to the prior.
        """
        if not self._prior:
            return
        shares = []
        for query in self._queries():
            rows = np.concatenate([self._rows[n] for n in query])[:JUDGED]
            seconds = np.concatenate([self._seconds[n] for n in query])[:JUDGED]
            if len(rows) == JUDGED:
                shares.append(agreement(self._start(rows).mean(axis=0), seconds, CLEAR))
        told = [share for share in shares if not np.isnan(share)]
        if told and np.mean(told) <= POOR:
            self._prior, self._boosters = [], []
            self._news = (
                f"dropped its prior, which put {100 * np.mean(told):.0f} % of the pairs of "
                f"measured programs in the right order, no more than chance"
            )

    def _queries(self) -> list[list[int]]:
        """The rounds of each task, in the order the tasks were met."""
        return [
            [n for n, other in enumerate(self._tasks) if other == task]
            for task in dict.fromkeys(self._tasks)
        ]

    def _fit(self) -> None:
        """Train every member on all data, where there is something to tell apart."""
        if self.size < WARM_UP or all(len(set(s)) < 2 for s in self._seconds):
            return
        queries = self._queries()
        rows = np.concatenate([self._rows[n] for query in queries for n in query])
        times = [np.concatenate([self._seconds[n] for n in query]) for query in queries]
        if not self._prior:
            self._line = Ridge(rows, _speeds(times), _RIDGE)
        start = self._start(rows).mean(axis=0)
        seeds = [self.seed * 1009 + member + 1 for member in range(self.members)]
        self._boosters = boosted(rows, times, _TRAIN, self.iterations, seeds, start)
        self._fitted = self.size


def _speeds(times: Sequence[np.ndarray]) -> np.ndarray:
    """How fast programs are beside the fastest of their task, about the task's mean, in the size
    that the line's scores shall have; of all tasks, one after another."""
    shares = [(1.0 / s) / max(1.0 / s.min(), 1e-12) for s in times]
    joined = np.concatenate([s - s.mean() for s in shares])
    return joined * (_STEEP / max(float(joined.std()), 1e-12))


class Regression:
    """Half of a line, and trees for what it leaves: how decisions look to a model of programs."""

    def __init__(self, rows: np.ndarray, targets: np.ndarray) -> None:
        self._line = Ridge(rows, targets / 2, _RIDGE / 5)
        data = lightgbm.Dataset(rows, targets - self._line.predict(rows), params=dict(_DATA))
        settings = {**_DATA, **_TRAIN, "objective": "regression", "feature_fraction": 1.0}
        self._trees = lightgbm.train(settings, data, 40)

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """The number that each row should have."""
        return self._line.predict(rows) + self._trees.predict(rows, num_threads=1)


def boosted(
    rows: np.ndarray,
    times: Sequence[np.ndarray],
    settings: dict[str, Any],
    iterations: int,
    seeds: Sequence[int],
    start: np.ndarray | None = None,
) -> list[Any]:
    """An ensemble of rankers, one for each seed.

    Args:
        rows: vectors of all tasks, one task after another.
        times: the seconds of each task.
        settings: LightGBM's, over those that the data need.
        iterations: boosting rounds.
        start: scores to begin from.
    """
    labels = np.concatenate([quantile_labels(s) for s in times])
    lengths = [len(s) for s in times]
    data = lightgbm.Dataset(
        rows, labels, group=lengths, init_score=start, free_raw_data=False, params=dict(_DATA)
    )
    return [lightgbm.train({**_DATA, **settings, "seed": seed}, data, iterations) for seed in seeds]


def train_prior(samples: Sequence[Sample]) -> Prior:
    """A prior from the records of many tasks: a ranker, a regression on the logarithm of time and
    one on the place among the programs of a task.

    They err in different ways: together they put more pairs of held-out tasks in the right order
    than the first two of them (0.834 against 0.828 of the pairs of 90 tasks). More and larger trees
    than those of a search pay off with many tasks (0.857 against 0.847, 242 tasks).
    """
    rows = np.concatenate([s.vectors for s in samples])
    times = [s.seconds for s in samples]
    members = boosted(rows, times, {**_TRAIN, **_GENERAL}, _GENERAL_ITERATIONS, [1])
    for seed, target in ((2, _relative_logs), (9, _places)):
        targets = np.concatenate([target(s) for s in times])
        settings = {**_DATA, **_TRAIN, **_GENERAL, "objective": "regression", "seed": seed}
        data = lightgbm.Dataset(rows, targets, free_raw_data=False, params=dict(_DATA))
        members.append(lightgbm.train(settings, data, _GENERAL_ITERATIONS))
    scales = [1.0 / max(float(np.std(b.predict(rows, num_threads=1))), 1e-9) for b in members]
    return Prior(tuple(slim(b.model_to_string()) for b in members), tuple(scales))


def _relative_logs(seconds: np.ndarray) -> np.ndarray:
    """How many times faster than the median of its task a program is, as a logarithm; a failure is
    a little slower than the slowest."""
    right = seconds[np.isfinite(seconds)]
    if not len(right):
        return np.zeros(len(seconds))
    logs = np.log(np.where(np.isfinite(seconds), seconds, 2 * right.max()))
    found: np.ndarray = np.clip(np.log(np.median(right)) - logs, -_FAR, _FAR)
    return found


def _places(seconds: np.ndarray) -> np.ndarray:
    """The place of a program among those of its task, from -1 for the slowest to 1."""
    return quantile_labels(seconds) * (2.0 / (LEVELS - 1)) - 1.0


_UNREAD = (
    "split_gain=", "leaf_weight=", "leaf_count=", "internal_value=", "internal_weight=",
    "internal_count=", "tree_sizes=",
)  # fmt: skip


def slim(model: str) -> str:
    """LightGBM's text without what only explains a model; predictions stay the same."""
    trees, _, _ = model.partition("end of trees")
    kept = (line for line in trees.splitlines() if not line.startswith(_UNREAD))
    return "\n".join(kept) + "\nend of trees\n"


def prior_scores(samples: Sequence[Sample]) -> Scores:
    """What a prior trained on these tasks would say: for `quality.held_out`."""
    model = LightGBMModel()
    model.start_from(train_prior(samples))
    return model.predict


_DATA: dict[str, Any] = {
    "max_bin": 63,
    "min_data_in_bin": 1,
    "feature_pre_filter": False,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}
_TRAIN: dict[str, Any] = {
    "objective": "lambdarank",
    "label_gain": [float(level) for level in range(LEVELS)],
    "lambdarank_truncation_level": 64,
    "learning_rate": 0.15,
    "num_leaves": 15,
    "min_data_in_leaf": 2,
    "min_sum_hessian_in_leaf": 1e-3,
    "lambda_l2": 1.0,
    "feature_fraction": 0.3,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
}
# What differs for a prior, by held-out rank quality and the size of the file.
_GENERAL: dict[str, Any] = {"learning_rate": 0.08, "num_leaves": 31, "min_data_in_leaf": 10}
_GENERAL_ITERATIONS = 180

_FAR = 4.0  # logarithm of a ratio of times beyond which all are equally bad


def quantile_labels(seconds: np.ndarray) -> np.ndarray:
    """Integer labels of one query, LEVELS - 1 for the fastest; equal times get equal labels.

    Failures (infinite times) get 0.
    """
    order, places = np.unique(seconds, return_inverse=True)
    counts = np.bincount(places)
    slower = len(seconds) - np.cumsum(counts)  # how many are slower than each distinct time
    labels = np.ceil(slower * (LEVELS - 1) / max(len(seconds) - 1, 1)).astype(np.int32)
    labels[~np.isfinite(order)] = 0
    return labels[places.reshape(-1)]

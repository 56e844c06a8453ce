"""LightGBMModel: a small ensemble of gradient-boosted rankers over the candidates' vectors.

Times are ranked within one task (one query), so the scales of different tasks do not matter. One
query for each round of a task would cancel noise between rounds, but ranks worse: after 64 trials
the best of its top 16 reached 0.70 of the optimum, against 0.79. Training uses one thread: the
training sets are too small for a second. An OpenMP team that spins between fits would also disturb
the kernels being timed.

Boosting begins from a line fitted to the same programs. Trees predict a constant beyond the
measured range, where a line extrapolates (Friedman and Popescu join rules and lines). With a prior,
boosting begins from the prior's scores instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightgbm
import numpy as np

from metasched.cost.line import RIDGE, LineModel, Scorer, relative_logs, speeds
from metasched.cost.model import Vectors
from metasched.cost.prior import Prior
from metasched.cost.quality import Sample, Scores
from metasched.cost.ridge import Ridge

# Distinct labels of a query; the fastest programs have the highest.
LEVELS = 31


class LightGBMModel(LineModel):
    """Ranks by LambdaMART; the same seed and the same data give the same scores.

    Args:
        seed: the seed of the random scores before the warm-up and of the members' samples.
        members: models in the ensemble; their disagreement is `spread`.
        iterations: boosting rounds of a member.
    """

    def __init__(self, seed: int = 0, members: int = 2, iterations: int = 60) -> None:
        super().__init__(seed)
        self.members, self.iterations = members, iterations
        self._boosters: list[Any] = []

    @property
    def ready(self) -> bool:
        """Whether scores are better than random: there is a prior, or enough was measured."""
        return bool(self._prior or self._boosters)

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

    def _scorer(self, text: str) -> Scorer:
        booster = lightgbm.Booster(model_str=text)
        return lambda rows: np.asarray(booster.predict(rows, num_threads=1))

    def _start(self, rows: np.ndarray) -> np.ndarray:
        """The scores from which boosting begins: by the prior's members, or by the line."""
        if self._prior or self._line is None:
            return self._prior_scores(rows)
        return self._line.predict(rows)[None]

    def _forget(self) -> None:
        """Drop the members that were boosted from a prior which has been dropped."""
        self._boosters = []

    def _fit(self) -> None:
        """Train every member on all data; nothing before the warm-up, or if no task has two
        different times."""
        measured = self._measured()
        if measured is None:
            return
        rows, times = measured
        if not self._prior:
            self._line = Ridge(rows, speeds(times), RIDGE)
        start = self._start(rows).mean(axis=0)
        seeds = [self.seed * 1009 + member + 1 for member in range(self.members)]
        self._boosters = boosted(rows, times, _TRAIN, self.iterations, seeds, start)
        self._fitted = self.size


class Regression:
    """A regression on feature vectors: a line at half weight, and trees for its residuals."""

    def __init__(self, rows: np.ndarray, targets: np.ndarray) -> None:
        self._line = Ridge(rows, targets / 2, RIDGE / 5)
        data = lightgbm.Dataset(rows, targets - self._line.predict(rows), params=dict(_DATA))
        settings = {**_DATA, **_TRAIN, "objective": "regression", "feature_fraction": 1.0}
        self._trees = lightgbm.train(settings, data, 40)

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """The predicted number for each row."""
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
        settings: LightGBM's settings; they override the settings that follow from the data.
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
    """Train a prior on the records of many tasks: a ranker and two regressions. One predicts the
    logarithm of time, the other the place among the programs of a task.

    The three models make different errors. Together they order 0.834 of the pairs of 90 held-out
    tasks correctly; the first two alone order 0.828. More and larger trees than in a search pay off
    with many tasks (0.857 against 0.847, 242 tasks).
    """
    rows = np.concatenate([s.vectors for s in samples])
    times = [s.seconds for s in samples]
    members = boosted(rows, times, {**_TRAIN, **_GENERAL}, _GENERAL_ITERATIONS, [1])
    for seed, target in ((2, relative_logs), (9, _places)):
        targets = np.concatenate([target(s) for s in times])
        settings = {**_DATA, **_TRAIN, **_GENERAL, "objective": "regression", "seed": seed}
        data = lightgbm.Dataset(rows, targets, free_raw_data=False, params=dict(_DATA))
        members.append(lightgbm.train(settings, data, _GENERAL_ITERATIONS))
    scales = [1.0 / max(float(np.std(b.predict(rows, num_threads=1))), 1e-9) for b in members]
    return Prior(tuple(slim(b.model_to_string()) for b in members), tuple(scales))


def _places(seconds: np.ndarray) -> np.ndarray:
    """The rank of each program within its task, from -1 for the slowest to 1 for the fastest."""
    return quantile_labels(seconds) * (2.0 / (LEVELS - 1)) - 1.0


_UNREAD = (
    "split_gain=", "leaf_weight=", "leaf_count=", "internal_value=", "internal_weight=",
    "internal_count=", "tree_sizes=",
)  # fmt: skip


def slim(model: str) -> str:
    """Remove from LightGBM's text the parts that only explain a model; predictions stay the
    same."""
    trees, _, _ = model.partition("end of trees")
    kept = (line for line in trees.splitlines() if not line.startswith(_UNREAD))
    return "\n".join(kept) + "\nend of trees\n"


def prior_scores(samples: Sequence[Sample]) -> Scores:
    """The scores of a prior trained on these tasks; `quality.held_out` calls them."""
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
# The settings of priors, chosen by held-out rank quality and the size of the file.
_GENERAL: dict[str, Any] = {"learning_rate": 0.08, "num_leaves": 31, "min_data_in_leaf": 10}
_GENERAL_ITERATIONS = 180


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

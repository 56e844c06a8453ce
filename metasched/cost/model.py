"""CostModel: ranks candidates before they are measured and learns from those that were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from metasched.cost.features import FeatureSet
from metasched.cost.prior import Prior
from metasched.registry import Registry

Vectors = Sequence[np.ndarray] | np.ndarray


class CostModel(Protocol):
    """What a search asks of a model; a plug-in is any class with these methods."""

    def update(self, task: str, vectors: Vectors, seconds: Sequence[float]) -> None:
        """Learn from one round of a task.

        Args:
            task: key of the workload; only candidates of one task are compared with each other.
            vectors: feature vectors of the measured candidates.
            seconds: their times; infinity for a candidate that failed.
        """

    def knows(self, task: str) -> bool:
        """Whether candidates of this task were learnt from."""

    def predict(self, vectors: Vectors) -> np.ndarray:
        """A score for each candidate, higher is faster; only the order has a meaning."""

    def news(self) -> str:
        """Something that the user should know of the model, told once; mostly empty."""

    def save(self, path: Path) -> None:
        """Write what was learnt."""

    def load(self, path: Path) -> None:
        """Take over what `save` wrote; raises DatabaseError when the file does not fit."""


# Name -> factory that takes a seed.
COST_MODELS: Registry[Callable[[int], CostModel]] = Registry("cost model")


@runtime_checkable
class TakesFeatures(Protocol):
    """A model that stores vectors and must know what their numbers mean."""

    def take_features(self, features: FeatureSet) -> None:
        """Told once, before anything else, which feature set the vectors are of."""


@runtime_checkable
class StartsFromPrior(Protocol):
    """A model that can begin with what earlier records on other tasks taught."""

    def start_from(self, prior: Prior) -> None:
        """Let a prior speak until data of this run say that it is wrong."""

    @property
    def ready(self) -> bool:
        """Whether scores mean something already."""


class RandomModel:
    """Ranks at random: the baseline that every model has to beat."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def update(self, task: str, vectors: Vectors, seconds: Sequence[float]) -> None:
        """Learn nothing."""

    def knows(self, task: str) -> bool:
        """Never."""
        return False

    def predict(self, vectors: Vectors) -> np.ndarray:
        """Independent uniform scores."""
        return self._rng.random(len(vectors))

    def news(self) -> str:
        """Nothing."""
        return ""

    def save(self, path: Path) -> None:
        """There is nothing to write."""

    def load(self, path: Path) -> None:
        """There is nothing to read."""

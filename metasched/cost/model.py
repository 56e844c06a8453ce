"""CostModel: ranks candidates before they are measured and learns from those that were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

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

    def save(self, path: Path) -> None:
        """Write what was learnt."""

    def load(self, path: Path) -> None:
        """Take over what `save` wrote; raises DatabaseError when the file does not fit."""


COST_MODELS: Registry[Callable[[int], CostModel]] = Registry("cost model")
"""Name -> factory that takes a seed."""


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

    def save(self, path: Path) -> None:
        """There is nothing to write."""

    def load(self, path: Path) -> None:
        """There is nothing to read."""

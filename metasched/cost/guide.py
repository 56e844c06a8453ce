"""Guide: ranks the programs of a task without any measurement.

The guide adds three scores with different errors: the prior of the machine itself, the priors of
other machines, and the machine model's estimate of all cycles. A prior ranks programs well that
resemble its training programs; the estimate needs no training programs. Measured on 23 programs
(odd shapes, and operators that no prior had seen): the first choice by the machine's prior reached
0.89 of the best measured speed. By all three scores it reached 0.94, without the term for guards
0.92.

The weights were chosen on the programs of 45 searches: 12 shapes of the suite, 10 odd shapes and 23
kernels of PolyBench. The first choice reaches 0.92, 0.89 and 0.85 of the best speed; with half the
weight of the estimate and a quarter of the weight of guards 0.92, 0.89 and 0.83.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from metasched.cost.features import FEATURE_NAMES
from metasched.cost.line import LineModel
from metasched.cost.model import CostModel, Vectors
from metasched.cost.prior import Prior

OWN, OTHER, ESTIMATE = 2.0, 1.0, 2.0
"""Weights of the scores: this machine's prior, all other priors together, and the machine model's
estimate (a logarithm to base 2)."""
GUARD = 1.6
"""The cost of each condition around the innermost block; the estimate does not include it."""
_CYCLES, _GUARDS = (FEATURE_NAMES.index(f"machine.{name}") for name in ("all", "block.guards"))


class Guide(CostModel):
    """A cost model that learns nothing and needs no LightGBM.

    Args:
        own: the prior of the machine itself, or the prior for all machines; None without a prior.
        others: the priors of other machines.
    """

    ready = True

    def __init__(self, own: Prior | None, others: Sequence[Prior] = ()) -> None:
        weighed = [(own, OWN)] if own is not None else []
        weighed += [(other, OTHER / len(others)) for other in others]
        self._judges = [(_scored_by(prior), weight) for prior, weight in weighed]

    def predict(self, vectors: Vectors) -> np.ndarray:
        """A score for each program, higher is faster."""
        rows = np.asarray(vectors, np.float32)
        estimate = rows[:, _CYCLES] + GUARD / ESTIMATE * rows[:, _GUARDS]
        scores: np.ndarray = -ESTIMATE * estimate.astype(np.float64)
        for model, weight in self._judges:
            scores = scores + weight * model.predict(rows)
        return scores

    def update(self, task: str, vectors: Vectors, seconds: Sequence[float]) -> None:
        """Learn nothing."""

    def save(self, path: Path) -> None:
        """There is nothing to write."""

    def load(self, path: Path) -> None:
        """There is nothing to read."""


def _scored_by(prior: Prior) -> LineModel:
    model = LineModel()
    model.start_from(prior)
    return model

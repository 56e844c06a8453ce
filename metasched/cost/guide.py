"""Guide: ranks the programs of a task without any measurement.

The guide adds three scores with different errors: the prior of the machine itself, the priors of
other machines, and an estimate of all cycles. A machine without a prior of its own takes all priors
joined for its own. A prior ranks programs well that resemble its
training programs; the estimate needs no training programs.

The estimate is a weighted sum of the machine model's parts. The weights were chosen on 275 tasks
(the suite, low precision, PolyBench, 117 programs of other kinds) with 8,581 measured programs, on
a Zen 4; weights from half to twice these values change the share of the best speed by at most 0.02.

The weights of the scores were tried on autoscheduled programs of 71 shapes of the suite on a Zen 4,
measured beside the best of 28 trials. The geometric mean of the rate is 0.96 with the weights below
and 0.92 with half the weight of the prior. With priors trained without the operator in question it
is 0.91 with either, and 0.94 without a prior. On a Zen 5, 76 programs of the suite, of odd shapes
and of other kinds, beside the best of 24 trials: 0.90 with the prior of an Emerald Rapids, 0.92
with the prior of a Zen 4, 0.93 with both joined. Its own prior gives 0.96 of 64 trials on 71
shapes; priors of its own without the operator in question give 0.91.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path

import numpy as np

from metasched.cost.features import FEATURE_NAMES
from metasched.cost.line import LineModel
from metasched.cost.model import CostModel, Vectors
from metasched.cost.prior import Prior

OWN, OTHER, ESTIMATE = 1.2, 0.4, 3.0
"""Weights of the scores: this machine's prior, all other priors together, and the estimate (a
logarithm to base 2)."""
PARTS = {
    "compute": 2.0, "loads": 2.0, "l1_l2": 0.5, "l2_l3": 0.5, "l3_memory": 1.0,
    "loop_steps": 1.0, "launch": 2.0, "block.pages": 4.0,
}  # fmt: skip
"""Weights of the parts of the estimate. Traffic between caches overlaps with arithmetic for the
most part; loads that the model counts as one cycle for `pipes` of them take longer."""
BEYOND = 2.0
"""The weight of traffic from memory where the last cache does not hold all buffers of the program:
time tiling of such a grid doubles its speed."""
CONDITION, GUARD = 2.0, 0.4
"""The cost of each condition around the innermost block, which the model does not include: this
many times the cycles of a loop step, and this much of the score, since the loop may lose its
vectors."""
_PARTS = [FEATURE_NAMES.index(f"machine.{name}") for name in PARTS]
_STEPS, _MEMORY = list(PARTS).index("loop_steps"), list(PARTS).index("l3_memory")
_GUARDS = FEATURE_NAMES.index("machine.block.guards")
_FOOTPRINT = FEATURE_NAMES.index("machine.footprint")
_LEAST = 1e-3  # what `machine_features` adds to each share before the logarithm


class Guide(CostModel):
    """A cost model that learns nothing and needs no LightGBM.

    Args:
        own: the prior of the machine itself, or all priors joined; None without a prior.
        others: the priors of other machines.
        held: how many times as much as the second cache the last cache holds.
    """

    ready = True

    def __init__(self, own: Prior | None, others: Sequence[Prior] = (), held: float = inf) -> None:
        self._held = held
        self._known: dict[bytes, float] = {}
        weighed = [(own, OWN)] if own is not None else []
        weighed += [(other, OTHER / len(others)) for other in others]
        self._judges = [(_scored_by(prior), weight) for prior, weight in weighed]

    def predict(self, vectors: Vectors) -> np.ndarray:
        """A score for each program, higher is faster; the scores are kept for the next call."""
        rows = np.asarray(vectors, np.float32)
        keys = [row.tobytes() for row in rows]
        new = {key: row for key, row in zip(keys, rows, strict=True) if key not in self._known}
        if new:
            self._known.update(zip(new, self._scores(np.stack(list(new.values()))), strict=True))
        return np.array([self._known[key] for key in keys], np.float64)

    def _scores(self, rows: np.ndarray) -> np.ndarray:
        shares = np.maximum(np.exp2(rows[:, _PARTS].astype(np.float64)) - _LEAST, 0.0)
        guards = rows[:, _GUARDS].astype(np.float64)
        beyond = np.exp2(rows[:, _FOOTPRINT].astype(np.float64)) > self._held
        shares[beyond, _MEMORY] *= BEYOND / PARTS["l3_memory"]
        cycles = shares @ list(PARTS.values()) + CONDITION * guards * shares[:, _STEPS]
        scores: np.ndarray = -ESTIMATE * np.log2(cycles + _LEAST) - GUARD * guards
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

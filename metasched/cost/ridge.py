"""Ridge regression on standardised columns; unlike trees, it extrapolates beyond its data."""

from __future__ import annotations

import numpy as np

_BEYOND = 4.0  # a column counts at most this many standard deviations from its mean
_SAME = 1e-9  # a smaller standard deviation counts as zero


class Ridge:
    """A line through rows of numbers (Hoerl and Kennard).

    Args:
        rows: the columns of each point.
        targets: a number for each row.
        weight: the penalty of a coefficient, as a share of the number of rows.
    """

    def __init__(self, rows: np.ndarray, targets: np.ndarray, weight: float) -> None:
        spread = rows.std(axis=0, dtype=np.float64)
        self._mean = rows.mean(axis=0, dtype=np.float64)
        self._scale = np.where(spread > _SAME, spread, np.inf)
        x = self._standard(rows)
        gram = x.T @ x + weight * len(x) * np.eye(x.shape[1])
        self._weights = np.linalg.solve(gram, x.T @ targets)

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """The predicted number of each row minus the mean of the targets. A column that was always
        the same has no effect."""
        return self._standard(rows) @ self._weights

    def _standard(self, rows: np.ndarray) -> np.ndarray:
        x: np.ndarray = np.clip((rows - self._mean) / self._scale, -_BEYOND, _BEYOND)
        return x

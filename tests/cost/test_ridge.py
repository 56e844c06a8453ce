"""Ridge regression: a line goes on beyond its data."""

from __future__ import annotations

import numpy as np

from metasched.cost.ridge import Ridge

RNG = np.random.default_rng(2)


def test_a_line_goes_on_beyond_what_it_was_fitted_to():
    known, beyond = RNG.uniform(0, 4, (40, 3)), RNG.uniform(4, 6, (40, 3))
    slope = np.array([1.0, -2.0, 0.5])
    line = Ridge(known, known @ slope, 0.01)
    assert np.corrcoef(line.predict(beyond), beyond @ slope)[0, 1] > 0.99


def test_a_column_that_was_always_the_same_says_nothing():
    rows = RNG.random((30, 2))
    rows[:, 1] = 7.0
    line = Ridge(rows, rows[:, 0], 0.01)
    other = rows.copy()
    other[:, 1] = -1e6
    np.testing.assert_array_equal(line.predict(rows), line.predict(other))


def test_equal_targets_say_nothing():
    rows = RNG.random((30, 2))
    assert not Ridge(rows, np.zeros(30), 0.5).predict(rows).any()


def test_ridge_predictions_are_bounded_far_from_the_data():
    rows = RNG.random((30, 2))
    line = Ridge(rows, rows[:, 0], 0.01)
    far, farther = (line.predict(np.full((1, 2), v)) for v in (1e3, 1e6))
    np.testing.assert_array_equal(far, farther)

"""Models without LightGBM: trees read by NumPy score as LightGBM does, and the line ranks."""

from __future__ import annotations

import dataclasses
import re

import lightgbm
import numpy as np
import pytest
from cost.tiled import sample

from metasched.cost import COST_MODELS
from metasched.cost.features import features
from metasched.cost.lightgbm import LightGBMModel, slim, train_prior
from metasched.cost.line import JUDGED, LineModel, LineRegression
from metasched.cost.prior import Prior, every_shipped
from metasched.cost.quality import Sample, agreement
from metasched.cost.trees import Trees
from metasched.errors import DatabaseError
from metasched.target import Target

TARGET = Target.of("llvm -mcpu=haswell -num-cores=2")


def task(name, n, seed, count=96):
    programs, seconds = sample(count, seed=seed, n=n)
    return Sample(name, name, np.stack([features(p, TARGET) for p in programs]), seconds)


@pytest.fixture(scope="module")
def other():
    return task("held out", 256, 5, 200)


@pytest.fixture(scope="module")
def prior():
    return train_prior([task("a", 128, 1), task("b", 512, 2)])


def test_the_shipped_priors_score_as_with_lightgbm(other):
    shift = np.random.default_rng(0).normal(0, 3, (40, other.vectors.shape[1]))
    rows = np.concatenate([other.vectors, other.vectors[:40] + shift]).astype(np.float32)
    for path in every_shipped():
        for text in Prior.load(path).members:
            expected = lightgbm.Booster(model_str=text).predict(rows)
            np.testing.assert_allclose(Trees(text).predict(rows), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "settings", [{}, {"zero_as_missing": True}, {"use_missing": False}, {"num_leaves": 2}]
)
def test_missing_values_go_where_lightgbm_sends_them(settings):
    rng = np.random.default_rng(3)
    rows = rng.integers(-2, 3, (400, 4)).astype(np.float64)
    rows[rng.random(rows.shape) < 0.2] = np.nan
    targets = np.nan_to_num(rows, nan=1.5) @ [1.0, 2.0, -1.0, 0.5] + 3 * np.isnan(rows[:, 0])
    options = {"objective": "regression", "verbosity": -1, "num_leaves": 8, **settings}
    booster = lightgbm.train(options, lightgbm.Dataset(rows, targets, params=options), 20)
    trees = Trees(slim(booster.model_to_string()))
    np.testing.assert_allclose(trees.predict(rows), booster.predict(rows), atol=1e-12)
    assert trees.predict(rows[:0]).shape == (0,)


def test_a_tree_of_one_leaf():
    data = lightgbm.Dataset(np.ones((30, 2)), np.full(30, 4.0))
    booster = lightgbm.train({"objective": "regression", "verbosity": -1}, data, 3)
    rows = np.zeros((5, 2))
    text = booster.model_to_string()
    np.testing.assert_allclose(Trees(text).predict(rows), booster.predict(rows))


@pytest.mark.parametrize(
    ("pattern", "to"),
    [
        (r"(?s).*", "nonsense"),
        (r"(?s)\nTree=.*", "\nend of trees\n"),
        (r"max_feature_idx=\d+", "max_feature_idx=0"),
        (r"num_leaves=\d+", "num_leaves=2"),
        (r"num_leaves=\d+", "num_leaves=many"),
        (r"left_child=\S+", "left_child=900"),
        (r"left_child=\S+ ", "left_child=0 1 "),
        (r"threshold=\S+", "threshold=x"),
        (r"decision_type=\S+", "decision_type=1"),
        (r"is_linear=0", "is_linear=1"),
        (r"left_child=\S+ \S+ ", "left_child=1 0 "),
    ],
)
def test_a_damaged_model_is_refused(prior, pattern, to):
    text = re.sub(pattern, to, prior.members[0], count=1)
    assert text != prior.members[0]
    with pytest.raises(DatabaseError, match="a model's text cannot be read"):
        Trees(text)


def test_a_damaged_prior_is_refused_when_the_model_starts(prior):
    broken = dataclasses.replace(prior, members=("tree\n",) * 3)
    with pytest.raises(DatabaseError, match="cannot be read"):
        LineModel().start_from(broken)


def test_the_line_ranks_unseen_programs(other):
    X, y = other.vectors, other.seconds
    model = COST_MODELS.get("line")(0)
    assert not model.ready and not model.knows("t")
    model.update("t", X[:7], y[:7])
    assert not model.ready and sorted(model.predict(X[:3])) != [0, 0, 0]
    model.update("t", X[7:96], y[7:96])
    assert model.ready and model.knows("t")
    assert agreement(model.predict(X[96:]), y[96:]) > 0.7


def test_the_prior_speaks_first_and_the_line_corrects_it(prior, other):
    X, y = other.vectors, other.seconds
    model, trees = LineModel(0), LightGBMModel(0)
    for each in (model, trees):
        each.start_from(prior)
    assert model.ready and model.news().startswith("started from a prior")
    np.testing.assert_allclose(model.predict(X), trees.predict(X), atol=1e-9)
    half = dataclasses.replace(prior, members=prior.members[:1], scales=prior.scales[:1])
    model.start_from(half)
    before = agreement(model.predict(X[96:]), y[96:])
    model.update("t", X[:96], y[:96])
    assert agreement(model.predict(X[96:]), y[96:]) > before > 0.75


def test_a_prior_that_is_wrong_is_dropped(prior, other):
    X, y = other.vectors, other.seconds
    model, plain = LineModel(0), LineModel(0)
    model.start_from(prior)
    model.news()
    for each in (model, plain):
        each.update("t", X[:JUDGED], 1 / y[:JUDGED])
    assert "dropped its prior" in model.news()
    np.testing.assert_array_equal(model.predict(X), plain.predict(X))


def test_line_and_tree_models_load_a_stored_line_model(other, tmp_path):
    X, y = other.vectors, other.seconds
    model, path = LineModel(0), tmp_path / "model.npz"
    model.update("t", X[:64], y[:64])
    model.save(path)
    again, trees = LineModel(0), LightGBMModel(0)
    for each in (again, trees):
        each.load(path)
        assert each.knows("t") and each.size == 64
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_the_regression_of_decisions_is_a_line():
    rows = np.random.default_rng(0).normal(size=(60, 3))
    line = LineRegression(rows, rows @ [1.0, -2.0, 0.0])
    assert np.corrcoef(line.predict(rows), rows @ [1.0, -2.0, 0.0])[0, 1] > 0.99

"""The ranker: finds the fast ones of a made-up machine, repeats itself, survives odd data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cost.tiled import sample

from metasched.cost import COST_MODELS, line
from metasched.cost.features import CPU_FEATURE_SET, FEATURE_NAMES, FEATURE_VERSION, features
from metasched.cost.lightgbm import LEVELS, LightGBMModel, Regression, quantile_labels
from metasched.cost.model import RandomModel
from metasched.errors import DatabaseError
from metasched.target import Target

TARGET = Target.of("llvm -mcpu=haswell -num-cores=2")
INF = float("inf")


@pytest.fixture(scope="module")
def data():
    programs, times = sample(420, seed=11)
    return np.stack([features(p, TARGET) for p in programs]), times


def trained(data, rounds, seed=0, **arguments):
    X, y = data
    model = LightGBMModel(seed, **arguments)
    for r in range(rounds):
        part = slice(16 * r, 16 * r + 16)
        model.update("matmul", X[part], y[part])
    return model


def rank(values):
    return np.argsort(np.argsort(values))


def test_ranks_unseen_programs(data):
    X, y = data[0][240:], data[1][240:]
    few, many = trained(data, 4).predict(X), trained(data, 15).predict(X)
    assert np.corrcoef(rank(few), rank(-y))[0, 1] > 0.6
    assert np.corrcoef(rank(many), rank(-y))[0, 1] > 0.8
    best = np.sort(y)[:16].mean()
    assert y[np.argsort(-many)[:16]].mean() < 4 * best < np.median(y)


def test_same_seed_same_data_same_scores(data):
    a, b, c = trained(data, 4), trained(data, 4), trained(data, 4, seed=1)
    X = data[0][240:]
    np.testing.assert_array_equal(a.predict(X), b.predict(X))
    assert not np.array_equal(a.predict(X), c.predict(X))


def test_random_before_the_warm_up():
    X = np.zeros((4, len(FEATURE_NAMES)), np.float32)
    a, b = LightGBMModel(3), LightGBMModel(3)
    a.update("t", X, [1.0, 2.0, 3.0, 4.0])
    assert a.size == 4
    score, spread = a.predict_with_spread(X)
    assert len(set(score)) == 4
    assert (spread == 1).all()
    np.testing.assert_array_equal(score, b.predict(X))


def test_no_candidates():
    model = LightGBMModel()
    model.update("t", [], [])
    assert model.size == 0
    assert model.predict([]).shape == (0,)


def test_failures_rank_last(data):
    X, y = data
    broken = X[:, FEATURE_NAMES.index("max.vectorized.inner")] < 3
    y = np.where(broken, INF, y)
    model = LightGBMModel(0)
    for r in range(10):
        model.update("matmul", X[16 * r : 16 * r + 16], y[16 * r : 16 * r + 16])
    score = model.predict(X[240:])
    fails = broken[240:]
    assert score[fails].mean() < score[~fails].mean()
    assert np.isfinite(score).all()


def test_all_failed_or_all_equal_learns_nothing():
    X = np.random.default_rng(0).random((16, len(FEATURE_NAMES)), np.float32)
    for times in ([INF] * 16, [1.0] * 16):
        model = LightGBMModel()
        model.update("t", X, times)
        assert not model._boosters
        assert np.isfinite(model.predict(X)).all()


def test_tasks_of_other_scales_are_not_compared(data):
    X, y = data
    model = LightGBMModel()
    for r in range(6):
        part = slice(16 * r, 16 * r + 16)
        model.update(f"task{r % 2}", X[part], y[part] * (1000.0 if r % 2 else 1.0))
    score = model.predict(X[240:])
    assert np.corrcoef(rank(score), rank(-y[240:]))[0, 1] > 0.6


def test_members_disagree(data):
    _, spread = trained(data, 4, members=3).predict_with_spread(data[0][240:])
    assert (spread > 0).mean() > 0.9


def test_fits_again_only_when_the_data_grew(data):
    X, y = data
    model = trained(data, 15)
    fitted = model._fitted
    model.update("matmul", X[:4], y[:4])
    assert model.size == fitted + 4
    assert model._fitted == fitted


def test_save_and_load(data, tmp_path):
    model = trained(data, 4)
    path = tmp_path / "model.npz"
    model.save(path)
    other = LightGBMModel(0)
    other.load(path)
    assert other.size == 64
    np.testing.assert_array_equal(other.predict(data[0][240:]), model.predict(data[0][240:]))
    empty = LightGBMModel(0)
    empty.save(path)
    other.load(path)
    assert other.size == 0


def test_load_refuses_what_does_not_fit(data, tmp_path, monkeypatch):
    path = tmp_path / "model.npz"
    with pytest.raises(DatabaseError, match=r"cost model .*model.npz cannot be read"):
        LightGBMModel().load(path)
    path.write_bytes(b"PK nonsense")
    with pytest.raises(DatabaseError, match="cannot be read"):
        LightGBMModel().load(path)
    trained(data, 1).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(DatabaseError, match="cannot be read"):
        LightGBMModel().load(path)
    trained(data, 1).save(path)
    monkeypatch.setattr(line, "CPU_FEATURE_SET", replace(CPU_FEATURE_SET, version=99))
    with pytest.raises(DatabaseError, match="version 5, not .* 99"):
        LightGBMModel().load(path)


def test_load_refuses_inconsistent_data(tmp_path):
    path = tmp_path / "model.npz"
    rows = np.zeros((3, len(FEATURE_NAMES)), np.float32)
    parts = {"rows": rows, "seconds": np.zeros(2), "lengths": np.array([3])}
    np.savez(path, version=FEATURE_VERSION, tasks=np.array(["t"]), **parts)
    with pytest.raises(DatabaseError, match="is inconsistent"):
        LightGBMModel().load(path)


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="1 vectors, 2 times"):
        LightGBMModel().update("t", np.zeros((1, len(FEATURE_NAMES))), [1.0, 2.0])


def test_labels():
    labels = quantile_labels(np.arange(float(LEVELS)))
    assert list(labels) == list(range(LEVELS - 1, -1, -1))
    assert list(quantile_labels(np.array([2.0, 1.0, 2.0, INF]))) == [10, 30, 10, 0]
    assert list(quantile_labels(np.array([1.0]))) == [0]
    assert quantile_labels(np.arange(500.0)).max() == LEVELS - 1


def test_models_by_name():
    assert isinstance(COST_MODELS.get("random")(0), RandomModel)
    assert isinstance(COST_MODELS.get("lightgbm")(0), LightGBMModel)


def test_random_model(tmp_path):
    a, b = RandomModel(1), RandomModel(1)
    a.update("t", [], [])
    np.testing.assert_array_equal(a.predict([0] * 5), b.predict([0] * 5))
    a.save(tmp_path / "x")
    a.load(tmp_path / "x")


def test_a_line_leads_on_where_trees_have_seen_nothing(data):
    """Of what lies beyond all measured programs the one farthest that way is expected fastest."""
    X = np.repeat(data[0][:1], 48, axis=0)
    X[:, 3] = np.linspace(0.0, 1.0, len(X))
    model = LightGBMModel(0)
    model.update("t", X, np.exp(-X[:, 3]))
    beyond = X[:5].copy()
    beyond[:, 3] = [1.6, 1.2, 1.1, 1.4, 1.3]
    np.testing.assert_array_equal(rank(model.predict(beyond)), rank(beyond[:, 3]))
    members = np.stack([b.predict(beyond, num_threads=1) for b in model._boosters])
    assert np.ptp(members, axis=1).max() == 0.0


def test_a_regression_finds_a_summit_and_invents_none_far_out():
    rng = np.random.default_rng(2)
    rows = rng.uniform(0, 6, (300, 5))
    truth = -((rows[:, 1] - 2) ** 2) - 0.5 * (rows[:, 4] - 3) ** 2
    model = Regression(rows[:150], truth[:150])
    assert np.corrcoef(model.predict(rows[150:]), truth[150:])[0, 1] > 0.95
    far = rng.uniform(-20, 26, (300, 5))
    assert model.predict(far).max() < truth.max() + 2.0


def test_a_round_of_nothing_in_a_file_is_no_harm(tmp_path):
    path = tmp_path / "model.npz"
    rows = np.random.default_rng(0).random((12, len(FEATURE_NAMES)), np.float32)
    parts = {"rows": rows, "seconds": np.arange(1.0, 13.0), "lengths": np.array([0, 12])}
    np.savez(path, version=FEATURE_VERSION, tasks=np.array(["t", "t"]), **parts)
    model = LightGBMModel()
    model.load(path)
    assert model.size == 12 and model.ready

"""The prior: its file, what a model does with it, and when it is dropped."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

import lightgbm
import numpy as np
import pytest
from cost.tiled import sample

from metasched.cost import prior as module
from metasched.cost.features import CPU_FEATURE_SET, FEATURE_NAMES, features
from metasched.cost.lightgbm import LightGBMModel, boosted, slim, train_prior
from metasched.cost.line import JUDGED, LineModel
from metasched.cost.prior import Prior, joined, shipped
from metasched.cost.quality import Sample, agreement
from metasched.errors import DatabaseError
from metasched.target import Target

TARGET = Target.of("llvm -mcpu=haswell -num-cores=2")


def task(name, n, seed, count=96):
    programs, seconds = sample(count, seed=seed, n=n)
    return Sample(name, name, np.stack([features(p, TARGET) for p in programs]), seconds)


@pytest.fixture(scope="module")
def other():
    """A product of another size than those the prior was trained on."""
    return task("held out", 256, 5)


@pytest.fixture(scope="module")
def prior():
    return train_prior([task("a", 128, 1), task("b", 512, 2)])


def started(prior):
    model = LightGBMModel(0)
    model.start_from(prior)
    return model


def test_a_prior_ranks_a_task_it_has_not_seen(prior, other):
    model = started(prior)
    assert model.ready and not LightGBMModel(0).ready
    assert agreement(model.predict(other.vectors), other.seconds) > 0.75


def test_the_first_rounds_go_on_from_the_prior(prior, other):
    X, y = other.vectors, other.seconds
    with_prior, without = started(prior), LightGBMModel(0)
    for model in (with_prior, without):
        model.update("t", X[:16], y[:16])
    rest = [agreement(m.predict(X[16:]), y[16:]) for m in (with_prior, without)]
    assert rest[0] > rest[1]
    assert with_prior.predict_with_spread(X)[1].shape == (len(X),)


def test_a_prior_that_orders_no_better_than_chance_is_dropped(prior, other):
    X, y = other.vectors, other.seconds
    model = started(prior)
    assert model.news().startswith("started from a prior") and model.news() == ""
    model.update("t", X[: JUDGED - 1], 1 / y[: JUDGED - 1])
    assert model.news() == ""  # too few to judge by
    alike = started(prior)
    assert alike.news()
    alike.update("t", X[:JUDGED], 1.0 - 0.03 * y[:JUDGED] / y.max())
    assert alike.news() == "" and alike.ready  # their times hardly differ
    model.update("t", X[JUDGED - 1 : JUDGED], 1 / y[JUDGED - 1 : JUDGED])
    assert "dropped its prior, which put" in model.news()
    plain = LightGBMModel(0)
    plain.update("t", X[: JUDGED - 1], 1 / y[: JUDGED - 1])
    plain.update("t", X[JUDGED - 1 : JUDGED], 1 / y[JUDGED - 1 : JUDGED])
    np.testing.assert_array_equal(model.predict(X), plain.predict(X))


def test_data_of_earlier_runs_judge_too(prior, other, tmp_path):
    wrong = LightGBMModel(0)
    wrong.update("t", other.vectors[:32], 1 / other.seconds[:32])
    wrong.save(tmp_path / "model.npz")
    model = started(prior)
    model.load(tmp_path / "model.npz")
    assert "dropped" in model.news()


def test_save_and_load(prior, other, tmp_path):
    path = tmp_path / "prior.txt"
    dataclasses.replace(prior, about={"records": 192, "tasks": 2}).save(path)
    again = Prior.load(path)
    assert again.about == {"records": 192, "tasks": 2}
    model = started(again)
    assert model.news() == "started from a prior (192 records, 2 tasks)"
    np.testing.assert_array_equal(
        model.predict(other.vectors), started(prior).predict(other.vectors)
    )


def test_loading_a_prior_refuses_damaged_files(prior, tmp_path, monkeypatch):
    path = tmp_path / "prior.txt"
    with pytest.raises(DatabaseError, match=r"prior .*prior.txt cannot be read"):
        Prior.load(path)
    path.write_text("tree\nversion=v4\n")
    with pytest.raises(DatabaseError, match="cannot be read"):
        Prior.load(path)
    path.write_text(json.dumps({"format": "else"}) + "\n")
    with pytest.raises(DatabaseError, match="is no prior"):
        Prior.load(path)
    path.write_text(json.dumps({"format": module.FORMAT, "version": 9}) + "\n")
    with pytest.raises(DatabaseError, match="has version 9, this reads 1"):
        Prior.load(path)
    prior.save(path)
    head = path.read_text().partition("\n")[0] + "\n"
    monkeypatch.setattr(module, "CPU_FEATURE_SET", replace(CPU_FEATURE_SET, version=99))
    with pytest.raises(DatabaseError, match=r"features of version \d+, not .*--write-prior"):
        Prior.load(path)
    monkeypatch.undo()
    path.write_text(head)
    with pytest.raises(DatabaseError, match="holds 0 models, 3 scales"):
        Prior.load(path)


@pytest.mark.parametrize(
    ("mcpu", "names"),
    [("znver4", ["znver4"]), ("emeraldrapids", ["emeraldrapids"]),
     ("znver5", ["znver5"]), ("x86-64", ["emeraldrapids", "znver4", "znver5"])],
)  # fmt: skip
def test_the_priors_that_ship_fit_the_features(mcpu, names):
    paths = shipped(mcpu)
    assert [path.name for path in paths] == [f"prior.{name}.txt" for name in names]
    assert all(path.stat().st_size < 1 << 20 for path in paths)
    model = started(joined([Prior.load(path) for path in paths]))
    assert len(model.predict(np.zeros((3, len(FEATURE_NAMES)), np.float32))) == 3


def test_joined_priors_score_by_the_mean_of_all_members(prior, other):
    assert joined([]) is None and joined([prior]) is prior
    second = train_prior([task("c", 256, 3)])
    both = joined([dataclasses.replace(prior, about={"records": 5, "tasks": 2}), second])
    assert both.about == {"records": 5, "tasks": 2} and len(both.members) == 6
    one, two, found = (LineModel(), LineModel(), LineModel())
    for model, given in ((one, prior), (two, second), (found, both)):
        model.start_from(given)
    mean = (one.predict(other.vectors) + two.predict(other.vectors)) / 2
    np.testing.assert_allclose(found.predict(other.vectors), mean, rtol=1e-6)


def test_slim_model_text_predicts_the_same_scores(other, prior):
    (whole,) = boosted(other.vectors, [other.seconds], {"objective": "lambdarank"}, 20, [1])
    text = whole.model_to_string()
    short = slim(text)
    assert len(short) < 0.75 * len(text)
    again = lightgbm.Booster(model_str=short).predict(other.vectors)
    np.testing.assert_array_equal(again, whole.predict(other.vectors))
    assert len(prior.members) == 3 and all("leaf_count" not in m for m in prior.members)

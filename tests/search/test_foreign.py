"""Postprocs, mutators, models and observers of users: one that fails is named, once."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
from search.tasks import TARGET, matmul, replay_runner, small_rounds

from metasched.kinds import default_space
from metasched.search.pool import ReplayPool
from metasched.tune import tune

FUNC = matmul(32)


@pytest.fixture(autouse=True)
def few_replays():
    small_rounds()


def tuned(folder, **options):
    """A run of 24 trials, with the sentences of its warnings."""
    settings = {"target": TARGET, "trials": 24, "seed": 7, "runner": replay_runner, "prior": False}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        result = tune(FUNC, work_dir=folder, **{**settings, **options})
    return result, [str(w.message) for w in told]


@dataclasses.dataclass(frozen=True)
class Fails:
    """A postproc or mutator that fails; what it does is up to `how`."""

    how: str
    name: str = "my.failing"

    def __call__(self, *_):
        if self.how == "exit":
            raise SystemExit(3)
        if self.how == "other":
            return 3
        raise KeyError("no such thing")


def space(**fields):
    return dataclasses.replace(default_space(TARGET), **fields)


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_a_postproc_that_fails_is_named_once_and_the_default_remains(tmp_path, how):
    (*first, last) = default_space(TARGET).postprocs
    result, told = tuned(tmp_path, space=space(postprocs=(*first, Fails(how), last)))
    (sentence,) = [t for t in told if "my.failing" in t]
    assert "postproc my.failing raised" in sentence and "are left out" in sentence
    assert result.trials == 1 and result.best.seconds > 0 and result.ended == "exhausted"


def test_a_postproc_that_fails_on_some_candidates_leaves_the_others(tmp_path):
    def sometimes(sch, target):
        if len(sch.trace) % 2:
            raise ZeroDivisionError("by chance")

    sometimes.name = "my.chance"
    result, told = tuned(
        tmp_path, space=space(postprocs=(*default_space(TARGET).postprocs, sometimes))
    )
    assert len([t for t in told if "postproc my.chance raised" in t]) <= 1
    assert result.trials == 24


def test_postprocs_that_cannot_be_sent_elsewhere_are_run_here():
    pool = ReplayPool(2)
    try:
        with pytest.warns(UserWarning, match="cannot be sent to other processes .*lambda"):
            assert pool.prepare(FUNC, [], (lambda sch, target: None,), TARGET) is None
    finally:
        pool.close()


@pytest.mark.parametrize("how", ["raise", "exit", "other"])
def test_a_mutator_that_fails_is_named_and_the_others_go_on(tmp_path, how):
    mutators = ((Fails(how), 10.0), *default_space(TARGET).mutators)
    result, told = tuned(tmp_path, space=space(mutators=mutators))
    assert len([t for t in told if "mutator my.failing raised" in t]) == 1
    assert result.trials == 24


def boom(*_):
    raise ValueError("no idea")


@pytest.mark.parametrize("broken", ["update", "predict", "news", "save"])
def test_a_model_that_fails_is_named_and_scores_are_random_from_then_on(tmp_path, broken):
    result, told = tuned(tmp_path, model=Mine(broken))
    (sentence,) = [t for t in told if "Mine" in t]
    assert "cost model Mine raised ValueError: no idea" in sentence
    assert result.trials == 24 and result.best.path is not None


class Mine:
    """A model with one method that fails."""

    def __init__(self, broken):
        setattr(self, broken, boom)

    def update(self, task, vectors, seconds):
        """Learns nothing."""

    def knows(self, task):
        """Nothing is known."""
        return False

    def predict(self, vectors):
        """All alike."""
        return np.zeros(len(vectors))

    def news(self):
        """None."""
        return ""

    def save(self, path):
        """Nothing to write."""

    def load(self, path):
        """Nothing to read."""


def test_scores_of_another_number_are_a_failure_of_the_model(tmp_path):
    model = Mine("load")
    model.predict = lambda vectors: np.zeros(3)
    _, told = tuned(tmp_path, model=model)
    assert any("it gives scores of shape (3,) for" in t for t in told)


def test_an_observer_that_fails_is_told_no_more(tmp_path):
    calls = []

    def watch(event):
        calls.append(event)
        raise RuntimeError("no paper")

    result, told = tuned(tmp_path, observer=watch)
    assert len(calls) == 1 and result.trials == 24
    assert [t for t in told if "observer" in t] == [
        "the observer watch raised RuntimeError: no paper; it is not called any more"
    ]

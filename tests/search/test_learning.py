"""Learning from a store: samples for a prior, and tuning runs with and without one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from metasched.cost.features import CPU_FEATURE_SET, FEATURE_NAMES, FEATURE_VERSION
from metasched.cost.lightgbm import LightGBMModel, train_prior
from metasched.database.store import Store
from metasched.measure.candidate import Candidate, Outcome, Status
from metasched.measure.replay import ReplayRunner
from metasched.search import parts
from metasched.search.evolution import EvolutionarySearch, EvolutionOptions
from metasched.search.learning import samples_of
from metasched.search.observe import ModelNews
from metasched.search.strategy import STRATEGIES
from metasched.tune import STORE, tune
from tests.search.tasks import TARGET, made_up_seconds, matmul, replay_runner

FEW = EvolutionOptions(drafts=512, replays=32, first=24, generations=1)
STRATEGIES.register("few", lambda task: EvolutionarySearch(task, FEW), override=True)


def run(folder, func, **options):
    settings = {
        "target": TARGET,
        "trials": 24,
        "runner": replay_runner,
        "prior": False,
        "strategy": "few",
    }
    return tune(func, work_dir=folder, **{**settings, **options})


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """Two matrix products on the made-up machine, where every tenth program fails."""
    patch = pytest.MonkeyPatch()
    patch.setenv("METASCHED_SEARCH_WORKERS", "1")
    folder = tmp_path_factory.mktemp("work")

    def cost(candidate: Candidate) -> Outcome | float:
        failed = candidate.index % 10 == 9
        return Outcome(Status.RUN_ERROR) if failed else made_up_seconds(candidate)

    for n in (64, 128):
        run(
            folder,
            matmul(n),
            name=f"mm{n}",
            strategy="random",
            runner=lambda f, t: ReplayRunner(cost=cost),
        )
    with Store(folder / STORE) as store:
        broken = store.all()[-1]
        store.put(broken.model_copy(update={"trace": [], "candidate_key": "no trace"}))
        found = samples_of(store)
    patch.undo()
    return found


def test_every_program_of_a_store_with_its_time(samples):
    tasks, lost = samples
    assert [s.group for s in tasks] == ["mm64", "mm128"] and lost == 1
    for sample in tasks:
        assert sample.vectors.shape == (24, len(FEATURE_NAMES))
        assert sum(math.isinf(s) for s in sample.seconds) == 2
        assert sample.task.endswith(TARGET.key)


def times(folder):
    with Store(folder / STORE) as store:
        return [record.seconds for record in store.all()]


def test_a_prior_makes_the_first_round_good(samples, tmp_path, monkeypatch):
    file = tmp_path / "prior.txt"
    train_prior(samples[0]).save(file)
    monkeypatch.setattr(parts, "shipped", lambda *_: [file])
    heard = []
    led = run(tmp_path / "a", matmul(256), trials=16, prior=True, observer=heard.append)
    alone = run(tmp_path / "b", matmul(256), trials=16)
    again = run(tmp_path / "c", matmul(256), trials=16, prior=True)
    assert np.mean(led.history[-8:]) <= np.mean(alone.history[-8:])
    assert np.median(times(tmp_path / "a")) < np.median(times(tmp_path / "b"))
    assert again.history == led.history
    assert led.notes == ("started from a prior",) and alone.notes == ()
    assert [e.text for e in heard if isinstance(e, ModelNews)] == list(led.notes)


def test_a_prior_of_another_machine_is_dropped_and_said_to_be(samples, tmp_path, monkeypatch):
    file = tmp_path / "prior.txt"
    train_prior(samples[0]).save(file)
    monkeypatch.setattr(parts, "shipped", lambda *_: [file])
    upside_down = ReplayRunner(cost=lambda c: 1e-6 / made_up_seconds(c))
    result = run(tmp_path / "a", matmul(256), prior=True, runner=lambda f, t: upside_down)
    assert len(result.notes) == 2 and result.notes[1].startswith("dropped its prior, which put")


def test_a_prior_for_other_features_is_left_out_with_a_warning(samples, tmp_path, monkeypatch):
    file = tmp_path / "prior.txt"
    other = replace(CPU_FEATURE_SET, version=FEATURE_VERSION - 1)
    monkeypatch.setattr("metasched.cost.prior.CPU_FEATURE_SET", other)
    train_prior(samples[0]).save(file)
    monkeypatch.undo()
    monkeypatch.setenv("METASCHED_SEARCH_WORKERS", "1")
    monkeypatch.setattr(parts, "shipped", lambda *_: [file])
    with pytest.warns(UserWarning, match=r"features of version .* the model starts without it"):
        assert run(tmp_path / "a", matmul(), trials=4, prior=True).notes == ()


def test_a_model_that_is_given_starts_as_it_is(tmp_path):
    assert run(tmp_path, matmul(), trials=4, prior=True, model=LightGBMModel(0)).notes == ()
    assert np.isfinite(run(tmp_path, matmul(), trials=5, model="random").best.seconds)

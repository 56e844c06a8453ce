"""What ranking costs: features of a candidate, a fit, scores of a population, the import."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from cost.tiled import sample

from metasched.cost.features import features
from metasched.target import Target


@pytest.fixture(scope="module")
def programs():
    return sample(256, seed=1, n=1024)


def test_features_of_a_candidate(benchmark, budget, programs):
    budget("features of one candidate", 0.5e-3)
    target = Target.native()
    benchmark(features, programs[0][7], target)


def test_fit_after_four_rounds(benchmark, budget, programs):
    budget("fit of the model after four rounds", 0.5)
    from metasched.cost.lightgbm import LightGBMModel

    target = Target.native()
    rows = np.stack([features(p, target) for p in programs[0]])

    def learn():
        model = LightGBMModel(0)
        for start in range(0, 48, 16):
            model._rows.append(rows[start : start + 16])
            model._seconds.append(programs[1][start : start + 16])
            model._tasks.append("matmul")
        model.update("matmul", rows[48:64], programs[1][48:64])
        return model

    model = benchmark.pedantic(learn, rounds=5)
    assert model.size == 64


def test_scores_of_a_population(benchmark, budget, programs):
    budget("scores of 256 candidates", 0.05)
    from metasched.cost.lightgbm import LightGBMModel

    target = Target.native()
    rows = np.stack([features(p, target) for p in programs[0]])
    model = LightGBMModel(0)
    model.update("matmul", rows[:64], programs[1][:64])
    benchmark(model.predict, rows)


def test_import(benchmark, budget):
    """The whole process: the interpreter's own start counts too."""
    budget("import metasched, interpreter included", 0.3)
    shell = [sys.executable, "-c", "import metasched"]
    benchmark.pedantic(subprocess.run, (shell,), {"check": True}, rounds=5)

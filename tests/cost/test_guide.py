"""Guide: the weights of its judges, and what remains without a prior."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from metasched.cost.features import FEATURE_NAMES, FeatureSet
from metasched.cost.guide import BEYOND, CONDITION, ESTIMATE, GUARD, OTHER, OWN, PARTS, Guide
from metasched.cost.line import LineModel
from metasched.cost.prior import Prior, every_shipped, joined, shipped
from metasched.search import parts
from metasched.search.parts import guide_of
from metasched.target import Target

ZEN = Target.of({"kind": "cpu", "mcpu": "znver4", "num_cores": 2, "features": ["avx2", "fma"]})
ROWS = np.random.default_rng(0).normal(size=(20, len(FEATURE_NAMES))).astype(np.float32)
ROWS[:, FEATURE_NAMES.index("machine.block.guards")] = np.arange(20) % 4
ROWS[:, FEATURE_NAMES.index("machine.footprint")] = np.arange(20) % 3 * 4 - 4


def part(name: str) -> np.ndarray:
    """The share of a part of the machine model, which its feature holds as a logarithm."""
    column = ROWS[:, FEATURE_NAMES.index(f"machine.{name}")].astype(float)
    return np.maximum(2.0**column - 1e-3, 0)


GUARDS = ROWS[:, FEATURE_NAMES.index("machine.block.guards")].astype(float)
SUM = sum(weight * part(name) for name, weight in PARTS.items())
CYCLES = ESTIMATE * np.log2(SUM + CONDITION * GUARDS * part("loop_steps") + 1e-3) + GUARD * GUARDS


def scores(prior: Prior) -> np.ndarray:
    model = LineModel()
    model.start_from(prior)
    return model.predict(ROWS)


def test_the_judges_are_the_own_prior_all_others_and_the_estimated_cycles():
    every = {path: Prior.load(path) for path in every_shipped()}
    (file,) = shipped("znver4")
    own, others = every[file], [prior for path, prior in every.items() if path != file]
    assert len(others) == 2
    by_others = sum(scores(other) for other in others) / len(others)
    expected = OWN * scores(own) + OTHER * by_others - CYCLES
    np.testing.assert_allclose(Guide(own, others).predict(ROWS), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(guide_of(ZEN).predict(ROWS), expected, rtol=1e-5, atol=1e-5)
    two = Guide(None, [others[0], others[0]])
    np.testing.assert_allclose(
        two.predict(ROWS), OTHER * scores(others[0]) - CYCLES, rtol=1e-5, atol=1e-5
    )
    alike = OWN * scores(joined(list(every.values()))) - CYCLES
    found = guide_of(replace(ZEN, mcpu="znver3")).predict(ROWS)
    np.testing.assert_allclose(found, alike, rtol=1e-5, atol=1e-5)


def test_without_a_prior_the_estimated_cycles_rank():
    np.testing.assert_allclose(Guide(None).predict(ROWS), -CYCLES, rtol=1e-5, atol=1e-5)


def test_memory_weighs_more_for_programs_that_the_last_cache_does_not_hold():
    """The footprint is in second caches, as a logarithm; the last cache holds 12 of them."""
    beyond = ROWS[:, FEATURE_NAMES.index("machine.footprint")] > np.log2(12)
    assert 0 < beyond.sum() < len(ROWS)
    more = np.where(beyond, (BEYOND - PARTS["l3_memory"]) * part("l3_memory"), 0.0)
    cycles = SUM + more + CONDITION * GUARDS * part("loop_steps") + 1e-3
    expected = -ESTIMATE * np.log2(cycles) - GUARD * GUARDS
    for _ in range(2):  # the second time from the scores that are kept
        found = Guide(None, held=12).predict(ROWS)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_other_features_have_no_guide():
    mine = FeatureSet("mine", 1, ("x",), lambda mod, target, work: np.zeros(1), lambda m, t: 0.0)
    assert guide_of(ZEN, mine) is None and every_shipped(mine) == []


def test_a_damaged_prior_is_left_out_with_a_warning(tmp_path, monkeypatch):
    path = tmp_path / "prior.txt"
    path.write_text("{}")
    monkeypatch.setattr(parts, "every_shipped", lambda features: [path])
    with pytest.warns(UserWarning, match="prior.txt is no prior.*programs are ranked without it"):
        guide = guide_of(ZEN)
    np.testing.assert_allclose(guide.predict(ROWS), -CYCLES, rtol=1e-5, atol=1e-5)

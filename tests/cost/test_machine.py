"""Machine features: ratios of a tiled matmul by hand, and what they do when the machine changes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from cost.tiled import Matmul, sample

from metasched.cost.features import FEATURE_NAMES, features
from metasched.cost.machine import MACHINE_FEATURES
from metasched.target import Target

TARGET = Target.of("llvm -mcpu=haswell -num-cores=2")


def machine(mod, target=TARGET):
    values = dict(zip(FEATURE_NAMES, features(mod, target), strict=True))
    return {name: float(values[f"machine.{name}"]) for name in MACHINE_FEATURES}


def program(ti=(2, 8, 1, 4), tj=(1, 2, 2, 16), tk=(8, 8)):
    return Matmul(64).program(ti, tj, tk)


def test_the_register_block_of_the_update():
    """4 rows of 16 floats, two vectors of eight each: 8 accumulators, the loops around of 2."""
    found = machine(program())
    assert found["block.accumulators"] == 3.0
    assert found["block.pressure"] == 0.5
    assert found["block.lanes"] == 3.0
    assert found["block.waste"] == 1.0
    assert found["block.chain"] == 0.0
    assert found["block.size"] == pytest.approx(np.log2(9))
    assert found["block.gathers"] == 0.0
    assert found["block.steps"] == 3.0  # the eight steps of the inner reduction


def test_a_vector_of_two_lanes_wastes_six_of_eight():
    assert machine(program(tj=(1, 2, 16, 2)))["block.waste"] == 4.0


def test_tasks_and_cores():
    assert machine(program())["cores"] == 1.0 and machine(program())["tasks"] == 0.0
    uneven = machine(program(ti=(1, 16, 1, 4)))
    assert uneven["cores"] == 0.5  # one task, two cores
    assert uneven["compute"] == pytest.approx(machine(program())["compute"] + 1, abs=0.01)


def test_more_cores_of_the_same_kind_change_the_balance_alone():
    four = machine(program(), dataclasses.replace(TARGET, num_cores=4))
    two = machine(program())
    assert four["cores"] == 0.5 and four["tasks"] == -1.0
    assert four["block.accumulators"] == two["block.accumulators"]


def test_a_smaller_cache_brings_traffic_back():
    small = dataclasses.replace(TARGET, l1_bytes=1024)
    assert machine(program(), small)["l1_l2"] > machine(program())["l1_l2"] + 0.5


def test_sizes_of_the_operator_cancel():
    """The same inner loops over a larger product: nearly the same share of its ideal."""
    small = machine(Matmul(64).program((2, 4, 2, 4), (1, 2, 2, 16), (8, 8)))
    large = machine(Matmul(128).program((2, 8, 2, 4), (1, 4, 2, 16), (16, 8)))
    assert abs(small["compute"] - large["compute"]) < 0.1
    assert abs(small["loads"] - large["loads"]) < 0.1


def test_the_bound_follows_the_made_up_machine():
    programs, seconds = sample(120, seed=4)
    bound = np.array([machine(p)["bound"] for p in programs])
    assert np.corrcoef(np.argsort(np.argsort(bound)), np.argsort(np.argsort(seconds)))[0, 1] > 0.5

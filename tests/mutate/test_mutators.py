"""Mutators: within the domains, keeping constraints, deterministic; crossover within a space."""

from __future__ import annotations

import functools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from space.candidates import TARGET, spaces, tiny

from metasched.errors import ScheduleError, TargetError
from metasched.ir.equal import structural_hash
from metasched.kinds import default_mutators
from metasched.mutate import crossover, mutate
from metasched.mutate.base import Constraints, consistent
from metasched.mutate.choice import (
    mutate_categorical,
    mutate_compute_location,
    mutate_parallel,
    mutate_unroll,
)
from metasched.mutate.crossover import graft, same_space
from metasched.mutate.tile_size import MutateTileSize
from metasched.schedule.rng import Rng
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.space.modules.parallel_vectorize_unroll import ParallelVectorizeUnroll
from metasched.target import Target


@functools.cache
def parent(name, space=0, seed=0):
    """A drawn candidate's trace, without postprocs."""
    sch = Schedule(tiny(name), seed=seed, check=False)
    spaces(name)[space].apply(sch, decisions="fresh")
    return sch.trace


@functools.cache
def limited():
    """A trace with sampled limits of all kinds: parallel, unrolled, vectors."""
    sch = Schedule(tiny("sfm"), seed=0)
    module = ParallelVectorizeUnroll(2)
    for name in ("exp", "normalize", "root"):
        (sch,) = module(sch, sch.get_block(name))
    return sch.trace


def changed(a, b):
    return [i for i, e in a.sampling() if e.decision != b.entries[i].decision]


@settings(max_examples=30)
@given(st.integers(0, 1 << 40))
def test_tile_sizes_move_a_factor_and_keep_constraints(seed):
    trace = parent("gmm")
    mutant = MutateTileSize(trades=0.0)(trace, Rng(seed), TARGET)
    assert mutant is not None and consistent(mutant)
    (position,) = changed(trace, mutant)
    before, after = trace.entries[position].decision, mutant.entries[position].decision
    if math.prod(before) == math.prod(after):
        assert sum(x != y for x, y in zip(before, after, strict=True)) == 2
    else:
        assert math.prod(after) in trace.entries[position].domain["sizes"]


@settings(max_examples=30)
@given(st.integers(0, 1 << 40))
def test_mutants_replay(seed):
    trace = parent("gmm", seed=seed % 7)
    mutant = mutate(trace, default_mutators(TARGET), Rng(seed), TARGET)
    assert mutant is not None
    sch = Schedule(tiny("gmm"), seed=0, check=False)
    mutant.apply(sch, decisions="stored")
    assert sch.trace.decisions() == mutant.decisions()


def test_mutation_is_deterministic_and_without_postprocs():
    trace = parent("sfm")
    sch = Schedule(tiny("sfm"))
    trace.apply(sch)
    sch.enter_postproc()
    mutants = [mutate(sch.trace, default_mutators(TARGET), Rng(5), TARGET) for _ in range(2)]
    assert mutants[0] is not None and mutants[1] is not None
    assert mutants[0].decisions() == mutants[1].decisions()
    assert all(e.kind.name != "enter_postproc" for e in mutants[0].entries)


@pytest.mark.parametrize(
    "mutator", [mutate_categorical, mutate_parallel, mutate_unroll], ids=lambda m: m.name
)
def test_categories_are_redrawn(mutator):
    trace = limited()
    found = [mutator(trace, Rng(s), TARGET) for s in range(8)]
    assert all(m is not None and len(changed(trace, m)) == 1 for m in found)


def test_categories_leave_the_noted_limits_alone():
    trace = limited()
    limits = {
        i
        for m in (mutate_parallel, mutate_unroll)
        for s in range(8)
        for i in changed(trace, m(trace, Rng(s), TARGET))
    }
    others = {
        i for s in range(32) for i in changed(trace, mutate_categorical(trace, Rng(s), TARGET))
    }
    assert limits and others and limits.isdisjoint(others)


def test_a_location_moves():
    sch = Schedule(tiny("sfm"), seed=1)
    block = sch.get_block("exp")
    sch.compute_at(block, sch.sample_compute_location(block), preserve_unit_loops=True)
    mutant = mutate_compute_location(sch.trace, Rng(0), TARGET)
    assert mutant is not None and len(changed(sch.trace, mutant)) == 1


def test_nothing_to_change_gives_none():
    empty = Trace()
    for mutator, _ in default_mutators(TARGET):
        assert mutator(empty, Rng(0), TARGET) is None
    assert mutate(empty, default_mutators(TARGET), Rng(0), TARGET) is None


def test_consistent_sees_a_broken_constraint_as_replay_does():
    sch = Schedule(tiny("gmm"), seed=0)
    loop = sch.get_loops(sch.get_block("Z"))[2]
    tile = sch.sample_perfect_tile(loop, 2, decision=[4, 8])
    sch.require(tile[1] >= 8)
    good, bad = sch.trace, sch.trace.with_decision(2, [8, 4])
    assert consistent(good) and not consistent(bad)
    with pytest.raises(ScheduleError, match="does not hold"):
        bad.apply(Schedule(tiny("gmm")), decisions="stored")
    assert not consistent(sch.trace.with_decision(2, [5, 5]))


@settings(max_examples=30)
@given(st.integers(0, 1 << 40))
def test_crossover_takes_every_decision_from_a_parent(seed):
    a, b = parent("gmm", seed=1), parent("gmm", seed=2)
    child = crossover(a, b, Rng(seed))
    if child is not None:
        assert consistent(child)
        for (_, x), (i, y) in zip(a.sampling(), b.sampling(), strict=True):
            assert child.entries[i].decision in (x.decision, y.decision)
        sch = Schedule(tiny("gmm"), check=False)
        child.apply(sch)
        assert structural_hash(sch.mod)


def test_crossover_needs_two_parents_of_one_space():
    a, other = parent("c2d"), parent("c2d", space=1)
    assert crossover(a, other, Rng(0)) is None
    assert crossover(a, a, Rng(0)) is None


@pytest.mark.parametrize("name", ["gmm", "c2d"])
def test_a_graft_takes_all_that_another_space_has_of_the_same_kind(name):
    """Tilings of the same loops go over; what only one of the spaces decides stays."""
    grafts = 0
    for seed in range(6):
        for one in range(len(spaces(name))):
            for other in range(len(spaces(name))):
                a, b = parent(name, one, seed), parent(name, other, seed + 10)
                child = graft(a, b)
                if child is None:
                    continue
                grafts += one != other
                assert same_space(child, b) and consistent(child)
                given = [(e.kind, e.domain, e.decision) for _, e in a.sampling()]
                for (_, x), (_, y) in zip(child.sampling(), b.sampling(), strict=True):
                    taken = (y.kind, y.domain, x.decision) in given
                    assert taken or x.decision == y.decision
                child.apply(Schedule(tiny(name), check=False), decisions="repair")
    assert grafts
    assert graft(parent(name), parent(name)) is None


def test_a_target_without_mutators_is_named():
    with pytest.raises(TargetError, match="of kind 'cuda'; kinds with one: cpu"):
        default_mutators(Target.of({"kind": "cuda", "mcpu": "sm_86"}))


def test_a_refused_change_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Constraints, "keep", lambda _, changes: asked.append(str(changes)))
    assert MutateTileSize()(parent("gmm"), Rng(0), TARGET) is None
    assert len(asked) > 1 and len(set(asked)) == len(asked)

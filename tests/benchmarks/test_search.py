"""Replay, draft, build, load: the parts of a trial, on the space of a 1024^3 matrix product."""

from __future__ import annotations

import numpy as np
import pytest

from metasched.codegen.compile import compile_func
from metasched.codegen.load import load
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.search.draft import Draft
from metasched.search.population import Workshop
from metasched.target import Target
from metasched.tune import default_space
from metasched.workloads import get

TARGET = Target.native()
FUNC = get("gmm").func((1, 1024, 1024, 1024))


@pytest.fixture(scope="module")
def workshop():
    return Workshop(FUNC, TARGET, default_space(TARGET), seed=0)


@pytest.fixture(scope="module")
def programs(workshop):
    """A dozen random members of the space with the most decisions."""
    space = max(range(len(workshop.spaces)), key=lambda n: len(workshop.spaces[n].sampling()))
    made = (workshop.fresh(space, seed) for seed in range(40))
    return [one for one in made if one is not None][:12]


def in_turn(items):
    """A function without arguments that gives the items in turn, for ever."""
    state = iter(range(1 << 62))
    return lambda: items[next(state) % len(items)]


def test_replay_of_a_tuned_trace_with_postprocs(benchmark, budget, programs):
    budget("replay of a tuned CPU trace with postprocs", 3e-3)
    text = in_turn([one.shipped.to_json() for one in programs])

    def replay():
        Trace.from_json(text()).apply(Schedule(FUNC))

    benchmark(replay)


def test_replay_in_search_with_features(benchmark, budget, programs, workshop, tell):
    """A trace with changed decisions, the postprocs run anew, and the features of the result."""
    budget("replay, postprocs and features in search", 3e-3)
    take = in_turn(programs)

    def replay():
        one = take()
        made = workshop.replay(one.trace, one.space)
        return made is not None and made.vector

    benchmark(replay)
    if benchmark.stats is not None:
        tell(f"replayed exactly and scored: {1 / benchmark.stats.stats.median:.0f} a second")


def test_draft_of_20_000_candidates(benchmark, budget, programs, tell):
    budget("draft of 20,000 candidates", 50e-3)
    draft, rng = Draft(programs[0].trace, 0), np.random.default_rng(0)
    rows = benchmark(lambda: draft.draw(20_000, rng))
    assert len(rows)
    if benchmark.stats is not None:
        tell(
            f"drafted: {20_000 / benchmark.stats.stats.median:.0f} a second, "
            f"{len(rows)} of 20,000 distinct and within the constraints"
        )


def compiled(one):
    return compile_func(one.module["main"], TARGET, "kernel")


def test_build_of_one_candidate(benchmark, budget, programs):
    budget("build of one candidate (lower, LLVM, object)", 100e-3)
    take = in_turn(programs)
    benchmark.pedantic(lambda: compiled(take()), rounds=len(programs), warmup_rounds=1)


def test_load_of_a_built_object(benchmark, budget, programs):
    budget("load of a built object", 2e-3)
    built = compiled(programs[0])
    benchmark.pedantic(load, (built,), rounds=50, warmup_rounds=2)

"""Replay, draft, build, load: the parts of a trial, on the space of a 1024^3 matrix product."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from metasched.codegen.compile import compile_func
from metasched.codegen.load import load
from metasched.cost.features import FEATURE_NAMES
from metasched.cost.lightgbm import LightGBMModel
from metasched.kinds import default_space
from metasched.measure.process import wait
from metasched.mutate import mutate
from metasched.schedule.rng import Rng
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.search.draft import WHOLE, Draft
from metasched.search.evolution import EvolutionarySearch
from metasched.search.pool import ReplayPool
from metasched.search.population import CandidateFactory, Population, Request
from metasched.search.run import paused_collection
from metasched.search.strategy import SearchTask
from metasched.target import Target
from metasched.workloads import get

TARGET = Target.native()
FUNC = get("gmm").func((1, 1024, 1024, 1024))


@pytest.fixture(scope="module")
def factory():
    return CandidateFactory(FUNC, TARGET, default_space(TARGET), seed=0)


@pytest.fixture(scope="module")
def programs(factory):
    """A dozen random members of the space with the most decisions."""
    space = max(range(len(factory.spaces)), key=lambda n: len(factory.spaces[n].sampling()))
    made = (factory.random_member(space, seed) for seed in range(40))
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


def test_replay_of_thirty_steps_with_postprocs(benchmark, budget, tell):
    """The row norm's two blocks give traces of 30 steps, postprocs included."""
    budget("replay of a 30-step trace with postprocs", 3e-3)
    func = get("nrm").func()
    shop = CandidateFactory(func, TARGET, default_space(TARGET), seed=0)
    made = [
        shop.random_member(space, seed) for space in range(len(shop.spaces)) for seed in range(8)
    ]
    traces = [one.shipped for one in made if one is not None]
    chosen = [trace for trace in traces if 28 <= len(trace) <= 32]
    text = in_turn([trace.to_json() for trace in chosen])
    tell(f"{len(chosen)} traces of {min(map(len, chosen))} to {max(map(len, chosen))} steps")

    def replay():
        Trace.from_json(text()).apply(Schedule(func))

    benchmark(replay)


def test_replay_in_search_with_features(benchmark, budget, programs, factory, tell):
    """A trace with changed decisions, the postprocs run anew, and the features of the result."""
    budget("replay, postprocs and features in search", 3e-3)
    take = in_turn(programs)

    def replay():
        one = take()
        made = factory.replay(one.trace, one.space)
        return made is not None and made.vector

    benchmark(replay)
    if benchmark.stats is not None:
        tell(f"replayed exactly and scored: {1 / benchmark.stats.stats.median:.0f} a second")


def all_ready(pool):
    """Wait for workers that are still starting, which takes them half a second."""
    while any(worker.busy for worker in pool._workers):
        assert pool._went_well(wait(pool._workers))


def test_replays_of_a_round_on_every_core(benchmark, programs, tell):
    """What the search has of it: mutants of a dozen programs, each asked for once, replayed and
    scored by workers; siblings share what comes before they part. The garbage collector rests, as
    in the search."""
    rng, pool = Rng(0), ReplayPool(max(2, len(os.sched_getaffinity(0))))
    try:
        shop = CandidateFactory(FUNC, TARGET, default_space(TARGET), seed=0, pool=pool)
        all_ready(pool)
        model, parents = LightGBMModel(0), list(programs)
        vectors = np.stack([one.vector for one in parents])
        model.update("gmm", vectors, np.linspace(1.0, 2.0, len(parents)))
        made, asked = [0], set()

        def asked_for():
            requests = []
            while len(requests) < 128:
                parent = parents[rng.below(len(parents))]
                trace = mutate(parent.trace, shop.generator.mutators, rng, TARGET)
                trace = trace and mutate(trace, shop.generator.mutators, rng, TARGET)
                if trace is not None and trace.decisions() not in asked:
                    asked.add(trace.decisions())
                    requests.append(Request(trace, parent.space))
            return (requests,), {}

        def round_(requests):
            good = [one for one in shop.replay_many(requests) if one is not None]
            model.predict(np.stack([one.vector for one in good]))
            made[0] = len(good)

        with paused_collection():
            benchmark.pedantic(round_, setup=asked_for, rounds=5, warmup_rounds=1)
    finally:
        pool.close()
    if benchmark.stats is not None:
        tell(
            f"replayed and scored by workers: {made[0] / benchmark.stats.stats.median:.0f} a second"
        )


def test_replays_of_a_search_on_every_core(benchmark, tell):
    """The replays that five rounds of the search ask for, programs timed by a made-up machine."""
    pool = ReplayPool(max(2, len(os.sched_getaffinity(0))))
    try:
        shop = CandidateFactory(FUNC, TARGET, default_space(TARGET), seed=0, pool=pool)
        all_ready(pool)
        weights = np.random.default_rng(0).normal(size=len(FEATURE_NAMES)) / 500
        task = SearchTask("gmm", shop, Population(), LightGBMModel(0), seed=0)
        search, spent, plain = EvolutionarySearch(task), [0.0], shop.replay_many

        def timed(requests):
            start = time.perf_counter()
            try:
                return plain(requests)
            finally:
                spent[0] += time.perf_counter() - start

        shop.replay_many = timed

        def rounds():
            for _ in range(5):
                chosen = search.propose(16)
                search.learn(chosen, [float(np.exp(one.vector @ weights)) for one in chosen])

        with paused_collection():
            benchmark.pedantic(rounds)
    finally:
        pool.close()
    tell(f"replayed and scored in a search: {shop.survival.survived / spent[0]:.0f} a second")


def test_draft_of_20_000_candidates(benchmark, budget, programs, tell):
    budget("draft of 20,000 candidates, or of a small space whole", 50e-3)
    draft, rng = Draft(programs[0].trace, 0), np.random.default_rng(0)
    considered = draft.size if draft.size <= WHOLE else 20_000

    def anew():
        vars(draft).pop("_every", None)  # a small space is listed once; here each time
        return draft.draw(20_000, rng)

    rows = benchmark(anew)
    assert len(rows)
    if benchmark.stats is not None:
        tell(
            f"drafted: {considered / benchmark.stats.stats.median:.0f} a second, "
            f"{len(rows)} rows, distinct and within the constraints, of {draft.size} vectors"
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

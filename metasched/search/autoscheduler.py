"""Choose a program of a task without measurements: the first guess, which `autoschedule` returns.

Decisions are drafted, replayed exactly and ranked by a model that was trained on other tasks. The
work is limited by counts, not by time, and all random choices derive from the workload. So the same
program and target give the same schedule in every process.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from metasched.cost.line import LineRegression
from metasched.cost.model import CostModel
from metasched.ir.equal import structural_hash
from metasched.ir.visit import blocks_of
from metasched.schedule.rng import derive_seed
from metasched.schedule.trace import Trace
from metasched.search.evolution import EvolutionarySearch, EvolutionOptions, Proposal
from metasched.search.population import CandidateFactory, Population, SearchCandidate
from metasched.search.proposals.best_neighbours import BestNeighbours
from metasched.search.proposals.mutants import Mutants
from metasched.search.strategy import SearchTask
from metasched.space.own_loops import has_own_loops

PROPOSALS = (
    Proposal(BestNeighbours, 0, 3 / 4, each_generation=True),
    Proposal(Mutants, 0, 1 / 4, each_generation=True),
)
OPTIONS = EvolutionOptions(
    drafts=4000,
    whole=8000,
    replays=24,
    first=36,
    generations=6,
    spaces=16,
    surrogate=LineRegression,
)
PROVED, DOUBTED = 8, 2
"""At most this many programs are proved legal, and this many of one design space, the best score
first, until a proof succeeds."""
GAIN = 1.8
"""A program must outscore the default schedule and the program as written by this much. Of 66
measured tasks, three had a smaller lead: their programs ran at 0.66, 0.88 and 1.00 of the default
schedule's speed."""


@dataclass(frozen=True, slots=True)
class Guess:
    """The first guess.

    Attributes:
        candidate: the chosen program; the default schedule if programs could not be ranked.
        lack: why programs could not be ranked; empty if they were.
    """

    candidate: SearchCandidate
    lack: str = ""


def first_guess(
    factory: CandidateFactory, model: CostModel | None, default: SearchCandidate
) -> Guess:
    """The program of a task that a model ranks first, or the default schedule.

    The score to beat is the better one of the default schedule and the program as written. The
    model knows least of programs as written, so none is chosen: of 6 programs that the model ranked
    before their default schedules, the default ran at 3.8, 1.5, 1.1, 0.97, 0.9 and 0.5 of the rate.

    Args:
        factory: makes the programs.
        model: ranks the programs; None if no model fits the target.
        default: the default schedule.
    """
    if model is None:
        kind = factory.target.kind
        return Guess(default, f"no cost model for targets of kind {kind!r} ships with metasched")
    if _ends_by_data(default):
        return Guess(default)  # the time of such loops is unknown
    seed = derive_seed("autoschedule", structural_hash(factory.func))
    known = [default, factory.finished(Trace())]
    task = SearchTask("autoschedule", factory, Population({c.key for c in known}), model, seed)
    search = EvolutionarySearch(task, OPTIONS, PROPOSALS)
    search.generate()
    found = list(search.state.pool.values())
    if not search.state.known:
        return Guess(default, "no sample of the design spaces is legal")
    illegal: Counter[int] = Counter()
    ranked = search.state.ranked([*known, *found])
    least = GAIN + next(score for candidate, score in ranked if candidate in known)
    for candidate, score in ranked:
        candidate.score = score
        if candidate in known:
            default.score = next(score for one, score in ranked if one is default)
            return Guess(default)
        if score > least and illegal[candidate.space] < DOUBTED and illegal.total() < PROVED:
            if factory.admits(candidate):
                return Guess(candidate)
            legal = factory.replay(candidate.trace, candidate.space)  # now with proofs
            if legal is not None and legal.key != candidate.key:  # a postproc left a step out
                legal.score = score
                return Guess(legal)
            illegal[candidate.space] += 1
    raise AssertionError("the default schedule is ranked, too")


def _ends_by_data(candidate: SearchCandidate) -> bool:
    """Whether instances of a program run loops of their own, and no block is a reduction, whose
    schedule matters more."""
    blocks = [r.block for f in candidate.schedule.mod.functions.values() for r in blocks_of(f.body)]
    reduces = any(v.is_reduce for block in blocks for v in block.iter_vars)
    return not reduces and any(map(has_own_loops, blocks))

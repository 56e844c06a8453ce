"""The program of a task that promises most before anything is measured: the first guess.

Decisions are drafted, replayed exactly and ranked by a model that was trained on other tasks. All
amounts are counts and all random choices derive from the workload, so the same program and target
give the same schedule in every process.
"""

from __future__ import annotations

from dataclasses import dataclass

from metasched.cost.line import LineRegression
from metasched.cost.model import CostModel
from metasched.ir.equal import structural_hash
from metasched.schedule.rng import derive_seed
from metasched.search.evolution import EvolutionarySearch, EvolutionOptions, Proposal
from metasched.search.population import CandidateFactory, Population, SearchCandidate
from metasched.search.proposals.drafts import BestDrafts
from metasched.search.proposals.mutants import Mutants
from metasched.search.strategy import SearchTask

PROPOSALS = (Proposal(BestDrafts, 0, 0.4), Proposal(Mutants, 1, 0.6, each_generation=True))
# Twice as many replays improved the score of the first guess on one of three operators, by 0.17.
OPTIONS = EvolutionOptions(
    drafts=4000, replays=40, first=64, generations=2, surrogate=LineRegression
)
PROVED = 8
"""Limit of programs whose steps are proved, in order of score, until a program is legal."""


@dataclass(frozen=True, slots=True)
class Guess:
    """The first guess.

    Attributes:
        candidate: the program; the default schedule where `lack` says why nothing better is known.
        lack: why programs could not be ranked; empty where they were.
    """

    candidate: SearchCandidate
    lack: str = ""


def first_guess(
    factory: CandidateFactory, model: CostModel | None, default: SearchCandidate
) -> Guess:
    """The best program of a task by a model, the default schedule among the programs.

    Args:
        factory: makes the programs.
        model: ranks them; None where nothing ranks the programs of the target.
        default: the default schedule.
    """
    if model is None:
        kind = factory.target.kind
        return Guess(default, f"no cost model for targets of kind {kind!r} ships with metasched")
    seed = derive_seed("autoschedule", structural_hash(factory.func))
    task = SearchTask("autoschedule", factory, Population({default.key}), model, seed)
    search = EvolutionarySearch(task, OPTIONS, PROPOSALS)
    search.generate()
    found = list(search.state.pool.values())
    if not found:
        return Guess(default, "no sample of the design spaces is legal")
    for candidate, score in search.state.ranked([default, *found])[:PROVED]:
        candidate.score = score
        if candidate is default or factory.admits(candidate):
            return Guess(candidate)
    return Guess(default, f"the {PROVED} best programs of the design spaces are illegal")

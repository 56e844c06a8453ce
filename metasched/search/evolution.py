"""Evolutionary search guided by a cost model, in small rounds: propose, replay, rank, measure.

A round asks the sources of `PROPOSALS` for decisions and replays them exactly. The model ranks the
programs that survive, and the best are measured. A source may reserve a share of the round. Further
shares go to design spaces of which few programs were measured, and to tiles that were not measured
(see `picks`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from metasched.cost.model import SaysReady, teach
from metasched.search.picks import best_apart, exploratory, least_measured_spaces
from metasched.search.population import Request, SearchCandidate
from metasched.search.proposals.drafts import BestDrafts, UnbiasedDrafts
from metasched.search.proposals.grafts import Grafts
from metasched.search.proposals.mutants import Mutants
from metasched.search.proposals.new_decisions import NewDecisions
from metasched.search.proposals.source import EvolutionOptions, SearchState, Source
from metasched.search.strategy import SearchTask, strategy

__all__ = ["PROPOSALS", "EvolutionOptions", "EvolutionarySearch", "Proposal"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A row of the search policy.

    Attributes:
        source: makes the source, once for a search.
        stage: the requests of one stage are replayed together; later stages see their programs.
        replays: the share of `EvolutionOptions.replays`.
        measured: the share of a round's measured programs that the source picks, at least one.
        each_generation: ask the source again in each of `EvolutionOptions.generations`, which
            divide its share of replays.
    """

    source: Callable[[], Source]
    stage: int
    replays: float
    measured: float = 0.0
    each_generation: bool = False


PROPOSALS: tuple[Proposal, ...] = (
    Proposal(BestDrafts, 0, 0.3),
    Proposal(UnbiasedDrafts, 0, 0.1),
    Proposal(Grafts, 1, 1.0, measured=1 / 16),
    Proposal(NewDecisions, 2, 1 / 3, measured=0.25),
    Proposal(Mutants, 3, 0.6, each_generation=True),
)
LEAST_MEASURED = 0.25
"""Share of a round's measured programs for design spaces of which few were measured."""


@strategy("evolutionary")
class EvolutionarySearch:
    """A search strategy: evolution guided by a cost model (see the module's docstring)."""

    def __init__(
        self,
        task: SearchTask,
        options: EvolutionOptions | None = None,
        proposals: Sequence[Proposal] = PROPOSALS,
    ) -> None:
        guided = isinstance(task.model, SaysReady) and bool(task.model.ready)
        self.state = SearchState(task, options or EvolutionOptions(), guided)
        self.table = [(row, row.source()) for row in proposals]

    def propose(self, count: int) -> list[SearchCandidate]:
        """The programs of the next round, the most promising first."""
        self.generate()
        return self._pick(count)

    def generate(self) -> None:
        """Make the programs of the next round: the pool of the state."""
        state, options = self.state, self.state.options
        state.begin_round()
        model = state.task.model
        informed = state.task.population.measured or (isinstance(model, SaysReady) and model.ready)
        if not informed:
            state.enter(UnbiasedDrafts().requests(state, options.first))
        else:
            if not state.known:  # the surrogate of the model needs replayed programs
                state.enter(UnbiasedDrafts().requests(state, options.first // 2))
            for _, rows in groupby(self.table, key=lambda entry: entry[0].stage):
                self._stage(list(rows))
        state.round += 1

    def learn(self, candidates: Sequence[SearchCandidate], seconds: Sequence[float]) -> None:
        """Remember the outcomes and train the model on them."""
        task = self.state.task
        task.population.add(candidates, seconds)
        teach(task.model, task.name, candidates, seconds)

    def _stage(self, rows: Sequence[tuple[Proposal, Source]]) -> None:
        """Ask the sources of one stage for decisions, replay these, and report the programs."""
        state, options = self.state, self.state.options
        generations = options.generations if rows[0][0].each_generation else 1
        for state.generation in range(generations):
            asked: list[tuple[Source, list[Request]]] = []
            for row, source in rows:
                count = int(options.replays * row.replays) // generations
                asked.append((source, list(source.requests(state, count))))
            keys = iter(state.enter([r for _, requests in asked for r in requests]))
            for source, requests in asked:
                source.entered(requests, [next(keys) for _ in requests])

    def _pick(self, count: int) -> list[SearchCandidate]:
        """The programs of the pool that are measured.

        Reserved shares come first, then the model's best, with a bonus for the disagreement of the
        models, then exploratory programs.
        """
        state, options = self.state, self.state.options
        scored = state.ranked(list(state.pool.values()), options.curiosity)
        model = state.task.model
        if not isinstance(model, SaysReady) or model.ready:  # before, scores are random
            for candidate, score in scored:
                candidate.score = score
        ranked = [candidate for candidate, _ in scored]
        first = least_measured_spaces(state, ranked, int(count * LEAST_MEASURED))
        for row, source in self.table:
            if row.measured:
                first += source.pick(state, ranked, max(1, int(count * row.measured)))
        ranked = list(dict.fromkeys([*first, *best_apart(ranked, count)]))
        share = options.epsilon if state.guided else options.unguided
        explored = min(round(count * share), max(0, len(ranked) - count))
        chosen = ranked[: count - explored]
        return [*chosen, *exploratory(state, chosen, ranked[count - explored :], explored)]

"""Source: the protocol of sources of proposals; SearchState: the state that all sources read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from metasched.cost import regression
from metasched.cost.line import Regressor
from metasched.cost.model import EstimatesSpread, PredictsPrograms, predicted
from metasched.schedule.rng import Rng, derive_seed
from metasched.schedule.trace import Trace
from metasched.search.draft import WHOLE, Array, Draft
from metasched.search.population import Request, SearchCandidate
from metasched.search.strategy import SearchTask
from metasched.space.generate import MAX_SPACES, thinned

Decisions = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class EvolutionOptions:
    """Sizes of a round; how a round is divided among the sources is `evolution.PROPOSALS`.

    Attributes:
        drafts: decision vectors drafted in a round.
        whole: the most decision vectors of a space that is drafted as a whole.
        replays: exact replays in a round, of which each source has a share.
        first: exact replays in the first round, all unbiased drafts.
        generations: mutation rounds within a round, each from the best so far.
        crossing: share of children that cross two parents of one space.
        epsilon: share of measured candidates that `picks.exploratory` chooses, whatever their rank.
        unguided: the same share if the model knew nothing before the search.
        fair: a space with fewer measured programs than this gets a program in each round.
        parents: how many measured programs are parents of mutants.
        curiosity: weight of the models' disagreement in the choice of what to measure.
        spaces: the most design spaces that are sampled, evenly spread ones of more.
        surrogate: `(rows, scores) -> ` the regression that ranks drafts.
    """

    drafts: int = 20_000
    whole: int = WHOLE
    replays: int = 112
    first: int = 96
    generations: int = 3
    crossing: float = 0.15
    epsilon: float = 0.1
    unguided: float = 0.3
    fair: int = 32
    parents: int = 12
    curiosity: float = 0.25
    spaces: int = MAX_SPACES
    surrogate: Callable[[np.ndarray, np.ndarray], Regressor] = regression


@dataclass
class SearchState:
    """The state of a search, and the programs that the present round has made.

    Attributes:
        task: spaces, replays, measured programs and the model.
        options: sizes of a round.
        guided: the model knew something before the search.
        round: number of the round.
        generation: number of the present mutation round within the round.
        made: every replay of the search, by its space and decisions; None for a refused replay.
        known: the programs that were replayed, by their keys, for each space.
        pool: the programs of this round that were not measured, by their keys.
        rng: the random choices of this round.
        rows: the decisions of replayed programs as rows of their tables, by their traces.
    """

    task: SearchTask
    options: EvolutionOptions
    guided: bool = False
    round: int = 0
    generation: int = 0
    made: dict[tuple[int, Decisions], SearchCandidate | None] = field(default_factory=dict)
    known: dict[int, dict[str, SearchCandidate]] = field(default_factory=dict)
    pool: dict[str, SearchCandidate] = field(default_factory=dict)
    rng: Rng = field(default_factory=lambda: Rng(0))
    rows: dict[Trace, Array | None] = field(default_factory=dict)

    def begin_round(self) -> None:
        """Empty the pool and seed the random choices of the round."""
        self.pool = {}
        self.rng = Rng(derive_seed(self.task.seed, "round", self.round))

    @cached_property
    def tables(self) -> list[Draft | None]:
        """The design spaces as tables; None for a space that is not sampled, or of which no sample
        survives."""
        factory = self.task.factory
        found: list[Draft | None] = [None] * len(factory.spaces)
        for space in thinned(range(len(factory.spaces)), self.options.spaces):
            seeds = (derive_seed(self.task.seed, "table", space, n) for n in range(8))
            made = (factory.sample(space, seed) for seed in seeds)
            first = next((candidate for candidate in made if candidate is not None), None)
            if first is not None:
                found[space] = Draft(first.trace, self.task.seed)
                self._made(first)
        return found

    def enter(self, requests: Iterable[Request]) -> list[str]:
        """Replay the new requests, and put the programs that were not measured into the pool.

        Returns the key of the program of each request, "" for a refused replay.
        """
        asked = [((r.space, r.trace.decisions()), r) for r in requests]
        unseen = {at: r for at, r in asked if at not in self.made}
        replayed = self.task.factory.replay_many(list(unseen.values()))
        self.made.update(zip(unseen, replayed, strict=True))
        for at in dict.fromkeys(at for at, _ in asked):
            candidate = self.made[at]
            if candidate is not None:
                self._made(candidate)
        found = (self.made[at] for at, _ in asked)
        return ["" if candidate is None else candidate.key for candidate in found]

    def _made(self, candidate: SearchCandidate) -> None:
        """A replay gave this program."""
        self.made[candidate.space, candidate.trace.decisions()] = candidate
        self.known.setdefault(candidate.space, {})[candidate.key] = candidate
        if candidate.key not in self.task.population.seen:
            self.pool.setdefault(candidate.key, candidate)

    def row_of(self, draft: Draft, candidate: SearchCandidate) -> Array | None:
        """`Draft.row_of` the trace of a replayed program."""
        trace = candidate.trace
        if trace not in self.rows:
            self.rows[trace] = draft.row_of(trace)
        return self.rows[trace]

    def replayed(self, request: Request) -> bool:
        """Whether these decisions were replayed in this search."""
        return (request.space, request.trace.decisions()) in self.made

    def ranked(
        self, candidates: Sequence[SearchCandidate], curiosity: float = 0.0
    ) -> list[tuple[SearchCandidate, float]]:
        """Candidates with the model's scores, the best first; ties keep their order.

        `curiosity` is the weight of the disagreement of the model's members, if it has several.
        """
        if not candidates:
            return []
        model = self.task.model
        if isinstance(model, EstimatesSpread) and not isinstance(model, PredictsPrograms):
            vectors = np.stack([candidate.vector for candidate in candidates])
            found, doubt = model.predict_with_spread(vectors)
            scores = np.asarray(found) + curiosity * doubt
        else:
            scores = np.asarray(predicted(model, candidates))
        order = np.argsort(-scores, kind="stable")
        return [(candidates[i], float(scores[i])) for i in order]


class Source(Protocol):
    """Proposes replays, and picks the programs for its reserved share of the measurements."""

    name: str

    def requests(self, state: SearchState, count: int) -> Iterable[Request]:
        """About `count` replays to do."""
        ...

    def entered(self, requests: Sequence[Request], keys: Sequence[str]) -> None:
        """Learn the keys of the programs that the requests gave, "" for a refused request."""
        ...

    def pick(
        self, state: SearchState, ranked: Sequence[SearchCandidate], count: int
    ) -> list[SearchCandidate]:
        """At most `count` of its programs, from a ranking of the pool, the best first."""
        ...


class Unreserved:
    """A source without a reserved share: only the ranks of its programs decide."""

    def entered(self, requests: Sequence[Request], keys: Sequence[str]) -> None:
        """Nothing to remember."""

    def pick(
        self, state: SearchState, ranked: Sequence[SearchCandidate], count: int
    ) -> list[SearchCandidate]:
        """None."""
        return []


def changes(own: Decisions, other: Decisions) -> list[tuple[int, Any]]:
    """The decisions that differ from another program of the space, with the positions of the steps.

    All decisions count as different if the other program comes from an earlier run, which stored it
    without unused steps.
    """
    if len(own) != len(other):
        return list(enumerate(own))
    pairs = enumerate(zip(own, other, strict=True))
    return [(n, mine) for n, (mine, theirs) in pairs if mine != theirs]

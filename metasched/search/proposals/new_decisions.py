"""New decisions: decisions not yet measured in programs like the fastest, put into the fastest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from metasched.mutate.neighbours import neighbours
from metasched.search.population import Request, SearchCandidate
from metasched.search.proposals.source import SearchState, changes

_PARENTS = 2  # fastest programs whose neighbours are tried
_CONTEXT = 2  # a program with a new decision differs from the parent in more decisions

Step = tuple[int, int]
"""A design space and the position of a sampling step in it."""


class NewDecisions:
    """Proposes neighbours of the fastest programs with a decision not measured in their context.

    The model underrates a decision that was only measured together with slow decisions, so this
    source tries the decision in the fastest programs. The sampling steps take turns: the model
    alone would always choose new tiles of one loop, and never another number of parts for the
    cores.

    Attributes:
        steps: the step whose decision is new, by the keys of the programs of this round.
        turns: how often a program of each step was picked.
    """

    name = "new decisions"

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}
        self.turns: Counter[Step] = Counter()
        self._asked: list[Step] = []

    def requests(self, state: SearchState, count: int) -> list[Request]:
        """About `count` neighbours, divided evenly among the sampling steps."""
        drawn = [
            candidate for candidate, _ in state.task.population.measured if candidate.space >= 0
        ]
        measured = [(candidate.space, candidate.trace.decisions()) for candidate in drawn]
        found: dict[Step, list[Request]] = {}
        for parent in drawn[:_PARENTS]:
            own, space = parent.trace.decisions(), parent.space
            differing = [changes(other, own) for where, other in measured if where == space]
            met = {pair for pairs in differing if len(pairs) <= _CONTEXT for pair in pairs}
            for trace in neighbours(parent.trace):
                new = (pair[0] for pair in changes(trace.decisions(), own) if pair not in met)
                if (step := next(new, None)) is not None:
                    found.setdefault((space, step), []).append(Request(trace, space))
        each = -(-count // max(1, len(found)))
        chosen = [
            (at, some[n]) for at, some in found.items()
            for n in state.rng.sample(len(some), min(len(some), each))
        ]  # fmt: skip
        self._asked = [at for at, _ in chosen]
        return [request for _, request in chosen]

    def entered(self, requests: Sequence[Request], keys: Sequence[str]) -> None:
        """Remember which step each program of this round tries."""
        self.steps = dict(zip(keys, self._asked, strict=True))

    def pick(
        self, state: SearchState, ranked: Sequence[SearchCandidate], count: int
    ) -> list[SearchCandidate]:
        """The best program of each of the `count` steps that had the fewest turns so far."""
        best: dict[Step, SearchCandidate] = {}
        for candidate in ranked:
            if candidate.key in self.steps:
                best.setdefault(self.steps[candidate.key], candidate)
        steps = sorted(best, key=self.turns.__getitem__)[:count]
        self.turns.update(steps)
        return [best[at] for at in steps]

"""Evolutionary search guided by a cost model, in small rounds: draft, verify, measure, learn.

A round drafts thousands of decision vectors on paper (`draft`) and replays a limited number of
traces exactly: the most promising drafts, some unbiased ones, mutants and crossings of the fastest
programs measured and of those the model likes, what other spaces make of the decisions of the
fastest, and neighbours of these with decisions that are new. The model ranks what survives; the
best are measured, and some of spaces, blocks and decisions that were hardly met, so that it meets
the unexpected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np

from metasched.mutate.base import mutate
from metasched.mutate.crossover import crossover, graft
from metasched.mutate.neighbours import neighbours
from metasched.schedule.rng import Rng, derive_seed
from metasched.schedule.trace import Trace
from metasched.search.draft import Array, Draft, Rows
from metasched.search.population import Individual, Request
from metasched.search.strategy import STRATEGIES, SearchTask

_GRAFTED = 4  # fastest programs whose decisions are tried in the other spaces
# Fastest programs whose neighbours are tried for decisions that no measured program has which
# differs from them in at most so many decisions.
_VARIED, _COMPANY = 2, 2
_TRIES = 4  # further mutations where a child was replayed before
# Replayed programs of a space that its surrogate is fitted to, at least and at most.
_LEAST_ROWS, _REMEMBERED = 24, 512


@dataclass(frozen=True, slots=True)
class EvolutionOptions:
    """Sizes and shares of a round.

    Attributes:
        drafts: decision vectors drafted in a round.
        replays: exact replays in a round at most, apart from neighbours of the fastest programs
            (see `stale`) and grafts.
        first: exact replays in the first round, all unbiased drafts.
        drafted: share of later rounds spent on the best drafts.
        unbiased: share of later rounds spent on drafts taken as they come.
        generations: mutation rounds within a round, each from the best so far.
        crossing: share of children that cross two parents of one space.
        epsilon: share of measured candidates for innermost tiles and choices that were not measured
            yet, or any: what the model thinks little of is met as well.
        unguided: the same where the model knew nothing before the search.
        fair: programs of each space that are measured before it may go without.
        parents: how many measured programs breed.
        stale: rounds without a new best after which the neighbours of the fastest programs are
            tried one by one (coordinate descent), until one of them is better.
        curiosity: weight of the models' disagreement in the choice of what to measure.
    """

    drafts: int = 20_000
    replays: int = 112
    first: int = 96
    drafted: float = 0.3
    unbiased: float = 0.1
    generations: int = 3
    crossing: float = 0.15
    epsilon: float = 0.1
    unguided: float = 0.3
    fair: int = 32
    parents: int = 12
    stale: int = 2
    curiosity: float = 0.25


class EvolutionarySearch:
    """See the module's docstring."""

    def __init__(self, task: SearchTask, options: EvolutionOptions | None = None) -> None:
        self.task, self.options = task, options or EvolutionOptions()
        self.round = 0
        self._drafts: list[Draft | None] | None = None
        self._known: dict[int, dict[str, Individual]] = {}
        self._made: dict[tuple[int, tuple[Any, ...]], Individual | None] = {}
        self._stale = 0
        self._grafted: set[str] = set()
        self._novel: dict[str, tuple[int, int]] = {}
        self._tried: Counter[tuple[int, int]] = Counter()
        self._guided = bool(getattr(task.model, "ready", False))

    def propose(self, count: int) -> list[Individual]:
        """The programs of the next round, the most promising first."""
        rng, options = Rng(derive_seed(self.task.seed, "round", self.round)), self.options
        pool: dict[str, Individual] = {}
        informed = self.task.population.measured or getattr(self.task.model, "ready", False)
        if not informed:
            self._enter(pool, self._drafted(options.first, best=False))
        else:
            if not self._known:  # a surrogate of the model needs programs to be fitted to
                self._enter(pool, self._drafted(options.first // 2, best=False))
            best = int(options.replays * options.drafted)
            unbiased = int(options.replays * options.unbiased)
            drafts = chain(self._drafted(best, best=True), self._drafted(unbiased, best=False))
            near = options.replays // 4 if self._stale >= options.stale else 0
            self._enter(pool, chain(drafts, self._near(near)))
            self._grafted = set(self._entered(pool, list(self._grafts())))
            novel = self._novelties(rng)
            keys = self._entered(pool, [request for _, request in novel])
            self._novel = {key: step for key, (step, _) in zip(keys, novel, strict=True)}
            share = (options.replays - best - unbiased) // options.generations
            for generation in range(options.generations):
                self._enter(pool, self._children(pool, share, generation, rng))
        self.round += 1
        return self._pick(pool, count, rng)

    def learn(self, individuals: Sequence[Individual], seconds: Sequence[float]) -> None:
        """Remember the outcomes and train the model on them."""
        best = self.task.population.measured[:1]
        self.task.population.add(individuals, seconds)
        self._stale = self._stale + 1 if best == self.task.population.measured[:1] else 0
        self.task.model.update(self.task.name, [one.vector for one in individuals], seconds)

    def _enter(self, pool: dict[str, Individual], requests: Iterable[Request]) -> None:
        """Replay what was not replayed before, and keep what is new."""
        asked = {(r.space, r.trace.decisions()): r for r in requests}
        fresh = {key: r for key, r in asked.items() if key not in self._made}
        replayed = self.task.workshop.replay_many(list(fresh.values()))
        self._made.update(zip(fresh, replayed, strict=True))
        for key in asked:
            one = self._made[key]
            if one is None:
                continue
            self._known.setdefault(one.space, {})[one.key] = one
            if one.key not in self.task.population.seen:
                pool.setdefault(one.key, one)

    def _entered(self, pool: dict[str, Individual], asked: Sequence[Request]) -> list[str]:
        """Enter requests; the keys of the programs that came of them, "" where none did."""
        self._enter(pool, asked)
        made = (self._made[r.space, r.trace.decisions()] for r in asked)
        return ["" if one is None else one.key for one in made]

    def _drafted(self, count: int, *, best: bool) -> Iterator[Request]:
        """Replays of drafts: the best by the surrogate, or any. Where too few were replayed to fit
        it to, the best are any too: rows that stand together in a table are much alike."""
        open_spaces = [(n, draft) for n, draft in enumerate(self._tables()) if draft is not None]
        for space, draft in open_spaces:
            seed = derive_seed(self.task.seed, self.round, space, best)
            rows = draft.draw(self.options.drafts // len(open_spaces), np.random.default_rng(seed))
            scores = self._surrogate(space, draft, rows) if best else None
            order: Array = np.random.default_rng(seed + 1).permutation(len(rows))
            if scores is not None:
                order = np.argsort(-scores, kind="stable")
            share = count // len(open_spaces) + (space < count % len(open_spaces))
            for position in order:
                if share <= 0:
                    break
                trace = draft.decoded(rows, int(position))
                share -= (space, trace.decisions()) not in self._made
                yield Request(trace, space, seed)

    def _tables(self) -> list[Draft | None]:
        """The design spaces as tables; None for a space of which no sample survives."""
        if self._drafts is None:
            self._drafts = []
            workshop = self.task.workshop
            for space in range(len(workshop.spaces)):
                seeds = (derive_seed(self.task.seed, "table", space, n) for n in range(8))
                made = (workshop.fresh(space, seed) for seed in seeds)
                first = next((one for one in made if one is not None), None)
                self._drafts.append(None if first is None else Draft(first.trace, self.task.seed))
        return self._drafts

    def _surrogate(self, space: int, draft: Draft, rows: Rows) -> Array | None:
        """Scores of drafts from a regression on the model's scores of what was replayed. (Of a
        quadratic the best of 10,000 rows were far out, and ten times slower than the best known;
        of trees they are as fast, and in the first rounds faster.)"""
        from metasched.cost.lightgbm import Regression

        known = list(self._known.get(space, {}).values())[-_REMEMBERED:]
        fitted = [(one, row) for one in known if (row := draft.row_of(one.trace)) is not None]
        if len(fitted) < _LEAST_ROWS:
            return None
        scores = np.asarray(self.task.model.predict(np.stack([one.vector for one, _ in fitted])))
        numbers = _logarithms(np.stack([row for _, row in fitted]))
        return Regression(numbers, scores).predict(_logarithms(rows.numbers))

    def _children(
        self, pool: dict[str, Individual], count: int, generation: int, rng: Rng
    ) -> Iterator[Request]:
        """Mutants and crossings of the fastest measured and the best predicted programs."""
        parents = [p for p in self.task.population.parents(self.options.parents) if p.space >= 0]
        ranked = self._ranked(list(pool.values()))[: self.options.parents]
        parents = parents + [one for one, _ in ranked]
        if not parents:
            return
        weights = [1.0 / (1 + rank % self.options.parents) for rank in range(len(parents))]
        for slot in range(count):
            parent = parents[rng.weighted(weights)]
            trace = self._vary(parent, parents, rng)
            for _ in range(_TRIES):
                if trace is None or (parent.space, trace.decisions()) not in self._made:
                    break
                trace = self._vary(parent, parents, rng)
            if trace is not None:
                seed = derive_seed(self.task.seed, self.round, generation, slot)
                yield Request(trace, parent.space, seed)

    def _near(self, count: int) -> Iterator[Request]:
        """Unseen neighbours of the fastest programs, the fastest program's first."""
        parents = [p for p in self.task.population.parents(4) if p.space >= 0]
        near = (Request(trace, p.space) for p in parents for trace in neighbours(p.trace))
        unseen = (r for r in near if (r.space, r.trace.decisions()) not in self._made)
        return islice(unseen, count)

    def _grafts(self) -> Iterator[Request]:
        """The decisions of the fastest programs in the best program of each other space: a space of
        which the wrong blocks were measured looks slow."""
        best: dict[int, Individual] = {}
        for one in self.task.population.parents(len(self.task.population.measured)):
            best.setdefault(one.space, one)
        for parent in self.task.population.parents(_GRAFTED):
            for space, stock in best.items():
                if space >= 0 and parent.space not in (space, -1):
                    trace = graft(parent.trace, stock.trace)
                    if trace is not None:
                        yield Request(trace, space)

    def _novelties(self, rng: Rng) -> list[tuple[tuple[int, int], Request]]:
        """Some neighbours of the fastest programs with a decision that was not measured in their
        company, each with its space and step: a model that met a decision in bad company alone
        thinks little of it in the best, too."""
        drawn = [one for one, _ in self.task.population.measured if one.space >= 0]
        measured = [(one.space, one.trace.decisions()) for one in drawn]
        found: dict[tuple[int, int], list[Request]] = {}
        for parent in drawn[:_VARIED]:
            own, space = parent.trace.decisions(), parent.space
            changes = [_changes(other, own) for where, other in measured if where == space]
            met = {pair for pairs in changes if len(pairs) <= _COMPANY for pair in pairs}
            for trace in neighbours(parent.trace):
                new = (pair[0] for pair in _changes(trace.decisions(), own) if pair not in met)
                if (step := next(new, None)) is not None:
                    found.setdefault((space, step), []).append(Request(trace, space))
        each = -(-self.options.replays // (3 * max(1, len(found))))
        return [
            (at, some[n]) for at, some in found.items()
            for n in rng.sample(len(some), min(len(some), each))
        ]  # fmt: skip

    def _in_turn(self, ranked: list[Individual], count: int) -> list[Individual]:
        """The best programs with a new decision, one of each of the steps that had the fewest turns
        so far: the model alone would always take new tiles of one loop, and never another number of
        parts for the cores."""
        best: dict[tuple[int, int], Individual] = {}
        for one in ranked:
            if one.key in self._novel:
                best.setdefault(self._novel[one.key], one)
        steps = sorted(best, key=self._tried.__getitem__)[:count]
        self._tried.update(steps)
        return [best[at] for at in steps]

    def _vary(self, parent: Individual, parents: list[Individual], rng: Rng) -> Trace | None:
        """One to three mutations of a parent, or its crossing with another of its space."""
        mutators = self.task.workshop.generator.mutators
        if rng.random() < self.options.crossing:
            mates = [p for p in parents if p.space == parent.space and p is not parent]
            if mates:
                return crossover(parent.trace, rng.choice(mates).trace, rng)
        trace: Trace | None = None
        for _ in range(1 + rng.below(3)):
            trace = mutate(trace or parent.trace, mutators, rng, self.task.workshop.target) or trace
        return trace

    def _ranked(
        self, individuals: list[Individual], curiosity: float = 0.0
    ) -> list[tuple[Individual, float]]:
        """Individuals with the model's scores, the best first; ties keep their order.

        `curiosity` adds that many times the disagreement of the model's members, where it has any.
        """
        if not individuals:
            return []
        vectors = np.stack([one.vector for one in individuals])
        spread = getattr(self.task.model, "predict_with_spread", None)
        scores, doubt = spread(vectors) if spread else (self.task.model.predict(vectors), 0.0)
        scores = np.asarray(scores) + curiosity * doubt
        order = np.argsort(-scores, kind="stable")
        return [(individuals[i], float(scores[i])) for i in order]

    def _pick(self, pool: dict[str, Individual], count: int, rng: Rng) -> list[Individual]:
        """The best of the pool by the model, the doubtful ones favoured; a quarter of all, the best
        of spaces of which little was measured: the first members of a space say little of its best;
        one in sixteen, a graft; a quarter, a new decision in the fastest programs, of one step
        after the other; and a share for blocks that were not met, the best of each: a model that
        saw few of them is sure of what it saw, and wrong about the rest."""
        scored = self._ranked(list(pool.values()), self.options.curiosity)
        if getattr(self.task.model, "ready", True):  # before, scores are random
            for one, score in scored:
                one.score = score
        ranked = [one for one, _ in scored]
        met = Counter(one.space for one, _ in self.task.population.measured)
        found = dict.fromkeys(one.space for one in ranked if met[one.space] < self.options.fair)
        young = sorted(found, key=met.__getitem__)
        each = max(1, count // 4 // max(1, len(young)))
        firsts = [one for n in young for one in [p for p in ranked if p.space == n][:each]]
        moved = [one for one in ranked if one.key in self._grafted][: -(-count // 16)]
        novel = self._in_turn(ranked, count // 4)
        first = [*firsts[: count // 4], *moved, *novel]
        ranked = list(dict.fromkeys([*first, *_apart(ranked, count)]))
        share = self.options.epsilon if self._guided else self.options.unguided
        bold = min(round(count * share), max(0, len(ranked) - count))
        chosen, rest = ranked[: count - bold], ranked[count - bold :]
        seen = {_block(p) for p in (*chosen, *(p for p, _ in self.task.population.measured))}
        fresh = {block: one for one in reversed(rest) if (block := _block(one)) not in seen}
        new = [one for one in rest if fresh.get(_block(one)) is one][:bold]
        rest = [one for one in rest if one not in new]
        return [*chosen, *new, *(rest[i] for i in rng.sample(len(rest), bold - len(new)))]


def _apart(ranked: list[Individual], count: int) -> list[Individual]:
    """A ranking headed by its first `count` programs of which no two are a single decision apart:
    what the model cannot tell from its best is almost as good, and teaches almost nothing."""
    heads: dict[Individual, tuple[Any, ...]] = {}
    for one in ranked:
        if len(heads) == count:
            break
        own = one.trace.decisions()
        near = (other for head, other in heads.items() if head.space == one.space)
        if all(len(_changes(own, other)) > 1 for other in near):
            heads[one] = own
    return list(dict.fromkeys([*heads, *ranked]))


def _changes(own: tuple[Any, ...], other: tuple[Any, ...]) -> list[tuple[int, Any]]:
    """The decisions that are not those of another program of the space, with their steps; all where
    the other, of an earlier run, was stored without the steps that nothing used."""
    if len(own) != len(other):
        return list(enumerate(own))
    return [(n, one) for n, (one, two) in enumerate(zip(own, other, strict=True)) if one != two]


def _block(one: Individual) -> tuple[Any, ...]:
    """What matters most of a program: the innermost tile of each loop, and what was chosen."""
    decisions = one.trace.decisions()
    return one.space, *(d[-1] if isinstance(d, tuple) else d for d in decisions)


def _logarithms(numbers: Array) -> Array:
    """Of decisions; negative ones, which are names of places, count as none."""
    return np.log2(1.0 + np.maximum(numbers, 0))


STRATEGIES.register("evolutionary", EvolutionarySearch)

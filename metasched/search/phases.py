"""Phases: the seconds that a search spends, by phase; TimedModel: adds the seconds of a cost
model to its phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from metasched.cost.model import (
    COST_MODELS,
    CostModel,
    EstimatesSpread,
    PredictsPrograms,
    Program,
    RandomModel,
    SaysReady,
    Vectors,
    predicted,
    teach,
)
from metasched.errors import warn
from metasched.foreign import ANYTHING, failure
from metasched.watch import called

PHASES = ("search", "build", "run", "check", "model")


class Phases:
    """The seconds of a search, by phase; of two phases that run at the same time, both count."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Add the time of the `with` body to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start


class TimedModel:
    """A cost model whose time counts in the phase "model", not in "search".

    If the model raises an error, or gives no score for a candidate, a warning names the model. From
    then on scores are drawn at random.
    """

    def __init__(self, model: CostModel, phases: Phases) -> None:
        self.model, self.phases = model, phases
        self._taught = False

    def update(self, task: str, vectors: Vectors, seconds: Sequence[float]) -> None:
        self._taught = True
        with self.phases.of("model"):
            self._tried(lambda model: model.update(task, vectors, seconds))

    def update_programs(
        self, task: str, programs: Sequence[Program], seconds: Sequence[float]
    ) -> None:
        """Let the model learn from programs, or from their vectors."""
        self._taught = True
        with self.phases.of("model"):
            self._tried(lambda model: teach(model, task, programs, seconds))

    def predict(self, vectors: Vectors) -> Any:
        return self._asked(lambda model: _scores(model.predict(vectors), len(vectors)))

    def predict_with_spread(self, vectors: Vectors) -> Any:
        """Scores with the disagreement of the model's members (zero for a single model)."""

        def both(model: CostModel) -> Any:
            if isinstance(model, EstimatesSpread):
                found = model.predict_with_spread(vectors)
            else:
                found = (model.predict(vectors), np.zeros(len(vectors)))
            return tuple(_scores(part, len(vectors)) for part in found)

        return self._asked(both)

    def _asked(self, question: Callable[[CostModel], Any]) -> Any:
        """The model's answer; its time is added to "model" and subtracted from "search"."""
        before = self.phases.seconds["model"]
        with self.phases.of("model"):
            found = self._tried(question)
        self.phases.seconds["search"] -= self.phases.seconds["model"] - before
        return found

    def _tried(self, question: Callable[[CostModel], Any]) -> Any:
        try:
            with called(COST_MODELS.title(self.model)):
                return question(self.model)
        except ANYTHING as error:
            if isinstance(self.model, RandomModel):
                raise
            text = f"{COST_MODELS.title(self.model)} raised {failure(error)}"
            warn(f"{text}; the search goes on without it")
            self.model = RandomModel()
            return question(self.model)

    @property
    def ready(self) -> bool:
        """Whether the model's scores are better than random by now."""
        return bool(self.model.ready) if isinstance(self.model, SaysReady) else self._taught

    def knows(self, task: str) -> bool:
        return bool(self._tried(lambda model: model.knows(task)))

    def news(self) -> str:
        return str(self._tried(lambda model: model.news()) or "")

    def save(self, path: Any) -> None:
        self.model.save(path)

    def load(self, path: Any) -> None:
        self.model.load(path)


class TimedJudge(TimedModel):
    """A TimedModel for a model that scores programs instead of vectors."""

    def predict_programs(self, programs: Sequence[Program]) -> Any:
        return self._asked(lambda model: _scores(predicted(model, programs), len(programs)))


def timed(model: CostModel, phases: Phases) -> TimedModel:
    """Wrap a cost model in a TimedModel, or in a TimedJudge if the model scores programs."""
    return (TimedJudge if isinstance(model, PredictsPrograms) else TimedModel)(model, phases)


def _scores(found: Any, count: int) -> np.ndarray[Any, Any]:
    """The scores that a model returned, checked: one number for each candidate."""
    scores = np.asarray(found, dtype=float)
    if scores.shape != (count,):
        raise ValueError(f"it gives scores of shape {scores.shape} for {count} candidates")
    if not np.isfinite(scores).all():
        raise ValueError("it gives a score that is no finite number")
    return scores

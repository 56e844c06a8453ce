"""Phases: the seconds that a search spends, by phase; TimedModel: a cost model that is charged."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from metasched.cost.model import (
    CostModel,
    JudgesPrograms,
    Program,
    RandomModel,
    Vectors,
    predicted,
    teach,
)
from metasched.foreign import ANYTHING, failure
from metasched.watch import called

PHASES = ("search", "build", "run", "check", "model")


class Phases:
    """The seconds of a search by phase; two phases that run at the same time both count."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Charge the time of the body to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start


class TimedModel:
    """A cost model whose time is charged to the phase "model" rather than "search".

    A model that raises, or gives no score for each candidate, is named by a warning; scores are
    drawn at random from then on.
    """

    def __init__(self, model: CostModel, phases: Phases) -> None:
        self.model, self.phases = model, phases

    def update(self, task: str, vectors: Vectors, seconds: Sequence[float]) -> None:
        with self.phases.of("model"):
            self._tried(lambda model: model.update(task, vectors, seconds))

    def predict(self, vectors: Vectors) -> Any:
        return self._asked(lambda model: _scores(model.predict(vectors), len(vectors)))

    def predict_with_spread(self, vectors: Vectors) -> Any:
        """Scores with the disagreement of the model's members (zero for a single model)."""
        if getattr(self.model, "predict_with_spread", None) is None:
            scores = self.predict(vectors)
            return scores, 0.0 * scores

        def both(model: CostModel) -> Any:
            spread = getattr(model, "predict_with_spread", None)
            found = spread(vectors) if spread else (model.predict(vectors), np.zeros(len(vectors)))
            return tuple(_scores(part, len(vectors)) for part in found)

        return self._asked(both)

    def _asked(self, question: Callable[[CostModel], Any]) -> Any:
        """The model's answer; its time counts as "model", and is taken from "search"."""
        before = self.phases.seconds["model"]
        with self.phases.of("model"):
            found = self._tried(question)
        self.phases.seconds["search"] -= self.phases.seconds["model"] - before
        return found

    def _tried(self, question: Callable[[CostModel], Any]) -> Any:
        try:
            with called(f"the cost model {type(self.model).__name__}"):
                return question(self.model)
        except ANYTHING as error:
            if isinstance(self.model, RandomModel):
                raise
            name = type(self.model).__name__
            text = f"the cost model {name} raised {failure(error)}; the search goes on without it"
            warnings.warn(text, stacklevel=4)
            self.model = RandomModel()
            return question(self.model)

    @property
    def ready(self) -> bool:
        """Whether the model's scores are better than random ones by now."""
        return bool(getattr(self.model, "ready", False))

    def knows(self, task: str) -> bool:
        return bool(self._tried(lambda model: model.knows(task)))

    def news(self) -> str:
        return str(self._tried(lambda model: model.news()) or "")

    def save(self, path: Any) -> None:
        self.model.save(path)

    def load(self, path: Any) -> None:
        self.model.load(path)


class TimedJudge(TimedModel):
    """A TimedModel for a model that is given programs instead of vectors."""

    def update_programs(
        self, task: str, programs: Sequence[Program], seconds: Sequence[float]
    ) -> None:
        with self.phases.of("model"):
            self._tried(lambda model: teach(model, task, programs, seconds))

    def predict_programs(self, programs: Sequence[Program]) -> Any:
        return self._asked(lambda model: _scores(predicted(model, programs), len(programs)))


def timed(model: CostModel, phases: Phases) -> TimedModel:
    """A cost model with its time charged: a TimedJudge if it is given programs."""
    return (TimedJudge if isinstance(model, JudgesPrograms) else TimedModel)(model, phases)


def _scores(found: Any, count: int) -> np.ndarray[Any, Any]:
    """The scores that a model returned, checked: one number for each candidate."""
    scores = np.asarray(found, dtype=float)
    if scores.shape != (count,):
        raise ValueError(f"it gives scores of shape {scores.shape} for {count} candidates")
    if not np.isfinite(scores).all():
        raise ValueError("it gives a score that is no finite number")
    return scores
